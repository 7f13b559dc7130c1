"""Features against dense autograd, leave-one-out against refitting, noise against its definition."""

import math

import pytest
import torch
from scipy.stats import norm
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import MismatchError, ResourceError, SettingError
from spotlessnet.forgettable.adapt import Adaptation, WithHead, adapt
from spotlessnet.forgettable.features import Linearised, Mirrored, Pooled, TangentSketch, pool, sketchable
from spotlessnet.forgettable.features.describe import described, rebuilt
from spotlessnet.forgettable.inverse import cholesky, solve
from spotlessnet.forgettable.moments import Moments
from spotlessnet.forgettable.noise import delta_of, epsilon_of, sigma_for
from spotlessnet.forgettable.ridge import choose_ridge, leave_one_out
from spotlessnet.training.mixed import fit_users


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(5, 6, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, 1),
    )


def test_tangent_features_are_projected_gradients():
    net, x = convolutions(), torch.randn(3, 2, 5, 5)
    v = torch.randn(2, 4)
    made = TangentSketch(net, v, rank_in=3, rank_out=2)
    found = made(x)
    assert sketchable(net) == ["2", "4"]
    assert made.blocks(found.shape[1]) == [4, 12, 12]
    net.requires_grad_(True)
    sketches = dict(made.named_buffers())
    for i in range(3):
        torch.testing.assert_close(found[i, :4], net(x[i : i + 1]).mean(dim=(2, 3))[0])
        at = 4
        for layer, a, b in (("2", sketches["in_0"], sketches["out_0"]), ("4", sketches["in_1"], sketches["out_1"])):
            weight = net.get_submodule(layer).weight
            for m in range(2):
                net.zero_grad()
                (net(x[i : i + 1]).mean(dim=(2, 3))[0] @ v[m]).backward()
                dense = a.T @ weight.grad[:, :, 0, 0].T @ b[m]
                torch.testing.assert_close(found[i, at : at + 6], dense.flatten(), rtol=1e-4, atol=1e-6)
                at += 6


def test_tangent_features_of_tokens_and_aligned_sketches():
    net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5))
    x = torch.randn(40, 9, 6) * torch.tensor([5.0, 3, 1, 0.1, 0.1, 0.1])
    made = TangentSketch(net, torch.randn(1, 5), rank_in=2, rank_out=2)
    before = made(x)
    made.align([x[:20], x[20:]], power=0.0)
    after = made(x)
    assert after.shape == before.shape == (40, 5 + 4 + 4)
    leading = torch.linalg.eigh(torch.einsum("npi,npj->ij", x, x))[1].flip(1)[:, :2]
    torch.testing.assert_close((made.in_0.T @ leading).abs(), torch.eye(2), rtol=0, atol=1e-3)
    with pytest.raises(SettingError, match="must be linear or pointwise"):
        TangentSketch(net, torch.randn(1, 5), ["1"])


