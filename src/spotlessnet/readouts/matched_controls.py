"""Matched controls: rows never trained on, as likely as the forgotten ones. They tell memory from another training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from spotlessnet.core.adapters import Arrays
from spotlessnet.core.answers import margin
from spotlessnet.core.data import Data
from spotlessnet.core.loss import BinaryCrossEntropy, CrossEntropy
from spotlessnet.core.progress import track
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.parts import class_labels, class_logits
from spotlessnet.readouts.scores import kind_of, scores_of

MOST = 1000
"""Test rows that matched controls are chosen from."""

OTHERS = 3
"""Other rows whose labels a test row without classes is also given."""

EACH = 8
"""Matched controls beside every forgotten row."""


@dataclass(frozen=True, eq=False)
class Unseen:
    """What one group of networks makes of rows that none was trained on, under every label that a row might have.

    **Arguments:**

    - `margins`: of each test row under each label, one network per seed. Where a row has no one class, its score with
      the label that it has and with some others, see `other_labels`.
    - `labels`: of the forgotten rows; `None` where a row has no one class.
    """

    margins: Float64[Tensor, "S U C"]
    labels: Int64[Tensor, " T"] | None

    @staticmethod
    def of(networks: Iterable[Trained], split: Split) -> "Unseen | None":
        """Look at each network once; nothing where there is no test data."""
        group = list(networks)
        if split.test is None or not group:
            return None
        few = _drawn(split.test)
        if kind_of(group[0], split.forget) != "classes":
            columns = [scores_of(group, few.relabel(y)) for y in other_labels(group[0], few)]
            return Unseen(torch.stack(columns, dim=2), None)
        seen = [margins_by_label(class_logits(network, few)).cpu() for network in track(group, "matched controls")]
        return Unseen(torch.stack(seen), class_labels(group[0], split.forget).cpu())

    def select(self, networks: Int64[Tensor, " R"]) -> "Unseen":
        """Some of the networks."""
        return Unseen(self.margins[networks], self.labels)


@torch.no_grad()
def other_labels(network: Trained, test: Data) -> list[Shaped[Tensor, "U *d"]]:
    """Labels that test rows could have, whole rows of them: their own, those of other rows, and wrong ones throughout.

    Forgotten rows may have had wrong labels: only rows with labels as wrong are as unlikely. Wrong throughout are yes
    for no, and each position's class moved on; a number is wrong enough if it is another row's.
    """
    y = test.labels()
    found = [y, *(y.roll(k, dims=0) for k in range(1, 1 + OTHERS))]
    loss = network.loss
    if isinstance(loss, BinaryCrossEntropy):
        found += [1 - y, *(1 - y.roll(k, dims=0) for k in range(1, 1 + OTHERS))]
    if isinstance(loss, CrossEntropy):
        first = next(iter(network.batches(test.select([0]))))
        C = loss.positions(network.outputs(first.x), first.y).logits.shape[2]
        found += [((y + k) % C).where(y != loss.ignore_index, y) for k in range(1, min(C, 1 + OTHERS))]
    return found


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
    the way the network was trained. Where a row has no one class, any of its `other_labels` will do.
    """
    base, own = unseen.margins.mean(dim=0), retrained.mean(dim=0)
    U, C = base.shape
    # Without classes no column is a row's own, and none is left out.
    labels = torch.full((len(own),), -1) if unseen.labels is None else unseen.labels
    few = min(each, U * C if unseen.labels is None else U * (C - 1))
    found = torch.empty(few, len(own), dtype=torch.long)
    for y in labels.unique().tolist():
        mine = (labels == y).nonzero().squeeze(1)
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
    pairs = torch.stack(matched(scores_of(networks, split.forget), unseen, each))
    position, label = pairs.flatten(1).unique(dim=1)
    if unseen.labels is None:
        label = torch.stack(other_labels(networks[0], test))[label, position]
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
    # Each control beside the others of its row: what a row that was never trained on does by chance.
    fellows = (moved.sum(dim=0) - moved) / max(1, len(moved) - 1)
    return Beyond((margins - retrained).mean(dim=0) - moved.mean(dim=0), moved - fellows)
