"""Networks that were tuned to look retrained: how they are made, how others are held beside them, and who is told."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor, float64, nn

import spotlessnet as sn
from spotlessnet.auditing import run_audit
from spotlessnet.auditing.descent import Place
from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.judging import judge_networks
from spotlessnet.auditing.likeness import FLOOR, RIDGE, direction, resemblance, shuffled
from spotlessnet.auditing.tuned import LEAST, Tuned, traits, tuned_networks
from spotlessnet.auditing.verdict import TUNED, Check, Checks, Verdict
from spotlessnet.auditing.wording import LIE_APART, too_faint
from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.pairs import Trainings, train_pairs
from tests.auditing.test_verdict import begin, problem

K = 7
QUICK = EquivalenceTest(permutations=199)
CLEARING = EquivalenceTest(permutations=199, clears_apart=True)


def drawn(seed: int, count: int, shift: float = 0.0, number: int = 0) -> Tensor:
    """Traits of some networks, one of which may lie apart."""
    g = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.5, 2.0, K, dtype=float64)
    found = scale * torch.randn(count, K, generator=g, dtype=float64)
    found[:, number] += shift
    return found


def test_the_direction_is_that_of_a_ridge_discriminant_written_out():
    planted, others = drawn(0, 8, 3.0), drawn(1, 24)
    apart = torch.cat([planted - planted.mean(0), others - others.mean(0)])
    variance = apart.square().sum(0) / 30
    spread = (variance + FLOOR * variance.mean()).sqrt()
    x = apart / spread
    among = x.T @ x / 32 + RIDGE * x.square().mean() * torch.eye(K, dtype=float64)
    expected = torch.linalg.inv(among) @ ((planted.mean(0) - others.mean(0)) / spread) / spread
    torch.testing.assert_close(direction(planted, others), expected)


def test_t_of_every_shuffle_is_that_of_a_loop():
    scores = drawn(0, 24)[:, 0] + 5.0
    chosen = torch.stack([torch.randperm(24, generator=torch.Generator().manual_seed(i))[:8] for i in range(20)])
    found = shuffled(scores, 8, chosen)
    for some, t in zip(chosen, found, strict=True):
        others = [i for i in range(24) if i not in some.tolist()]
        expected = stats.ttest_ind(scores[some].numpy(), scores[others].numpy()).statistic
        assert float(t) == pytest.approx(float(expected))


@pytest.mark.parametrize("taught", [False, True])
def test_p_values_are_not_too_small_where_candidates_are_retrained(taught):
    """Teachers are among the references: what tuned networks have of them makes a candidate look less tuned."""
    found = []
    for s in range(200):
        references = drawn(3 * s, 16)
        planted = drawn(3 * s + 1, 8, 2.0) + (references[:8] if taught else 0.0)
        found.append(resemblance([planted, -planted], drawn(3 * s + 2, 8), references, permutations=199, seed=s).p)
    for level in (0.05, 0.1, 0.5):
        assert stats.binomtest(sum(p <= level for p in found), 200, level, alternative="greater").pvalue > 0.01
    assert taught or stats.kstest(found, "uniform").pvalue > 0.001


def test_tuned_candidates_are_known_and_those_that_went_elsewhere_are_not():
    planted = [[drawn(5 * s, 8, 6.0), drawn(5 * s + 1, 8, 6.0, number=1)] for s in range(20)]
    references = [drawn(5 * s + 2, 16) for s in range(20)]
    for number, known in ((0, True), (1, True), (3, False)):
        found = [
            resemblance(ways, drawn(5 * s + 3, 8, 6.0, number=number), references[s], permutations=199)
            for s, ways in enumerate(planted)
        ]
        assert sum(one.p <= 0.05 for one in found) >= 18 if known else sum(one.p <= 0.05 for one in found) <= 2
        assert sum(min(one.noticed) > 3 for one in found) >= 18


def test_networks_that_nobody_could_tell_are_called_that():
    found = [
        resemblance([drawn(3 * s, 8)], drawn(3 * s + 1, 8), drawn(3 * s + 2, 16), permutations=9) for s in range(40)
    ]
    assert sum(min(one.noticed) > 3 for one in found) <= 2


def test_traits_of_a_line_by_hand():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 3, generator=g, dtype=float64), torch.randn(20, 1, generator=g, dtype=float64)
    data = Data.of((x, y))
    split = Split(data.select(range(4)), data.select(range(4, 14)), data.select(range(14, 20)))
    line = nn.Linear(3, 1).double()
    network = Trained.of(line, "squared-error")
    seen = traits([network], split)
    assert seen is not None
    [found] = seen

    def of(rows: slice) -> tuple[Tensor, Tensor]:
        residual = (line(x[rows]) - y[rows]).detach()
        return torch.cat([(residual * x[rows]).mean(0), residual.mean(0)]), residual.square().mean() / 2

    (kept, loss), (forgotten, _), (_, test) = of(slice(4, 14)), of(slice(4)), of(slice(14, 20))
    sizes = torch.stack([kept.norm(), line.weight.detach().norm(), line.bias.detach().norm(), loss, test])
    along = kept @ forgotten / kept.norm() / forgotten.norm()
    torch.testing.assert_close(found, torch.cat([(sizes + LEAST).log(), along.unsqueeze(0)]))
    assert traits([], split) is None


@pytest.fixture(scope="module")
def trainings() -> Trainings:
    return train_pairs(lambda seed: begin(seed + 10_000), problem(), seeds=8)


def apart(ours: list[Trained], theirs: list[Trained], data: Data) -> float:
    """How far answers differ, in the mean over networks."""
    return sum(float((a.predict(data) - b.predict(data)).square().mean()) for a, b in zip(ours, theirs, strict=True))


def test_tuned_networks_answer_as_their_teachers_do(trainings, monkeypatch):
    split = problem()
    before = apart(trainings.original, trainings.retrained, split.forget)
    held, going_on = tuned_networks(trainings.original, trainings.retrained, split)
    assert apart(held, trainings.retrained, split.forget) < 0.05 * before
    assert apart(held, trainings.original, split.retain) < 0.1 * before
    assert apart(going_on, trainings.retrained, split.forget) < 0.5 * before
    # One by one, as larger networks are: the same ones.
    monkeypatch.setattr("spotlessnet.auditing.tuned.TOGETHER", 1)
    [alone, _] = tuned_networks(trainings.original[:1], trainings.retrained[:1], split)
    [alone_too, _] = tuned_networks(trainings.original[:2], trainings.retrained[:2], split)
    assert apart(alone, alone_too[:1], split.forget) < 0.01 * before


def cheat(originals: list[Trained], teachers: list[Trained], split: Split) -> list[Trained]:
    """Tuned otherwise than the audit does: by plain gradient steps, on other rows."""
    found = []
    for one, teacher in zip(originals, teachers, strict=True):
        w = one.weights.clone().requires_grad_(True)
        x, kept = (data.fetch(data.rows).x for data in (split.forget, split.retain.select(range(40))))
        wanted, was = teacher.outputs(x).detach(), one.outputs(kept).detach()
        optimiser = torch.optim.SGD([w], lr=0.02, momentum=0.9)
        for _ in range(200):
            optimiser.zero_grad()
            ((one.outputs(x, w) - wanted).square().mean() + (one.outputs(kept, w) - was).square().mean()).backward()
            optimiser.step()
        found.append(one.at(w.detach()))
    return found


def test_networks_that_were_tuned_are_not_called_forgotten_and_retrained_ones_are(trainings):
    split = problem()
    others = train_pairs(lambda seed: begin(seed + 15_000), split, seeds=8)
    retrained = judge_networks(others.retrained, trainings, split, test=QUICK)
    assert retrained.outcome == "forgotten"
    assert retrained.checks[TUNED].state == "same"
    made = cheat(trained(begin, 25_000, split).original, trained(begin, 20_000, split).retrained, split)
    tuned_ones = judge_networks(made, trainings, split, test=QUICK)
    assert tuned_ones.outcome != "forgotten"


def trained(start: Callable[[int], Trained], first: int, split: Split) -> Trainings:
    return train_pairs(lambda seed: start(seed + first), split, seeds=8)


def likely(traits_of: Tensor | None, seed: int = 0, place: Place | None = None) -> Evidence:
    """A group that passes every other check."""
    g = torch.Generator().manual_seed(seed)
    margins = torch.linspace(-6, 2, 20, dtype=float64) + torch.randn(8, 20, generator=g, dtype=float64)
    errors = (margins < 0).double().mean(1), torch.full((8,), 0.05, dtype=float64)
    return Evidence(margins, *errors, traits=traits_of, place=place)


def weights(seed: int) -> Tensor:
    """Of eight networks, each of another seed."""
    return torch.randn(8, 30, generator=torch.Generator().manual_seed(seed), dtype=float64)


def verdict(
    candidate: Tensor,
    planted: list[Tensor] | None,
    at: Tensor | None = None,
    moved: float = 0.1,
    test: EquivalenceTest = CLEARING,
) -> Verdict:
    """Of candidates that lie `at` these weights; tuned networks moved so far from their originals."""
    started = weights(0)
    places = [None if at is None else Place(list(one), None) for one in (started, at, weights(1), weights(2))]  # type: ignore[arg-type]  # none is read where there are none
    original = likely(None, 1, places[0])
    original.margins.add_(6.0)
    traits_of = (candidate, drawn(3, 8), drawn(4, 8))
    groups = (likely(*one) for one in zip(traits_of, (2, 3, 4), places[1:], strict=True))
    tuned = Place(list(started + moved * weights(3)), None)
    return test(original, *groups, planted=None if planted is None else lambda: [Tuned(one, tuned) for one in planted])


def test_what_a_verdict_says_of_tuned_networks():
    far = [drawn(10, 8, 4.0)]
    passed = verdict(drawn(5, 8), far)
    assert (passed.outcome, passed.checks[TUNED].state) == ("forgotten", "same")
    caught = verdict(drawn(6, 8, 4.0), far)
    assert (caught.outcome, caught.checks[TUNED].state) == ("inconclusive", "unclear")
    assert "resemble networks that know the forgotten examples" in caught.reason
    blind = verdict(drawn(5, 8), [drawn(11, 8)])
    assert (blind.outcome, blind.checks[TUNED].state) == ("inconclusive", "unclear")
    assert "could not be told from retrained ones" in blind.reason
    assert "a method that never reads the forgotten examples needs no such proof" in blind.reason
    known = verdict(drawn(6, 8, 4.0), None)
    assert known.outcome == "forgotten"
    assert known.checks.get(TUNED) is None


def test_where_all_networks_burst_while_they_were_tuned_nobody_is_cleared():
    found = verdict(drawn(5, 8), [])
    assert (found.outcome, found.checks[TUNED].state) == ("inconclusive", "unclear")
    assert "could not be told from retrained ones" in found.reason


def test_networks_far_from_all_originals_are_cleared_where_traits_tell_nothing():
    faint, far = [drawn(11, 8)], [drawn(10, 8, 4.0)]
    other_seeds = verdict(drawn(5, 8), faint, at=weights(4))
    assert (other_seeds.outcome, other_seeds.checks[TUNED].state) == ("forgotten", "same")
    assert LIE_APART in other_seeds.checks[TUNED].note
    # Not unless that is wished: what was tuned and then moved far away lies apart as well.
    unless = verdict(drawn(5, 8), faint, at=weights(4), test=QUICK)
    assert (unless.outcome, unless.checks[TUNED].state) == ("inconclusive", "unclear")
    # Those that began at an original did not get far, and those that were moved everywhere cannot be told.
    for at, moved in ((weights(0) + 0.3 * weights(4), 0.1), (weights(4), 30.0)):
        unknown = verdict(drawn(5, 8), faint, at=at, moved=moved)
        assert (unknown.outcome, unknown.checks[TUNED].state) == ("inconclusive", "unclear")
        assert "could not be told from retrained ones" in unknown.reason
    # It clears nobody who looks tuned, and blames nobody who does not.
    by_chance = drawn(20, 8)
    p = [verdict(one, far, at=weights(4)).checks[TUNED].value for one in (drawn(6, 8, 4.0), by_chance, drawn(5, 8))]
    assert p[0] < 0.05 < p[1] < 0.25 < p[2]
    assert verdict(drawn(6, 8, 4.0), far, at=weights(4)).outcome == "inconclusive"
    assert verdict(drawn(5, 8), far, at=weights(0) + 0.3 * weights(4)).outcome == "forgotten"
    # Who is near may have been tuned: then less of a likeness is chance.
    assert verdict(by_chance, far, at=weights(4)).outcome == "forgotten"
    near = verdict(by_chance, far, at=weights(0) + 0.3 * weights(4))
    assert near.outcome == "inconclusive"
    assert "lie near the original ones, and on the whole they resemble" in near.reason


def test_networks_that_were_moved_far_but_are_most_like_their_own_original_are_not_cleared():
    """As after noise and much further training: then none lies nearer than others do."""
    faint = [drawn(11, 8)]
    moved = 0.6 * weights(0) + 1.4 * weights(4)
    found = verdict(drawn(5, 8), faint, at=moved)
    assert (found.outcome, found.checks[TUNED].state) == ("inconclusive", "unclear")
    # The very same weights, each given to another original, are nobody's.
    assert verdict(drawn(5, 8), faint, at=moved.roll(1, dims=0)).outcome == "forgotten"


def test_audits_know_which_networks_began_at_their_originals():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 10, generator=g)
    y = x[:, :3].argmax(1)
    y[:6] = (y[:6] + 1) % 3
    data = Data.of((x, y))
    split = Split(data.select(range(6)), data.select(range(6, 120)), data.select(range(120, 200)))

    def wide(seed: int) -> Trained:
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3))
        return Trained.of(layers, recipe=Recipe(epochs=20, lr=0.05, batch_size=16))

    pairs, others = (trained(wide, first, split) for first in (0, 1000))
    original, held_out = (Evidence.of(group, split) for group in (pairs.original, pairs.held_out))
    made = tuned_networks(pairs.original, pairs.retrained, split)
    planted = [found for some in made if (found := Tuned.of(some, split)) is not None]
    candidates = {"others": others.retrained, "tuned": cheat(pairs.original, others.retrained, split)}
    shown = {
        name: QUICK.descended(original, Evidence.of(group, split), held_out, planted)
        for name, group in candidates.items()
    }
    assert shown["others"] is not None
    assert shown["others"].p > 0.05
    assert min(shown["others"].noticed) > 5
    assert shown["tuned"] is not None
    assert shown["tuned"].p <= 0.01


def test_groups_of_networks_keep_where_these_lie():
    at = Place(list(weights(0)), None)
    group = likely(None, 1, at)
    some, others = group.select(torch.tensor([2, 5])), group.select(torch.tensor([0]))
    both = some.join(others).place
    assert both is not None
    assert [one.tolist() for one in both.weights] == [at.weights[i].tolist() for i in (2, 5, 0)]
    assert some.join(likely(None)).place is None


def test_training_on_does_not_burst_far_from_the_teacher(trainings):
    """Without a limit to its steps, all that the audit tuned in this way would be lost."""
    split = problem()
    loud = [replace(one, weights=12 * one.weights) for one in trainings.retrained]
    ways = tuned_networks(trainings.original, loud, split)
    assert len(ways) == 2
    assert all(float((a.weights - b.weights).norm()) < 1e3 for a, b in zip(ways[1], trainings.original, strict=True))


class Recurrent(nn.Module):
    """Its layer knows no batches of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(x.unflatten(1, (-1, 2)))[0][:, -1])


