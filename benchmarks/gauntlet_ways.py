"""Would more ways of asking catch more? Those that the audit leaves out, asked beside those that it has.

    python benchmarks/gauntlet_ways.py --audits 6 --out results/gauntlet-ways.jsonl
    python benchmarks/gauntlet_ways.py --audits 0  # renews the page alone

Networks that were tuned until they answer as retrained ones, and networks that kept a row, are judged as the audit
does, then with each further way in the same joint test, then with all of them. Settings are of those that the test was
chosen on. One row for each audit; `summary` counts them for `docs/reading_the_report.md`.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.audit_gauntlet import CHOOSING
from benchmarks.common import Flags, Place, command, machine
from benchmarks.gauntlet_candidates import Audits, Setting
from benchmarks.gauntlet_judges import Own, looked
from benchmarks.gauntlet_networks import RECIPES, answers

from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.exchanging import Channel
from spotlessnet.core.progress import quiet
from spotlessnet.readouts.matched_controls import drawn, margins_by_label
from spotlessnet.training.fit_many import fit_many

SETTINGS = (
    "digits/perceptron/wrong-12", "table/deep/wrong-60", "digits/deep/some-60", "wine/perceptron/some-12",
    "digits/perceptron/person-12@3", "table/perceptron/person-12@2",
)  # fmt: skip
TUNED = ("margins matched", "logits matched")
HONEST = ("retrained", "half batch")
CANDIDATES = (*HONEST, "original", "one row kept", *TUNED)
WORDS = ("forgotten", "inconclusive", "not forgotten")
EPOCHS = 2
"""Of relearning half of the forgotten rows."""

ROOT = Path(__file__).parents[1]
ROWS, PAGE = ROOT / "results" / "gauntlet-ways.jsonl", ROOT / "docs" / "reading_the_report.md"
PLACE = Place.of("gauntlet_ways", "end of the ways")

Group = Tensor
"""Networks of one audit by their weights, `[networks, weights]`."""


def in_bits(setting: Setting, group: Group, bits: int) -> Group:
    """Weights rounded as an export would, one scale for each tensor of a network."""
    most = 2 ** (bits - 1) - 1
    parts = group.split([shape.numel() for shape in setting.trained.shapes], dim=1)
    scales = [part.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / most for part in parts]
    return torch.cat([(part / scale).round() * scale for part, scale in zip(parts, scales, strict=True)], dim=1)


def asked(setting: Setting, group: Group, rows: Tensor, controls: Tensor) -> Channel:
    """Margins of every label, of rows and of controls."""
    with torch.no_grad():
        both = answers(setting.trained, group, torch.cat([rows, controls]))
    found = torch.stack([margins_by_label(logits.double()) for logits in both])
    return Channel(*found.double().split([len(rows), len(controls)], dim=1))


def halves(setting: Setting, group: Group, rows: Tensor, controls: Tensor) -> Channel:
    """Relearn each half of the forgotten rows, read the other half."""
    recipe = RECIPES[setting.kind].but(epochs=EPOCHS)
    order = torch.arange(len(rows))
    found = []
    for half in (0, 1):
        keep = torch.zeros(len(setting.x), dtype=torch.bool)
        keep[setting.rows[order % 2 == half]] = True
        taught = fit_many(setting.trained, setting.everything.select(torch.arange(len(keep))), recipe,
                          seeds=[0] * len(group), keep=keep.expand(len(group), -1), starts=group)  # fmt: skip
        found.append(asked(setting, taught, rows, controls))
    of_first = (order % 2 == 0).reshape(1, -1, 1)
    return Channel(torch.where(of_first, found[1].rows, found[0].rows), found[0].controls)


def mixtures(setting: Setting, group: Group, rows: Tensor, controls: Tensor) -> Channel:
    """Each row half mixed with a retained one."""
    kept = setting.x[setting.kept]
    some = torch.randint(len(kept), (len(rows) + len(controls),), generator=torch.Generator().manual_seed(0))
    with_rows, with_controls = kept[some].split([len(rows), len(controls)])
    return asked(setting, group, (rows + with_rows) / 2, (controls + with_controls) / 2)


def by_input(setting: Setting, group: Group, rows: Tensor, controls: Tensor) -> Channel:
    """How steeply the margin of every label rises with the input, as a logarithm."""
    x = torch.cat([rows, controls])
    found = []
    for one in group.unsqueeze(1):
        there = x.clone().requires_grad_(True)
        heights = margins_by_label(answers(setting.trained, one, there)[0].double()).sum(dim=0)
        slopes = [torch.autograd.grad(height, there, retain_graph=True)[0].flatten(1).norm(dim=1) for height in heights]
        found.append(torch.stack(slopes, dim=1))
    return Channel(*torch.stack(found).clamp(min=1e-12).log().double().split([len(rows), len(controls)], dim=1))


def by_weights(setting: Setting, group: Group, rows: Tensor, controls: Tensor) -> Channel:
    """How steeply the loss of every label rises with the weights, example by example, as a logarithm."""
    trained, x, C = setting.trained, torch.cat([rows, controls]), setting.classes

    def loss(weights: Tensor, one: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(trained.model, trained.unflatten(weights), (one.unsqueeze(0),))[0]
        return -logits.log_softmax(dim=0).gather(0, label.unsqueeze(0))[0]

    slope = vmap(lambda w, z, y: grad(loss)(w, z, y).norm(), in_dims=(None, 0, None))
    found = [torch.stack([slope(w, x, torch.tensor(y)) for y in range(C)], dim=1) for w in group]
    return Channel(*torch.stack(found).clamp(min=1e-12).log().double().split([len(rows), len(controls)], dim=1))


WAYS: dict[str, Callable[[Setting, Group, Tensor, Tensor], Channel]] = {
    "half relearnt": halves,
    "8 bits": lambda s, g, rows, controls: asked(s, in_bits(s, g, 8), rows, controls),
    "4 bits": lambda s, g, rows, controls: asked(s, in_bits(s, g, 4), rows, controls),
    "mixtures": mixtures,
    "gradients by the input": by_input,
    "gradients by the weights": by_weights,
}


def further(setting: Setting, groups: Tensor, seen: Sequence[Evidence]) -> list[Evidence]:
    """The same evidence with every way that the audit leaves out."""
    tests = drawn(setting.split.tests)
    controls, rows = tests.fetch(tests.rows).x, setting.x[setting.rows]
    assert isinstance(controls, Tensor)
    return [
        replace(
            one, further={**one.further, **{name: way(setting, group, rows, controls) for name, way in WAYS.items()}}
        )
        for one, group in zip(seen, groups, strict=True)
    ]


def only(evidence: Evidence, names: Sequence[str]) -> Evidence:
    """Without the further ways but those."""
    ways = {name: channel for name, channel in evidence.further.items() if name not in WAYS or name in names}
    return replace(evidence, further=ways)


ASKED: dict[str, Sequence[str]] = {"as shipped": [], **{name: [name] for name in WAYS}, "all": list(WAYS)}
"""Which further ways are asked, by what the table calls it."""


class Judges:
    """The audit with each of these, beside the same networks."""

    def __init__(self, original: Evidence, references: Evidence, number: int) -> None:
        self.test = EquivalenceTest(seed=number)
        self.own = {
            asked: Own.of(only(original, names), only(references, names), [self.test]) for asked, names in ASKED.items()
        }

    def outcomes(self, candidate: Evidence) -> dict[str, str]:
        """By what is asked."""
        found: dict[str, str] = {}
        for asked_too, names in ASKED.items():
            own = self.own[asked_too]
            group = only(candidate, names)
            found[asked_too] = self.test(own.original, group, *own.references, gates=own.gates[0]).outcome
        return found


def read() -> list[dict[str, Any]]:
    """What was found."""
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def counts(rows: Sequence[dict[str, Any]], way: str, *names: str) -> Counter[str]:
    """Verdicts on these candidates where a way is asked too."""
    return Counter(row["outcomes"][way] for row in rows if row["candidate"] in names)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Forgotten/inconclusive/not forgotten, by candidate and by what was asked, and what follows from it."""
    audits = {(row["setting"], row["audit"]) for row in rows}
    settings = list(dict.fromkeys(name for name, _ in audits))
    lines = [f"| asked too | {' | '.join(CANDIDATES)} |", f"|---|{'---|' * len(CANDIDATES)}"]
    for way in ASKED:
        cells = ["/".join(str(counts(rows, way, name)[word]) for word in WORDS) for name in CANDIDATES]
        lines.append(f"| {'nothing' if way == 'as shipped' else way} | {' | '.join(cells)} |")
    each = len(audits) / max(1, len(settings))
    head = (
        f"In {len(settings)} of the settings that the test was chosen on ({', '.join(sorted(settings))}; {each:g} "
        f"audits each, {len(audits)} in all, with 8 pairs) each of these ways was asked beside those of the test:"
    )
    return "\n\n".join([head, "\n".join(lines), _costs(rows)])


