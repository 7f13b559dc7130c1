"""An example's codes depend on the example alone: not on its place in a batch, nor on what stands beside it."""

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import NumericsError, SettingError
from spotlessnet.forgettable import load_forgettable, save_forgettable
from spotlessnet.forgettable.encoder import encode, raw_features
from spotlessnet.forgettable.fit import make_encoder
from spotlessnet.forgettable.places import LANES, lanes_for, lanes_needed, lanes_of, plan

CLASSES = 3


def some(n, width, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=draw)
    return x, torch.arange(n) % CLASSES


def network(width, hidden, out):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))


def model_of(kind, width, hidden, out, batch_size, **settings):
    return sn.fit_forgettable(
        network(width, hidden, CLASSES if kind == "linearised" else out),
        core=some(90, width, 0),
        user=some(130, width, 1),
        features=kind,
        classes=CLASSES,
        ridge=1e-3,
        rank=5,
        batch_size=batch_size,
        **settings,
    )


@pytest.mark.parametrize("kind", ["pooled", "tangent", "linearised"])
@pytest.mark.parametrize(("width", "hidden", "out", "batch_size"), [(13, 33, 5, 64), (32, 9, 5, 64), (7, 21, 3, 13)])
def test_codes_at_every_place_and_beside_anyone(kind, width, hidden, out, batch_size):
    model = model_of(kind, width, hidden, out, batch_size)
    x, y = some(130, width, 1)
    codes, targets = model.encoder(x, y)
    for before in range(1, batch_size):
        found = model.encoder(torch.cat([x[64 : 64 + before], x[:40]]), torch.cat([y[64 : 64 + before], y[:40]]))
        assert torch.equal(found[0][before:], codes[:40]), before
        assert torch.equal(found[1][before:], targets[:40]), before
    for i in range(20):
        alone = model.encoder(x[i : i + 1], y[i : i + 1])
        assert torch.equal(alone[0][0], codes[i])
        assert torch.equal(alone[1][0], targets[i])


def test_the_order_of_a_batch_would_matter_to_the_network_itself():
    # Were this no longer so, the test above would show nothing.
    x = some(64, 33, 0)[0]
    torch.manual_seed(0)
    layer = nn.Linear(33, 5)
    assert any(not torch.equal(layer(x.roll(k, 0)).roll(-k, 0), layer(x)) for k in range(1, 16))


@pytest.mark.parametrize("kind", ["tangent", "linearised"])
def test_forgetting_is_a_fit_without_the_rows_bit_for_bit(kind):
    x, y = some(130, 13, 1)
    for gone in (1, 3, 50):
        model = model_of(kind, 13, 33, 5, 64)
        model.forget(list(range(gone)))
        anew = sn.fit_forgettable(
            network(13, 33, CLASSES if kind == "linearised" else 5),
            core=some(90, 13, 0),
            user=(x[gone:], y[gone:]),
            features=kind,
            classes=CLASSES,
            ridge=1e-3,
            rank=5,
        )
        assert torch.equal(model.moments.gram, anew.moments.gram)
        assert torch.equal(model.moments.cross, anew.moments.cross)


def test_every_row_can_go_where_features_were_not_kept():
    model = model_of("tangent", 13, 33, 5, 64, keep_features=False)
    x, _ = some(130, 13, 1)
    for i in range(130):
        model.forget(i, inputs=x[i : i + 1])
    assert not len(model)


def test_named_inputs_have_places_too():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(33, 5)

        def forward(self, a, b):
            return self.layer(a) * b[:, None]

    x, y = some(100, 33, 0)
    both = {"a": x, "b": torch.arange(100)}
    encoder = make_encoder(Named(), sn.Data.of((both, y)), CLASSES)
    whole = encoder(both, y)[0]
    for i in range(20):
        assert torch.equal(encoder({n: v[i:] for n, v in both.items()}, y[i:])[0], whole[i:])


def test_a_plan_places_each_row_once_in_its_lane():
    lanes = lanes_of(some(500, 6, 0)[0], LANES)
    assert int(lanes.min()) >= 0
    assert len(lanes.unique()) == LANES
    seen = []
    for row in plan(lanes, LANES, 64):
        taken = row >= 0
        assert torch.equal(lanes[row[taken]], taken.nonzero().squeeze(1) % LANES)
        seen += row[taken].tolist()
    assert sorted(seen) == list(range(500))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ],
)
def test_lanes_know_the_content_alone(dtype):
    x = (torch.randn(200, 3, 4, 5, generator=torch.Generator().manual_seed(0)) * 9).clamp(min=0).to(dtype)
    lanes = lanes_of(x, LANES)
    assert torch.equal(lanes_of(x[7:], LANES), lanes[7:])
    assert torch.equal(lanes_of(x.to(memory_format=torch.channels_last), LANES), lanes)
    assert lanes.bincount(minlength=LANES).max() < 40


