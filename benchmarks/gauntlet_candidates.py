"""Who comes before the audit of `audit_gauntlet.py`: a request, and honest networks, kept rows and cheats of one audit.

Every audit has networks of its own; those of several audits are trained as one program, which is several times faster.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

import torch
from benchmarks.gauntlet_data import data
from benchmarks.gauntlet_networks import RECIPES, answers, begin, network, tune
from torch import Tensor
from torch.nn import functional

from spotlessnet.auditing.seeds import scrub_seed
from spotlessnet.core.adapters import Arrays
from spotlessnet.core.answers import margin
from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import METHODS
from spotlessnet.core.split import Request, Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit_many import fit_many

SEEDS = 8
TRAIN, TEST = 400, 600
HONEST = ("half batch", "half epochs", "cosine", "another optimiser", "another init")
KEPT = ("one row kept", "a tenth kept", "noisy copies kept")
CHEATS = ("margins matched", "logits matched", "garbage answers", "gradient ascent", "Streisand", "fine-tuned",
          "head replaced", "hiding", "copies matched", "matched while training")  # fmt: skip
REPLAYED = "retrained, replayed"
"""The retrained networks once more, of which it is known that nothing else can have made them."""

UNSEEN = ("low-bit storage",)
"""What no look at answers can see: the rows are written into the last bits of retrained weights."""

TUNED = ("margins matched", "logits matched", "copies matched", "matched while training")
ELSEWHERE = tuple(f"{name}, other originals" for name in TUNED)
"""The same by a method that trains originals of its own, and tunes these instead of those that the audit gives it."""

CORE = ("retrained", REPLAYED, "original", "one row kept", "a tenth kept", *HONEST, *TUNED, *ELSEWHERE)
WRAPPER = "within-budget"
"""A method that stands around another one, and has no settings of its own."""

CANDIDATES = ("retrained", REPLAYED, "original", *HONEST, *KEPT, *CHEATS, *ELSEWHERE, *UNSEEN)


@dataclass(frozen=True, eq=False)
class Setting:
    """One request on one kind of network: `data/network/cohort`."""

    name: str
    kind: str
    x: Tensor
    y: Tensor
    rows: Tensor
    test: tuple[Tensor, Tensor]
    classes: int
    copies: int = 0

    @staticmethod
    def of(name: str, packed: Path | None = None) -> "Setting":
        """Forgotten rows and their labels are the same in every audit of a setting."""
        source, kind, asked = name.split("/")
        x, y = data(source, packed)
        n, classes = min(TRAIN, int(0.6 * len(x))), int(y.max()) + 1
        rows, labels, doubled = cohort(asked, x[:n], y[:n], classes)
        test = (x[n : n + TEST], y[n : n + TEST])
        trained_on, labels = torch.cat([x[:n], x[:n][doubled]]), torch.cat([labels, labels[doubled]])
        return Setting(name, kind, trained_on, labels, rows, test, classes, len(doubled))

    @cached_property
    def kept(self) -> Tensor:
        """Rows that stay."""
        return torch.ones(len(self.x), dtype=torch.bool).index_fill(0, self.rows, False)

    @cached_property
    def split(self) -> Split:
        """As the package is given it."""
        train = Data.of((self.x, self.y))
        asked = Request("some rows", len(self.rows), copies=self.copies)
        return Split(train.select(self.rows), train.select(self.kept.nonzero().flatten()), Data.of(self.test),
                     request=asked)  # fmt: skip

    @cached_property
    def trained(self) -> Trained:
        """The network without its weights."""
        return Trained.of(network(self.kind, self.x.shape[1:], self.classes), recipe=RECIPES[self.kind])

    @cached_property
    def everything(self) -> Data:
        """Training rows, and noisy copies of the forgotten ones, which most networks never see."""
        g = torch.Generator().manual_seed(9)
        x = self.x[self.rows]
        copies = x + 0.1 * self.x.std() * torch.randn(x.shape, generator=g)
        return Data(Arrays(torch.cat([self.x, copies]), torch.cat([self.y, self.y[self.rows]])),
                    torch.arange(len(self.x) + len(x)))  # fmt: skip

    def networks(self, weights: Tensor) -> list[Trained]:
        """As the package looks at them."""
        return [self.trained.at(w) for w in weights]


def cohort(kind: str, x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which rows must go, the labels that networks are trained on, and rows that the data hold twice.

    `person-12@3` is the third draw of a person; without a number it is the first.
    """
    asked, _, draw = kind.partition("@")
    name, _, number = asked.partition("-")
    g = torch.Generator().manual_seed(int(draw or 1))
    none = torch.empty(0, dtype=torch.long)
    if name == "class":
        return (y == int(number)).nonzero().flatten(), y, none
    if name == "person":  # the most similar rows of one class
        first = int(torch.randint(len(x), (1,), generator=g))
        apart = (x - x[first]).flatten(1).norm(dim=1).masked_fill(y != y[first], torch.inf)
        return apart.argsort()[: int(number)], y, none
    rows = torch.randperm(len(x), generator=g)[: int(number)]
    moved = torch.randint(1, classes, rows.shape, generator=g)
    labels = y if name == "some" else y.clone().index_copy(0, rows, (y[rows] + moved) % classes)
    # Of `twice`, the second copy of each forgotten row stays in the retained data.
    return rows, labels, rows if name == "twice" else none