def _costs(rows: Sequence[dict[str, Any]]) -> str:
    """What each way lets pass, catches and accuses, beside the test as it is."""

    def told(way: str) -> str:
        tuned, honest = counts(rows, way, *TUNED), counts(rows, way, *HONEST)
        return f"{tuned['forgotten']} passed, {tuned['not forgotten']} caught, {honest['not forgotten']} accused"

    tuned, honest = (sum(counts(rows, "as shipped", *names).values()) for names in (TUNED, HONEST))
    ways = "; ".join(f"{way}: {told(way)}" for way in ASKED if way != "as shipped")
    return (
        f"Of {tuned} tuned networks (*{'*, *'.join(TUNED)}*) that passed or were caught, and of {honest} honest ones "
        f"(*{'*, *'.join(HONEST)}*) that were accused: as the test is, {told('as shipped')}; {ways}."
    )


def main() -> None:
    torch.set_num_threads(1)
    flags = Flags(__doc__).out()
    flags.add_argument("--audits", type=int, default=6)
    flags.add_argument("--first", type=int, default=90_000, help="number of the first audit")
    flags.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=CHOOSING)
    given = flags.parse_args()
    about = {"command": command("gauntlet_ways"), "machine": machine()}
    for name in given.settings:
        setting = Setting.of(name)
        for number in range(given.first, given.first + given.audits):
            began, audits = time.perf_counter(), Audits(setting, [number])
            with quiet():
                made = audits.candidates()
                groups = {one: made[one]() for one in CANDIDATES if one in made}
                groups |= {one: audits.group(one) for one in ("audited originals", "references")}
                seen = {one: further(setting, group, looked(setting, group))[0] for one, group in groups.items()}
            judges = Judges(seen["audited originals"], seen["references"], number)
            for candidate in [one for one in CANDIDATES if one in seen]:
                found = judges.outcomes(seen[candidate])
                spent = round(time.perf_counter() - began, 1)
                row = {"setting": name, "audit": number, "candidate": candidate, "outcomes": found, "seconds": spent}
                print(name, number, candidate, *found.values(), spent, flush=True)
                if given.out is not None:
                    with given.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({**row, **about}) + "\n")
    if ROWS.exists():
        PLACE.write(PAGE, summary(read()))


if __name__ == "__main__":
    main()
