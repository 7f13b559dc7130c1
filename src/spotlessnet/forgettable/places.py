"""Where an example stands in a batch: its content decides, so that its features are the same whoever comes with it.

Libraries multiply matrices in blocks, and some of a block's rows take another path with another rounding. The same
example at another place can then have features that differ in the last bit, and now and then a code that differs by
one: taking it out would leave that one behind. An example whose place follows from its own bytes is always computed the
same way. Places that a network computes alike are one lane: the fewer there are, the fuller batches get.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from spotlessnet.core.errors import SettingError
from spotlessnet.core.source import Inputs
from spotlessnet.forgettable.adapt import call

LANES = 16
"""Places this far apart start at the same bytes of a cache line, whatever the width, and are alike to most kernels."""

ENTRIES = 128
"""Numbers that are compared between any two places. Where places were not alike, a tenth of the numbers or more were
not (linear layers, tangent features and linearised networks on CPUs): so many are equal once in a million."""

LOOKS = (2, 16)
"""At least and at most so many examples are looked at."""

WORDS = 2**17
"""Words of examples that are looked at together: few enough to stay in a processor's cache."""


def lanes_for(batch_size: int) -> int:
    """How many kinds of places a batch has, unless a network was looked at."""
    return LANES if batch_size % LANES == 0 else batch_size


def lanes_needed(features: nn.Module, sample: Inputs, batch_size: int) -> int:
    """How many kinds of places a network tells apart: one where places make no difference, as with most convolutions.

    An example stands in all places of a batch at once: where its answers are equal, places are alike.

    **Arguments:**

    - `sample`: core examples.
    """
    parts = sample if isinstance(sample, dict) else {"": sample}
    count = len(next(iter(parts.values())))
    mixed = torch.rand(LOOKS[1], count, generator=torch.Generator().manual_seed(0))

    def answers(batch: dict[str, Tensor]) -> Tensor:
        return _answer(features, batch if isinstance(sample, dict) else batch[""])

    lanes, looks, done = 1, LOOKS[0], 0
    while done < looks:
        one = {name: _mixture(value, mixed[done], done) for name, value in parts.items()}
        everywhere = answers({name: torch.stack([value] * batch_size) for name, value in one.items()})
        if not done:
            looks = min(max(LOOKS[0], -(-ENTRIES // max(1, everywhere.shape[1]))), LOOKS[1])
            rows = torch.arange(1, batch_size) % count
            beside = {n: torch.cat([one[n][None], value[rows.to(value.device)]]) for n, value in parts.items()}
            company = answers(beside)
            _check_alone(everywhere[0], company[0], float((company - answers(beside)).abs().max()))
        # Answers that are no numbers equal nothing; whoever makes the scales refuses them.
        while lanes < batch_size and not torch.equal(everywhere, everywhere[:lanes].repeat(batch_size // lanes, 1)):
            lanes = next(n for n in range(lanes + 1, batch_size + 1) if batch_size % n == 0)
        done += 1
    return lanes


def _answer(features: nn.Module, batch: Inputs) -> Tensor:
    value = call(features, batch)
    assert isinstance(value, Tensor)
    parts = [value] if not hasattr(features, "base") else [value, features.base(batch)]  # type: ignore[operator]  # a method, not a tensor
    return torch.cat([part.detach().flatten(1) for part in parts], dim=1)


def _mixture(value: Tensor, shares: Tensor, k: int) -> Tensor:
    """One example that is like those of core data, but full of digits: a blank one would show nothing."""
    if not value.is_floating_point():
        return value[k % len(value)]
    by = (shares / shares.sum()).to(value.device, torch.float32)
    return torch.tensordot(by, value.float(), dims=1).to(value.dtype)


def _check_alone(beside_itself: Tensor, beside_others: Tensor, by_chance: float) -> None:
    """Raise where an example's answer changes with its neighbours.

    In one place of batches of one size a network that looks at each example alone does the same operations, so any
    difference is the neighbours'. Only kernels that differ from call to call, which some GPUs have, are allowed one.

    **Arguments:**

    - `by_chance`: how far two calls with one batch lie apart.
    """
    apart = float((beside_itself - beside_others).abs().max())
    if apart > min(8 * by_chance, 1e-3 * float(beside_itself.abs().max())):
        raise SettingError(
            "An example's features must not depend on which others are in its batch, as they could not be taken out "
            f"again, but they change by {apart:.2g}. Use a backbone without statistics over a batch, in eval mode."
        )


def lanes_of(x: Inputs, lanes: int) -> Int64[Tensor, " N"]:
    """Each example's lane, from its bytes alone.

    A sum of the bytes' words, each times an odd number of its own: whole numbers, so that every device finds the same.
    """
    parts = [x[name] for name in sorted(x)] if isinstance(x, dict) else [x]
    total = torch.zeros(len(parts[0]), dtype=torch.int64)
    if lanes == 1:
        return total
    for k, part in enumerate(parts):
        by = _odd(_words(part[:1]).numel(), 1 + k).to(part.device)
        sums = [(_words(rows) * by).sum(dim=1) for rows in part.split(max(1, WORDS // max(1, len(by))))]
        total += torch.cat(sums).cpu()
    # The upper bits of such a sum are the mixed ones.
    return ((total >> 32) & 0x7FFFFFFF) % lanes


def _words(rows: Tensor) -> Int64[Tensor, "n w"]:
    whole = torch.view_as_real(rows) if rows.is_complex() else rows
    flat = whole.detach().contiguous()[..., None].flatten(1)
    if flat.is_floating_point():
        flat = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    return flat.long()


def _odd(count: int, seed: int) -> Int64[Tensor, " w"]:
    """Fixed odd numbers of 64 bits, by the steps of SplitMix64, whose products wrap around as they should."""
    z = (torch.arange(count, dtype=torch.int64) + (seed << 40)) * -7046029254386353131
    for shift, by in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * by
    return z | 1


def plan(lanes: Int64[Tensor, " N"], count: int, batch_size: int) -> Iterator[Int64[Tensor, " B"]]:
    """Batches of row numbers, each row in a place of its lane, -1 where a place stays empty.

    **Arguments:**

    - `count`: how many lanes there are; place $p$ belongs to lane $p$ modulo `count`.
    """
    order = lanes.argsort(stable=True)
    loads = lanes.bincount(minlength=count)
    # How many rows of the same lane came before.
    turn = torch.empty_like(lanes)
    turn[order] = torch.arange(len(lanes)) - (loads.cumsum(0) - loads)[lanes[order]]
    per = batch_size // count
    batch, place = turn // per, turn % per * count + lanes
    table = torch.full((int(batch.max()) + 1 if len(lanes) else 0, batch_size), -1)
    table[batch, place] = torch.arange(len(lanes))
    yield from table
