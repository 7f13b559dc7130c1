"""A model after requests against one that was fitted without the examples."""

import warnings

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import (
    DataError,
    IntegrityError,
    MismatchError,
    NeedError,
    SettingError,
    SolveError,
    SpotlessError,
)
from spotlessnet.forgettable import Adaptation, load_forgettable, save_forgettable
from spotlessnet.forgettable.features import Pooled
from spotlessnet.forgettable.fit import fit_problem, make_encoder

CLASSES = 3


def some(n, seed):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=draw)
    x = torch.randn(n, 6, generator=draw) + 1.5 * nn.functional.one_hot(y, 6)
    return x, y


def backbone(width=40):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width))


CORE, USER = some(40, 0), some(120, 1)


@pytest.fixture(scope="module")
def encoder():
    return make_encoder(Pooled(backbone()), sn.Data.of(CORE), CLASSES)


def fitted(encoder, rows=None, ids=None, like=None, labels=None, **settings):
    x, y = USER[0], USER[1] if labels is None else labels
    rows = torch.arange(len(y)) if rows is None else torch.as_tensor(rows)
    names = rows.tolist() if ids is None else [ids[i] for i in rows.tolist()]
    model = fit_problem(encoder, sn.Data.of(CORE), sn.Data.of((x[rows], y[rows])), names, **{"ridge": 0.1, **settings})
    if like is not None:
        model.ridge = like.ridge
        model.refresh()
    return model


def same(one, other):
    """The whole state, not only the weights."""
    assert torch.equal(one.moments.gram, other.moments.gram)
    assert torch.equal(one.moments.cross, other.moments.cross)
    assert torch.equal(one.weights.float(), other.weights.float())
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-13, atol=0)
    torch.testing.assert_close(one.inverse, other.inverse, rtol=0, atol=1e-9 * float(other.inverse.abs().max()))
    assert (one.moments.count, one.moments.weight, len(one)) == (other.moments.count, other.moments.weight, len(other))


def test_a_person_leaves(encoder):
    people = [f"person {i % 12}" for i in range(120)]
    model = fitted(encoder, ids=people)
    request = model.forget(["person 3", "person 7"])
    keep = [i for i in range(120) if i % 12 not in (3, 7)]
    same(model, fitted(encoder, keep, people, like=model))
    assert (request.examples, request.left, len(model)) == (20, 100, 100)
    assert 0 < request.certificate.relative < 1e-14
    assert request.certificate.bound < 1e-9 * request.moved
    gone = [i for i in range(120) if i % 12 in (3, 7)]
    assert not model.examples.codes[gone].any()
    assert not model.examples.targets[gone].any()
    assert not any(name in ("person 3", "person 7") for name in model.examples.ids)
    with pytest.raises(DataError, match="1 of 1 ids belong to no example"):
        model.forget("person 3")


def test_small_requests_update_the_inverse(monkeypatch):
    wide = make_encoder(Pooled(backbone(1000)), sn.Data.of(CORE), CLASSES)
    model = fitted(wide)
    request = model.forget([5, 6])
    assert not request.refactored
    same(model, fitted(wide, [i for i in range(120) if i not in (5, 6)], like=model))
    # An inverse that was not updated is found out by the certificate and made anew.
    monkeypatch.setattr(
        "spotlessnet.forgettable.model.update_", lambda P, X, sign, rest: torch.zeros_like(model.weights)
    )
    stale = model.forget(range(20, 38))
    assert stale.certificate.relative < 1e-14


def test_classes_labels_additions_and_everything(encoder):
    model = fitted(encoder)
    model.forget_class(1)
    same(model, fitted(encoder, (USER[1] != 1).nonzero().squeeze(1), like=model))
    gone = (USER[1] == 1).nonzero().squeeze(1)
    model.add(USER[0][gone], USER[1][gone], ids=gone.tolist())
    same(model, fitted(encoder, like=model))
    wrong = torch.tensor([4, 9])
    model.relabel(wrong.tolist(), (USER[1][wrong] + 1) % CLASSES)
    assert not torch.equal(model.weights, fitted(encoder, like=model).weights)
    model.relabel(wrong.tolist(), USER[1][wrong])
    same(model, fitted(encoder, like=model))
    model.forget_all()
    core = sn.Data.of(CORE)
    alone = fit_problem(encoder, core, core.select([0]), ["one"], ridge=0.1)
    alone.forget(["one"])
    alone.ridge = model.ridge
    alone.refresh()
    same(model, alone)


