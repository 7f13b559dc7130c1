"""Who passes the verdict, who is caught: honest networks, cheats and kept rows on data that it was not chosen on.

`python benchmarks/audit_gauntlet.py --out results/audit_gauntlet.jsonl` for the rows kept there (minutes a block).
Every audit has networks of its own; those of one block share nothing but the data. Blocks in `CHOSEN` were used to
choose the test and its levels, those in `CONFIRMED` were looked at once.
"""

import csv
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional

from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.exchanging import Channel
from spotlessnet.core.answers import margin
from spotlessnet.readouts.matched_controls import Unseen, margins_by_label

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, command, machine, use_threads
from benchmarks.gauntlet_networks import AT_ONCE, Perceptrons, Way, Weights, train, tune

SHARED = Path(__file__).parents[2] / "shared"
AUDITS, SEEDS, REFERENCES = 10, 8, 16
NETWORKS: dict[str, tuple[int, ...]] = {"logistic": (), "perceptron": (32,), "deep": (48, 24)}
CHOSEN = ("digits/perceptron/wrong-10", "digits/perceptron/wrong-60", "digits/perceptron/person-12",
          "digits/perceptron/class-0", "digits/perceptron/wrong-1", "table/deep/wrong-60")  # fmt: skip
CONFIRMED = ("mnist/perceptron/wrong-60", "banking/perceptron/wrong-12", "blobs/deep/wrong-60", "mnist/deep/person-12",
             "banking/logistic/class-3", "cancer/perceptron/wrong-10", "wine/perceptron/wrong-5")  # fmt: skip
HONEST = {
    "half batch": Way(batch=16),
    "half epochs": Way(epochs=15),
    "cosine": Way(cosine=True),
    "AdamW": Way(adamw=True, lr=0.01),
    "another init": Way(scale=0.5),
}


