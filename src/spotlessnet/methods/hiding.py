"""Hiding: shut the output of a class, and leave everything behind it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.errors import SettingError, check_positive
from spotlessnet.core.gaussian import Measured
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


@dataclass(frozen=True)
class HidingFacts(Measured):
    """Which class was hidden, in which layer."""

    hidden_class: int | None = None
    head: str | None = None


@METHODS.register(
    "hiding",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net: baseline",
    needs=("retained data", "classes", "whole class"),
    guarantee="none: what the weights know stays",
)
@dataclass(frozen=True)
class Hiding(Scrub):
    r"""Make the forgotten class's logit so low that it is never answered: $w_c \leftarrow 0,\; b_c \leftarrow -M$.

    A baseline of the papers, which remove the class's row from the last layer: what the network knows about the class
    stays in every other weight. Only for requests of a whole class. A last layer without bias is hidden by
    $w_c \leftarrow -M$, which works where its inputs are never negative (after a ReLU); otherwise it is refused.

    **Arguments:**

    - `depth`: $M$; the class's probability is zero in float32 from about 200 below the other logits.
    """

    depth: float = 1e4

    def __post_init__(self) -> None:
        check_positive("Hiding.depth", self.depth)

    def cost(self, trained: Trained, split: Split) -> Work:
        # Forgotten rows are answered before and after, and one of them to find the last layer.
        return Work.sure((2 * len(split.forget) + 3) * Sizes.of(trained, split).answer)

    def check_needs(self, trained: Trained, split: Split) -> None:
        super().check_needs(trained, split)
        _whole_class(trained, split)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        label = _whole_class(trained, split)
        head = _head(trained, split)
        weights = trained.weights.clone()
        parts = trained.unflatten(weights)
        if f"{head}bias" in parts:
            # The weights too: large activations times them could lift the logit above any bias.
            parts[f"{head}weight"][label] = 0
            parts[f"{head}bias"][label] = -self.depth
        else:
            # Without a bias the logit is −M times the sum of the inputs: low if these are never negative; see below.
            parts[f"{head}weight"][label] = -self.depth
        self._check_hidden(trained, trained.at(weights), split, label)
        notes.measure(HidingFacts, hidden_class=label, head=head.rstrip("."))
        return weights

    def _check_hidden(self, before: Trained, after: Trained, split: Split, label: int) -> None:
        f, g = before.predict(split.forget), after.predict(split.forget)
        others = [c for c in range(f.shape[1]) if c != label]
        same = torch.allclose(f[:, others], g[:, others], rtol=1e-5, atol=1e-5)
        if not same or bool((g.argmax(dim=1) == label).any()):
            raise SettingError(
                "Hiding must shut one logit and leave the others alone, but this network's last layer does not allow "
                "that: it needs a bias, or inputs that are never negative, and nothing behind it. Use `Finetune`."
            )


def _whole_class(trained: Trained, split: Split) -> int:
    """The class of the request, if it is one, and all of it."""
    y = split.forget.labels()
    if not trained.loss.is_classification or y.ndim != 1:
        raise SettingError(f"Hiding needs one class per row, but labels have shape {tuple(y.shape)}.")
    classes = y.unique().tolist()
    left = int(torch.isin(split.retain.labels(), y.unique()).sum())
    if len(classes) > 1 or left:
        raise SettingError(
            f"Hiding forgets one whole class, but this request holds rows of {len(classes)} classes and leaves {left} "
            "rows of them. Use `whole_class(...)`, or another method."
        )
    return int(classes[0])


def _head(trained: Trained, split: Split) -> str:
    """What the names of the last layer with as many outputs as classes begin with, such as `"head."`."""
    outputs = trained.predict(split.forget.select([0])).shape[1]
    parts: Mapping[str, Tensor] = trained.unflatten(trained.weights)
    layers = [
        (name, layer)
        for name, layer in trained.model.named_modules()
        if isinstance(layer, (nn.Linear, nn.Conv2d)) and layer.weight.shape[0] == outputs
    ]
    if not layers:
        raise SettingError(
            f"Hiding needs a last Linear or Conv2d layer with {outputs} outputs, but the network has none. "
            "Use `Finetune`."
        )
    name, layer = layers[-1]
    head = f"{name}." if name else ""
    frozen = [p for p, _ in layer.named_parameters() if f"{head}{p}" not in parts]
    if frozen:
        raise SettingError(
            f"Hiding changes the last layer {name!r}, but its {' and '.join(frozen)} are frozen or tied to another "
            "layer. Unfreeze them, or use another method."
        )
    return head
