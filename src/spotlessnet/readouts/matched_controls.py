"""Matched controls: rows never trained on, as likely as the forgotten ones. They tell memory from another training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from spotlessnet.core.adapters import Arrays
from spotlessnet.core.answers import margin
from spotlessnet.core.data import Data
from spotlessnet.core.progress import track
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.margin import margins_of
from spotlessnet.readouts.parts import class_labels, class_logits

MOST = 1000
"""Test rows that matched controls are chosen from."""

EACH = 8
"""Matched controls beside every forgotten row."""


@dataclass(frozen=True, eq=False)
class Unseen:
    """What one group of networks makes of rows that none was trained on, under every label that a row might have.

    **Arguments:**

    - `margins`: of each test row under each label, one network per seed.
    - `labels`: of the forgotten rows.
    """

    margins: Float64[Tensor, "S U C"]
    labels: Int64[Tensor, " T"]

    @staticmethod
    def of(networks: Iterable[Trained], split: Split) -> "Unseen | None":
        """Look at each network once; nothing where there is no test data."""
        group = list(networks)
        if split.test is None or not group:
            return None
        few = _drawn(split.test)
        seen = [margins_by_label(class_logits(network, few)).cpu() for network in track(group, "matched controls")]
        return Unseen(torch.stack(seen), class_labels(group[0], split.forget).cpu())

    def select(self, networks: Int64[Tensor, " R"]) -> "Unseen":
        """Some of the networks."""
        return Unseen(self.margins[networks], self.labels)


def margins_by_label(logits: Float64[Tensor, "N C"]) -> Float64[Tensor, "N C"]:
    r"""$\log p_c - \log(1 - p_c)$ of every row and label, without cancellation where the network is certain."""
    top = logits.argmax(dim=1)
    log_p = logits.log_softmax(dim=1)
    found = log_p - torch.log1p(-log_p.exp().clamp(max=0.5))  # no label but the top one has more than half
    return found.scatter(1, top.unsqueeze(1), margin(logits, top).unsqueeze(1))


def matched(
    retrained: Float64[Tensor, "S T"], unseen: Unseen, each: int = EACH
) -> tuple[Int64[Tensor, "each T"], Int64[Tensor, "each T"]]:
    """For each forgotten row, test rows and **other** labels that retrained networks find just as likely.

    Other labels, for what is known or avoided of a whole class shows in that class's test rows too, and would pass for
    the way the network was trained.
    """
    base, own = unseen.margins.mean(dim=0), retrained.mean(dim=0)
    U, C = base.shape
    few = min(each, U * (C - 1))
    found = torch.empty(few, len(own), dtype=torch.long)
    for y in unseen.labels.unique().tolist():
        mine = (unseen.labels == y).nonzero().squeeze(1)
        pairs = torch.arange(U * C)
        pairs = pairs[pairs % C != y]
        heights, order = base.flatten()[pairs].sort()
        # The nearest lie within so many places to either side of where a row itself would stand.
        place = torch.searchsorted(heights, own[mine].contiguous()).unsqueeze(0)
        window = (place + torch.arange(-few, few).unsqueeze(1)).clamp(0, len(pairs) - 1)
        # A place that was reached twice, at an end, counts once.
        again = torch.cat([torch.zeros_like(place, dtype=torch.bool), window[1:] == window[:-1]])
        apart = (heights[window] - own[mine]).abs().masked_fill(again, torch.inf)
        nearest = window.gather(0, apart.topk(few, dim=0, largest=False).indices)
        found[:, mine] = pairs[order[nearest]]
    return found // C, found % C


def matched_controls(networks: Sequence[Trained], split: Split, each: int = EACH) -> Data:
    """The matched controls of all forgotten rows as data of their own, with the labels they are given, none twice.

    **Arguments:**

    - `networks`: trained without the forgotten rows; they say which test rows are alike.
    """
    unseen = Unseen.of(networks, split)
    test = _drawn(split.tests)
    assert unseen is not None  # `split.tests` has just said that there are some
    pairs = torch.stack(matched(margins_of(networks, split.forget), unseen, each))
    position, label = pairs.flatten(1).unique(dim=1)
    return Data(Arrays(test.fetch(test.rows[position]).x, label), torch.arange(len(label)))


def _drawn(test: Data) -> Data:
    return test.select(torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:MOST])


@dataclass(frozen=True, eq=False)
class Beyond:
    r"""How much further than its matched controls each forgotten row has moved from where retraining puts it.

    $$a_i = \Delta\varphi_i - \frac1k \sum_{j \in \text{controls of } i} \Delta\varphi_j$$

    with $\Delta\varphi$ the mean margin less that of the retrained networks. A network trained for fewer epochs or at
    another rate is less sure of every row, controls included; only memory sets the forgotten rows apart.

    **Arguments:**

    - `rows`: $a_i$.
    - `matched_controls`: the same for each control of row $i$ beside the row's other controls: what chance can do.
    """

    rows: Float64[Tensor, " T"]
    matched_controls: Float64[Tensor, "each T"]


def beyond(
    margins: Float64[Tensor, "S T"],
    unseen: Unseen,
    retrained: Float64[Tensor, "S T"],
    retrained_unseen: Unseen,
    each: int = EACH,
) -> Beyond:
    """Forgotten rows beside their matched controls, in one group of networks and the retrained ones."""
    near, label = matched(retrained, retrained_unseen, each)
    moved = (unseen.margins - retrained_unseen.margins).mean(dim=0)[near, label]
    fellows = (moved.sum(dim=0) - moved) / max(1, len(moved) - 1)
    return Beyond((margins - retrained).mean(dim=0) - moved.mean(dim=0), moved - fellows)
