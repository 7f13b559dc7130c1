"""Mixed-linear training: a core network learnt once and for all, and linear user weights that can be forgotten exactly.

Golatkar, Achille, Ravichandran, Polito and Soatto (2021), *Mixed-Privacy Forgetting in Deep Networks*.
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call, jvp

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError, check_positive
from spotlessnet.core.loss import Loss, logits_of, wrong_class
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.linear_response import Known, cheaper_form, solve_response
from spotlessnet.operators.output_roots import Output
from spotlessnet.operators.solvers import CG, Dual
from spotlessnet.training.fit import fit

PASSES = 4
"""How often a solve is repeated on what the last one left, so that rounding does not decide the residual."""


@dataclass(frozen=True)
class CentredTargets(Loss):
    r"""$\tfrac12\|f - a(e_y - \tfrac1C \mathbf 1)\|^2$: squared error for classes.

    **Arguments:**

    - `scale`: $a$, how far apart the logits of right and wrong classes shall lie.
    """

    scale: float = 5.0
    name: ClassVar[str] = "squared error to centred targets"
    is_classification: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("CentredTargets.scale", self.scale)

    def __call__(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, " N"]) -> Float[Tensor, " N"]:
        C = outputs.shape[1]
        target = nn.functional.one_hot(y.long(), C).to(outputs.dtype) - 1 / C
        return 0.5 * (outputs - self.scale * target).square().sum(dim=1)

    def hessian_product(
        self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, " N"], v: Float[Tensor, "N C"]
    ) -> Float[Tensor, "N C"]:
        return v

    def hessian_root(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, " N"]) -> Float[Tensor, "N C R"]:
        eye = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        return eye.expand(len(outputs), -1, -1)

    def mistakes(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, " N"]) -> Float[Tensor, " N"]:
        return wrong_class(outputs, y)


class UserNetwork(nn.Module):
    r"""$f_{w_c}(x) + J_{w_c}(x)\,u$ as a module of its own; its one parameter is `user`, $u$ as a flat vector `[P]`.

    The core weights are frozen inside it. With `user` at zero it answers as the core network does.
    """

    def __init__(self, core: Trained) -> None:
        super().__init__()
        self.core = core.module().eval()
        self.core.requires_grad_(False)
        self.names, self.shapes = core.names, core.shapes
        self.user = nn.Parameter(torch.zeros_like(core.weights))

    def train(self, mode: bool = True) -> "UserNetwork":
        """The core never trains, so its normalisation and dropout stay as they are when it answers."""
        super().train(mode)
        self.core.eval()
        return self

    def core_network(self) -> Trained:
        """The core network, in the weights that `user` adds to."""
        core = copy.deepcopy(self.core)
        for name, parameter in core.named_parameters():
            parameter.requires_grad_(name in self.names)
        return Trained.of(core)

    def forward(self, *inputs: Any, **named: Any) -> Float[Tensor, "N *C"]:
        parameters = dict(self.core.named_parameters())
        at = {name: parameters[name].detach() for name in self.names}
        pieces = self.user.split([shape.numel() for shape in self.shapes])
        along = {n: u.view(s) for n, u, s in zip(self.names, pieces, self.shapes, strict=True)}
        both = jvp(lambda w: logits_of(functional_call(self.core, w, inputs, named)), (at,), (along,))
        return both[0] + both[1]


@dataclass(frozen=True, eq=False)
class Settled:
    r"""User weights at the optimum, up to a residual that was measured there.

    **Arguments:**

    - `trained`: the user network at these weights.
    - `residual`: $\|r\|$, the length of the summed objective's gradient there.
    - `distance`: $\|r\| / (N\mu)$, which is at least $\|u - u^*\|$, as the ridge is the least curvature.
    - `products`: how many curvature products it took.
    - `failure`: why the residual is not below the tolerance; empty where it is.
    """

    trained: Trained
    residual: float
    distance: float
    products: int
    failure: str = ""

    def module(self) -> nn.Module:
        """A network to take away, which answers as the linearised one does."""
        return self.trained.module()


def fit_mixed(
    trained: Trained,
    core: Data,
    users: Data,
    recipe: Recipe | None = None,
    *,
    weight_decay: float = 1e-3,
    scale: float = 5.0,
    seed: int = 0,
    tolerance: float = 1e-6,
) -> Settled:
    """Train the core network on rows that will never be asked to go, then user weights on those that may.

    **Arguments:**

    - `recipe`: how the core is trained, with the network's own loss.
    - the others: as for `fit_users`.
    """
    return fit_users(
        fit(trained, core, recipe, seed=seed), users, weight_decay=weight_decay, scale=scale, tolerance=tolerance
    )


def fit_users(
    core: Trained, users: Data, *, weight_decay: float = 1e-3, scale: float = 5.0, tolerance: float = 1e-6
) -> Settled:
    r"""Minimise $\tfrac1N\sum_i \tfrac12\|f_{w_c}(x_i) + J(x_i)u - a(e_{y_i} - \tfrac1C)\|^2 + \tfrac\mu2\|u\|^2$.

    **Arguments:**

    - `core`: the core network, $w_c$.
    - `weight_decay`: $\mu$; it is what makes the optimum unique and the distance to it certain.
    - `scale`: $a$ of `CentredTargets`.
    - `tolerance`: how small the gradient must become, as a share of that at $u = 0$.
    """
    check_positive("weight_decay", weight_decay, "It makes the optimum unique.")
    return settle(user_network(core, weight_decay=weight_decay, scale=scale), users, tolerance=tolerance)


def user_network(core: Trained, *, weight_decay: float, scale: float = 5.0) -> Trained:
    """The linearised network with user weights zero, as a `Trained`: decay toward zero, centred targets."""
    network = UserNetwork(core)
    return Trained.of(network, CentredTargets(scale), weight_decay=weight_decay, init=torch.zeros_like(core.weights))


def settle(
    trained: Trained, data: Data, *, tolerance: float = 1e-6, max_iterations: int = 5000, batch_size: int = 256
) -> Settled:
    r"""Go to the optimum of a quadratic objective from wherever the weights are.

    $u \leftarrow u - H^{-1} G(u)$ with $H = J^\top J + N\mu I$, by the kernel or by conjugate gradients, whichever is
    cheaper; the gradient is then measured anew, and the step repeated on what is left of it. Where the kernel turns out
    too coarse, conjugate gradients take over.

    **Arguments:**

    - `tolerance`: how small the gradient must become, as a share of the one at the beginning.
    """
    if not trained.known_weight_decay > 0:
        raise SettingError(
            f"User weights need a positive decay, which makes their optimum unique, but it is "
            f"{trained.weight_decay}. Train "
            "them with one (`fit_users(..., weight_decay=1e-3)`)."
        )
    ridge, products, why = len(data) * trained.known_weight_decay, 0, ""
    # J of the core network is the same matrix, and half the work: no derivative of a derivative.
    linear = trained.model.core_network() if isinstance(trained.model, UserNetwork) else trained
    output: Output = "identity" if linear is not trained else "softmax"
    form = cheaper_form(linear, data)
    known = Known()
    G = gradient(trained, data, ridge=ridge, batch_size=batch_size)
    first = size = float(G.double().norm())
    for _ in range(PASSES):
        if size <= tolerance * first:
            break
        share = min(0.5, tolerance * first / size)
        found = solve_response(
            linear,
            data,
            -G,
            ridge=ridge,
            output=output,
            solver=Dual(share) if form == "dual" else CG(share, max_iterations),
            known=known,
            batch_size=batch_size,
        )
        moved = trained.at(trained.weights + found.x)
        left = gradient(moved, data, ridge=ridge, batch_size=batch_size)
        before = size
        after = float(left.double().norm())
        products, why = products + found.iterations, found.failure
        if after < size:  # a step that leads away is not taken
            trained, G, size = moved, left, after
        if after <= 0.5 * before:
            continue
        if form != "dual":
            break
        # A kernel in float32 that is off by more than the ridge misleads; products are true whatever the format.
        form = "primal"
    if size > tolerance * first:
        why = why or (
            f"The gradient must fall to {tolerance:g} of {first:.3g}, but stays at {size:.2g}: "
            f"{str(trained.dtype).removeprefix('torch.')} gives no more. Loosen `tolerance`, or work in float64."
        )
    else:
        why = ""
    return Settled(trained, size, size / ridge, products, why)