def test_a_thousand_requests_end_where_a_new_fit_begins(encoder):
    model = fitted(encoder)
    draw = torch.Generator().manual_seed(5)
    inside: list[int] = list(range(120))
    outside: list[int] = []
    y = USER[1].clone()
    for _ in range(1000):
        size = int(torch.randint(1, 9, (), generator=draw))
        if torch.rand((), generator=draw) < 0.2:
            rows = torch.tensor(inside)[torch.randperm(len(inside), generator=draw)[:size]]
            y[rows] = torch.randint(0, CLASSES, (len(rows),), generator=draw)
            model.relabel(rows.tolist(), y[rows])
            continue
        source = outside if outside and (len(inside) < 30 or torch.rand((), generator=draw) < 0.5) else inside
        picked = [source[i] for i in torch.randperm(len(source), generator=draw)[:size].tolist()]
        if source is inside:
            model.forget(picked)
            outside += picked
            inside = [i for i in inside if i not in picked]
        else:
            rows = torch.tensor(picked)
            model.add(USER[0][rows], y[rows], ids=picked)
            inside += picked
            outside = [i for i in outside if i not in picked]
    assert len(model.requests) == 1001
    assert {r.kind for r in model.requests} == {"fit", "forget", "add", "relabel"}
    never = fitted(encoder, inside, like=model, labels=y)
    same(model, never)
    model.refresh()
    assert torch.equal(model.inverse, never.inverse)


def test_weighted_classes(encoder):
    weights = torch.tensor([1, 3, 2])
    model = fitted(encoder, class_weights=weights)
    model.forget([0, 1, 2])
    same(model, fitted(encoder, range(3, 120), class_weights=weights, like=model))


def test_features_need_not_be_kept(encoder):
    x = USER[0]
    model = fitted(encoder, keep_features=False)
    with pytest.raises(NeedError, match="inputs of these examples are needed"):
        model.forget([1, 2])
    with pytest.raises(IntegrityError, match="not those that were put in"):
        model.forget([1, 2], inputs=x[[1, 3]])
    model.forget([1, 2], inputs=x[[1, 2]])
    same(model, fitted(encoder, [0, *range(3, 120)], like=model))


def test_an_attacker_with_the_whole_state_finds_nothing(encoder):
    model, secret = fitted(encoder), 17
    q = model.examples.codes[secret, 0].double()
    before = model.moments.gram.clone()
    model.forget([secret])
    never = fitted(encoder, [i for i in range(120) if i != secret], like=model)
    ridge = model.ridge * torch.eye(len(q), dtype=torch.float64)

    def recovered(state):
        """The leading direction of what the state holds beyond that of the other examples: the best inversion."""
        extra = state - never.moments.gram
        return torch.linalg.eigh(extra)[1][:, -1] if extra.any() else None

    shown = recovered(before)
    assert abs(float(shown @ q / q.norm())) > 0.9999, "before the request the example can be read off"
    assert recovered(model.moments.gram) is None
    # The inverse holds rounding, which points nowhere near the example: as much as another order of sums leaves.
    left = torch.linalg.inv(model.inverse) - ridge - never.moments.gram
    anew = torch.linalg.inv(never.inverse) - ridge - never.moments.gram
    assert abs(float((q @ left @ q) / (q @ q))) <= 4 * float(anew.norm()) + 1e-6
    assert secret not in model.examples.ids


