"""The verdict on margins made by hand, its intervals against closed forms, its trainings against single ones."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor, float64, nn

from spotlessnet.auditing.attack_checks import attack_check
from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.judging import judge_networks
from spotlessnet.auditing.seeds import scrub_every_seed
from spotlessnet.auditing.verdict import Check, Verdict
from spotlessnet.auditing.wording import why
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError, SettingError
from spotlessnet.core.intervals import Interval, ratio_interval, t_interval
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.demo import problem as digits_problem
from spotlessnet.methods import ShortRetrain
from spotlessnet.readouts.attack import Attack
from spotlessnet.readouts.matched_controls import Unseen
from spotlessnet.training.pairs import Trainings, train_pairs

ROWS = 20
QUICK = EquivalenceTest(permutations=399)


def group(seed: int, shift: float = 0.0, *, seeds: int = 8, test: float = 0.05, rows: slice = slice(None)) -> Evidence:
    """Margins of one group: rows of their own height, a spread per seed that all rows share, and one of their own."""
    g = torch.Generator().manual_seed(seed)
    height = torch.linspace(-6, 2, ROWS, dtype=float64)
    common = 0.3 * torch.randn(seeds, 1, generator=g, dtype=float64)
    margins = height + common + torch.randn(seeds, ROWS, generator=g, dtype=float64)
    margins[:, rows] += shift
    errors = test + 0.004 * torch.randn(seeds, generator=g, dtype=float64)
    return Evidence(margins, (margins < 0).double().mean(dim=1), errors)


def judge(candidate: Evidence, original_shift: float = 6.0, audit: EquivalenceTest = QUICK, seeds: int = 8) -> Verdict:
    groups = (group(101, original_shift, seeds=seeds), candidate, group(102, seeds=seeds), group(103, seeds=seeds))
    return audit(*groups)


def state(found: Verdict, name: str) -> str:
    return next(check.state for check in found.checks if name in check.name)


def test_the_four_answers():
    retrained = judge(group(1))
    assert (retrained.outcome, retrained.oracle, retrained.power) == ("forgotten", "forgotten", "not forgotten")
    assert "answer the forgotten examples like networks that never saw them" in retrained.reason
    assert 0 < retrained.resolution < 0.2
    original = judge(group(1, 6.0))
    assert original.outcome == "not forgotten"
    assert "of what the original network remembers of the forgotten examples, 10" in original.reason
    streisand = judge(group(1, -4.0))
    assert streisand.outcome == "not forgotten"
    assert streisand.checks[0].value < -0.4
    assert state(streisand, "remembered share") == state(streisand, "forgotten rows") == "different"
    halfway = judge(group(1, 3.0))
    assert halfway.outcome == "not forgotten"
    assert halfway.checks[0].value == pytest.approx(0.5, abs=0.15)
    assert "not forgotten: " in str(halfway)


def test_two_remembered_rows_of_twenty_are_found():
    few = judge(group(1, 8.0, rows=slice(2)))
    assert few.outcome == "not forgotten"
    assert state(few, "row by row") == "different"


def test_rows_without_memory_are_inconclusive_whatever_the_candidate():
    for candidate in (group(1), group(1, 3.0), group(5, 0.0)):
        found = judge(candidate, original_shift=0.0)
        assert found.outcome == "inconclusive"
        assert "the forgotten examples left no trace that this audit can see" in found.reason
        assert found.power != "not forgotten"


def test_a_weak_memory_is_inconclusive_because_the_resolution_is_too_coarse():
    found = judge(group(1), original_shift=1.0)
    assert found.outcome == "inconclusive"
    assert found.resolution > QUICK.share


def test_damage_is_not_forgetting():
    found = judge(group(1, test=0.2))
    assert found.outcome == "inconclusive"
    assert "the error on new examples is higher than that of retrained networks, by 1" in found.reason
    assert found.reason.endswith("a damaged network proves nothing about forgetting")
    assert judge(group(1, test=0.01)).outcome == "forgotten"  # better than retrained is no damage


def test_a_broken_audit_admits_it():
    bad = group(103, 6.0)
    found = QUICK(group(101, 6.0), group(1), group(102), bad)
    assert found.outcome == "inconclusive"
    assert "networks that never saw the forgotten examples come out as 'not forgotten'" in found.reason


def test_seeds_that_make_no_difference_are_noticed():
    alike = [replace(e, margins=e.margins[:1].expand(8, -1) + 1e-9 * e.margins) for e in (group(102), group(102))]
    found = QUICK(group(101, 6.0), group(1), *alike)
    assert found.outcome == "inconclusive"
    assert "other seeds changes nothing" in found.reason


def test_too_few_seeds_give_no_verdict_and_no_test_data_is_fine():
    assert "4 pairs of trainings are too few, at least 5 are needed" in judge(group(1, seeds=4), seeds=4).reason
    groups = [replace(group(s, shift), test_error=torch.empty(0, dtype=float64)) for s, shift in
              ((101, 6.0), (1, 0.0), (102, 0.0), (103, 0.0))]  # fmt: skip
    found = QUICK(*groups)
    assert found.outcome == "forgotten"
    assert len(found.checks) == 3


def test_retrained_groups_pass_and_originals_are_caught_on_gaussian_margins():
    words = []
    for draw in range(40):
        base = 1000 + 10 * draw
        groups = (group(base, 6.0), group(base + 1), group(base + 2), group(base + 3))
        audit = EquivalenceTest(permutations=399, seed=draw)
        words.append((audit(*groups).outcome, audit(groups[0], group(base + 4, 6.0), *groups[2:]).outcome))
    assert sum(passed == "forgotten" for passed, _ in words) >= 38
    assert sum(caught == "not forgotten" for _, caught in words) >= 38


def test_an_attack_counts_as_one_more_check():
    def attack(low: float, high: float) -> Check:
        return attack_check(Attack(Interval((low + high) / 2, low, high), None, None, 10, 10))

    states = [attack(*limits).state for limits in ((0.47, 0.54), (0.51, 0.54), (0.47, 0.6), (0.6, 0.7))]
    assert states == ["same", "same", "unclear", "different"]
    groups = (group(101, 6.0), group(1), group(102), group(103))
    words = [QUICK(*groups, extra=[attack(*limits)]).outcome for limits in ((0.47, 0.54), (0.47, 0.6), (0.6, 0.7))]
    assert words == ["forgotten", "inconclusive", "not forgotten"]


def test_the_ratio_interval_is_the_t_interval_when_the_denominator_is_known():
    a = torch.randn(8, generator=torch.Generator().manual_seed(0), dtype=float64)
    found = ratio_interval(a, torch.ones(8, dtype=float64), 0.95)
    assert tuple(found) == pytest.approx(tuple(t_interval(a, 0.95)))
    twice = ratio_interval(a, torch.full((8,), 2.0, dtype=float64), 0.95)
    assert twice.high == pytest.approx(found.high / 2)
    b = 1 + 0.1 * torch.randn(8, generator=torch.Generator().manual_seed(1), dtype=float64)
    assert tuple(ratio_interval(b, b, 0.95)) == pytest.approx((1, 1, 1))
    # The limits are where the contrast a - rho b is just significant.
    low = ratio_interval(a, b, 0.9).low
    contrast = a - low * b
    assert float(contrast.mean() / (contrast.std() / math.sqrt(8))) == pytest.approx(stats.t.ppf(0.95, 7), rel=1e-6)


def test_the_ratio_interval_covers_and_knows_when_it_cannot():
    g = torch.Generator().manual_seed(0)
    shared = torch.randn(1000, 8, generator=g, dtype=float64)
    b = 3 + torch.randn(1000, 8, generator=g, dtype=float64) + shared
    a = 0.4 * 3 + torch.randn(1000, 8, generator=g, dtype=float64) + shared
    intervals = [ratio_interval(x, y, 0.95) for x, y in zip(a, b, strict=True)]
    assert 0.93 <= np.mean([i.low <= 0.4 <= i.high for i in intervals]) <= 0.97
    zero = ratio_interval(a[0], b[0] - b[0].mean(), 0.95)
    assert zero.low == -math.inf
    assert zero.high == math.inf
    assert ratio_interval(a[0, :1], b[0, :1], 0.95).high == math.inf


@dataclass(frozen=True)
class Copy(Scrub):
    """Gives back whatever it was told, for tests of the plumbing."""

    networks: tuple[Trained, ...]

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        places = [bool(torch.equal(n.init, trained.init)) for n in self.networks]  # type: ignore[arg-type]  # trained
        return self.networks[places.index(True)].weights


def problem() -> Split:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(290, 4, generator=g)
    y = (x[:, 0] > 0).long()
    y[:8] = 1 - y[:8]
    data = Data.of((x, y))
    return Split(data.select(range(8)), data.select(range(8, 50)), data.select(range(50, 290)))


def begin(seed: int) -> Trained:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 2))
    return Trained.of(model, recipe=Recipe(epochs=40, lr=0.2, batch_size=10))


def judge_method(scrub: Scrub, trainings: Trainings, split: Split) -> Verdict:
    """As an audit does: every original is scrubbed, and all networks are judged together."""
    found = scrub_every_seed(scrub, trainings.original, split, trainings.seeds, "scrubbing")
    return judge_networks([one.network for one in found], trainings, split, test=QUICK)


def test_real_trainings_end_to_end():
    split = problem()
    trainings = train_pairs(begin, split, seeds=6)
    assert trainings.seeds == tuple(range(6))
    kept = judge_method(Copy(tuple(trainings.original)), trainings, split)
    assert kept.outcome == "not forgotten"
    assert kept.checks[0].value == pytest.approx(1.0)
    gone = judge_method(Copy(tuple(trainings.retrained)), trainings, split)
    assert abs(gone.checks[0].value) < 0.2  # the held-out networks are references too
    assert {check.state for check in gone.checks} == {"same"}


def test_together_and_one_by_one_train_the_same_networks():
    split = problem()
    short = begin(0).recipe
    assert short is not None

    def quick(seed: int) -> Trained:
        return replace(begin(seed), recipe=short.but(epochs=3))

    many, single = (train_pairs(quick, split, seeds=2, together=t) for t in (True, False))
    for a, b in (
        (many.original, single.original),
        (many.retrained, single.retrained),
        (many.held_out, single.held_out),
    ):
        for one, other in zip(a, b, strict=True):
            torch.testing.assert_close(one.weights, other.weights, rtol=1e-4, atol=1e-5)
            assert torch.equal(one.anchor, other.anchor)
    fixed = train_pairs(quick(0), split, seeds=2)
    assert torch.equal(fixed.original[0].anchor, fixed.held_out[1].anchor)
    torch.testing.assert_close(fixed.original[0].weights, many.original[0].weights)


def test_messages():
    with pytest.raises(MismatchError, match=r"one network per seed and the same rows, but have \[7, 8\] networks"):
        QUICK(group(1), group(2, seeds=7), group(3), group(4))
    broken = group(1)
    broken.margins[0, 0] = math.inf
    with pytest.raises(DataError, match="Margins must be finite"):
        QUICK(group(2), broken, group(3), group(4))
    with pytest.raises(DataError, match="at least two seeds to know any spread"):
        QUICK(*(group(s, seeds=1) for s in range(4)))
    with pytest.raises(SettingError, match=r"`EquivalenceTest.share` must be positive, but got 0"):
        EquivalenceTest(share=0.0)
    with pytest.raises(SettingError, match=r"`EquivalenceTest.level` must lie between 0 and 1, but got 1"):
        EquivalenceTest(level=1.0)
    with pytest.raises(NeedError, match="A verdict needs to train networks, but no recipe is known"):
        train_pairs(Trained.of(nn.Linear(4, 2)), problem())


def test_rows_that_differ_while_the_mean_does_not_are_called_that():
    same = Check("remembered share", "same", 0.0, -0.1, 0.1, 0.2)
    rows = Check("margins row by row", "different", 3.0, math.nan, math.nan, math.nan)
    assert why([same, rows]).endswith("a few examples may be, or the training differed")
    assert "On the whole" not in why([replace(same, state="different"), rows])
    assert "On the whole" not in why([replace(same, state="unclear"), rows])


def stranger_group(seed: int, forgotten: float = 0.0, doubt: float = 0.0, rows: slice = slice(None)) -> Evidence:
    """`group`, with forty unseen rows of the same heights; `doubt` draws the margins of all toward their middle."""
    made = group(seed, forgotten, rows=rows)
    noise = torch.randn(8, 40, generator=torch.Generator().manual_seed(1000 + seed), dtype=float64)
    own, others = (torch.linspace(-6, 2, count, dtype=float64) for count in (ROWS, 40))
    unseen = (others - doubt * (others + 2) + 0.3 * noise).unsqueeze(2).expand(8, 40, 2)
    labels = torch.zeros(ROWS, dtype=torch.long)
    return replace(made, margins=made.margins - doubt * (own + 2), unseen=Unseen(unseen, labels))


def among_strangers(candidate: Evidence) -> Verdict:
    return QUICK(stranger_group(101, 6.0), candidate, stranger_group(102), stranger_group(103))


def test_a_network_trained_otherwise_is_not_accused_of_memory():
    otherwise = stranger_group(1, doubt=0.7)
    found = among_strangers(otherwise)
    assert found.outcome == "forgotten"
    assert "like networks that never saw them, in every check" in found.reason
    without = QUICK(group(101, 6.0), replace(otherwise, unseen=None), group(102), group(103))
    assert state(without, "row by row") == "different"
    assert without.outcome == "not forgotten"


def test_strangers_excuse_no_memory():
    for forgotten, rows in ((6.0, slice(None)), (3.0, slice(None)), (8.0, slice(2)), (-4.0, slice(None))):
        candidate = stranger_group(1, forgotten, doubt=0.3, rows=rows)
        found = among_strangers(candidate)
        assert state(found, "row by row") == "different"
        assert found.outcome == "not forgotten"


def test_a_small_share_that_is_surely_there_is_not_excused():
    """A tenth of the original's memory in every row, with hardly any noise: within the margin, but it is memory."""
    rows = torch.linspace(-6, 2, ROWS, dtype=float64)
    quiet = [stranger_group(seed, shift) for seed, shift in ((101, 6.0), (102, 0.0), (103, 0.0))]
    kept = replace(quiet[1], margins=quiet[1].margins + 0.6 + 0.01 * rows.sin())
    found = QUICK(quiet[0], kept, *quiet[1:])
    assert state(found, "remembered share") == "same"
    assert "trained differently" not in "".join(check.note for check in found.checks)