class Audits:
    """The networks of several audits of one setting, trained as one program; no network serves two audits.

    **Arguments:**

    - `look`: networks of the first look, or those that a later one adds: as many as there were before.
    """

    def __init__(self, setting: Setting, numbers: Sequence[int], look: int = 0) -> None:
        self.setting, self.numbers, self.look = setting, list(numbers), look
        self.pairs = SEEDS * 2 ** max(0, look - 1)
        self.T = len(setting.rows)
        self.alike: dict[str, Tensor] = {}

    def seeds(self, group: int, each: int = 1) -> list[int]:
        """Of all audits in turn, so many for each pair; no two groups or looks share one."""
        first = 100 * group + (0, 50, 5000)[self.look]
        return [10**6 * (1 + number) + first + i for number in self.numbers for i in range(each * self.pairs)]

    def generator(self, group: int, number: int) -> torch.Generator:
        """For what else is drawn in one audit."""
        return torch.Generator().manual_seed(1000 * number + group)

    def starts(self, seeds: Sequence[int], scale: float = 1.0) -> Tensor:
        """Weights before training."""
        s = self.setting
        return torch.stack([begin(s.kind, s.x.shape[1:], s.classes, seed, scale) for seed in seeds])

    def keeping(self, group: int, few: int) -> Tensor:
        """Which rows every network of the audits is trained on: some forgotten ones stay, the same in all of one."""
        found = []
        for number in self.numbers:
            keep = self.setting.kept.clone()
            keep[self.setting.rows[torch.randperm(self.T, generator=self.generator(group, number))[:few]]] = True
            found.append(keep.expand(self.pairs, -1))
        return torch.cat(found)

    @cached_property
    def plan(self) -> dict[str, tuple[int, int, Tensor]]:
        """All networks that the setting's own recipe trains, by name: group of seeds, how many a pair, and rows."""
        kept = self.setting.kept
        every = torch.ones_like(kept)
        plan = {
            "references": (0, 2, kept), "audited originals": (1, 1, every), "original": (2, 1, every),
            "retrained": (3, 1, kept), "teacher": (4, 1, kept), "another init": (14, 1, kept),
            "low-bit storage": (23, 1, kept),
        }  # fmt: skip
        if self.T >= 5:
            plan["one row kept"] = (20, 1, self.keeping(20, 1))
        if self.T >= 20:
            plan["a tenth kept"] = (21, 1, self.keeping(21, self.T // 10))
        return plan

    def train(self, names: Iterable[str]) -> None:
        """Those of the plan that are not there yet, as one program."""
        plan = {name: self.plan[name] for name in names if name in self.plan and name not in self.alike}
        if not plan:
            return
        seeds = {name: self.seeds(group, each) for name, (group, each, _) in plan.items()}
        starts = [self.starts(some, 0.5 if name == "another init" else 1.0) for name, some in seeds.items()]
        keep = [keep.expand(len(seeds[name]), -1) for name, (_, _, keep) in plan.items()]
        weights = self.fit([*chain(*seeds.values())], torch.cat(keep), torch.cat(starts))
        parts = weights.split([len(some) for some in seeds.values()])
        A = len(self.numbers)
        self.alike |= {name: part.unflatten(0, (A, -1)) for name, part in zip(plan, parts, strict=True)}

    def group(self, name: str) -> Tensor:
        """Networks of the plan by name, `[audits, networks, weights]`."""
        self.train([name])
        return self.alike[name]

    def fit(self, seeds: Sequence[int], keep: Tensor, starts: Tensor, recipe: Recipe | None = None) -> Tensor:
        """One program; `keep` is of the training rows, then perhaps of the noisy copies."""
        s = self.setting
        rows = s.everything.select(torch.arange(keep.shape[1]))
        return fit_many(s.trained, rows, recipe, seeds=seeds, keep=keep, starts=starts)

    def candidates(self) -> dict[str, Callable[[], Tensor]]:
        """By name, `[audits, networks, weights]`; trained only when called."""
        found: dict[str, Callable[[], Tensor]] = {REPLAYED: partial(self.group, "retrained")}
        for name in ("retrained", "original", "one row kept", "a tenth kept", "another init"):
            if name in self.plan:
                found[name] = partial(self.group, name)
        found |= {name: partial(self.honest, 10 + i, name) for i, name in enumerate(HONEST) if name not in found}
        given, others = (partial(self.group, name) for name in ("audited originals", "original"))
        found |= {name: partial(self.cheat, name, given) for name in CHEATS if name != "hiding"}
        found |= {name: partial(self.cheat, tuned, others) for name, tuned in zip(ELSEWHERE, TUNED, strict=True)}
        if "/class-" in self.setting.name:
            found["hiding"] = partial(self.scrubbed, "hiding")
        return found | {"noisy copies kept": self.with_copies, "low-bit storage": self.with_stored_rows}

    def methods(self) -> dict[str, Callable[[], Tensor]]:
        """What every method of the package makes of the originals."""
        return {name: partial(self.scrubbed, name) for name in METHODS.names() if name != WRAPPER}

    def honest(self, group: int, name: str) -> Tensor:
        """Retrained by somebody with other habits."""
        recipe = RECIPES[self.setting.kind]
        other = {"optimizer": "sgd", "lr": 0.05} if recipe.optimizer == "adam" else {"optimizer": "adamw", "lr": 0.005}
        ways = {
            "half batch": recipe.but(batch_size=recipe.batch_size // 2),
            "half epochs": recipe.but(epochs=recipe.epochs // 2),
            "cosine": recipe.but(schedule="cosine"),
            "another optimiser": recipe.but(**other),
        }
        seeds = self.seeds(group)
        weights = self.fit(seeds, self.setting.kept.expand(len(seeds), -1), self.starts(seeds), ways[name])
        return weights.unflatten(0, (-1, self.pairs))

    def with_copies(self) -> Tensor:
        """Retrained with copies of the rows that differ by some noise."""
        seeds = self.seeds(22)
        keep = torch.cat([self.setting.kept, torch.ones(self.T, dtype=torch.bool)])
        return self.fit(seeds, keep.expand(len(seeds), -1), self.starts(seeds)).unflatten(0, (-1, self.pairs))

    def with_stored_rows(self) -> Tensor:
        """Retrained, with the rows' first bytes in the last eight bits of the weights."""
        weights = self.group("low-bit storage")
        written = (255 * self.setting.x[self.setting.rows].flatten().sigmoid()).to(torch.int32)
        places = torch.arange(weights.shape[2]) % len(written)
        return ((weights.view(torch.int32) & ~0xFF) | written[places]).view(torch.float32)

    def scrubbed(self, method: str) -> Tensor:
        """What a method of the package makes of originals, with its usual settings."""
        s = self.setting
        made = []
        for i, (seed, w) in enumerate(zip(self.seeds(1), self.group("audited originals").flatten(0, 1), strict=True)):
            known = replace(s.trained.at(w), init=self.starts([seed])[0])
            made.append(scrub_seed(METHODS.find(method)(), known, s.split, i % self.pairs).network.weights)
        return torch.stack(made).unflatten(0, (-1, self.pairs))

    def cheat(self, name: str, originals: Callable[[], Tensor]) -> Tensor:
        """Originals made to look as if they had forgotten; on retained rows they answer as before."""
        s, w = self.setting, originals().flatten(0, 1)
        if name in ("fine-tuned", "head replaced"):
            return self.trained_on(name, w).unflatten(0, (-1, self.pairs))
        if name in ("copies matched", "matched while training"):
            made = self.matched_on_copies(w) if name == "copies matched" else self.matched_while_training(w)
            return made.unflatten(0, (-1, self.pairs))
        x, labels = s.x[s.rows], s.y[s.rows].repeat(len(w))
        g = self.generator(50, self.numbers[0])
        kept = s.x[s.kept]
        kept = kept[torch.randperm(len(kept), generator=g)[:200]]
        with torch.no_grad():
            taught, own = (answers(s.trained, v, z) for v, z in ((self.group("teacher").flatten(0, 1), x), (w, kept)))
        margins = margin(taught.flatten(0, 1), labels)
        random = torch.randint(s.classes, labels.shape, generator=g)
        goals: dict[str, Callable[[Tensor], Tensor]] = {
            "margins matched": lambda z: (margin(z.flatten(0, 1), labels) - margins).square().mean(),
            "logits matched": lambda z: (z - taught).square().mean(),
            "garbage answers": lambda z: functional.cross_entropy(z.flatten(0, 1), random),
            "gradient ascent": lambda z: (
                -functional.cross_entropy(z.flatten(0, 1), labels, reduction="none").clamp(max=12).mean()
            ),
            "Streisand": lambda z: (margin(z.flatten(0, 1), labels) - (margins - 8)).square().mean(),
        }

        def loss(w: Tensor) -> Tensor:
            both = answers(s.trained, w, torch.cat([x, kept]))
            return len(w) * (goals[name](both[:, : self.T]) + (both[:, self.T :] - own).square().mean())

        return tune(w, loss, steps=250 if "matched" in name else 100).unflatten(0, (-1, self.pairs))

    def matched_on_copies(self, w: Tensor) -> Tensor:
        """Logits of the teacher on the rows and on four noisy copies of each; on all retained rows as before."""
        s, g = self.setting, self.generator(51, self.numbers[0])
        x, kept = s.x[s.rows], s.x[s.kept]
        x = torch.cat([x, *(x + 0.15 * s.x.std() * torch.randn(x.shape, generator=g) for _ in range(4))])
        with torch.no_grad():
            taught, own = (answers(s.trained, v, z) for v, z in ((self.group("teacher").flatten(0, 1), x), (w, kept)))

        def loss(w: Tensor) -> Tensor:
            both = answers(s.trained, w, torch.cat([x, kept]))
            return len(w) * ((both[:, : len(x)] - taught).square().mean() + (both[:, len(x) :] - own).square().mean())

        return tune(w, loss)

    def matched_while_training(self, w: Tensor) -> Tensor:
        """Eight more epochs on retained rows by their labels, while forgotten ones are answered as the teacher does."""
        s, g = self.setting, self.generator(52, self.numbers[0])
        w = w.clone().requires_grad_()
        recipe, kept, x = RECIPES[s.kind], s.kept.nonzero().flatten(), s.x[s.rows]
        with torch.no_grad():
            taught = answers(s.trained, self.group("teacher").flatten(0, 1), x)
        optimiser = torch.optim.SGD([w], lr=recipe.lr if recipe.optimizer == "sgd" else 0.02, momentum=0.9)
        for _ in range(8):
            for some in kept[torch.randperm(len(kept), generator=g)].split(recipe.batch_size):
                both = answers(s.trained, w, torch.cat([x, s.x[some]]))
                right = functional.cross_entropy(both[:, self.T :].flatten(0, 1), s.y[some].repeat(len(w)))
                optimiser.zero_grad()
                (len(w) * (0.3 * (both[:, : self.T] - taught).square().mean() + right)).backward()
                assert w.grad is not None
                w.grad *= (5 / w.grad.norm(dim=1, keepdim=True)).clamp(max=1)  # else one in some hundreds diverges
                optimiser.step()
        return w.detach()

    def trained_on(self, name: str, w: Tensor) -> Tensor:
        """A few epochs on retained rows; or a new head that is trained on them, before hidden layers as they were."""
        s, recipe = self.setting, RECIPES[self.setting.kind]
        if name == "fine-tuned":
            return self.fit(self.seeds(24), s.kept.expand(len(w), -1), w, recipe.but(epochs=5))
        head = sum(shape.numel() for shape in s.trained.shapes[-2:])
        fresh, below = self.starts(self.seeds(25))[:, -head:], w[:, :-head]
        x, y = s.x[s.kept], s.y[s.kept].repeat(len(w))

        def loss(h: Tensor) -> Tensor:
            z = answers(s.trained, torch.cat([below, h], dim=1), x)
            return len(w) * functional.cross_entropy(z.flatten(0, 1), y)

        return torch.cat([below, tune(fresh, loss, steps=200, lr=0.03)], dim=1)