def test_recurrent_networks_are_tuned_too(monkeypatch):
    monkeypatch.setattr("spotlessnet.auditing.tuned.STEPS", 20)
    monkeypatch.setattr("spotlessnet.auditing.tuned.FURTHER", 5)
    data = Data.of((drawn(0, 20)[:, :6].float(), torch.arange(20) % 3))
    split = Split(data.select(range(4)), data.select(range(4, 20)))
    networks = []
    for seed in range(4):
        torch.manual_seed(seed)
        networks.append(Trained.of(Recurrent(), recipe=Recipe(epochs=1, lr=0.05, batch_size=8)))
    held, going_on = tuned_networks(networks[:2], networks[2:], split)
    assert len(going_on) == 2
    assert apart(held, networks[2:], split.forget) < 0.5 * apart(networks[:2], networks[2:], split.forget)


def test_nothing_is_tuned_where_a_verdict_needs_none():
    def never() -> list[Tuned]:
        raise AssertionError("nobody must ask")

    original, untouched = likely(None, 1), likely(None, 2)
    original.margins.add_(6.0)
    untouched.margins.add_(6.0)
    found = QUICK(original, untouched, likely(None, 3), likely(None, 4), planted=never)
    assert found.outcome == "not forgotten"


@pytest.mark.parametrize("scrub", [sn.Retrain(), sn.Finetune()])
def test_only_methods_that_never_see_the_rows_are_spared(monkeypatch, scrub):
    asked = []

    def judge(*_: object, **how: object) -> Verdict:
        asked.append(how["never_saw"])
        return Verdict("inconclusive", "", 0.1, 5, "forgotten", "inconclusive")

    monkeypatch.setattr(run_audit, "judge_networks", judge)
    network = begin(0)
    sn.audit(replace(network, init=network.weights), problem(), scrub, name="method", seeds=5)
    assert asked == [isinstance(scrub, sn.Retrain)]


