"""Every method on every kind of network: it works, or one sentence says before any work why it does not."""

from functools import cache

import pytest
import torch

import spotlessnet as sn
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.scrub import METHODS
from spotlessnet.methods import NTK, Fisher, Newton, Variational, WithinBudget
from spotlessnet.requests.case import Case
from spotlessnet.requests.planning import plan_of
from tests.auditing.test_any_network import KINDS, made

NAMES = [*METHODS.names()]


small = cache(made)


def asked(kind: str, method: object) -> dict[str, object]:
    original, split = small(kind, 24, 2)
    return {"model": original, "data": split.whole, "forget": sn.rows(range(10)), "method": method, "test": split.test}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_method_works_or_is_refused_before_any_work(kind, name):
    methods = {
        "within-budget": WithinBudget(Fisher(kind="monte carlo"), max_nats=50.0),
        "variational": Variational(steps=5),
        "newton": Newton(curvature="gauss-newton"),
        "ntk": NTK(damping=1.0),
    }
    method = methods.get(name, name)
    try:
        plan = plan_of(Case.of(asked(kind, method)))
    except SpotlessError as refusal:
        said = str(refusal)
    else:
        said = ""
    if said:
        assert "\n" not in said
        assert said.endswith(".")
        return
    assert torch.isfinite(torch.tensor(plan.cost.seconds))
    found = plan.scrub(plan.opened.trained, plan.opened.split)
    assert found.mean.isfinite().all()
    # Selective dampening may find no weight that matters ten times more to the forgotten rows.
    same = torch.equal(found.mean, plan.opened.trained.weights)
    assert not same or not found.is_noiseless or name == "ssd"
