"""The contract: what every scrub must hold to. A new method is found by its registration."""

import json
import pickle
from dataclasses import FrozenInstanceError, dataclass, fields, replace

import pytest
import torch
from torch import Tensor, float64, nn

from spotlessnet.core.chaining import Chain, chain
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.registry import Entry
from spotlessnet.core.scrub import METHODS, NEEDS, READS, Scrub
from spotlessnet.core.split import Split, whole_class
from spotlessnet.core.trained import Trained
from spotlessnet.methods import (
    NTK,
    SCRUB,
    SSD,
    BadTeacher,
    Finetune,
    Fisher,
    GradientAscent,
    Hiding,
    L1Sparse,
    MixedLinear,
    NegGradPlus,
    Newton,
    OutOfFoldDistillation,
    RandomLabels,
    RespondAndFinetune,
    Retrain,
    SalUn,
    ShortRetrain,
    Variational,
    WithinBudget,
)
from spotlessnet.operators.solvers import Auto
from tests.methods.problems import logistic_problem, optimum, ridge_optimum, ridge_problem


@dataclass(frozen=True)
class Case:
    """A method, whether its step leads toward the retrained weights, and what kind of request or network it is for."""

    scrub: Scrub
    nears: bool = False
    whole_class: bool = False
    linear: bool = False


CASES = {
    "retrain": Case(Retrain(), nears=True),
    "finetune": Case(Finetune(epochs=5), nears=True),
    "negative gradient": Case(GradientAscent(epochs=1, lr=0.02)),
    "random labels": Case(RandomLabels(epochs=2)),
    "hiding": Case(Hiding(), whole_class=True),
    "newton": Case(Newton(), nears=True),
    "newton with noise": Case(Newton(curvature="gauss-newton", strength=1e-8), nears=True),
    "fisher": Case(Fisher()),
    "fisher, kronecker": Case(Fisher(structure="kronecker", exponent="one")),
    "variational": Case(Variational(steps=10)),
    "ntk": Case(NTK(solver=Auto(tolerance=1e-9)), nears=True),
    "mixed-linear": Case(MixedLinear(noise=1e-3, tolerance=1e-10), nears=True, linear=True),
    "within budget": Case(WithinBudget(Fisher(), max_nats=1.0)),
    "respond and fine-tune": Case(RespondAndFinetune(iterations=20), nears=True),
    "short retrain": Case(ShortRetrain(epoch_fraction=0.5), nears=True),
    "negative gradient plus": Case(NegGradPlus(epochs=1)),
    "student": Case(SCRUB(epochs=1, away=1)),
    "bad teacher": Case(BadTeacher(epochs=1)),
    "saliency": Case(SalUn(epochs=1)),
    "selective dampening": Case(SSD()),
    "sparse fine-tuning": Case(L1Sparse(epochs=1)),
    "unlabel": Case(OutOfFoldDistillation(epochs=2, lr_scale=1.0), whole_class=True),
    "chain": Case(chain(Newton(), Finetune(epochs=2), Fisher()), nears=True),
}


def case_of(entry: Entry[type[Scrub]]) -> Case:
    """A method as it comes, on what it says it needs."""
    return Case(entry.thing(), whole_class="whole class" in entry.needs, linear="user weights" in entry.needs)


named = {type(case.scrub) for case in CASES.values()}
CASES |= {entry.name: case_of(entry) for entry in METHODS.entries() if entry.thing not in named}
"""A method that is not named above is tried as it comes."""

every = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


class Untouchable:
    """Test rows that fail the test when they are read."""

    def __len__(self) -> int:
        return 5

    def fetch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError("a scrub has read the test data")

    def column(self, name: str) -> None:
        raise AssertionError("a scrub has read the test data")


TEST = Data(Untouchable(), torch.arange(5))


class WithLogits(nn.Module):
    """Answers as the transformers library does."""

    @dataclass
    class Answer:
        logits: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> "WithLogits.Answer":
        return WithLogits.Answer(self.head(self.body(x).tanh()))


def frozen_backbone() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return model


