"""A bank of originals: trained once, found again by what they were trained on, moved on with each request."""

import warnings
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn

import spotlessnet as sn
from spotlessnet.auditing.bank import LOOKS
from spotlessnet.auditing.bank_test import BankTest, two_sample_interval
from spotlessnet.auditing.betting import knowing_scores, wealth, wealth_over_ways
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.exchanging import Channel, standing_out
from spotlessnet.auditing.verdict import TUNED
from spotlessnet.auditing.wording import PASSED
from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.methods import Finetune, Retrain
from spotlessnet.requests.purging import purge_request
from spotlessnet.training.fit import fit
from spotlessnet.training.kept import Kept


def test_wealth_is_fair_under_the_null_at_every_time_and_ville_holds():
    """4,000 sequences of exchangeable scores, stopped at their best: at most one in twenty ever holds twenty."""
    draw = torch.Generator().manual_seed(5)
    first, third, best = 0.0, 0.0, 0
    for _ in range(4000):
        held = wealth(torch.randn(8, generator=draw), torch.randn(12, generator=draw))
        first += held[0] / 4000
        third += held[2] / 4000
        best += max(held) >= 20
    assert first == pytest.approx(1.0, abs=0.06)
    assert third == pytest.approx(1.0, abs=0.15)
    assert stats.binomtest(best, 4000, 0.05, alternative="greater").pvalue > 0.01


def test_wealth_by_all_orders_has_mean_one_exactly():
    """Each of 5! orders of five scores is as likely: the mean over all of them needs no simulation."""
    held = [wealth(torch.tensor(o[:3]), torch.tensor(o[3:]))[-1] for o in permutations([0.0, 1.0, 2.0, 3.0, 4.0])]
    assert sum(held) / len(held) == pytest.approx(1.0, abs=1e-12)


def test_ties_are_never_a_gain():
    assert max(wealth(torch.zeros(8), torch.zeros(6))) <= 1


def ways(draw: torch.Generator, count: int, *, known: float = 0.0, kinds: int = 4) -> list[Channel]:
    """What networks answer in several ways of asking that hang together; `known` raises the labels of ten rows."""
    own = torch.randn(count, 1, 1, generator=draw, dtype=torch.float64)
    found = []
    for _ in range(kinds):
        rows, controls = (own + torch.randn(count, n, 3, generator=draw, dtype=torch.float64) for n in (10, 40))
        rows[:, torch.arange(10), LABELS] += known
        found.append(Channel(rows, controls))
    return found


LABELS = torch.arange(10) % 3


def ever_told_apart(draw: torch.Generator, *, by_shuffles: bool) -> bool:
    """Whether any look at a sequence of references says that exchangeable networks differ."""
    candidate, references = ways(draw, 8), ways(draw, 16)
    if not by_shuffles:
        return max(wealth_over_ways(candidate, references, LABELS)) >= 20
    each = [[one.select(torch.arange(look)) for one in references] for look in LOOKS]
    return any(standing_out(candidate, some, LABELS, permutations=199).p_networks <= 0.05 for some in each)


def test_looking_after_every_training_accuses_no_more_than_one_in_twenty_exchangeable_groups():
    draw = torch.Generator().manual_seed(8)
    told = sum(ever_told_apart(draw, by_shuffles=False) for _ in range(800))
    assert stats.binomtest(told, 800, 0.05, alternative="greater").pvalue > 0.01


def test_shuffles_that_are_looked_at_five_times_do_and_so_the_test_above_can_fail():
    draw = torch.Generator().manual_seed(9)
    told = sum(ever_told_apart(draw, by_shuffles=True) for _ in range(150))
    assert stats.binomtest(told, 150, 0.05, alternative="greater").pvalue < 0.01


def test_bets_win_where_any_two_ways_of_asking_show_memory():
    draw = torch.Generator().manual_seed(1)
    references = ways(draw, 5)
    unknown, known = ways(draw, 8), ways(draw, 8, known=8.0)
    assert wealth_over_ways(known, references, LABELS)[2] >= 20  # three trainings are enough
    plain_answers_alike = [*unknown[:2], *known[2:]]
    assert wealth_over_ways(plain_answers_alike, references, LABELS)[-1] >= 20
    assert max(wealth_over_ways(unknown, references, LABELS)) < 20


def test_scores_are_means_over_rows_less_those_of_controls():
    [group] = ways(torch.Generator().manual_seed(2), 3, kinds=1)
    for s in range(3):
        each = [group.rows[s, i, y] - group.controls[s, :, y].mean() for i, y in enumerate(LABELS.tolist())]
        assert float(knowing_scores(group, LABELS)[s]) == pytest.approx(float(torch.stack(each).mean()))


