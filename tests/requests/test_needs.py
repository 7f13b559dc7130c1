"""What a method or an audit needs of a network is checked once, before any work, also by a dry run."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import DamageError, MismatchError, NeedError
from spotlessnet.core.scrub import METHODS, Notes, Scrub
from spotlessnet.requests.audits import audit_plan
from spotlessnet.requests.case import Case
from spotlessnet.requests.planning import plan_of
from tests.cli.workshop import BASE, QUICK, spotless

CLASSES = [entry.name for entry in METHODS.entries() if "classes" in entry.needs]
RECIPE = sn.Recipe(epochs=2, lr=0.01, batch_size=20)


def regression(outputs: int = 1) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, outputs), torch.randn(90, 4), torch.randn(90, outputs)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("method", CLASSES)
def test_a_method_for_classes_refuses_regression_in_one_line_before_any_work(method, outputs):
    """Bad teacher gave the same weights back with a receipt; others ended in raw errors after a dry run."""
    model, x, y = regression(outputs)
    trained = sn.Trained.of(model, sn.SquaredError(), init=model, recipe=RECIPE)
    said = f"The method '{method}' needs classes"
    case = Case.of({"model": trained, "data": sn.Data.of((x, y)), "forget": sn.rows([1, 2]), "method": method})
    with pytest.raises(NeedError, match=said) as raised:
        plan_of(case)
    assert "\n" not in str(raised.value)
    with pytest.raises(NeedError, match=said):
        METHODS[method]()(trained, sn.rows([1, 2])(sn.Data.of((x, y))))
    with pytest.raises(NeedError, match=said):
        sn.chain(sn.Finetune(epochs=1), METHODS[method]())(trained, sn.rows([1, 2])(sn.Data.of((x, y))))


def test_bad_teacher_is_among_them_and_a_loss_of_ones_own_for_classes_is_served():
    assert "bad-teacher" in CLASSES
    torch.manual_seed(0)
    y = torch.arange(90) % 3
    x = torch.randn(90, 4) + 2 * nn.functional.one_hot(y, 4)
    done = sn.unlearn(
        nn.Linear(4, 3),
        (x, y),
        forget=[1, 2],
        method="bad-teacher",
        loss=nn.CrossEntropyLoss(reduction="none"),
        accept_damage=True,
    )
    assert done.model is not None


@dataclass(frozen=True)
class Nothing(Scrub):
    """Gives back what it was given."""

    def shift(self, trained, split, notes: Notes):
        return trained.weights


def test_a_result_that_is_the_original_bit_for_bit_gets_no_receipt(tmp_path):
    model, x, y = regression()
    asked: dict[str, Any] = {"forget": [1, 2], "method": Nothing(), "loss": sn.SquaredError()}
    with pytest.raises(DamageError, match="Nothing was changed: every weight came back bit for bit"):
        sn.unlearn(model, (x, y), **asked, out=tmp_path / "run")
    assert not (tmp_path / "run" / "scrubbed.safetensors").exists()
    done = sn.unlearn(model, (x, y), **asked, accept_damage=True)
    assert any("Nothing was changed" in limit for limit in done.receipt["predicate"]["limits"])


def test_an_audit_of_regression_says_before_the_work_what_it_compares():
    """It was refused: an audit was for classifiers."""
    model, x, y = regression()
    said: list[str] = []
    done = sn.unlearn(
        model,
        (x, y),
        forget=[1, 2],
        loss=sn.SquaredError(),
        init=nn.Linear(4, 1),
        recipe=RECIPE,
        audit=sn.Audit(seeds=5),
        accept_damage=True,
        progress=False,
        say=said.append,
    )
    assert "audit   rows are compared by the loss of a row, for there are no classes" in said
    assert any("no attack and no matched controls: they need test rows" in line for line in said)
    assert done.report is not None
    assert done.report.outcome in ("forgotten", "not forgotten", "inconclusive", "never saw the rows")


@pytest.mark.parametrize("command", [("scrub", "--audit"), ("audit",)])
def test_so_does_a_dry_run(here, command):
    (here / "reg.py").write_text(
        "import torch\nfrom torch import nn\nfrom safetensors.torch import save_file\n"
        "def build():\n    return nn.Linear(4, 1)\n"
        "def train():\n    torch.manual_seed(0)\n    return torch.randn(60, 4), torch.randn(60, 1)\n"
    )
    sn.write_weights(here / "reg.safetensors", nn.Linear(4, 1))
    (here / "rows.csv").write_text("row\n1\n2\n")
    asked = (
        "--model", "reg.py:build", "--weights", "reg.safetensors", "--data", "reg.py:train", "--loss", "squared-error",
        "--forget", "rows.csv", "--id-column", "row", "--method", "finetune", "--dry-run",
    )  # fmt: skip
    ended = spotless(*command, *asked)
    assert ended.code == 0, ended.err
    assert "rows are compared by the loss of a row" in ended.out
    assert "no verdict: it takes init and a recipe or trainer" in ended.out
    assert "audit " not in spotless("scrub", *asked).out


def test_labels_of_positions_are_looked_at_before_the_work():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    x = torch.randint(5, (40, 6))
    for y, said in (
        (torch.full_like(x, 7), r"The network has 5 outputs, but the labels of .* go from 7 to 7"),
        (x.float(), "one whole-number label a row, or one a position"),
        (x[:, 0], r"one a position, but the labels of .* have shape \(40,\)"),
        (x.where(torch.arange(40)[:, None] != 3, -100), "row 3 of .* has none: all of its labels are -100"),
    ):
        with pytest.raises(MismatchError, match=said):
            sn.unlearn(model, (x, y), forget=[1], loss="next-token")


def test_a_plan_says_noise_only_of_methods_that_add_some_and_shows_its_lines(here):
    assert "noise   secret" in spotless("scrub", *BASE, *QUICK, "--dry-run").out
    assert "noise   none" in spotless("scrub", *BASE, "--method", "finetune", "--dry-run").out
    model, x, y = regression()
    done = sn.unlearn(model, (x, y), forget=[1, 2], method="finetune", loss=sn.SquaredError(), accept_damage=True)
    assert done.plan is not None
    assert str(done.plan) == repr(done.plan) == "\n".join(done.plan.lines())
    assert "Linear" not in repr(done)


def test_what_a_short_retraining_took_lies_within_what_its_plan_said():
    """The plan said 23% where three of five stages were run; the receipt counts as the plan does."""
    torch.manual_seed(0)
    y = torch.arange(90) % 3
    x = torch.randn(90, 4) + nn.functional.one_hot(y, 4)
    start = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    recipe = sn.Recipe(epochs=10, lr=0.1, batch_size=20)
    model = sn.fit(sn.Trained.of(start, recipe=recipe, init=start), sn.Data.of((x, y))).module()
    shares = []
    for tolerance in (1.0, 0.0):  # one stage, and as many as are needed
        settings = {"error_tolerance": tolerance}
        done = sn.unlearn(
            model, (x, y), forget=[1, 2], init=start, recipe=recipe, method="short-retrain", settings=settings
        )
        assert done.plan is not None
        cost = done.plan.cost
        usual, most = cost.seconds / cost.retraining, cost.at_most / cost.retraining
        shares.append(done.diagnostics["share_of_retraining"])
        # The plan also counts the look at the damage: 90 rows answered twice.
        assert shares[-1] <= most
        if tolerance:
            assert shares[0] - 0.1 <= usual <= most  # between one stage and all of them
        assert f"at most {most:.0%}" in str(done.plan) or f"({most:.0%})" in str(done.plan)
    assert shares[0] < shares[1]


def test_with_no_recipe_no_default_takes_longer_than_training(monkeypatch):
    """At 50,000 rows the default would have taken hours for a network that trained in seconds."""
    torch.manual_seed(0)
    y = torch.arange(400) % 3
    x = torch.randn(400, 4) + 2 * nn.functional.one_hot(y, 4)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    case = Case.of({"model": sn.Trained.of(model), "data": sn.Data.of((x, y)), "forget": sn.rows([1, 2])})
    usual = plan_of(case)
    assert usual.method == "ntk+finetune", "what takes a moment may take it"
    monkeypatch.setattr("spotlessnet.requests.methods.SHORT", 0.0)
    plan = plan_of(case)
    assert plan.method == "respond-and-finetune"
    assert plan.cost.at_most < usual.cost.seconds / 10
    assert "ntk+finetune would take as much as" in str(plan)
    asked = Case.of({**vars(case), "method": "ntk+finetune"})
    assert plan_of(asked).method == "ntk+finetune", "whoever names it gets it"


def test_a_dry_run_of_an_audit_from_a_bank_asks_for_test_rows():
    """The plan was printed, and the run then refused."""
    model, x, y = regression()
    case: dict[str, Any] = {"forget": [1, 2], "loss": sn.SquaredError(), "init": nn.Linear(4, 1), "recipe": RECIPE}
    plan = sn.unlearn(model, (x, y), **case, accept_damage=True, progress=False).plan
    assert plan is not None
    with pytest.raises(NeedError, match="An audit from a bank needs test rows"):
        audit_plan(plan, sn.Audit(bank="bank"))