def with_batch_norm() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))
    assert isinstance(model[1].running_mean, Tensor)
    model[1].running_mean.fill_(0.3)
    return model


NETWORKS = {"frozen backbone": frozen_backbone, "batch norm": with_batch_norm, "logits": WithLogits}


def problem(case: Case, seed: int = 0) -> tuple[Trained, Split]:
    """A convex problem at its optimum, in float64, with a request that suits the method."""
    trained, split = ridge_problem(seed) if case.linear else logistic_problem(seed)
    if case.whole_class:
        split = whole_class(1)(split.whole)
    return trained, replace(split, test=TEST)


def network_problem(case: Case, kind: str, dtype: torch.dtype) -> tuple[Trained, Split]:
    """A small network some steps from where it started."""
    torch.manual_seed(0)
    model = NETWORKS[kind]().to(dtype)
    _, split = logistic_problem(0)
    split = whole_class(1)(split.whole) if case.whole_class else split
    recipe = Recipe(epochs=3, lr=0.1, batch_size=16, weight_decay=0.01)
    trained = Trained.of(model, init=model, recipe=recipe)
    shaken = trained.weights + 0.05 * torch.randn(trained.size, dtype=dtype)
    return trained.at(shaken), replace(split, test=TEST)


def contents(trained: Trained, split: Split) -> list[bytes]:
    tensors = [*trained.model.state_dict().values(), trained.weights, trained.anchor, split.forget.rows]
    tensors += [split.retain.rows, *(t for b in split.whole.batches() for t in (b.x, b.y) if isinstance(t, Tensor))]
    return [t.detach().contiguous().numpy().tobytes() for t in tensors]


declared = pytest.mark.parametrize("entry", METHODS.entries(), ids=METHODS.names())


@declared
def test_every_method_has_a_case_and_says_what_it_is(entry: Entry[type[Scrub]]):
    assert entry.thing in {type(case.scrub) for case in CASES.values()}
    assert entry.name == entry.name.lower()
    assert entry.paper
    assert entry.guarantee
    assert entry.summary.endswith(".")
    assert set(entry.needs) <= set(NEEDS)
    assert set(entry.reads) <= set(READS)
    assert not set(entry.needs) & set(entry.reads), "what it needs it reads"
    assert entry.thing.cost is not Scrub.cost, "a method must count what it costs"


@every
def test_it_needs_what_it_says_and_no_more(case: Case):
    """Without initial weights and recipe it works if and only if it does not claim to need them."""
    needs = () if isinstance(case.scrub, Chain) else METHODS.entry_of(type(case.scrub)).needs
    trained, split = problem(case)
    for field, unknown in (("init", replace(trained, init=None)), ("recipe", replace(trained, recipe=None))):
        if field in needs:
            with pytest.raises(NeedError, match=f"needs .*, but there is no {field}"):
                case.scrub(unknown, split)
        else:
            assert case.scrub(unknown, split).mean.isfinite().all()


@every
def test_it_reads_what_it_says(case: Case):
    """Statistics and fold models are fields of the methods that read them, and of no other."""
    reads = () if isinstance(case.scrub, Chain) else METHODS.entry_of(type(case.scrub)).reads
    own = {field.name for field in fields(case.scrub)}  # type: ignore[arg-type]  # every scrub is one
    assert ("statistics" in own) == ("statistics" in reads)
    assert ("fold_models" in own) == ("fold models" in reads)


@every
def test_its_cost_is_a_number_and_costs_nothing_to_ask(case: Case):
    trained, split = problem(case)
    before = contents(trained, split)
    work = case.scrub.cost(trained, split)
    assert 0 <= work.usual <= work.most < float("inf")
    assert work.bytes >= 0
    assert contents(trained, split) == before