def test_saved_and_loaded(encoder, tmp_path):
    model = fitted(encoder, ids=[f"row {i}" for i in range(120)])
    model.forget(["row 3"])
    save_forgettable(tmp_path / "model.safetensors", model)
    loaded = load_forgettable(tmp_path / "model.safetensors", Pooled(backbone()))
    same(loaded, model)
    assert torch.equal(loaded.predict(CORE[0]), model.predict(CORE[0]))
    for one in (model, loaded):
        one.forget(["row 4", "row 5"])
    same(loaded, model)
    assert b'row 3"' not in (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(MismatchError, match="features do not fit"):
        load_forgettable(tmp_path / "model.safetensors", Pooled(backbone(41)))
    with pytest.raises(DataError, match="exists already"):
        save_forgettable(tmp_path / "model.safetensors", model)
    sn.write_weights(tmp_path / "plain.safetensors", nn.Linear(2, 2))
    with pytest.raises(DataError, match="not a forgettable model"):
        load_forgettable(tmp_path / "plain.safetensors", Pooled(backbone()))


def test_the_module_is_an_ordinary_one(encoder):
    model = fitted(encoder)
    network, x = model.module(), some(5, 9)[0]
    torch.testing.assert_close(network(x), model.predict(x))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    model.forget([0])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(network, (x,))
    torch.testing.assert_close(exported.module()(x), network(x))


@pytest.mark.parametrize("features", ["pooled", "tangent"])
def test_fit_forgettable_learns_from_user_data(features):
    test = some(300, 4)
    how = Adaptation(epochs=5, lr=0.05, batch_size=8)
    settings = {"features": features, "rank": 6, "adaptation": how}
    model = sn.fit_forgettable(backbone(), core=CORE, user=USER, **settings)

    def wrong(m):
        return float((m.predict(test[0]).argmax(dim=1) != test[1]).double().mean())

    assert model.ridge_from.startswith("leave-one-out")
    assert model.core_examples == 40
    full = wrong(model)
    assert full < 0.35
    model.forget_class(2)
    assert 2 not in model.predict(test[0]).argmax(dim=1) or wrong(model) > full


def test_settings_that_cannot_work_are_named(encoder):
    with pytest.raises(SettingError, match="`features` must be"):
        sn.fit_forgettable(backbone(), core=CORE, user=USER, features="magic")
    with pytest.raises(SettingError, match="Leave-one-out needs kept features"):
        fitted(encoder, keep_features=False, ridge="loo")
    with pytest.raises(MismatchError, match="120 examples came with 1 ids"):
        fitted(encoder).add(*USER, ids=["one"])
    with pytest.raises(MismatchError, match="whole numbers from 0 to 2"):
        fitted(encoder).add(USER[0][:1], torch.tensor([7]), ids=["x"])


def test_a_literal_fit_without_the_person_is_the_model_that_forgot_them():
    people = [f"person {i % 12}" for i in range(120)]

    def whole(rows, **settings):
        given = {"core": CORE, "user": (USER[0][rows], USER[1][rows]), "classes": CLASSES, "ridge": 0.1}
        return sn.fit_forgettable(backbone(), ids=[people[i] for i in rows], **{**given, **settings})

    model = whole(range(120))
    model.forget(["person 3"])
    keep = [i for i in range(120) if i % 12 != 3]
    never = whole(keep)
    assert model.ridge == never.ridge
    same(model, never)
    # Nothing of a user example but its being there may decide the ridge: else a state that forgot it still knows it.
    loud = USER[0].clone()
    loud[7] *= 50
    assert whole(range(120), user=(loud, USER[1])).ridge == model.ridge


def test_a_saved_state_has_no_holes_and_no_history(encoder, tmp_path):
    people = [f"person {i:03}" for i in range(120)]
    model = fitted(encoder, ids=people)
    model.forget(["person 004", "person 050"])
    model.add(USER[0][[4, 4]], USER[1][[4, 4]], ids=["late", "person 119"])
    never = fitted(encoder, [i for i in range(120) if i not in (4, 50)], people, like=model)
    never.add(USER[0][[4, 4]], USER[1][[4, 4]], ids=["late", "person 119"])
    contents = []
    for i, one in enumerate((model, never)):
        save_forgettable(tmp_path / f"{i}.safetensors", one)
        contents.append(sn.read_weights(tmp_path / f"{i}.safetensors"))
    assert contents[0].keys() == contents[1].keys()
    for name, value in contents[0].items():
        torch.testing.assert_close(value, contents[1][name], rtol=1e-13, atol=0, msg=name)


def test_examples_of_an_id_keep_the_order_in_which_they_came(encoder):
    x, y = USER
    model = fitted(encoder, keep_features=False, ids=["a", "b"] * 60)
    model.forget(["a"], inputs=x[::2])
    model.add(x[:2], y[:2], ids=["b", "b"])  # into places that were left
    model.forget(["b"], inputs=torch.cat([x[1::2], x[:2]]))
    assert len(model) == 0


def test_inputs_and_labels_must_be_as_many(encoder):
    model = fitted(encoder, keep_features=False)
    before = model.moments.gram.clone()
    with pytest.raises(MismatchError, match="3 labels came with 1 inputs"):
        model.add(USER[0][:1], USER[1][:3], ids=["x", "y", "z"])
    with pytest.raises(MismatchError, match="1 labels came with 2 inputs"):
        model.add({"x": USER[0][:2]}, USER[1][:1], ids=["x"])
    with pytest.raises(MismatchError, match="1 labels came with 2 inputs"):
        model.forget([3], inputs=USER[0][[3, 4]])
    assert torch.equal(model.moments.gram, before)


def test_a_digest_of_a_state_confirms_no_guess(encoder, tmp_path):
    model = fitted(encoder)
    digests = {save_forgettable(tmp_path / f"{i}.safetensors", model) for i in range(2)}
    assert len(digests) == 2, "whoever can rebuild a state from a guess could else compare digests"


@pytest.mark.parametrize("keep_features", [True, False])
def test_copies_under_other_ids_are_counted(encoder, keep_features):
    x = USER[0].clone()
    x[50], x[60] = x[3], x[4]
    data = sn.Data.of((x, USER[1]))
    model = fit_problem(encoder, sn.Data.of(CORE), data, list(range(120)), ridge=0.1, keep_features=keep_features)
    assert model.examples.copies_of(torch.tensor([3])) == 1
    assert model.examples.copies_of(torch.tensor([3, 4, 50])) == 1
    assert model.examples.copies_of(torch.tensor([7])) == 0
    model.forget([50], inputs=None if keep_features else x[[50]])
    assert model.examples.copies_of(torch.tensor([3])) == 0


def test_a_request_that_cannot_be_leaves_the_model_as_it_was(encoder):
    x, y = USER
    model = fitted(encoder)
    model.forget([0])
    before, count = model.moments.clone(), len(model)
    for ask, words in (
        (lambda: model.add(x[:1], y[:1], ids=[("a", ["list"])]), "Ids must be hashable"),
        (lambda: model.add(x[:2], y[:2], ids=["a", "b"], weights=torch.tensor([1])), "2 examples came with 1 weights"),
        (lambda: model.add(x[:1], y[:1], ids=["a"], weights=torch.tensor([1, 1])), "1 examples came with 2 weights"),
        (lambda: model.forget_class(-1), "must lie between 0 and 2"),
        (lambda: model.forget_class(3), "must lie between 0 and 2"),
        (lambda: model.forget([1, 999]), "1 of 2 ids belong to no example"),
        (lambda: model.relabel([], 1), "nothing to relabel"),
    ):
        with pytest.raises(SpotlessError, match=words):
            ask()
        assert torch.equal(model.moments.gram, before.gram)
        assert (model.moments.count, model.moments.weight, len(model)) == (before.count, before.weight, count)
        assert sum(map(len, model.examples.places.values())) == count
    assert model.forget(7).examples == 1  # one id needs no list


def test_features_without_rank_and_many_copies_stay_exact():
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 5)

        def forward(self, x):
            a = self.layer(x)
            return torch.cat([a, a, 0 * a, torch.ones(len(x), 2)], dim=1)

    torch.manual_seed(0)
    x, y = torch.cat([USER[0], USER[0][:1].repeat(60, 1)]), torch.cat([USER[1], USER[1][:1].repeat(60)])
    for ridge in (1e-12, 1e-3):
        model = sn.fit_forgettable(Same(), core=CORE, user=(x, y), ridge=ridge)
        for i in range(179, 125, -3):
            model.forget([i, i - 1, i - 2])
        never = model.solved_anew((x[:126], y[:126]), core=CORE)
        assert torch.equal(model.moments.gram, never.moments.gram)
        assert torch.equal(model.weights.float(), never.weights.float())
        assert model.certificate.relative < 1e-12