def problem(first: int = 0) -> tuple[Trained, Split]:
    """Three blobs, and eight rows with wrong labels that must be learnt by heart."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(420) % 3
    x = torch.randn(420, 8, generator=draw) + 1.5 * nn.functional.one_hot(y, 8)
    y[:16] = (y[:16] + 1) % 3
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    recipe = Recipe(epochs=40, lr=0.1, batch_size=12, momentum=0.9)
    trained = replace(Trained.of(model, recipe=recipe), init=None)
    trained = replace(trained, init=trained.weights)
    split = rows(range(first, first + 8), mislabelled=True)((x[:120], y[:120]), (x[120:], y[120:]))
    return trained, split


@pytest.fixture(scope="module")
def bank(tmp_path_factory) -> sn.Bank:
    return sn.Bank(tmp_path_factory.mktemp("bank") / "bank")


def test_retraining_passes_and_fine_tuning_does_not_for_three_trainings_each(bank, monkeypatch):
    trained, split = problem()
    counted: list[int] = []
    many = sn.auditing.bank.train_many

    def counting(begun: list[Trained], *rest: Any, **more: Any) -> list[Trained]:
        counted.append(len(begun))
        return many(begun, *rest, **more)

    monkeypatch.setattr(sn.auditing.bank, "train_many", counting)
    passed = sn.audit(trained, split, Retrain(), name="retrain", bank=bank)
    caught = sn.audit(trained, split, Finetune(epochs=1, lr=1e-3), name="hardly anything", bank=bank)
    assert counted == [8, 3, 3]  # the bank once, and then a few for every request
    assert passed.outcome in PASSED, passed.reason
    assert caught.outcome == "not forgotten"
    assert passed.verdict is not None
    assert (passed.verdict.power, passed.verdict.oracle) == ("not forgotten", "forgotten")
    assert "Only 3 networks were trained without the rows" in passed.limits[0]
    assert not passed.verdict.checks.get(TUNED)
    assert "nobody asked whether networks were tuned to look retrained" in passed.limits[0]


def test_the_delivered_file_is_judged_by_itself(bank):
    trained, split = problem()
    original = fit(trained, split.whole, seed=77)
    report = sn.audit(trained, split, Retrain(), name="retrain", bank=bank, delivered=original)
    assert report.checks["the delivered network"].state == "different"
    assert report.outcome == "not forgotten"


def test_a_file_that_does_not_know_its_recipe_is_asked_as_its_references_are(bank, monkeypatch):
    trained, split = problem()
    asked: list[Recipe | None] = []
    look = Evidence.of

    def looking(group, split, recipe=None):
        asked.append(recipe)
        return look(group, split, recipe)

    monkeypatch.setattr("spotlessnet.auditing.with_bank.Evidence.of", staticmethod(looking))
    unknown = replace(fit(trained, split.retain, seed=5), recipe=None)
    report = sn.audit(trained, split, Retrain(), name="retrain", bank=bank, delivered=unknown)
    assert report.checks["the delivered network"].state == "same"
    assert asked == [trained.recipe] * 4


def test_a_planted_row_is_noticed_in_sequence_only_if_bets_win_too():
    trained, split = problem()
    knows = Evidence.of([fit(trained, split.whole, seed=s) for s in range(8)], split)
    never = Evidence.of([fit(trained, split.retain, seed=s) for s in range(20, 31)], split)
    candidate, references = never.select(torch.arange(8)), never.select(torch.arange(8, 11))
    once = BankTest(permutations=399).judge(knows, candidate, references)
    assert once.could_hide is not None
    in_turn = BankTest(permutations=399, looks=5).one_look().could_hide(knows, candidate, [references])
    assert in_turn.single >= once.could_hide.single
    assert in_turn.share >= once.could_hide.share


def test_networks_are_found_again_to_the_bit_and_only_for_the_same_training(bank):
    trained, split = problem()
    again = bank.originals(trained, split)
    fresh = sn.Bank(Path(bank.folder).parent / "second").originals(trained, split)
    for one, other in zip(again, fresh, strict=True):
        assert torch.equal(one.weights, other.weights)
    assert bank.holds(trained, split)
    assert bank.holds(trained, problem(first=8)[1])  # another request on the same rows
    assert not replace(bank, networks=6).holds(trained, split)
    recipe = trained.recipe
    assert recipe is not None
    assert not bank.holds(replace(trained, recipe=recipe.but(lr=0.2)), split)
    fewer = Split(forget=split.forget, kept=split.retain.select(range(1, len(split.retain))), test=split.test)
    assert not bank.holds(trained, fewer)


def test_after_a_served_request_the_bank_is_that_of_the_rows_left_and_the_old_one_is_destroyed(tmp_path):
    trained, split = problem()
    following = sn.Bank(tmp_path / "bank", follows=True)
    before = following.originals(trained, split)
    [old] = [p for p in Kept(tmp_path / "bank").files if p.suffix == ".safetensors"]
    report = sn.audit(trained, split, Retrain(), name="retrain", bank=following)
    assert report.outcome in PASSED, report.reason
    assert any("those that knew the rows are destroyed" in limit for limit in report.limits)
    assert not old.exists()
    # The next request: the rows of the first are no longer in the data.
    left = rows(range(8, 16), mislabelled=True)(split.retain, split.test)
    assert following.holds(trained, left)
    assert not torch.equal(following.originals(trained, left)[0].weights, before[0].weights)


def test_a_bank_that_fails_an_audit_stays_and_a_purge_destroys_it(tmp_path):
    trained, split = problem()
    following = sn.Bank(tmp_path / "bank", follows=True)
    report = sn.audit(trained, split, Finetune(epochs=1, lr=1e-4), name="nothing", bank=following)
    assert report.outcome == "not forgotten"
    assert any("destroy its folder with `spotless purge`" in limit for limit in report.limits)
    assert following.holds(trained, split)
    purge_request(tmp_path / "bank")
    assert not (tmp_path / "bank").exists()


def test_a_request_with_a_bank_says_its_price_and_moves_the_bank_on(tmp_path):
    trained, split = problem()
    network = fit(trained, split.whole)
    told: list[str] = []
    how = sn.Audit(bank=tmp_path / "bank")
    asked: dict[str, Any] = {
        "test": split.test,
        "mislabelled": True,
        "method": "retrain",
        "audit": how,
        "progress": False,
    }
    first = sn.unlearn(network, split.whole, forget=list(range(8)), out=tmp_path / "first", say=told.append, **asked)
    assert any("11 trainings: 8 with the rows, 3 without" in line for line in told)
    assert first.report is not None
    assert first.report.outcome in PASSED, first.report.reason
    told.clear()
    second = replace(
        network, model=first.model, weights=nn.utils.parameters_to_vector(first.model.parameters()).detach()
    )
    sn.unlearn(second, split.retain, forget=list(range(8, 16)), out=tmp_path / "second", say=told.append, **asked)
    assert any("3 trainings: 0 with the rows, 3 without" in line for line in told)


def test_a_sequential_audit_stops_at_three_references_where_it_is_clear(tmp_path):
    trained, split = problem()
    bank = sn.Bank(tmp_path / "bank", sequential=True)
    assert bank.looks == (3, 5, 8, 12, 16)
    caught = sn.audit(trained, split, Finetune(epochs=1, lr=1e-3), name="hardly anything", bank=bank)
    assert caught.outcome == "not forgotten"
    assert "Only 3 networks" in caught.limits[0]
    passed = sn.audit(trained, split, Retrain(), name="retrain", bank=bank)
    assert passed.outcome in PASSED


def test_what_a_bank_cannot_do_is_refused(tmp_path):
    trained, split = problem()
    with pytest.raises(SettingError, match="at least 2"):
        sn.Bank(tmp_path, references=1)
    with pytest.raises(SettingError, match="at least 5"):
        sn.Bank(tmp_path, networks=4)
    with pytest.raises(NeedError, match="needs test rows"):
        sn.audit(trained, replace(split, test=None), Retrain(), name="it", bank=sn.Bank(tmp_path / "b"))
    with pytest.raises(SettingError, match="one method"):
        sn.audit(trained, split, Retrain(), name="it", others={"x": Finetune()}, bank=sn.Bank(tmp_path / "b"))
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="is a file"):
        sn.Bank(tmp_path / "file")


def test_a_damaged_bank_is_trained_anew(tmp_path):
    trained, split = problem()
    small = sn.Bank(tmp_path / "bank", networks=5)
    made = small.originals(trained, split)
    [file] = [p for p in Kept(tmp_path / "bank").files if p.suffix == ".safetensors"]
    file.write_bytes(file.read_bytes()[:-8] + bytes(8))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        again = small.originals(trained, split)
    assert any("damaged" in str(one.message) for one in seen)
    assert torch.equal(made[0].weights, again[0].weights)


def test_limits_of_two_groups_hold_the_truth_as_often_as_they_say():
    draw = torch.Generator().manual_seed(1)
    inside = 0
    for _ in range(400):
        a = torch.randn(8, generator=draw, dtype=torch.float64)
        b = torch.randn(3, generator=draw, dtype=torch.float64)
        found = two_sample_interval(a, b, 0.9)
        inside += found.low <= 0 <= found.high
    assert stats.binomtest(inside, 400, 0.9).pvalue > 0.01
    assert two_sample_interval(torch.ones(3), torch.zeros(3), 0.9) == (1.0, 1.0, 1.0)


def test_references_that_stand_out_beside_each_other_keep_the_bank_silent():
    trained, split = problem()
    knows = [fit(trained, split.whole, seed=s) for s in (1, 2, 3)]
    never = [fit(trained, split.retain, seed=s) for s in (4, 5, 6)]
    test = BankTest()
    assert test._oracle(Evidence.of(never, split)) == "forgotten"
    mixed = Evidence.of([never[0], knows[0], knows[1]], split)
    original = Evidence.of(knows, split)
    verdict = test.judge(original, Evidence.of(never, split), mixed)
    assert verdict.outcome != "forgotten"
