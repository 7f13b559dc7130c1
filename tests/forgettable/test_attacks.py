"""U-LiRA and KLoM on forgettable models: what an attacker finds after forgetting is what solving anew shows."""

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.forgettable.features import Pooled
from spotlessnet.forgettable.fit import fit_problem, make_encoder
from spotlessnet.forgettable.model import ForgettableModel
from spotlessnet.readouts.attack import attack_over_models
from spotlessnet.readouts.klom import klom
from spotlessnet.readouts.lira import held_out_scores

SHADOWS, TARGETS, WRONG = 32, 40, 20


def some(n, seed):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=draw)
    return torch.randn(n, 6, generator=draw) + 1.5 * nn.functional.one_hot(y, 6), y


def margins(model, x, y):
    scores = model.predict(x).double()
    right = scores.gather(1, y[:, None])[:, 0]
    return right - scores.scatter(1, y[:, None], float("-inf")).amax(dim=1)


def attacked():
    """U-LiRA's area and mean KLoM per group of targets, under models that held, forgot and never held them."""
    core, user = some(40, 0), some(400, 1)
    x, y = user[0], user[1].clone()
    y[:WRONG] = (y[:WRONG] + 1) % 3
    torch.manual_seed(0)
    encoder = make_encoder(Pooled(nn.Sequential(nn.Linear(6, 80), nn.ReLU())), sn.Data.of(core), 3)
    draw = torch.Generator().manual_seed(3)
    kept: dict[str, list[torch.Tensor]] = {"held": [], "forgot": [], "never": [], "inside": []}
    inside = torch.zeros(TARGETS, dtype=torch.bool)
    for i in range(SHADOWS):
        # Pairs, the second of which holds the targets that the first does not.
        inside = ~inside if i % 2 else torch.rand(TARGETS, generator=draw) < 0.5
        others = TARGETS + torch.randperm(400 - TARGETS, generator=draw)[:150]
        held, mine = inside.nonzero().squeeze(1), torch.cat([inside.nonzero().squeeze(1), others])
        data = sn.Data.of((x[mine], y[mine]))
        model = fit_problem(encoder, sn.Data.of(core), data, mine.tolist(), ridge=0.003)
        kept["held"].append(margins(model, x[:TARGETS], y[:TARGETS]))
        model.forget(held.tolist())
        never = model.solved_anew((x[others], y[others]), core=core)
        for name, one in (("forgot", model), ("never", never)):
            kept[name].append(margins(one, x[:TARGETS], y[:TARGETS]))
        kept["inside"].append(inside)
    found = {name: torch.stack(values) for name, values in kept.items()}

    def of(phi, mask):
        return torch.stack([phi[mask[:, i], i] for i in range(phi.shape[1])], dim=1)

    told = {}
    for group, part in (("mislabelled", slice(0, WRONG)), ("ordinary", slice(WRONG, TARGETS))):
        seen = found["inside"][:, part]
        for name in ("held", "forgot", "never"):
            phi = found[name][:, part]
            auc = attack_over_models(held_out_scores(phi, seen), seen, together=2, seed=0).auc.value
            told[name, group] = auc, float(klom(of(phi, seen), of(found["never"][:, part], ~seen)).mean())
    return told


@pytest.mark.parametrize("group", ["mislabelled", "ordinary"])
def test_after_forgetting_an_attack_gives_the_numbers_of_solving_anew(group):
    told = attacked()
    assert told["forgot", group] == pytest.approx(told["never", group], abs=5e-4)
    assert abs(told["never", group][0] - 0.5) < 0.1
    if group == "mislabelled":
        assert told["held", group][0] > 0.8
        # With so few models KLoM does not come near zero even for equals.
        assert told["held", group][1] > 1.5 * told["never", group][1]


def test_an_attack_finds_out_a_model_that_did_not_forget(monkeypatch):
    monkeypatch.setattr(ForgettableModel, "forget", lambda self, ids: self.requests[-1])
    told = attacked()
    assert told["forgot", "mislabelled"][0] > told["never", "mislabelled"][0] + 0.2
