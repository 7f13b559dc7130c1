"""The rivals against their papers' definitions, on problems where one step can be written down."""

from dataclasses import replace

import pytest
import torch
from torch import float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.loss import CrossEntropy
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.targets import Distillation, Negated, TaughtAndTold, Weighted, with_weights
from spotlessnet.core.trained import Trained
from spotlessnet.methods import (
    SCRUB,
    SSD,
    BadTeacher,
    L1Sparse,
    NegGradPlus,
    RespondAndFinetune,
    SalUn,
)
from spotlessnet.operators.gradient import gradient

RATE = 0.1


def problem() -> tuple[Trained, Split]:
    """One batch holds everything, so an epoch is a single plain step."""
    torch.manual_seed(0)
    data = Data.of((torch.randn(30, 4, dtype=float64), torch.randint(3, (30,))))
    recipe = Recipe(epochs=10, lr=RATE, momentum=0.0, batch_size=30)
    trained = Trained.of(nn.Linear(4, 3).double(), recipe=recipe)
    start = trained.weights + 0.3 * torch.randn_like(trained.weights)
    split = Split(forget=data.select(range(6)), kept=data.select(range(6, 30)))
    return replace(trained, init=start), split


def test_neg_grad_plus_is_one_weighted_step():
    trained, split = problem()
    g_r, g_f = gradient(trained, split.retain) / 24, gradient(trained, split.forget) / 6
    expected = trained.weights - RATE * (0.9 * g_r - 0.1 * g_f)
    torch.testing.assert_close(NegGradPlus(epochs=1, beta=0.9)(trained, split).mean, expected)


def test_selective_dampening_is_its_formula():
    trained, split = problem()

    def importance(data: Data) -> torch.Tensor:
        rows = [gradient(trained, data.select([i])) for i in range(len(data))]
        return torch.stack(rows).square().mean(dim=0)

    whole, forget = importance(split.whole), importance(split.forget)
    expected = torch.where(forget > 1.1 * whole, (0.5 * whole / forget).clamp(max=1), 1.0) * trained.weights
    found = SSD(alpha=1.1, dampening=0.5)(trained, split)
    torch.testing.assert_close(found.mean, expected)
    assert 0 < found.diagnostics["dampened"] < 1


def test_saliency_moves_only_the_weights_that_the_forgotten_rows_pull_on():
    trained, split = problem()
    pull = gradient(trained, split.forget).abs()
    moved = (SalUn(epochs=1, share=0.4)(trained, split).mean - trained.weights).abs() > 0
    assert moved.sum() == 6
    assert pull[moved].min() >= pull[~moved].max()


def test_sparse_fine_tuning_adds_the_sign_of_the_weights():
    trained, split = problem()
    expected = trained.weights - RATE * (gradient(trained, split.retain) / 24 + 0.01 * trained.weights.sign())
    torch.testing.assert_close(L1Sparse(epochs=1, gamma=0.01)(trained, split).mean, expected)


def test_the_bad_teacher_leaves_answers_on_retained_rows_alone():
    """At the trained weights the good teacher's gradient is zero, so the first step comes from the forgotten rows."""
    trained, split = problem()
    assert trained.init is not None
    ignorant = split.forget.relabel(trained.at(trained.init).predict(split.forget))
    taught = gradient(replace(trained, loss=Distillation()), ignorant) / 30
    torch.testing.assert_close(BadTeacher(epochs=1)(trained, split).mean, trained.weights - RATE * taught)


def test_the_student_obeys_the_labels_once_it_no_longer_contradicts():
    """Without steps away, one step on the retained rows: the teacher's part has no gradient at the teacher itself."""
    trained, split = problem()
    expected = trained.weights - RATE * gradient(trained, split.retain) / 24
    torch.testing.assert_close(SCRUB(epochs=1, away=0)(trained, split).mean, expected)


def test_the_student_contradicts_the_teacher_where_it_is_told_to():
    """Contradicting begins at a stationary point, so it needs a first push: two turns are enough to see it."""
    trained, split = problem()
    away = SCRUB(epochs=2, away=2)(trained, split).mean
    plain = SCRUB(epochs=2, away=0)(trained, split).mean
    teacher = split.forget.relabel(trained.predict(split.forget))

    def distance(w: torch.Tensor) -> float:
        return float(replace(trained, loss=Distillation(), weight_decay=0.0).risk(teacher, w))

    assert distance(away) > distance(plain)


def test_respond_and_finetune_with_next_to_no_finetuning_is_the_linear_response():
    trained, split = problem()
    tiny = RespondAndFinetune(iterations=200, coreset=24, lr_scale=1e-12)
    full = trained.at(tiny(replace(trained, weight_decay=0.5), split).mean)
    g_f, g_r = gradient(trained, split.forget), gradient(trained, split.retain)
    rows = torch.func.jacrev(lambda w: trained.outputs(_inputs(split.retain), w))(trained.weights)
    p = trained.predict(split.retain).softmax(1)
    H = torch.einsum("ncp,ncd,ndq->pq", rows, torch.diag_embed(p) - p[:, :, None] * p[:, None, :], rows)
    step = torch.linalg.solve(H + 24 * 0.5 * torch.eye(15, dtype=float64), g_f - 6 / 30 * (g_f + g_r))
    # The solve stops at a residual of one in a thousand.
    torch.testing.assert_close(full.weights, trained.weights + step, rtol=0, atol=2e-3 * float(step.norm()))


def test_rewinding_all_the_way_forgets_where_the_network_was():
    trained, split = problem()
    method = RespondAndFinetune(iterations=0, rewind=0.0)
    elsewhere = trained.at(trained.weights + 1)
    torch.testing.assert_close(method(trained, split).mean, method(elsewhere, split).mean)


def _inputs(data: Data) -> torch.Tensor:
    x = next(iter(data.batches(len(data)))).x
    assert isinstance(x, torch.Tensor)
    return x


def test_losses_made_from_others():
    torch.manual_seed(1)
    f, t, y = torch.randn(5, 3, dtype=float64), torch.randn(5, 3, dtype=float64), torch.randint(3, (5,))
    kl = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=t), torch.distributions.Categorical(logits=f)
    )
    torch.testing.assert_close(Distillation()(f, t), kl)
    torch.testing.assert_close(Distillation()(f, f), torch.zeros(5, dtype=float64))
    plain = CrossEntropy()(f, y)
    weights = torch.tensor([1.0, -1, 0, 2, 3], dtype=float64)
    torch.testing.assert_close(Weighted()(f, with_weights(y, weights)), weights * plain)
    both = torch.cat([t, y.double().unsqueeze(1)], dim=1)
    torch.testing.assert_close(TaughtAndTold(0.3, 2.0)(f, both), 0.3 * kl + 2 * plain)
    torch.testing.assert_close(Negated(CrossEntropy())(f, y), -plain)


def test_settings_are_checked():
    with pytest.raises(SettingError, match=r"`NegGradPlus.beta` must lie in \(0, 1\], but got 2"):
        NegGradPlus(beta=2.0)
    with pytest.raises(SettingError, match=r"`SalUn.share` must lie in \(0, 1\], but got 0"):
        SalUn(share=0.0)
    with pytest.raises(SettingError, match=r"`SSD.alpha` must be positive"):
        SSD(alpha=-1.0)
    with pytest.raises(SettingError, match=r"`RespondAndFinetune.epoch_fraction` must be positive"):
        RespondAndFinetune(epoch_fraction=0.0)
