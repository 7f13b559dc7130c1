"""Table 1: every method under every readout, for 100 images and for a whole class.

*Eternal Sunshine of the Spotless Net*, section 5, with two methods beside those of the paper: NTK, and ours, which is
an NTK step and three epochs of fine-tuning. faces10 and faces14 stand in for Lacuna-10 and Lacuna-100.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotlessnet.auditing.comparison import Context, ReadoutOf, ScrubOf, compare
from spotlessnet.auditing.rows import Row, read_rows
from spotlessnet.core.chaining import chain
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Cohort, some_of_class, whole_class
from spotlessnet.core.trained import Trained
from spotlessnet.experiments import figures
from spotlessnet.experiments.eternal_sunshine.table_1_paper import CLASS, IMAGES, PAPER
from spotlessnet.experiments.experiment import ROWS, Sized
from spotlessnet.experiments.few import FromFew, OnFew, Remembered, Slower, WhiteBoxWithNoise
from spotlessnet.experiments.setting import STANDS_IN, Setting
from spotlessnet.methods import NTK, Finetune, Fisher, GradientAscent, Hiding, RandomLabels, Variational
from spotlessnet.operators.solvers import CG, Auto
from spotlessnet.readouts import EntropyAttack, Error, RelearnTime
from spotlessnet.training.fit import fit

__all__ = ["PAPER", "Settings", "draw", "run"]

READOUTS = (
    "error on test",
    "error on forget",
    "error on retain",
    "relearn time",
    "entropy attack, logistic",
    "information bound",
)


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """Data, network and the size of each method's work.

    **Arguments:**

    - `label`, `count`: the class, 5 in the paper, and how many of its images the smaller request names.
    - `tuning`, `finetuning`: epochs of the baselines that train on, and of the last part of ours.
    - `climb`: the rate of the negative gradient on a whole class; that of the training for `None`.
    - `fisher`, `variational`, `ntk`: the methods' own settings.
    - `curvature_rows`: retained rows that Fisher matrix and NTK are measured on; all for `None`.
    - `relearn_rows`, `relearn_rate`, `cap`: retained and forgotten rows, rate and the most epochs of relearning.
    - `attack_rows`: retained rows that the attacker learns from; all for `None`.
    - `requests`: which of the two to run.
    """

    setting: Setting
    label: int = 5
    count: int = 100
    tuning: int = 10
    finetuning: int = 3
    climb: float | None = None
    fisher: Fisher = field(default_factory=Fisher)
    variational: Variational = field(default_factory=Variational)
    ntk: NTK = field(default_factory=NTK)
    curvature_rows: int | None = None
    relearn_rows: int | None = None
    relearn_rate: float = 0.01
    cap: int = 30
    attack_rows: int | None = None
    requests: tuple[str, ...] = (IMAGES, CLASS)

    @staticmethod
    def toy(part: str) -> "Settings":
        """Digits and a small perceptron in place of any of the data sets, or of the requests that `part` names."""
        options = {"hidden": (16,)}
        recipe = Recipe(epochs=15, lr=0.05, batch_size=64, weight_decay=5e-3)
        setting = Setting("digits", options=options, recipe=recipe, pretrain="digits", core=0.3, rows=400)
        setting = replace(setting, pretrain_recipe=Recipe(epochs=5, lr=0.1, batch_size=64))
        return Settings(
            seeds=(0, 1),
            setting=setting,
            count=20,
            tuning=3,
            fisher=Fisher(strength=1e-7),
            variational=Variational(strength=1e-5, steps=60),
            ntk=NTK(solver=Auto(tolerance=1e-2, max_iterations=50)),
            curvature_rows=200,
            relearn_rate=0.3,
            cap=10,
            requests=_requests(part),
        )

    @staticmethod
    def full(part: str) -> "Settings":
        """The data set that `part` names, all of it."""
        recipe = Recipe(epochs=30, lr=0.01, batch_size=128, weight_decay=5e-4)
        if part == "mnist":
            setting = Setting("mnist", options={"hidden": (256,)}, recipe=recipe.but(epochs=10), pretrain="mnist")
            setting = replace(setting, core=0.1, pretrain_recipe=Recipe(epochs=5, lr=0.05, weight_decay=5e-4))
            return Settings(setting=setting, tuning=3, ntk=_NTK, curvature_rows=5000, relearn_rows=2000, cap=20)
        if part == "faces10":
            setting = Setting("faces10", "all-cnn", recipe=recipe.but(epochs=15), pretrain="faces14")
            return Settings(setting=setting, tuning=5, ntk=_NTK, curvature_rows=1000, relearn_rows=500, cap=30)
        setting = Setting("cifar10", "all-cnn", recipe=recipe.but(epochs=10), weights="allcnn-cifar100.safetensors")
        return Settings(
            setting=setting,
            tuning=2,
            variational=Variational(steps=300),
            ntk=_NTK,
            curvature_rows=2000,
            relearn_rows=1000,
            attack_rows=5000,
            cap=15,
            climb=1e-3,  # forty steps up the loss of 5000 images at 0.01 diverge
            requests=_requests(part),
        )

    @staticmethod
    def tiny(part: str) -> "Settings":
        """The same data and network with a few images and one epoch."""
        full = Settings.full(part)
        setting = full.setting.rehearsed(rows=30)
        return replace(
            full,
            seeds=(0,),
            setting=setting,
            count=1,
            tuning=1,
            finetuning=1,
            variational=replace(full.variational, steps=4),
            ntk=replace(full.ntk, solver=Auto(tolerance=1e-2, max_iterations=3)),
            curvature_rows=8,
            relearn_rows=8,
            cap=2,
        )

    @property
    def cohorts(self) -> dict[str, Cohort]:
        """The two requests by their name."""
        both = {IMAGES: some_of_class(self.label, self.count), CLASS: whole_class(self.label)}
        return {name: both[name] for name in self.requests}


def _requests(part: str) -> tuple[str, ...]:
    return {"images": (IMAGES,), "class": (CLASS,)}.get(part.rpartition(" ")[2], (IMAGES, CLASS))


_NTK = NTK(solver=CG(tolerance=1e-2, max_iterations=40), damping=5e-3, search=False, batch_size=500)


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """Both requests, all methods, all seeds; rows that are in the file are not measured again."""
    opened = settings.setting.open(data, settings.place)
    originals: dict[int, Trained] = {}

    def original(seed: int) -> Trained:
        # Both requests forget from the same original.
        if seed not in originals:
            originals[seed] = fit(opened.start, opened.train, seed=seed, label="training the original")
        return originals[seed]

    for name, cohort in settings.cohorts.items():
        split = cohort(opened.train, opened.test)
        compare(
            original,
            split,
            scrubs=scrubs(settings, whole=name == CLASS),
            readouts=readouts(settings),
            bounds=(WhiteBoxWithNoise(_fisher(settings)),),
            seeds=settings.seeds,
            experiment=experiment_of(settings.setting.title, name),
            out=out / ROWS,
        )
    return read_rows(out / ROWS)


def experiment_of(title: str, cohort: str) -> str:
    """What the rows of one request are called."""
    return f"table 1, {title}, {cohort}"


def scrubs(settings: Settings, *, whole: bool) -> Mapping[str, ScrubOf]:
    """Every method of the table by the name of its column."""
    ntk = settings.ntk
    if whole and settings.curvature_rows is not None and not ntk.search:
        # A class is a large step: it needs the damping and the line search that a few images do without.
        ntk = replace(ntk, search=True)
    step = Remembered(FromFew(ntk, settings.curvature_rows, thin=whole))
    made: dict[str, ScrubOf] = {
        "fine-tune": Finetune(epochs=settings.tuning),
        "negative gradient": Slower(GradientAscent(epochs=1, lr=settings.climb if whole else None)),
        "random labels": RandomLabels(epochs=settings.tuning),
        "Fisher": _fisher(settings),
        "variational": settings.variational,
        "NTK": step,
        "ours": chain(step, Slower(Finetune(epochs=settings.finetuning))),
    }
    return {**made, "hiding": Hiding()} if whole else made


def readouts(settings: Settings) -> dict[str, ReadoutOf]:
    """Every row of the table but the bound."""

    def relearn(context: Context) -> OnFew:
        time = RelearnTime(context.original, cap=settings.cap, lr=settings.relearn_rate)
        return OnFew(time, settings.relearn_rows, settings.relearn_rows)

    return {
        "error on test": Error("test"),
        "error on forget": Error("forget"),
        "error on retain": Error("retain"),
        "relearn time": relearn,
        "entropy attack, logistic": OnFew(EntropyAttack(), settings.attack_rows),
    }


def _fisher(settings: Settings) -> FromFew:
    return FromFew(settings.fisher, settings.curvature_rows)


def draw(rows: list[Row], out: Path) -> list[Path]:
    """One sheet per request, one panel per readout."""
    paths = []
    for experiment in dict.fromkeys(row.experiment for row in rows):
        here = [row for row in rows if row.experiment == experiment]
        caption = next((text for name, text in STANDS_IN.items() if name in experiment), "")
        name = experiment.split(", ")[-1].replace(" ", "_")
        paths += figures.save(out, name, figures.panels(here, READOUTS), (10, 6), caption)
    return paths
