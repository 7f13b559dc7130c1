"""Nothing ruins a network silently: what answers far worse is not written unless someone insists."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import float64, nn
from torch.utils.flop_counter import FlopCounterMode

import spotlessnet as sn
from spotlessnet.core.answers import CHECKED, utility_of
from spotlessnet.core.errors import DamageError
from spotlessnet.core.scrub import Scrub, Sizes, Work
from spotlessnet.requests.planning import estimate
from tests.cli.workshop import BASE, DATA, QUICK, RECIPE, spotless

RUINOUS = ("--method", "gradient-ascent", "--set", "lr=1e6")
NOISY = ("--method", "ntk", "--max-nats", "4")


@pytest.mark.parametrize("how", [RUINOUS, NOISY], ids=["lr", "nats"])
def test_a_ruined_network_is_refused_and_nothing_is_written(here, how):
    """Weights of 7e9 and an accuracy of a third ended with exit code 0."""
    before = sorted(here.rglob("*"))
    ended = spotless("scrub", *BASE, *how, "--seed", "1", "--out", "run")
    assert ended.code == 9
    assert ended.out == ""
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith("error[damage]: The scrubbed network is ruined: ")
    assert "of 57 retained rows are answered wrong" in last
    # Neither init nor recipe is known here: nothing is said of an lr that nobody gave.
    assert "`--method retrain`" not in last
    assert "give init and recipe" in last
    assert "Adam" not in last
    assert ("less noise" in last) == (how is NOISY)
    assert "default method" not in last
    assert "--accept-damage insists" in last
    assert [p for p in sorted(here.rglob("*")) if "__pycache__" not in str(p)] == before


def test_the_advice_follows_what_is_known(here):
    last = spotless("scrub", *BASE, *RECIPE, *RUINOUS, "--out", "run").err
    assert "`--method retrain`" in last
    assert "The recipe says SGD with lr 0.05: an lr of Adam is not one for SGD (`--recipe optimizer=adam`" in last
    assert "less noise" not in last
    trained, _, data = problem(torch.arange(60) % 3)
    split, ruined = sn.rows([0])(data), trained.at(-trained.weights)

    def said(scrub: sn.Scrub, **known: object) -> str:
        network = sn.Trained.of(trained.module(), **known)  # type: ignore[arg-type]  # what is tried
        with pytest.raises(DamageError) as raised:
            sn.check_damage(network, ruined, split, scrub=scrub)
        return str(raised.value)

    start = trained.module()
    adam = said(sn.Finetune(), init=start, recipe=sn.Recipe(optimizer="adam"))
    assert "Adam" not in adam
    assert "`--method retrain`" in adam
    step = said(sn.SSD(), init=start, recipe=sn.Recipe())
    assert "Adam" not in step
    assert "Try a smaller step" in step
    both = said(sn.chain(sn.NTK(), sn.Finetune()), init=start, recipe=sn.Recipe())
    assert "an lr of Adam is not one for SGD" in both
    assert "--method retrain" not in said(sn.Retrain(), init=start, recipe=sn.Recipe())


def test_whoever_insists_gets_it_with_both_errors_in_private(here):
    ended = spotless("scrub", *BASE, *RUINOUS, "--accept-damage", "--test", "mydata.py:test", "--out", "run")
    assert ended.code == 0, ended.err
    told = json.loads((here / "run/receipt.json").read_text())["predicate"]["about"]["utility"]
    assert (told["accepted_any"], told["within_limit"]) == (True, False)
    utility = json.loads((here / "run/private/receipt-diagnostics.json").read_text())["utility"]
    kinds = ["error", "loss", "balanced error"]
    assert [(one["on"], one["kind"]) for one in utility["measured"]] == [
        (on, kind) for on in ("retained rows", "held-out rows") for kind in kinds
    ]
    kept, held_out = (one for one in utility["measured"] if one["kind"] == "error")
    assert (kept["on"], kept["rows"], kept["kind"]) == ("retained rows", 57, "error")
    assert (held_out["on"], held_out["rows"]) == ("held-out rows", 40)
    # Counted once more, without the package: plain modules on plain tensors.
    space: dict[str, object] = {}
    exec(DATA, space)
    x, y, names = space["train"]()  # type: ignore[operator]  # a function of the data module
    stays = torch.tensor([name not in ("person-1", "person-5", "person-7") for name in names])
    for path, key in ((here / "model.safetensors", "before"), (here / "run/scrubbed.safetensors", "after")):
        assert kept[key] == pytest.approx(wrong(path, x[stays], y[stays]))
    assert kept["after"] > kept["before"] + 0.05
    assert "utility error on 57 retained rows" in ended.err
    assert "limit   The new network answers rows that stay worse than is allowed" in ended.err


def test_insisting_with_an_audit_says_the_damage_in_every_file(here):
    """The fault before: "more pairs of trainings make an audit surer", and no word in receipt or card."""
    asked = ("--test", "mydata.py:test", "--accept-damage", "--audit", "--seeds", "5", "--out", "run")
    ended = spotless("scrub", *BASE, *RECIPE, *RUINOUS, *asked)
    assert ended.code == 6, ended.err
    verdict, step = ended.out.splitlines()[:2]
    assert "a damaged network proves nothing about forgetting" in verdict
    assert step.startswith("next: do not use this network")
    limits = json.loads((here / "run/receipt.json").read_text())["predicate"]["limits"]
    assert any("worse than is allowed" in limit for limit in limits)
    assert "a damaged network proves nothing about forgetting.\n" in (here / "run/model-card.md").read_text()
    assert "Next: Do not use this network" in (here / "run/report.html").read_text()
    assert spotless("verify", "run", "--forget", "forget.csv").code == 0
    (here / "run/report.html").write_text((here / "run/report.html").read_text().replace("Inconclusive", "Forgotten"))
    assert spotless("verify", "run").code == 7


def wrong(path: Path, x: torch.Tensor, y: torch.Tensor) -> float:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model.load_state_dict(load_file(path))
    with torch.no_grad():
        return float((model(x).argmax(1) != y).double().mean())


def test_the_limit_can_be_said(here):
    asked = ("scrub", *BASE, *RUINOUS, "--max-damage")
    assert spotless(*asked, "0.99", "--out", "run").code == 0
    assert spotless(*asked, "0.01", "--out", "other").code == 9
    assert "`max-damage` must be positive, but got 0.0" in spotless(*asked, "0", "--out", "other").err
    allowed = json.loads((here / "run/receipt.json").read_text())["predicate"]["about"]["utility"]
    assert allowed["limit"] == 0.99
    assert (allowed["accepted_any"], allowed["within_limit"]) == (False, True)


def test_a_refused_request_leaves_an_earlier_one_and_other_peoples_folders_alone(here):
    (here / "empty").mkdir()
    assert spotless("scrub", *BASE, *RUINOUS, "--out", "empty").code == 9
    assert (here / "empty").is_dir()
    assert not list((here / "empty").iterdir())
    (here / "begun" / "private").mkdir(parents=True)
    assert spotless("scrub", *BASE, *RUINOUS, "--out", "begun", "--resume").code == 9
    assert (here / "begun" / "private").is_dir()
    assert spotless("scrub", *BASE, *QUICK, "--out", "begun", "--resume").code == 0


def test_a_harmless_request_is_served(here):
    assert spotless("scrub", *BASE, *QUICK, "--out", "run").code == 0


def problem(labels: torch.Tensor, loss: object = None) -> tuple[sn.Trained, torch.Tensor, sn.Data]:
    x = nn.functional.one_hot(torch.arange(len(labels)) % 3, 3).double()
    model = nn.Linear(3, 3, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(3, dtype=float64))
    return sn.Trained.of(model, loss), x, sn.Data.of((x, labels))


def test_a_class_that_goes_is_no_damage_on_held_out_rows():
    trained, x, data = problem(torch.arange(30) % 3)
    split = replace(sn.whole_class(2)(data), validation=sn.Data.of((x, torch.arange(30) % 3)))
    after = trained.at(trained.weights * torch.tensor([1, 1, 1, 1, 1, 1, 0, 0, -1], dtype=float64))
    found = {one.on: one for one in utility_of(trained, after, split) if one.kind == "error"}
    assert found["held-out rows"].rows == 20
    assert found["held-out rows"].after == 0
    sn.check_damage(trained, trained.module(after.weights), split)
    # The same network where a third of that class was asked for has lost what it should know.
    with pytest.raises(DamageError, match=r"33\.3% of 30 held-out rows are answered wrong, 0\.0% before"):
        sn.check_damage(trained, after, replace(sn.rows([2, 5])(data), validation=split.validation))


def test_a_loss_without_wrong_answers_is_counted_in_what_labels_dealt_at_random_cost():
    y = nn.functional.one_hot(torch.arange(60) % 3, 3).double()
    trained, _, data = problem(y, sn.SquaredError())
    split = sn.rows([0])(data)
    off = trained.at(trained.weights + 0.01)
    (fine,) = utility_of(trained, off, split)
    assert fine.before == 0
    assert fine.after == pytest.approx(0.5 * 3 * 0.01**2)
    # Two in three of the dealt labels are another one, at a loss of ½·2 each.
    assert fine.scale == pytest.approx(2 / 3, abs=0.2)
    sn.check_damage(trained, off, split)
    with pytest.raises(DamageError, match="the mean loss of 59 retained rows is"):
        sn.check_damage(trained, trained.at(0 * trained.weights), split)


def test_answers_that_are_no_numbers_are_damage_and_few_rows_are_looked_at():
    trained, _, data = problem(torch.arange(6000) % 3)
    split = sn.rows([0])(data)
    with pytest.raises(DamageError, match=f"answers to {CHECKED} retained rows are not finite numbers"):
        sn.check_damage(trained, trained.at(trained.weights.clone().fill_(1e308) * 10), split)


def test_too_few_rows_to_tell_are_said_and_not_passed_over():
    """One kept row, or none, let every network pass."""
    trained, _, data = problem(torch.arange(60) % 3)
    ruined = trained.at(0 * trained.weights)
    for kept, rows in ((None, 0), (data.select([]), 0), (data.select([3]), 1), (data.select(range(3, 32)), 29)):
        with pytest.raises(DamageError, match=f"at least 30 rows, but there are {rows} that stay"):
            sn.check_damage(trained, trained, sn.Split(forget=data.select([0]), kept=kept))
    few = sn.Split(forget=data.select([0]), kept=data.select([3]))
    assert sn.check_damage(trained, trained, few, least=1)
    assert sn.check_damage(trained, trained, replace(few, validation=data.select(range(30))))
    with pytest.raises(DamageError):
        sn.check_damage(trained, ruined, few)


def scattered(seed: int = 0, rows: int = 600, size: int = 20) -> tuple[torch.Tensor, torch.Generator]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=g, dtype=float64), g


def linear(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, loss: object = None):
    model = nn.Linear(x.shape[1], len(bias)).double()
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(bias)
    return sn.Trained.of(model, loss), sn.rows([0])(sn.Data.of((x, y)))


def test_an_answer_that_is_always_the_commonest_class_is_damage():
    """4% of the rows are of the rarer class: points of error never showed that all of them are lost."""
    x, _ = scattered()
    y = (x[:, 0] > 1.75).long()
    assert 0.01 < float(y.double().mean()) < 0.05
    W = torch.zeros(2, 20, dtype=float64)
    W[1, 0] = 20.0
    trained, split = linear(x, y, W, torch.tensor([0.0, -35.0], dtype=float64))
    assert sn.check_damage(trained, trained, split)
    always = trained.weights.clone()
    always[-2:] = torch.tensor([3.5, 0.0], dtype=float64)
    always[:-2] = 0
    with pytest.raises(DamageError, match="every class counting the same"):
        # With a calibrated constant even the loss is as good as a constant's can be.
        sn.check_damage(trained, trained.at(always), split, limit=0.1)
    # One rare row in twenty that flips is not.
    slightly = trained.weights.clone()
    slightly[-1] -= 1.0
    assert sn.check_damage(trained, trained.at(slightly), split)


def test_yes_or_no_labels_that_are_always_no_are_damage():
    x, g = scattered()
    W = torch.randn(50, 20, generator=g, dtype=float64)
    y = ((x @ W.T) > 2.05 * W.norm(dim=1)).double()
    assert 0.01 < float(y.mean()) < 0.03
    bias = -2.05 * 20 * W.norm(dim=1)
    trained, split = linear(x, y, 20 * W, bias, sn.BinaryCrossEntropy())
    assert sn.check_damage(trained, trained, split)
    no = trained.weights.clone()
    no[-50:] -= 1e4
    with pytest.raises(DamageError):
        sn.check_damage(trained, trained.at(no), split, limit=0.1)  # at 0.1 the loss alone refuses nothing
    (balanced,) = [one for one in utility_of(trained, trained.at(no), split) if one.kind == "balanced error"]
    assert (balanced.before, balanced.after) == (0, 0.5)


class Nothing(Scrub):
    """Takes nothing, so that its plan is of the look alone."""

    def shift(self, trained, split, notes):
        return trained.weights

    def cost(self, trained, split):
        return Work.sure(0.0)


@pytest.mark.parametrize("rows", [40, 700])
@pytest.mark.parametrize("loss", [None, sn.BinaryCrossEntropy(), sn.SquaredError()], ids=lambda one: type(one).__name__)
def test_a_look_takes_what_the_plan_counts_for_it(loss, rows):
    """Every network answered its rows three times, and plans counted one of them, then two."""
    x, g = scattered(rows=rows)
    y = torch.arange(rows) % 3
    labels = y if loss is None else nn.functional.one_hot(y, 3).double()
    trained, split = linear(
        x, labels, torch.randn(3, 20, generator=g, dtype=float64), torch.zeros(3, dtype=float64), loss
    )
    split = replace(split, test=sn.Data.of((x[:30], labels[:30])))
    with FlopCounterMode(display=False) as all_of_it:
        utility_of(trained, trained, split)
    with FlopCounterMode(display=False) as of_one_row:
        trained.outputs(x[:1])
    cost, sizes = estimate(trained, split, Nothing()), Sizes.of(trained, split)
    planned = cost.seconds / cost.epoch * len(split.retain) * sizes.gradient / sizes.answer
    assert planned == pytest.approx(all_of_it.get_total_flops() / of_one_row.get_total_flops())
    assert planned == pytest.approx(2 * (rows - 1 + 30))


def test_all_that_a_look_tells_by_hand():
    """Of 600 rows in three batches, sorted by class; the third class mostly goes and is balanced against nothing."""
    x, g = scattered()
    y = torch.arange(600) // 200
    weight = torch.randn(3, 20, generator=g, dtype=float64)
    trained, _ = linear(x, y, weight, torch.zeros(3, dtype=float64))
    data = sn.Data.of((x, y))
    split = sn.Split(forget=data.select(range(480, 600)), kept=data.select(range(480)))
    after = trained.at(trained.weights * 0.5 + 0.1 * torch.randn(63, generator=g, dtype=float64))
    error, loss, balanced = utility_of(trained, after, split)
    for network, side in ((trained, "before"), (after, "after")):
        logits = x[:480] @ network.weights[:60].reshape(3, 20).T + network.weights[60:]
        wrong = (logits.argmax(dim=1) != y[:480]).double()
        assert getattr(error, side) == pytest.approx(float(wrong.mean()))
        assert getattr(loss, side) == pytest.approx(float(nn.functional.cross_entropy(logits, y[:480])))
        assert getattr(balanced, side) == pytest.approx(float((wrong[:200].mean() + wrong[200:400].mean()) / 2))
    assert (error.rows, loss.rows, balanced.rows) == (480, 480, 400)


def test_answers_without_confidence_are_damage():
    """Logits times 1e-6 leave the largest where it was: no answer is wrong, and none says anything."""
    x, _ = scattered()
    y = (x[:, 0] > 0).long()
    W = torch.zeros(2, 20, dtype=float64)
    W[1, 0] = 20.0
    trained, split = linear(x, y, W, torch.zeros(2, dtype=float64))
    with pytest.raises(DamageError, match=r"the mean loss of 599 retained rows is 0\.693"):
        sn.check_damage(trained, trained.at(1e-6 * trained.weights), split)
    assert sn.check_damage(trained, trained.at(0.5 * trained.weights), split)
    # By hand: the entropy of the labels less the loss is what the network knows.
    (one,) = [one for one in utility_of(trained, trained, split) if one.kind == "loss"]
    p = y[1:].double().mean()
    assert one.before + one.scale == pytest.approx(float(-p * p.log() - (1 - p) * (1 - p).log()))


def test_a_case_file_can_insist(here):
    lines = 'model = "nets.py:build"\nweights = "model.safetensors"\ndata = "mydata.py:train"\nforget = "forget.csv"\n'
    (here / "case.toml").write_text(lines + 'method = "gradient-ascent"\naccept_damage = true\n[set]\nlr = 1e6\n')
    assert spotless("scrub", "--case", "case.toml", "--out", "run").code == 0
