r"""The diagonal of the Fisher matrix, per sample always.

Squaring the gradient of a mini-batch instead of each sample's is wrong by up to the size of the batch.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.errors import NeedError, check_choice, check_positive
from spotlessnet.core.loss import Loss, PerSample
from spotlessnet.core.trained import Trained
from spotlessnet.operators.layers import Layer
from spotlessnet.operators.per_sample import Plan, Record, plan, pull_back, record_pass, rest_rows, rows_of
from spotlessnet.operators.sums import processes, sum_over

KINDS = ("exact", "monte carlo", "empirical")

AT_ONCE = {"cpu": 2**22, "cuda": 2**27}
"""How many entries of per-sample gradients are written out at a time."""


def fisher_diagonal(
    trained: Trained,
    data: Data,
    *,
    kind: str = "exact",
    sample_weights: Float[Tensor, " N"] | None = None,
    ridge: float = 0.0,
    generator: torch.Generator | None = None,
    draws: int = 1,
    batch_size: int = 64,
) -> Float[Tensor, " P"]:
    r"""$\sum_i s_i\, \mathbb{E}_y (\nabla \ell_i)^2 + r$, elementwise, a sum over rows.

    **Arguments:**

    - `kind`: where the label $y$ of the gradient comes from. `"exact"` takes the expectation over the model's own
      distribution, as $\sum_r (J_i^\top S_r)^2$ with $S S^\top$ the output Hessian: one backward pass per column,
      `C - 1` of them for softmax. `"monte carlo"` draws labels from it, `draws` per row. `"empirical"` takes the
      labels of the data, which is not the Fisher matrix but is often used in its place.
    - `sample_weights`: $s$; a row with weight zero costs nothing.
    - `ridge`: $r$, as a rule `count * decay`.
    - `generator`: source of the draws. Several processes draw different labels, each from its own stream.
    """
    check_choice("kind", kind, KINDS)
    check_positive("draws", draws)
    if kind == "monte carlo" and generator is None:
        raise NeedError("The Monte Carlo Fisher draws labels, so it needs a `generator`. Give a `torch.Generator`.")
    draw = _own_stream(generator)
    plans: list[Plan] = []

    def piece(one: Batch, s: Tensor) -> Tensor:
        if not plans:
            plans.append(plan(trained, one.x))
        record = record_pass(trained, plans[0].layers, one.x)
        columns = _cotangents(trained, record, one, kind, draw, draws)
        total = torch.zeros_like(trained.weights)
        into = trained.unflatten(total)
        for i, returned in enumerate(pull_back(record, columns)):
            entered = record.entered[i]
            assert entered is not None  # plan() keeps only layers that were called
            _add_squares(plans[0].layers[i], entered, returned, s, into)
        _add_rest(trained, plans[0].rest, one, columns, s, into)
        return total

    zero = torch.zeros_like(trained.weights)
    F = sum_over(
        trained, data, piece, sample_weights=sample_weights, batch_size=batch_size, label="Fisher diagonal", zero=zero
    )
    return F + ridge


def _cotangents(
    trained: Trained, record: Record, one: Batch, kind: str, draw: torch.Generator | None, draws: int
) -> Float[Tensor, "n C R"]:
    """The columns whose pulled-back squares add up to the diagonal."""
    outputs, shape = record.outputs.detach(), record.shape
    loss, y = flat_loss(trained.loss, shape), one.y
    if kind == "exact":
        return loss.hessian_root(outputs, y)
    if kind == "empirical":
        return _slope(loss, outputs, y).unsqueeze(2)
    assert draw is not None  # checked above
    shaped = outputs.unflatten(1, shape).to(draw.device)
    drawn = [trained.loss.sample(shaped, draw).to(outputs.device) for _ in range(draws)]
    return torch.stack([_slope(loss, outputs, label) for label in drawn], dim=2) / draws**0.5


def _slope(loss: Loss, outputs: Tensor, y: Tensor) -> Float[Tensor, "n C"]:
    with torch.enable_grad():
        out = outputs.detach().requires_grad_()
        return torch.autograd.grad(loss(out, y).sum(), out)[0]


def flat_loss(loss: Loss, shape: torch.Size) -> Loss:
    """The same loss for outputs with one axis per sample."""
    return loss if len(shape) == 1 else PerSample(lambda outputs, y: loss(outputs.unflatten(1, shape), y))


def _add_squares(layer: Layer, entered: Tensor, returned: Tensor, s: Tensor, into: dict[str, Tensor]) -> None:
    """Add `Σ s g²` over samples and columns for the weight and the bias of one layer."""
    if layer.bias is not None:
        into[layer.bias].add_(_squares(layer.bias_rows(returned), s))
    if layer.weight is None:
        return
    weight = into[layer.weight]
    step = max(1, AT_ONCE.get(weight.device.type, 2**22) // (weight.numel() * returned.shape[1]))
    for i in range(0, len(s), step):
        few = slice(i, i + step)
        weight.add_(_squares(layer.weight_rows(entered[few], returned[few], slice(None)), s[few]))


def _squares(rows: Float[Tensor, "n R *w"], s: Float[Tensor, " n"]) -> Float[Tensor, "*w"]:
    n, R = rows.shape[:2]
    flat = rows.reshape(n * R, -1)
    return (s.repeat_interleave(R) @ flat.square_()).reshape(rows.shape[2:])


def _add_rest(
    trained: Trained, rest: list[str], one: Batch, columns: Tensor, s: Tensor, into: dict[str, Tensor]
) -> None:
    for name in rest:
        step = max(1, AT_ONCE.get(s.device.type, 2**22) * 4 // (into[name].numel() * columns.shape[2]))
        for i in range(0, len(s), step):
            few = slice(i, i + step)
            for _, rows in rest_rows(trained, [name], rows_of(one.x, few), columns[few]):
                into[name].add_(_squares(rows, s[few]))


def _own_stream(generator: torch.Generator | None) -> torch.Generator | None:
    rank, count = processes()
    if generator is None or count == 1:
        return generator
    return torch.Generator(generator.device).manual_seed(generator.initial_seed() + rank)
