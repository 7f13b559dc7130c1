"""Noisy fine-tuning: two runs never end further apart than the certificate says, and the noise hides just that."""

from dataclasses import replace

import pytest
import torch
from torch import float64, nn

from spotlessnet.core.errors import SettingError
from spotlessnet.core.gaussian_dp import delta_of
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.methods.noisy_finetune import NoisyFinetune


def problem(seed: int = 0) -> tuple[Trained, Split]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(50, 4, generator=draw, dtype=float64)
    y = torch.randint(2, (50,), generator=draw)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    trained = Trained.of(model, recipe=Recipe(epochs=1, lr=0.1, momentum=0.9, weight_decay=0.1))
    return replace(trained, init=trained.weights), rows(range(6))((x, y))


@pytest.mark.parametrize(("clip", "pull", "lr"), [(0.1, 1.0, 0.1), (5.0, 0.3, 0.5), (1e-3, 2.0, 0.05)])
def test_no_two_beginnings_end_further_apart_than_certified(clip, pull, lr):
    trained, split = problem()
    scrub = NoisyFinetune(clip=clip, pull=pull, lr=lr, epochs=3, batch_size=16)
    anchor = trained.init
    assert anchor is not None
    draw = torch.Generator().manual_seed(3)
    ends = []
    for far in (0.5, 3.0, 40.0, 40.0):
        way = torch.randn(trained.size, generator=draw, dtype=float64)
        ends.append(scrub(trained.at(anchor + far * way / way.norm()), split))
    limit = scrub.distance(44)
    gaps = [float((a.mean - b.mean).norm()) for a in ends for b in ends]
    assert max(gaps) <= limit * (1 + 1e-9)
    facts = ends[0].diagnostics["noisy_finetune"]
    assert facts["distance"] == limit
    assert facts["steps"] == 3 * 3
    sigma = ends[0].covariance.diagonal()[0].sqrt().item()
    assert facts["sigma"] == pytest.approx(sigma)
    assert delta_of(limit / sigma, scrub.epsilon) <= scrub.delta
    assert delta_of(limit / sigma * 1.001, scrub.epsilon) > scrub.delta * 0.99  # and no more noise than is needed


def test_without_gradients_a_beginning_fades_by_the_closed_form():
    """clip = 0 leaves the pull alone: opposite ends of the ball come to 2 C0 (1 - lr pull)^T, which is the limit."""
    trained, split = problem()
    scrub = NoisyFinetune(clip=0.0, radius=0.7, epochs=2, batch_size=11)
    anchor = trained.init
    assert anchor is not None
    way = torch.ones_like(anchor) / len(anchor) ** 0.5
    ends = [scrub(trained.at(anchor + far * way), split).mean for far in (9.0, -9.0)]
    assert float((ends[0] - ends[1]).norm()) == pytest.approx(2 * 0.7 * 0.9**8, rel=1e-9)
    assert scrub.distance(44) == pytest.approx(2 * 0.7 * 0.9**8)


def test_steps_see_retained_rows_alone_and_the_noise_does_not_know_the_request():
    trained, split = problem()
    other = replace(split, forget=split.forget.select([0]))
    scrub = NoisyFinetune(epochs=1)
    first, second = scrub(trained, split), scrub(trained, other)
    assert torch.equal(first.mean, second.mean)
    reference = scrub.reference_for(first, trained, split)
    assert torch.equal(reference.covariance.diagonal(), first.covariance.diagonal())


def test_what_certifies_nothing_is_refused():
    with pytest.raises(SettingError, match="below 1"):
        NoisyFinetune(lr=1.0, pull=1.0)
    with pytest.raises(SettingError, match="delta"):
        NoisyFinetune(delta=0.0)
    with pytest.raises(SettingError):
        NoisyFinetune(epsilon=0.0)
