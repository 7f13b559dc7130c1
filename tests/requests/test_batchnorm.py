"""BatchNorm statistics in a request: seen to have moved where `init` has others, and told where nobody can tell."""

import copy
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.buffers import reestimated
from spotlessnet.methods.within_budget import noise_cost

FORGET = list(range(20))
RECIPE = sn.Recipe(epochs=15, lr=0.05, batch_size=20)
FINETUNE, NOISE = sn.Finetune(epochs=1), sn.Fisher(strength=1e-2)


def problem() -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    """A network trained by a plain loop in train mode, the forgotten rows far away from the others."""
    torch.manual_seed(0)
    y = torch.arange(120) % 3
    x = torch.randn(120, 4) + 3 * nn.functional.one_hot(y, 4)
    x[:20] += 50
    start = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    model = copy.deepcopy(start).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(15):
        for batch in torch.randperm(120).split(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model.eval(), start, x, y


def mean_of(model: nn.Module) -> torch.Tensor:
    norm = model[0]  # type: ignore[index]  # a sequence
    return norm.running_mean


def test_statistics_that_training_moved_come_from_retained_rows_though_the_recipe_says_nothing():
    """With the default recipe retrained weights came back under statistics that hold the forgotten rows."""
    model, start, x, y = problem()
    assert mean_of(model).min() > 5
    for method in ("retrain", "short-retrain", "finetune", "ntk"):
        done = sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=RECIPE, method=method, accept_damage=True)
        assert torch.allclose(mean_of(done.model), x[20:].mean(0), atol=0.5), method
        assert "training moved BatchNorm's running statistics" in str(done.plan)
        assert not any("BatchNorm" in limit for limit in done.receipt["predicate"]["limits"])
    # The very network that moving statistics give by name.
    named = RECIPE.but(freeze_statistics=False)
    by_name = sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=named, method="retrain", accept_damage=True)
    seen = sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=RECIPE, method="retrain", accept_damage=True)
    for one, other in zip(by_name.model.state_dict().values(), seen.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_weights_of_init_without_buffers_leave_the_statistics_and_that_is_said():
    model, start, x, y = problem()
    parameters = {name: value.detach() for name, value in start.named_parameters()}
    done = sn.unlearn(
        model, (x, y), forget=FORGET, init=parameters, recipe=RECIPE, method="retrain", accept_damage=True
    )
    assert torch.equal(mean_of(done.model), mean_of(model))
    assert "running statistics stay as they are and may come from the forgotten rows" in str(done.plan)
    assert any("gathered with the forgotten rows" in limit for limit in done.receipt["predicate"]["limits"])
    moving = RECIPE.but(freeze_statistics=False)
    done = sn.unlearn(
        model, (x, y), forget=FORGET, init=parameters, recipe=moving, method="retrain", accept_damage=True
    )
    assert any("began at those of the original" in limit for limit in done.receipt["predicate"]["limits"])


def test_statistics_that_stood_still_are_no_limit():
    model, _, x, y = problem()
    start = copy.deepcopy(model)
    with torch.no_grad():
        start[1].weight.zero_()  # type: ignore[index]  # a sequence
    done = sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=RECIPE, method="retrain", accept_damage=True)
    assert torch.equal(mean_of(done.model), mean_of(model))
    assert "BatchNorm" not in str(done.plan)
    assert not any("BatchNorm" in limit for limit in done.receipt["predicate"]["limits"])


def behind_a_layer() -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    """Statistics behind a linear layer: their means are the layer's weights times the mean row."""
    _, _, x, y = problem()
    start = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    model = copy.deepcopy(start).train()
    for batch in torch.randperm(120).split(20) * 3:
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.sub_(0.05 * p.grad)
                p.grad = None
    return model.eval(), start, x, y


@pytest.mark.parametrize("method", [sn.NoisyFinetune(epochs=1), NOISE, sn.chain(FINETUNE, NOISE)])
def test_beside_noisy_weights_statistics_tell_nothing_of_the_mean(method: sn.Scrub):
    """Those of the mean, without noise, were handed out beside the noise: so many equations in the hidden weights."""
    model, start, x, y = behind_a_layer()
    released = []
    for seed in (0, 4):  # of secret noise two draws may come close by chance
        done = sn.unlearn(
            model, (x, y), forget=FORGET, init=start, recipe=RECIPE, method=method, accept_damage=True, seed=seed
        )
        tensors = done.model.state_dict()
        released.append([tensors[name] for name in ("0.weight", "0.bias", "1.running_mean")])
    for weight, bias, mean in released:
        torch.testing.assert_close(mean, x[20:].mean(0) @ weight.T + bias, rtol=1e-4, atol=1e-4)
    assert not released[0][2].isclose(released[1][2], rtol=1e-2).any()


def test_a_budget_judges_noise_under_the_statistics_that_are_released(monkeypatch: pytest.MonkeyPatch):
    model, start, x, y = behind_a_layer()
    watched = Mock(side_effect=reestimated)
    monkeypatch.setattr(noise_cost, "reestimated", watched)
    method = sn.WithinBudget(sn.Fisher(), max_error_increase=0.2)
    sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=RECIPE, method=method, accept_damage=True)
    assert len(watched.call_args.args[1]) == 100