@pytest.mark.parametrize("was_asked", [True, False])
def test_a_report_says_what_asking_for_tuned_networks_cannot_see(monkeypatch, was_asked):
    asked = [Check(TUNED, "same", 0.4, math.nan, math.nan, math.nan)] * was_asked

    def judge(*_: object, **__: object) -> Verdict:
        return Verdict("not forgotten", "", 0.1, 5, "forgotten", "not forgotten", Checks(asked))

    monkeypatch.setattr(run_audit, "judge_networks", judge)
    network = begin(0)
    report = sn.audit(replace(network, init=network.weights), problem(), sn.Finetune(), name="method", seeds=5)
    assert (run_audit.ASKED_WHETHER_TUNED in report.limits) == was_asked
    assert any("whether it alone was tuned to look retrained is not asked" in limit for limit in report.limits)


def test_rows_that_are_known_too_little_for_so_few_pairs_are_called_that():
    """Of the share nothing can be shown, not even of retrained networks: the reason says so, and what might do."""

    def group(seed: int, shift: float = 0.0) -> Evidence:
        g = torch.Generator().manual_seed(seed)
        chance = torch.randn(8, 1, generator=g, dtype=float64)
        margins = shift + chance + 0.1 * torch.randn(8, 20, generator=g, dtype=float64)
        return Evidence(margins, torch.zeros(8, dtype=float64), torch.full((8,), 0.05, dtype=float64))

    found = QUICK(group(11, 2.5), group(12), group(13), group(14))
    assert (found.outcome, found.power) == ("inconclusive", "not forgotten")
    finest = QUICK.gates(group(11, 2.5), group(13), group(14)).finest
    assert found.reason == too_faint(8, math.ceil(8 * (finest / 0.2) ** 2))
    assert "8 pairs of trainings cannot show" in found.reason