def test_even_sketches_leave_out_the_last_features(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spotlessnet.forgettable.features.tangent.MANY", 20)
    net, x, v = convolutions(), torch.randn(3, 2, 5, 5), torch.randn(2, 4)
    whole, even = (TangentSketch(net, v, rank_in=3, rank_out=2, even=choice) for choice in (False, True))
    found = even(x)
    assert found.shape[1] == 15  # and the constant feature makes sixteen
    torch.testing.assert_close(found, whole(x)[:, :15])
    assert even.blocks(15) == [4, 11]
    assert whole.blocks(28) == [4, 12, 12]
    about = described(even)
    assert about is not None
    again = rebuilt(net, about, even.state_dict())
    assert again.even
    old = {name: value for name, value in about.items() if name != "even"}
    assert not rebuilt(net, old, even.state_dict()).even
    with pytest.raises(MismatchError, match="make 15 features, but 28"):
        even.blocks(28)


def test_pooling_heeds_the_mask_and_mirrors_average():
    tokens, mask = torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    found = pool(tokens, attention_mask=mask)
    torch.testing.assert_close(found[0], tokens[0, :2].mean(dim=0))
    torch.testing.assert_close(found[1], tokens[1].mean(dim=0))
    image, both = torch.randn(2, 2, 5, 5), Mirrored(Pooled(convolutions()))
    torch.testing.assert_close(both(image), both(image.flip(-1)))


def test_a_linearised_network_is_the_mixed_linear_one():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(60, 3), torch.randint(0, 3, (60,))
    model = sn.fit_forgettable(net, core=(x[:10], y[:10]), user=(x[10:], y[10:]), features="linearised", ridge=0.05)
    # The same problem by the trainer of the paper: one ridge per unit of codes is one decay per unit of weights.
    scale = float(model.encoder.point.scale[0])
    weight_decay = model.ridge * scale**2 / 60
    settled = fit_users(
        sn.Trained.of(net.double()), sn.Data.of((x.double(), y)), weight_decay=weight_decay, tolerance=1e-10
    )
    other = settled.module()(x.double())
    torch.testing.assert_close(model.predict(x).double(), other, rtol=0, atol=2e-2)
    model.forget(range(20))
    left = fit_users(
        sn.Trained.of(net), sn.Data.of((torch.cat([x[:10], x[30:]]).double(), torch.cat([y[:10], y[30:]]))),
        weight_decay=model.ridge * scale**2 / 40, tolerance=1e-10,
    )  # fmt: skip
    torch.testing.assert_close(model.predict(x).double(), left.module()(x.double()), rtol=0, atol=2e-2)
    with pytest.raises(ResourceError, match="must have between 1 and 30000 weights"):
        Linearised(nn.Linear(400, 100))


def test_leave_one_out_is_refitting_without_each():
    draw = torch.Generator().manual_seed(0)
    q = torch.randint(-3000, 3000, (30, 6), generator=draw).to(torch.int16)
    t, w = torch.randint(0, 2, (30, 2), generator=draw), torch.randint(1, 4, (30,), generator=draw)
    moments = Moments.zero(6, 2)
    moments.add(q, t, w)
    ridge = 10**7
    L = cholesky(moments.gram, ridge)
    found = leave_one_out(L, solve(L, moments.cross), q, t, w)
    for i in range(30):
        rest = [j for j in range(30) if j != i]
        A = (q[rest].double() * w[rest, None]).T @ q[rest].double() + ridge * torch.eye(6, dtype=torch.float64)
        W = torch.linalg.solve(A, (q[rest].double() * w[rest, None]).T @ t[rest].double())
        torch.testing.assert_close(found[i], q[i].double() @ W, rtol=1e-8, atol=1e-10)
    chosen, errors = choose_ridge(moments, q, t, w, candidates=(1e-3, 1.0))
    best = min(errors, key=lambda share: errors[share])
    assert chosen == round(best * float(moments.gram.diagonal().mean()))


def test_noise_gives_epsilon_and_delta_over_a_sequence():
    mu = 0.7
    # Against the definition: the least delta is the largest gap over all sets, here half-lines.
    gaps = [norm.cdf(mu - c) - math.exp(1.0) * norm.cdf(-c) for c in torch.linspace(-5, 8, 5001).tolist()]
    assert delta_of(mu, 1.0) == pytest.approx(max(gaps), rel=1e-4)
    one = epsilon_of([1e-12], 1e-11, 1e-6)
    many = epsilon_of([1e-12] * 100, 1e-11, 1e-6)
    assert 0 < one < many
    assert delta_of(1.0, many) == pytest.approx(1e-6, rel=1e-4)
    assert epsilon_of([1e-12], sigma_for(1e-12, 0.5, 1e-6), 1e-6) == pytest.approx(0.5, rel=1e-4)
    assert epsilon_of([], 1.0, 1e-6) == 0
    with pytest.raises(SettingError, match="`delta` must be between"):
        epsilon_of([1.0], 1.0, 2.0)
    for wrong in (float("nan"), float("inf"), -1.0):
        with pytest.raises(SettingError, match="bounds must be finite and not negative"):
            epsilon_of([1e-12, wrong], 1.0, 1e-6)
    # From nearly nothing to nearly everything, and never less noise than is needed.
    for epsilon, delta in ((1e-3, 1e-9), (0.5, 1e-6), (50.0, 1e-12), (1e6, 0.5)):
        assert epsilon * 0.999 < epsilon_of([1e-16], sigma_for(1e-16, epsilon, delta), delta) <= epsilon


def test_adapting_fits_core_data_and_leaves_the_backbone_alone():
    torch.manual_seed(0)
    y = torch.randint(0, 3, (90,))
    x = torch.randn(90, 4) + 3 * nn.functional.one_hot(y, 4)
    layer = nn.Linear(4, 8)
    net = WithHead(layer, pool, 8, 3)
    before = layer.weight.clone()
    for how in (
        Adaptation(epochs=40, lr=0.05, mixup=0.2, ema=0.9),
        Adaptation(epochs=40, lr=0.05, optimizer="adamw", augment=lambda x, draw: x),
    ):
        found = adapt(net, sn.Data.of((x, y)), how)
        assert float((found(x).argmax(dim=1) == y).double().mean()) > 0.9
    assert torch.equal(layer.weight, before)
    with pytest.raises(SettingError, match=r"`Adaptation.optimizer` must be"):
        Adaptation(optimizer="magic")


def test_no_epsilon_is_less_than_the_distance_asks_for():
    """Against arithmetic with 60 digits, also where the formula's two terms agree in all digits of float64."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):

        def exact(mu, epsilon):
            mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
            return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2)

        for mu in (1e-17, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.99, 1.0, 5.0, 100.0):
            for delta in (1e-30, 1e-18, 1e-15, 1e-9, 1e-5, 0.1):
                found = epsilon_of([mu], 1.0, delta)
                assert exact(mu, found) <= delta, (mu, delta)
                assert found == 0 or exact(mu, found) > 0.999 * delta, (mu, delta)
        for epsilon in (1e-6, 1e-3, 1.0, 100.0):
            for delta in (1e-30, 1e-15, 1e-5, 0.9):
                assert 0.999 * delta < exact(1 / mpmath.mpf(sigma_for(1.0, epsilon, delta)), epsilon) <= delta
    assert epsilon_of([1e200], 1.0, 1e-5) == math.inf


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
        self.unused: nn.Module = nn.Linear(16, 16)

    def forward(self, x):
        return self.layers(self.words(x))


def test_layers_that_a_backbone_never_calls_are_not_sketched():
    torch.manual_seed(0)
    x, y = torch.randint(0, 30, (90, 6)), torch.arange(90) % 3
    core, user = (x[:40], y[:40]), (x[40:], y[40:])
    net = Reader()

    def fitted():
        return sn.fit_forgettable(net, core=core, user=user, features="tangent", ridge=0.1, rank=3)

    with pytest.raises(SettingError, match="must be called, but the backbone passes unused by"):
        fitted()
    net.unused = nn.Identity()
    model = fitted()
    assert model.encoder.features.names == [f"layers.layers.{i}.linear{k}" for i in (0, 1) for k in (1, 2)]
    model.forget([0, 7])
    left = [i for i in range(40, 90) if i not in (40, 47)]
    assert torch.equal(model.weights, model.solved_anew((x[left], y[left]), core=core).weights)
