"""Matched controls: rows never trained on, as likely as the forgotten ones. They tell memory from another training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
    - `own`: labels of the test rows themselves, where they are classes.
    - `gone`: classes of which no row was kept: their test rows are as good as forgotten ones, and no controls.
    """

    margins: Float64[Tensor, "S U C"]
    labels: Int64[Tensor, " T"] | None
    own: Int64[Tensor, " U"] | None = None
    gone: Int64[Tensor, " G"] | None = None

    @staticmethod
    def of(networks: Iterable[Trained], split: Split) -> "Unseen | None":
        """Look at each network once; nothing where there is no test data."""
        group = list(networks)
        if split.test is None or not group:
            return None
        few = drawn(split.test)
        if kind_of(group[0], split.forget) != "classes":
            columns = [scores_of(group, few.relabel(y)) for y in other_labels(group[0], few)]
            return Unseen(torch.stack(columns, dim=2), None)
        seen = [margins_by_label(class_logits(network, few)).cpu() for network in track(group, "matched controls")]
        labels, own = (class_labels(group[0], rows).cpu() for rows in (split.forget, few))
        return Unseen(torch.stack(seen), labels, own, _gone(group[0], split, labels))

    def select(self, networks: Int64[Tensor, " R"]) -> "Unseen":
        """Some of the networks."""
        return replace(self, margins=self.margins[networks])


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
    test = drawn(split.tests)
    assert unseen is not None  # `split.tests` has just said that there are some
    pairs = torch.stack(matched(scores_of(networks, split.forget), unseen, each))
    position, label = pairs.flatten(1).unique(dim=1)
    if unseen.labels is None:
        label = torch.stack(other_labels(networks[0], test))[label, position]
    return Data(Arrays(test.fetch(test.rows[position]).x, label), torch.arange(len(label)))


def _gone(network: Trained, split: Split, labels: Int64[Tensor, " T"]) -> Int64[Tensor, " G"]:
    """Classes of forgotten rows that no retained row has; unless those are at hand, a cohort's only class counts."""
    asked = labels.unique()
    if split.kept is None:
        return asked if len(asked) == 1 else asked[:0]
    return asked[~torch.isin(asked, class_labels(network, split.kept).cpu())]


def drawn(test: Data) -> Data:
    """The test rows that controls are chosen from, the same for every network."""
    return test.select(torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:MOST])