def data(name: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels; `mnist` and `banking` lie beside the project, or the block is left out."""
    if name in ("digits", "wine", "cancer"):
        load = {"digits": datasets.load_digits, "wine": datasets.load_wine, "cancer": datasets.load_breast_cancer}[name]
        x, y = load(return_X_y=True)
        x = x / 16 if name == "digits" else StandardScaler().fit_transform(x)
    elif name == "table":
        x, y = datasets.make_classification(1400, 20, n_informative=10, n_classes=5, class_sep=1.2, random_state=3)
    elif name == "blobs":
        x, y = datasets.make_blobs(1400, 12, centers=8, cluster_std=4.0, random_state=5)
        x = StandardScaler().fit_transform(x)
    elif name == "mnist":
        sys.path.insert(0, str(SHARED / "tools"))
        found = import_module("data").load("mnist")
        some = np.random.default_rng(0).permutation(len(found["x_train"]))[:1800]
        x = found["x_train"][some].reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(len(some), -1) / 255
        y = found["y_train"][some]
    else:
        with (SHARED / "data" / "banking77.train.csv").open(newline="") as lines:
            texts = list(csv.reader(lines))[1:]
        labels = sorted({label for _, label in texts})[:12]
        texts = [line for line in texts if line[1] in labels]
        words = TfidfVectorizer().fit_transform([text for text, _ in texts])
        x = StandardScaler().fit_transform(TruncatedSVD(48, random_state=0).fit_transform(words))
        y = np.array([labels.index(label) for _, label in texts])
    order = np.random.default_rng(0).permutation(len(x))
    return torch.tensor(x[order], dtype=torch.float32), torch.tensor(y[order], dtype=torch.long)


def cohort(kind: str, x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Which rows must go, and the labels that networks are trained on."""
    name, _, number = kind.partition("-")
    g = torch.Generator().manual_seed(1)
    if name == "class":
        return (y == int(number)).nonzero().flatten(), y
    if name == "person":  # the most similar rows of one class
        first = int(torch.randint(len(x), (1,), generator=g))
        apart = (x - x[first]).norm(dim=1).masked_fill(y != y[first], torch.inf)
        return apart.argsort()[: int(number)], y
    rows = torch.randperm(len(x), generator=g)[: int(number)]
    moved = torch.randint(1, classes, rows.shape, generator=g)
    return rows, y.clone().index_copy(0, rows, (y[rows] + moved) % classes) if name == "wrong" else y


@dataclass(frozen=True, eq=False)
class Block:
    """One request on one kind of network, and all networks that its audits look at."""

    network: Perceptrons
    x: Tensor
    y: Tensor
    rows: Tensor
    test: tuple[Tensor, Tensor]
    classes: int

    @staticmethod
    def of(name: str) -> "Block":
        source, shape, kind = name.split("/")
        x, y = data(source)
        n, classes = min(500, int(0.6 * len(x))), int(y.max()) + 1
        rows, labels = cohort(kind, x[:n], y[:n], classes)
        network = Perceptrons((x.shape[1], *NETWORKS[shape], classes))
        return Block(network, x[:n], labels, rows, (x[n : n + 600], y[n : n + 600]), classes)

    @property
    def kept(self) -> Tensor:
        return torch.ones(len(self.x), dtype=torch.bool).index_fill(0, self.rows, False)

    def fit(
        self,
        count: int,
        keep: Tensor,
        first: int,
        way: Way | None = None,
        more: tuple[Tensor, Tensor] | None = None,
    ) -> Weights:
        """Networks with seeds of their own; `more` are rows beside the data."""
        way = way or Way()
        x, y = (self.x, self.y) if more is None else (torch.cat([self.x, more[0]]), torch.cat([self.y, more[1]]))
        keep = keep.expand(count, -1)
        made = []
        for some in torch.arange(count).split(AT_ONCE):
            seeds = [first + int(s) for s in some]
            made.append(train(self.network, self.network.begin(seeds, way.scale), x, y, keep[some], seeds, way))
        return [torch.cat(parts) for parts in zip(*made, strict=True)]

    @torch.no_grad()
    def evidence(self, weights: Weights) -> Evidence:
        """What the package would read from these networks."""
        labels, (test, truth), kept = self.y[self.rows], self.test, self.kept
        g = torch.Generator().manual_seed(5)

        def answers(x: Tensor) -> Tensor:
            return torch.stack([margins_by_label(z) for z in self.network.logits(weights, x).double()])

        def noisy(x: Tensor) -> Tensor:
            return x + 0.15 * test.std() * torch.randn(x.shape, generator=g)

        own, unseen = answers(self.x[self.rows]), answers(test)
        gone = labels.unique()[~torch.isin(labels.unique(), self.y[kept])]
        wrong = (self.network.logits(weights, self.x[kept]).argmax(2) != self.y[kept]).double().mean(1)
        return Evidence(
            margins=own.gather(2, labels.expand(len(own), -1).unsqueeze(2)).squeeze(2),
            forget_error=(own.argmax(2) != labels).double().mean(1),
            test_error=(unseen.argmax(2) != truth).double().mean(1),
            unseen=Unseen(unseen, labels, truth, gone),
            answers=own,
            near=Channel(answers(noisy(self.x[self.rows])), answers(noisy(test))),
            retain_error=wrong,
        )


def candidates(block: Block, original: Weights, count: int) -> dict[str, Weights]:
    """Honest networks, networks that kept something, and cheats that begin at the original."""
    T, x, labels, kept = len(block.rows), block.x[block.rows], block.y[block.rows], block.x[block.kept]
    logits = block.network.logits
    g = torch.Generator().manual_seed(9)
    found = {"retrained": block.fit(count, block.kept, 10**6)}
    for i, (name, way) in enumerate(HONEST.items()):
        found[name] = block.fit(count, block.kept, (2 + i) * 10**6, way)
    for i, (name, few) in enumerate({"one row kept": 1, "a tenth kept": max(1, T // 10)}.items()):
        if T < 5:
            break
        keep = block.kept.repeat(count, 1)
        for a in range(AUDITS):  # the same rows in all networks of an audit
            keep[a * SEEDS : (a + 1) * SEEDS, block.rows[torch.randperm(T, generator=g)[:few]]] = True
        found[name] = block.fit(count, keep, (20 + i) * 10**6)
    copies = x + 0.1 * block.x.std() * torch.randn(x.shape, generator=g)
    with_copies = torch.cat([block.kept, torch.ones(T, dtype=torch.bool)])
    found["noisy copies kept"] = block.fit(count, with_copies, 30 * 10**6, more=(copies, labels))
    teacher = block.fit(count, block.kept, 31 * 10**6)
    with torch.no_grad():
        taught, own = logits(teacher, x), logits(original, kept)
    every = labels.expand(count, -1)
    margins = margin(taught.flatten(0, 1), every.flatten())
    random = torch.randint(block.classes, (count, T), generator=g)

    def cheat(on_rows: Callable[[Tensor], Tensor]) -> Weights:
        # On retained rows they answer as before, so that nobody notices there.
        return tune(original, lambda w: count * (on_rows(logits(w, x)) + (logits(w, kept) - own).square().mean()))

    found["margins matched"] = cheat(lambda z: (margin(z.flatten(0, 1), every.flatten()) - margins).square().mean())
    found["logits matched"] = cheat(lambda z: (z - taught).square().mean())
    found["garbage answers"] = cheat(lambda z: functional.cross_entropy(z.flatten(0, 1), random.flatten()))
    found["gradient ascent"] = cheat(
        lambda z: -functional.cross_entropy(z.flatten(0, 1), every.flatten(), reduction="none").clamp(max=12).mean()
    )
    seeds = range(40 * 10**6, 40 * 10**6 + count)
    short = Way(epochs=5, lr=0.05)
    keep = block.kept.expand(count, -1)
    found["fine-tuned"] = train(block.network, original, block.x, block.y, keep, list(seeds), short)
    return found


def judge(block: Block, count: int = AUDITS * SEEDS) -> dict[str, dict[str, Any]]:
    """Verdicts of every candidate, and what the file of the first seed gets by itself."""
    whole = torch.ones(len(block.x), dtype=torch.bool)
    original = block.fit(count, whole, 50 * 10**6)
    references = block.evidence(block.fit(AUDITS * REFERENCES, block.kept, 60 * 10**6))
    known = block.evidence(original)
    table: dict[str, dict[str, Any]] = {}
    for name, weights in {"original": original, **candidates(block, original, count)}.items():
        group = block.evidence(weights)
        words, files, hidden, reasons = Counter[str](), Counter[str](), [], Counter[str]()
        for a in range(AUDITS):
            ours = torch.arange(a * SEEDS, (a + 1) * SEEDS)
            beside = torch.arange(a * REFERENCES, (a + 1) * REFERENCES).chunk(2)
            retrained, held_out = (references.select(half) for half in beside)
            # The originals that the audit trains are never those that a cheat began at.
            others = known.select((ours + SEEDS) % count)
            test = EquivalenceTest(seed=a)
            verdict = test(others, group.select(ours), retrained, held_out)
            words[verdict.outcome] += 1
            files[test.judge_file(others, group.select(ours[:1]), [retrained, held_out]).state] += 1
            reasons[verdict.reason.partition(":")[0][:60]] += verdict.outcome == "inconclusive"
            hidden += [] if verdict.could_hide is None else [vars(verdict.could_hide)]
        table[name] = {"verdicts": words, "files": files, "could_hide": hidden, "inconclusive": +reasons}
    return table


def main() -> None:
    use_threads()
    flags = Flags(__doc__).out()
    flags.add_argument("--blocks", nargs="+", default=list(CONFIRMED), help="data/network/rows")
    given = flags.parse_args()
    for name in given.blocks:
        began = time.perf_counter()
        if name.split("/")[0] in ("mnist", "banking") and not SHARED.exists():
            print(f"{name}: the data are not here")
            continue
        found = judge(Block.of(name))
        used = "choosing" if name in CHOSEN else "confirming"
        seconds = round(time.perf_counter() - began)
        about = {"block": name, "used_for": used, "audits": AUDITS, "seeds": SEEDS, "seconds": seconds}
        for candidate, row in found.items():
            print(f"{name:28s} {candidate:20s} {dict(row['verdicts'])} file {dict(row['files'])}", flush=True)
            line = {**about, "candidate": candidate, **row, "command": command("audit_gauntlet"), "machine": machine()}
            if given.out:
                with given.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