class Uneven(nn.Module):
    """Computes each half of a batch otherwise."""

    def forward(self, x):
        half = torch.arange(len(x))[:, None] * 2 >= len(x)
        return torch.where(half, x * (1 + 1e-6), x)


def test_a_network_that_tells_places_apart_gets_as_many_lanes_as_it_needs():
    core = sn.Data.of(some(90, 13, 0))
    assert make_encoder(nn.Identity(), core, CLASSES, 64).lanes == 1
    encoder = make_encoder(Uneven(), core, CLASSES, 64)
    assert encoder.lanes == 64
    x, y = some(80, 13, 5)
    whole = encoder(x, y)[0]
    for i in range(1, 20):
        assert torch.equal(encoder(x[i:], y[i:])[0], whole[i:])
    assert lanes_for(13) == 13
    assert raw_features(nn.Identity(), x).shape == (80, 1, 13)


def test_lanes_are_kept_in_a_file(tmp_path):
    model = sn.fit_forgettable(
        nn.Identity(), core=some(90, 13, 0), user=some(80, 13, 1), features=Uneven(), classes=CLASSES, ridge=1e-3
    )
    save_forgettable(tmp_path / "m.safetensors", model)
    assert load_forgettable(tmp_path / "m.safetensors", Uneven()).encoder.lanes == 64


def test_encode_takes_the_usual_lanes_unless_told():
    model = model_of("pooled", 13, 33, 5, 64)
    x, y = some(30, 13, 1)
    e = model.encoder
    assert torch.equal(encode(e.features, e.point, x, y, CLASSES, 64, e.spread)[0], e(x, y)[0])


class Counted(nn.Module):
    """Says how often it was asked, and is uneven within so many places."""

    def __init__(self, lanes):
        super().__init__()
        self.lanes, self.asked = lanes, 0

    def forward(self, x):
        self.asked += 1
        return x * (1 + 1e-6 * (torch.arange(len(x)) % self.lanes)[:, None])


@pytest.mark.parametrize(("lanes", "batches"), [(1, 16), (4, 18)])
def test_places_that_are_alike_leave_none_empty(lanes, batches):
    features = Counted(lanes)
    encoder = make_encoder(features, sn.Data.of(some(90, 64, 0)), CLASSES, 64)
    assert encoder.lanes == lanes
    x, y = some(1024, 64, 5)
    features.asked = 0
    whole = encoder(x, y)[0]
    assert features.asked <= batches
    assert torch.equal(encoder(x[7:90], y[7:90])[0], whole[7:90])


def test_blank_examples_do_not_hide_that_places_differ():
    x, y = some(90, 13, 0)
    x[:80] = 0
    assert make_encoder(Uneven(), sn.Data.of((x, y)), CLASSES, 64).lanes == 64


def test_a_networks_own_answer_has_places_too():
    class Even(nn.Module):
        def forward(self, x):
            return x[:, None].expand(-1, CLASSES, -1)

        def base(self, x):
            return Uneven()(x)[:, :CLASSES]

    assert make_encoder(Even(), sn.Data.of(some(90, 13, 0)), CLASSES, 64).lanes == 64


@pytest.mark.parametrize("share", [1.0, 1e-3, 1e-5, 1e-7])
def test_features_that_depend_on_neighbours_are_refused(share):
    class Centred(nn.Module):
        def forward(self, x):
            return x - share * x.mean(dim=0)

    with pytest.raises(SettingError, match="must not depend on which others"):
        sn.fit_forgettable(
            nn.Identity(), core=some(90, 13, 0), user=some(80, 13, 1), features=Centred(), classes=CLASSES, ridge=1e-3
        )


def test_features_that_change_from_call_to_call_are_refused_unless_by_rounding():
    class Shaken(nn.Module):
        def __init__(self, by):
            super().__init__()
            self.by, self.draw = by, torch.Generator().manual_seed(0)

        def forward(self, x):
            return x + self.by * torch.randn(x.shape, generator=self.draw)

    x, _ = some(90, 13, 0)
    # Kernels of some GPUs add up in another order each time.
    assert lanes_needed(Shaken(1e-7), x, 8) == 8
    with pytest.raises(SettingError, match="must not depend on which others"):
        lanes_needed(Shaken(0.1), x, 8)


def test_core_data_that_are_no_numbers_are_refused():
    x, y = some(90, 13, 0)
    x[:] = float("nan")
    with pytest.raises(NumericsError):
        make_encoder(nn.Identity(), sn.Data.of((x, y)), CLASSES)
    assert lanes_needed(nn.Identity(), x, 8) == 8
