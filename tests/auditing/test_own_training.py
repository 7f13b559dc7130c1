"""A network of the user's own making, from start to verdict: BatchNorm that moves, dropout, Adam, a plain loop."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import spotlessnet as sn
from spotlessnet.auditing.shadow_attack import attack_shadows
from spotlessnet.auditing.shadows import train_shadows
from spotlessnet.core.data import Data
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.finetune import Finetune
from spotlessnet.methods.out_of_fold.method import OutOfFoldDistillation
from spotlessnet.methods.retrain import Retrain
from spotlessnet.methods.short_retrain import ShortRetrain
from spotlessnet.precomputed.fold_model_files import read_fold_models, write_fold_models
from spotlessnet.precomputed.fold_models import train_fold_models


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Dropout(0.1)
        self.head = nn.Linear(6 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu()).flatten(1))


def my_train(model, examples, seed, epochs=15):
    torch.manual_seed(seed)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(epochs):
        for x, y in DataLoader(examples, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def begin() -> CNN:
    torch.manual_seed(3)
    return CNN()


def rows(count: int, seed: int) -> Data:
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 4
    x = torch.randn(count, 1, 5, 5, generator=draw)
    x[torch.arange(count), 0, y, y] += 2.5
    return Data.of((x, y))


@pytest.fixture(scope="module")
def made() -> tuple[Trained, Split]:
    data = rows(120, 0)
    # A dozen wrong labels must be memorised, so the original gives itself away.
    gone = data.select(range(12))
    data = data.relabel(torch.where(torch.arange(120) < 12, (data.labels() + 1) % 4, data.labels()))
    gone = data.select(range(12))
    split = Split(forget=gone, kept=data.without(gone), test=rows(80, 1))
    model = my_train(begin(), [(x, y) for x, y in zip(*data.fetch(data.rows)[:2], strict=True)], 0)
    return Trained.of(model, init=begin(), trainer=my_train), split


@pytest.fixture(scope="module")
def report(made):
    original, split = made
    others = {"short-retrain": ShortRetrain()}
    return sn.audit(original, split, Retrain(coupled=False, seed=50), name="retrain", others=others, seeds=5)


def test_an_audit_gives_a_verdict_and_lets_retraining_pass(report):
    assert report.outcome == "forgotten", report.reason
    found = {(row.method, row.readout): row.value for row in report.rows}
    assert found["original", "error on forget"] < found["retrained", "error on forget"]
    assert found["short-retrain", "error on forget"] == found["retrained", "error on forget"]


def test_the_report_says_how_trainings_were_coupled_and_whose_statistics_were_compared(report):
    text = " ".join(report.limits)
    assert "my_train: an original and its retrained partner share the initial weights and the seed" in text
    assert "relearning used plain SGD" in text
    assert "BatchNorm statistics are compared as they would be deployed" in text


def test_an_original_that_forgot_nothing_is_caught(made):
    original, split = made

    class Nothing(Finetune):
        def shift(self, trained, split, notes):
            return trained.weights

    found = sn.audit(original, split, Nothing(), name="nothing", seeds=5)
    assert found.outcome == "not forgotten", found.reason


def test_unlearn_takes_the_trainer_and_hands_out_the_retrained_statistics(made):
    original, split = made
    x, y, _ = split.whole.fetch(split.whole.rows)
    data = [(x[i], y[i]) for i in range(len(y))]
    done = sn.unlearn(
        original.module(), data, forget=list(range(12)), init=begin(), trainer=my_train, method="retrain",
        accept_damage=True, seed=0,
    )  # fmt: skip
    want = my_train(begin(), data[12:], 0).eval()
    assert all(
        torch.equal(a, b) for a, b in zip(done.model.state_dict().values(), want.state_dict().values(), strict=True)
    )
    limits = " ".join(done.receipt["predicate"]["limits"])
    assert "left as they were" not in limits
    short = sn.unlearn(
        original.module(), data, forget=list(range(12)), init=begin(), trainer=my_train, accept_damage=True, seed=0
    )
    assert short.receipt["predicate"]["method"] == "short-retrain"


def test_shadows_are_trained_by_the_function_and_keep_their_statistics(made):
    original, split = made
    targets = torch.arange(12)
    shadows = train_shadows(original, split.whole, targets, shadows=8)
    assert shadows.buffers is not None
    kept = split.whole.select(shadows.seen[1].nonzero().flatten())
    want = my_train(begin(), [(x, y) for x, y in zip(*kept.fetch(kept.rows)[:2], strict=True)], 1)
    network = list(shadows.networks())[1]
    assert torch.equal(network.weights, original.vector(want))
    assert torch.equal(shadows.buffers[1]["norm.running_mean"], want.norm.running_mean)
    again = attack_shadows(shadows, shadows.retrained())
    assert again.forgotten.auc[0] < attack_shadows(shadows).forgotten.auc[0]


def test_fold_models_are_trained_by_the_function_and_kept_with_their_statistics(made, tmp_path):
    original, split = made
    folds = train_fold_models(original, split.whole, folds=2)
    part = split.whole.select((folds.part[0, folds.keys.find(split.whole)] != 0).nonzero().flatten())
    want = my_train(begin(), [(x, y) for x, y in zip(*part.fetch(part.rows)[:2], strict=True)], 0).eval()
    one = folds.fold(original, 0).module()
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), want.state_dict().values(), strict=True))
    path = tmp_path / "folds.safetensors"
    write_fold_models(path, folds)
    read = read_fold_models(path)
    assert torch.equal(read.answers(original, split.forget), folds.answers(original, split.forget))
    found = OutOfFoldDistillation(fold_models=read, examples_per_epoch=64)(original, split)
    assert found.buffers is not None
