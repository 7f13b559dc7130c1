"""Tangent features: sketched gradients of the pooled features, layer by layer.

What fine-tuning a layer could change about an answer, to first order, is linear in these features. Golatkar et al.
(2021), *Mixed-Privacy Forgetting*; Achille et al. (2021), *LQF: Linear Quadratic Fine-Tuning*.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d

from spotlessnet.core.errors import MismatchError, SettingError, check_positive
from spotlessnet.core.source import Inputs
from spotlessnet.forgettable.adapt import call
from spotlessnet.forgettable.features.pooled import pool

MANY = 4096
"""Features from which on the speed of a product decides how long a request takes."""


def sketchable(backbone: nn.Module) -> list[str]:
    """Names of the layers whose gradients can be sketched: linear layers and ordinary pointwise convolutions.

    Not those inside `nn.MultiheadAttention`, which takes their weights and never calls them.
    """
    within = tuple(f"{n}." for n, layer in backbone.named_modules() if n and isinstance(layer, nn.MultiheadAttention))
    found = [name for name, layer in backbone.named_modules() if _is_pointwise(layer)]
    return [name for name in found if not name.startswith(within)]


def _is_pointwise(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and {*layer.kernel_size, *layer.stride} == {1} and layer.padding in ((0, 0), 0)
    return isinstance(layer, nn.Linear)


class TangentSketch(nn.Module):
    r"""Pooled features $g(x)$, and for each layer $\ell$ the sketch of its gradients.

    $$\Phi_{\ell m}(x) = \sum_p \big(S^{in}_\ell{}^\top a_p\big) \big(S^{out}_{\ell m}{}^\top \delta^m_p\big)^\top,
      \qquad \delta^m_p = \partial\, v_m^\top g(x) / \partial z_p$$

    over positions $p$ of the layer's inputs $a$ and outputs $z$. With square orthogonal sketches these are the whole
    gradient of $v_m^\top g$ in the layer's weights. Classes share the features.

    **Arguments:**

    - `backbone`: frozen.
    - `directions`: $v_m$ as rows, such as the leading directions of a head that was trained on core data.
    - `layers`: names as `sketchable` gives them; the last twelve unless said.
    - `rank_in`, `rank_out`: columns of the sketches; `rank_out` counts per direction.
    - `seed`: of the random sketches, until `align` fits them to core data.
    - `pooled`: whether the pooled features themselves come first.
    - `even`: leave out up to 15 of the last features, so that their number, with the constant one that the problem
      adds, is a multiple of 16. A GPU multiplies matrices of other sizes at two thirds of the speed. From `MANY`
      features on.
    """

    def __init__(
        self,
        backbone: nn.Module,
        directions: Float[Tensor, "m d"],
        layers: Sequence[str] | None = None,
        *,
        rank_in: int = 16,
        rank_out: int = 16,
        seed: int = 0,
        pooled: bool = True,
        even: bool = False,
    ) -> None:
        super().__init__()
        check_positive("rank_in", rank_in)
        check_positive("rank_out", rank_out)
        known = sketchable(backbone)
        self.names = list(known[-12:] if layers is None else layers)
        unknown = [name for name in self.names if name not in known]
        if unknown or not self.names:
            raise SettingError(
                f"Layers to sketch must be linear or pointwise convolutions of the backbone, but {unknown or 'none'} "
                f"are not. Known are {', '.join(known[-6:]) or 'none'}."
            )
        self.backbone = backbone.eval().requires_grad_(False)
        self.with_pooled, self.even = pooled, even
        self.register_buffer("directions", directions.detach().float())
        draw = torch.Generator().manual_seed(seed)
        modules = dict(backbone.named_modules())
        for i, name in enumerate(self.names):
            weight = modules[name].weight
            assert isinstance(weight, Tensor)
            out, inn = weight.shape[:2]
            a = torch.randn(inn, min(rank_in, inn), generator=draw) / inn**0.5
            b = torch.randn(len(directions), out, min(rank_out, out), generator=draw) / out**0.5
            self.register_buffer(f"in_{i}", a.to(weight.device))
            self.register_buffer(f"out_{i}", b.to(weight.device))

    def train(self, mode: bool = True) -> "TangentSketch":
        """Frozen features never train."""
        return super().train(False)

    def blocks(self, features: int) -> list[int]:
        """Sizes of the groups of features that share a scale: the pooled ones, then one group per layer."""
        sizes = [self._sketch("in", i).shape[1] * self._sketch("out", i)[:, 0].numel() for i in range(len(self.names))]
        width = self._sketch_directions().shape[1] if self.with_pooled else 0
        total = width + sum(sizes)
        if features != self._kept(total):
            raise MismatchError(f"The sketches make {self._kept(total)} features, but {features} came.")
        ends = list(accumulate([width, *sizes]))
        return [min(end, features) - start for start, end in pairwise([0, *ends]) if start < min(end, features)]

    def _kept(self, features: int) -> int:
        return (features + 1) // 16 * 16 - 1 if self.even and features >= MANY else features

    def _sketch_directions(self) -> Tensor:
        assert isinstance(self.directions, Tensor)
        return self.directions

    def _sketch(self, side: str, i: int) -> Tensor:
        value = getattr(self, f"{side}_{i}")
        assert isinstance(value, Tensor)
        return value

    def forward(self, *inputs: Tensor, **named: Tensor) -> Float[Tensor, "N d"]:
        g, taken, slopes = self._gradients(named if named else inputs[0])
        parts = [g.detach().float()] if self.with_pooled else []
        for i, a in enumerate(taken):
            seen = _project(a, self._sketch("in", i))  # [N, positions, r]
            per_direction = [seen.mT @ _project(slope[i], self._sketch("out", i)[m]) for m, slope in enumerate(slopes)]
            parts.append(torch.stack(per_direction, dim=1).float().flatten(1))
        found = torch.cat(parts, dim=1)
        return found[:, : self._kept(found.shape[1])]

    def _gradients(self, x: Inputs) -> tuple[Tensor, list[Tensor], list[tuple[Tensor, ...]]]:
        """Pooled features, the layers' inputs, and for each direction the gradients at the layers' outputs."""
        taken: dict[int, Tensor] = {}
        made: dict[int, Tensor] = {}

        def keep(i: int, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
            taken[i] = given[0].detach()
            made[i] = out if out.requires_grad else out.detach().requires_grad_()
            # In-place activations would destroy what was kept.
            return made[i].clone()

        modules = dict(self.backbone.named_modules())
        handles = [
            modules[name].register_forward_hook(lambda _layer, given, out, i=i: keep(i, given, out))
            for i, name in enumerate(self.names)
        ]
        try:
            with torch.enable_grad():
                named = x if isinstance(x, dict) else {}
                g = pool(call(self.backbone, x), **named)
                tops = (g.float() @ self._sketch_directions().to(g.device).T).sum(dim=0)
                silent = [name for i, name in enumerate(self.names) if i not in made]
                if silent:
                    raise SettingError(
                        f"Layers to sketch must be called, but the backbone passes {', '.join(silent)} by, so that "
                        "their gradients cannot be seen. Give other `layers`."
                    )
                leaves = [made[i] for i in range(len(self.names))]
                slopes = [
                    torch.autograd.grad(top, leaves, retain_graph=m + 1 < len(tops)) for m, top in enumerate(tops)
                ]
        finally:
            for handle in handles:
                handle.remove()
        return g, [taken[i] for i in range(len(self.names))], slopes

    @torch.no_grad()
    def align(self, batches: Sequence[Inputs], *, power: float = 0.5) -> None:
        r"""Replace random sketches by the leading principal directions of core data's inputs and gradients.

        **Arguments:**

        - `batches`: inputs of core examples.
        - `power`: how far directions are evened out: 0 keeps their spread, 1 whitens, as K-FAC preconditioning does.
        """
        sums: list[list[Tensor]] = []
        for x in batches:
            _, taken, slopes = self._gradients(x)
            for i, a in enumerate(taken):
                if len(sums) <= i:
                    sums.append([])
                for j, value in enumerate((a, *(slope[i] for slope in slopes))):
                    flat = _positions(value).float().flatten(0, 1)
                    gram = (flat.T @ flat).double()
                    if len(sums[i]) <= j:
                        sums[i].append(gram)
                    else:
                        sums[i][j] += gram
        for i, grams in enumerate(sums):
            setattr(self, f"in_{i}", _leading(grams[0], self._sketch("in", i).shape[1], power))
            width = self._sketch("out", i).shape[2]
            setattr(self, f"out_{i}", torch.stack([_leading(gram, width, power) for gram in grams[1:]]))


def _positions(value: Tensor) -> Float[Tensor, "N p c"]:
    if value.ndim == 4:
        return value.flatten(2).mT
    return value[:, None] if value.ndim == 2 else value


def _project(value: Tensor, sketch: Float[Tensor, "c r"]) -> Float[Tensor, "N p r"]:
    if value.ndim == 4:
        # A pointwise convolution keeps the memory layout, and so the speed, of the network itself.
        return conv2d(value, sketch.T[:, :, None, None].to(value.dtype)).flatten(2).mT
    return _positions(value) @ sketch.to(value.dtype)


def _leading(gram: Float[Tensor, "c c"], width: int, power: float) -> Float[Tensor, "c r"]:
    """Leading eigenvectors, divided by their eigenvalues' root to the given power, relative to the mean."""
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0)[:width].clamp(min=1e-12), vectors.flip(1)[:, :width]
    floor = values.clamp(min=1e-6 * float(values[0]))
    return (vectors * (floor / floor.mean()) ** (-power / 2)).float()