@every
def test_the_input_is_left_alone_and_the_answer_repeats(case: Case):
    trained, split = problem(case)
    before, random = contents(trained, split), torch.get_rng_state()
    first, second = case.scrub(trained, split), case.scrub(trained, split)
    assert contents(trained, split) == before
    assert torch.equal(torch.get_rng_state(), random), "torch's own generator was used"
    assert torch.equal(first.mean, second.mean)
    draws = [g.draw(torch.Generator().manual_seed(7)) for g in (first, second)]
    assert torch.equal(draws[0], draws[1])
    other = first.draw(torch.Generator().manual_seed(8))
    assert torch.equal(other, draws[0]) == first.is_noiseless
    assert first.is_noiseless == (not case.scrub.is_noisy)
    assert first.mean.data_ptr() != trained.weights.data_ptr(), "the mean must not be the caller's own tensor"


@every
def test_the_record_is_plain_and_complete(case: Case):
    about = case.scrub(*problem(case)).diagnostics
    json.dumps(dict(about))
    assert len(about["assumed"]) == len(about["lost"])


@every
def test_nothing_to_forget_gives_the_same_bytes(case: Case):
    trained, split = problem(case)
    nothing = Split(forget=split.whole.select([]), kept=split.whole, test=TEST)
    scrubbed = case.scrub(trained, nothing)
    assert scrubbed.mean.numpy().tobytes() == trained.weights.numpy().tobytes()
    assert torch.equal(scrubbed.draw(torch.Generator().manual_seed(0)), trained.weights)


@every
def test_almost_everything_cannot_be_forgotten(case: Case):
    trained, split = problem(case)
    last = Split(forget=split.whole.select(range(1, len(split.whole))), kept=split.whole.select([0]), test=TEST)
    if case.scrub.least_kept == 0:
        assert case.scrub(trained, last).mean.isfinite().all()
        return
    with pytest.raises(DataError, match=r"must keep at least 5% of the training rows, but this request leaves 1 of"):
        case.scrub(trained, last)


@every
def test_the_order_of_rows_does_not_matter(case: Case):
    trained, split = problem(case)
    draw = torch.Generator().manual_seed(1)
    mixed = replace(
        split,
        forget=split.forget.select(torch.randperm(len(split.forget), generator=draw)),
        kept=split.retain.select(torch.randperm(len(split.retain), generator=draw)),
    )
    first, second = case.scrub(trained, split), case.scrub(trained, mixed)
    torch.testing.assert_close(second.mean, first.mean, rtol=1e-7, atol=1e-9)
    spreads = first.covariance.diagonal(), second.covariance.diagonal()
    torch.testing.assert_close(spreads[1], spreads[0], rtol=1e-6, atol=1e-12)


@every
@pytest.mark.parametrize("kind", NETWORKS)
def test_any_network_will_do(case: Case, kind: str):
    if case.linear:
        pytest.skip("for networks linear in their weights")
    dtype = torch.float32 if kind == "logits" else float64
    trained, split = network_problem(case, kind, dtype)
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    scrubbed = case.scrub(trained, split)
    drawn = scrubbed.draw(torch.Generator().manual_seed(0))
    assert drawn.dtype == dtype
    assert bool(drawn.isfinite().all())
    taken = trained.module(drawn).state_dict()
    moving = set(trained.names)
    assert all(torch.equal(taken[name], value) for name, value in before.items() if name not in moving)


@every
def test_it_travels_and_shows_its_settings(case: Case):
    trained, split = problem(case)
    again = pickle.loads(pickle.dumps(case.scrub))
    assert again == case.scrub
    assert torch.equal(again(trained, split).mean, case.scrub(trained, split).mean)
    shown = [field.name for field in fields(case.scrub) if field.repr]  # type: ignore[arg-type]  # every scrub is one
    assert all(f"{name}=" in repr(case.scrub) for name in shown)
    if shown:
        with pytest.raises(FrozenInstanceError):
            setattr(case.scrub, shown[0], None)


@pytest.mark.parametrize("case", [c for c in CASES.values() if c.nears], ids=[n for n, c in CASES.items() if c.nears])
def test_the_step_leads_toward_the_retrained_weights(case: Case):
    for seed in (0, 1):
        trained, split = problem(case, seed)
        retrained = (ridge_optimum if case.linear else optimum)(trained, split.retain)
        before = float((trained.weights - retrained).norm())
        assert float((case.scrub(trained, split).mean - retrained).norm()) < 0.95 * before