def test_where_little_was_remembered_another_training_leaves_it_open():
    """The original is hardly surer of the forgotten rows; another training moves all rows ten times as far."""
    original, retrained, held_out = stranger_group(101, 0.4), stranger_group(102), stranger_group(103)
    otherwise = stranger_group(1, doubt=0.7)
    found = QUICK.checks(original, otherwise, retrained, held_out)
    assert QUICK.outcome(found) == "inconclusive"


def test_one_row_that_was_kept_is_found_among_twenty_five_that_were_not():
    began, split = digits_problem()
    pairs = train_pairs(began, split, seeds=8)
    kept = replace(split, forget=split.forget.select(range(1, 25)), kept=split.retain.join(split.forget.select([0])))
    words = {}
    for name, asked in (("all", split), ("all but one", kept)):
        scrubbed = [network.at(ShortRetrain()(network, asked).mean) for network in pairs.original]
        groups = (pairs.original, scrubbed, pairs.retrained, pairs.held_out)
        words[name] = EquivalenceTest()(*(Evidence.of(networks, split) for networks in groups)).outcome
    assert words == {"all": "forgotten", "all but one": "not forgotten"}


def test_an_error_that_comes_with_another_training_is_excused_and_one_that_comes_with_memory_is_not():
    groups = [stranger_group(101, 6.0), stranger_group(1, doubt=0.3), stranger_group(102), stranger_group(103)]
    other, kept = (replace(groups[1], forget_error=groups[1].forget_error + by) for by in (0.3, -0.3))
    excused = QUICK(groups[0], other, *groups[2:])
    assert state(excused, "forgotten rows") == "same"
    [note] = [check.note for check in excused.checks if "forgotten rows" in check.name]
    assert note == "within what single rows do by chance"
    two_rows = kept.margins.clone()
    two_rows[:, :2] += 8.0
    caught = QUICK(groups[0], replace(kept, margins=two_rows), *groups[2:])
    assert state(caught, "forgotten rows") == "different"
    assert caught.outcome == "not forgotten"


def test_every_pair_gets_a_draw_of_its_own():
    seen: list[int] = []

    @dataclass(frozen=True)
    class Remembering(Scrub):
        seed: int = 3

        def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
            seen.append(self.seed)
            return trained.weights

    split = problem()
    pairs = train_pairs(Trained.of(nn.Linear(4, 2), recipe=Recipe(epochs=1, batch_size=8)), split, seeds=3)
    judge_method(Remembering(), pairs, split)
    assert seen == [3 + 1000 * seed for seed in pairs.seeds]
    assert len(set(seen)) == 3