@pytest.mark.parametrize("error", [SolveError, KeyboardInterrupt])
def test_a_request_that_is_broken_off_leaves_the_model_as_it_was(error, monkeypatch):
    wide = make_encoder(Pooled(backbone(200)), sn.Data.of(CORE), CLASSES)
    model = fitted(wide)
    before = {"moments": model.moments.clone(), "weights": model.weights.clone(), "inverse": model.inverse.clone()}

    def broken(*_given, **_named):
        raise error("broken off")

    for ask in (
        lambda: model.forget([3, 4]),
        lambda: model.add(USER[0][:1], USER[1][:1], ids=["more"]),
        lambda: model.relabel([5], 0 if int(USER[1][5]) else 1),
    ):
        with monkeypatch.context() as patch:
            patch.setattr("spotlessnet.forgettable.model.refine", broken)
            with pytest.raises(error):
                ask()
        assert torch.equal(model.moments.gram, before["moments"].gram)
        assert torch.equal(model.moments.cross, before["moments"].cross)
        assert torch.equal(model.weights, before["weights"])
        torch.testing.assert_close(
            model.inverse, before["inverse"], rtol=0, atol=1e-12 * float(model.inverse.abs().max())
        )
        assert len(model) == 120
        assert len(model.requests) == 1
    model.forget([3, 4])
    same(model, fitted(wide, [i for i in range(120) if i not in (3, 4)], like=model))
