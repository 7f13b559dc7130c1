"""Kronecker-factored curvature (KFAC, EKFAC), by way of curvlinops; the only file that knows that library."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.covariance import Block, Kronecker
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError, check_choice, check_not_negative
from spotlessnet.core.loss import Loss, logits_of
from spotlessnet.core.progress import budget, track
from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.room import footprint
from spotlessnet.operators.sums import add_up, my_share, processes

Factors = dict[str, tuple[Tensor | None, Tensor | None, Tensor]]
"""For each parameter the eigenvectors on its outputs and on its inputs, and the eigenvalues `[r, c]`."""


def kronecker(
    trained: Trained,
    data: Data,
    *,
    kind: str = "ekfac",
    fisher: str = "exact",
    ridge: float = 0.0,
    generator: torch.Generator | None = None,
    batch_size: int = 64,
) -> Kronecker:
    r"""The Gauss-Newton matrix, one block $A \otimes G$ for each weight and $G$ for each bias, as a sum over rows.

    $A$ is the mean of $aa^\top$ over what enters a layer, $G$ the sum of $gg^\top$ over what comes back. `"kfac"` keeps
    their eigenvalues; `"ekfac"` measures the matrix itself along their eigenvectors, which is nearer in Frobenius norm.
    Parameters outside `Linear` and plain `Conv2d` layers, such as BatchNorm's, and those that are tied or used more
    than once get the exact diagonal.

    **Arguments:**

    - `fisher`: `"exact"`, one backward pass for each column of the output Hessian's root, or `"monte carlo"`, one
      pass with a random mix of them.
    - `ridge`: added to every eigenvalue; as a rule `count * decay`.
    - `generator`: source of the mixes.

    Needs the extra `kfac`.
    """
    check_choice("kind", kind, ("kfac", "ekfac"))
    check_choice("fisher", fisher, ("exact", "monte carlo"))
    check_not_negative("ridge", ridge)
    if fisher == "monte carlo" and generator is None:
        raise NeedError("The Monte Carlo Fisher needs a `generator`. Give a `torch.Generator`.")
    if len(data) < processes()[1]:
        raise DataError(f"Each of {processes()[1]} processes needs a row, but there are {len(data)}.")
    batch_size = min(
        batch_size, footprint(trained, next(iter(trained.batches(data, 1))).x).rows(budget(trained.device))
    )
    network = _Whitened(trained.module(), trained.loss)
    factored = _factored(trained, network, data)
    found: Factors = {}
    if factored:
        # The library takes a seed, not a generator; drawing it keeps our own stream the only source.
        seed = 0 if generator is None else int(torch.randint(2**31, (), generator=generator, device=generator.device))
        found = _through_curvlinops(trained, network, data, factored, kind, fisher, seed, batch_size)
    rest = [name for name in trained.names if name not in found]
    if rest:
        found |= _diagonals(trained, data, rest, fisher, generator, batch_size)
    blocks = (found[name] for name in trained.names)
    # Eigenvalues of a sum of squares are negative by rounding alone.
    return Kronecker(tuple(Block(left, right, values.clamp(min=0) + ridge) for left, right, values in blocks))


class _Whitened(nn.Module):
    r"""The network with outputs $S^\top f$, $S S^\top = H$ held still.

    Half the squared error of these has the Gauss-Newton matrix of the true loss, whatever that is.
    """

    def __init__(self, network: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, batch: dict[str, Any]) -> Float[Tensor, "n R"]:
        f = self.answer(batch["x"])
        if f.ndim != 2:
            raise MismatchError(
                f"Kronecker curvature needs one vector of outputs for each row, but a row has {f.ndim - 1} axes. "
                "Use `GaussNewton` or `fisher_diagonal`."
            )
        with torch.no_grad():
            # Held still: differentiating the root as well would give another matrix than Gauss-Newton.
            S = self.loss.hessian_root(f.detach(), batch["y"])
        return torch.einsum("ncr,nc->nr", S, f)

    def answer(self, x: Inputs) -> Tensor:
        return logits_of(self.network(**x) if isinstance(x, dict) else self.network(x))


def _factored(trained: Trained, network: _Whitened, data: Data) -> list[str]:
    """Names of the parameters that a Kronecker product describes: in a plain layer, called once, shared with nobody."""
    calls: Counter[nn.Module] = Counter()
    owners = Counter(id(p) for _, p in network.network.named_parameters(remove_duplicate=False))
    hooks = [m.register_forward_hook(lambda m, *_: calls.update([m])) for m in network.network.modules()]
    try:
        with torch.no_grad():
            network.answer(next(iter(trained.batches(data, 1))).x)
    finally:
        for hook in hooks:
            hook.remove()
    names = []
    for name in trained.names:
        path, _, leaf = name.rpartition(".")
        layer = network.network.get_submodule(path)
        alone = leaf in ("weight", "bias") and all(owners[id(p)] == 1 for p in layer.parameters(recurse=False))
        if _is_plain(layer) and calls[layer] == 1 and alone:
            names.append(name)
    return names


def _is_plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros"
    return isinstance(layer, nn.Linear)


@dataclass(frozen=True)
class _Rows:
    """The rows of this process, as often as they are asked for."""

    trained: Trained
    data: Data
    batch_size: int

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        total = -(-len(self.data) // self.batch_size)
        for one in track(self.trained.batches(self.data, self.batch_size), "Kronecker factors", total=total):
            yield {"x": one.x, "y": one.y}, torch.zeros(len(one.y), 1, device=self.trained.device)


def _through_curvlinops(
    trained: Trained,
    network: _Whitened,
    data: Data,
    names: list[str],
    kind: str,
    fisher: str,
    seed: int,
    batch_size: int,
) -> Factors:
    curvlinops = _library()
    maker = curvlinops.EKFACLinearOperator if kind == "ekfac" else curvlinops.KFACLinearOperator
    own = dict(network.network.named_parameters())
    for name, p in own.items():
        p.requires_grad_(name in names)
    operator = maker(
        network,
        nn.MSELoss(reduction="sum"),
        [own[name] for name in names],
        _Rows(trained, data.select(my_share(torch.arange(len(data)))), batch_size),
        check_deterministic=False,
        seed=seed + processes()[0],
        fisher_type="type-2" if fisher == "exact" else "mc",
        num_per_example_loss_terms=1,
        num_data=len(data),
        batch_size_fn=lambda x: len(x["y"]),
    )
    with torch.enable_grad():
        operator.compute_kronecker_factors()
        state = operator.state_dict()
        covariances = (state["input_covariances"], state["gradient_covariances"])
        # Sorted, because every process must add up the same factor at the same time.
        for factor in (factors[layer] for factors in covariances for layer in sorted(factors)):
            add_up(factor)
        if kind == "kfac":
            return {name: _product(*covariances, name) for name in names}
        operator.compute_eigenvalue_correction()
    state = operator.state_dict()
    return {name: _corrected(state, name, position) for position, name in enumerate(names)}


def _product(
    inputs: dict[str, Tensor], gradients: dict[str, Tensor], name: str
) -> tuple[Tensor, Tensor | None, Tensor]:
    path, _, leaf = name.rpartition(".")
    layer = f"network.{path}".rstrip(".")
    # The library's squared error is twice ours.
    g, left = torch.linalg.eigh(0.5 * gradients[layer])
    if leaf == "bias":
        return left, None, g.unsqueeze(1)
    a, right = torch.linalg.eigh(inputs[layer])
    return left, right, g.clamp(min=0).unsqueeze(1) * a.clamp(min=0)


def _corrected(state: dict[str, Any], name: str, position: int) -> tuple[Tensor, Tensor | None, Tensor]:
    path, _, leaf = name.rpartition(".")
    layer = f"network.{path}".rstrip(".")
    # As above: the library's squared error is twice ours.
    values = 0.5 * add_up(state["corrected_eigenvalues"][layer][position])
    left = state["gradient_covariances_eigenvectors"][layer]
    if leaf == "bias":
        return left, None, values.unsqueeze(1)
    return left, state["input_covariances_eigenvectors"][layer], values


def _diagonals(
    trained: Trained, data: Data, names: list[str], fisher: str, generator: torch.Generator | None, batch_size: int
) -> Factors:
    network = trained.module()
    for name, p in network.named_parameters():
        p.requires_grad_(name in names)
    few = Trained.of(network, trained.loss)
    diagonal = fisher_diagonal(few, data, kind=fisher, generator=generator, batch_size=batch_size)
    return {name: (None, None, d.reshape(-1, 1)) for name, d in few.unflatten(diagonal).items()}


def _library() -> Any:
    try:
        import curvlinops
    except ImportError as e:
        raise NeedError("Kronecker curvature needs curvlinops. Run `pip install 'spotlessnet[kfac]'`.") from e
    return curvlinops
