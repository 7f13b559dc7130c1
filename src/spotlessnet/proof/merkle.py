"""The hash tree of RFC 6962: tree heads, inclusion and consistency proofs, and their verification.

    leaf(d)        = SHA-256(0x00 ‖ d)
    node(l, r)     = SHA-256(0x01 ‖ l ‖ r)
    root(D[0:n])   = node(root(D[0:k]), root(D[k:n])),   k the largest power of two below n
    root(D[0:0])   = SHA-256()

What is stored are the hashes of **full** subtrees, `Place(level, number)` over the entries from `number·2^level` up to
`(number+1)·2^level`: they never change once they are full, an append completes two on average and log₂ n at most, and
any root or proof is put together from at most 2 log₂ n of them.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from spotlessnet.core.errors import IntegrityError, SettingError

EMPTY = hashlib.sha256().digest()
"""The root of a log without entries."""


class Place(NamedTuple):
    """A full subtree: `2^level` entries, from the entry `number·2^level` on."""

    level: int
    number: int


Reader = Callable[[Sequence[Place]], Mapping[Place, bytes]]
"""Gives the hashes of full subtrees, all that a proof needs at once: one query to a database."""


def leaf_hash(entry: bytes) -> bytes:
    """The hash of an entry; its prefix differs from a node's, so that no entry can pass for one."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash over two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def full_subtrees(begin: int, end: int) -> list[Place]:
    """The full subtrees that make up the entries from `begin` to `end`, from left to right.

    `begin` must be where a subtree of this length can begin, as it does in every split of the tree.

    >>> full_subtrees(0, 7)
    [Place(level=2, number=0), Place(level=1, number=2), Place(level=0, number=6)]
    """
    found = []
    while begin < end:
        level = (end - begin).bit_length() - 1
        found.append(Place(level, begin >> level))
        begin += 1 << level
    return found


def folded(hashes: Sequence[bytes]) -> bytes:
    """One hash over neighbouring full subtrees that grow smaller to the right."""
    if not hashes:
        return EMPTY
    found = hashes[-1]
    for left in reversed(hashes[:-1]):
        found = node_hash(left, found)
    return found


def completed(size: int, leaf: bytes, frontier: Sequence[bytes]) -> list[tuple[Place, bytes]]:
    """The full subtrees that one more entry completes, the entry itself first.

    **Arguments:**

    - `size`: the number of entries before it.
    - `leaf`: the hash of the new entry.
    - `frontier`: the hashes at `full_subtrees(0, size)`.
    """
    left = list(frontier)
    found = [(Place(0, size), leaf)]
    while size & 1:
        size >>= 1
        [(_, right)] = found[-1:]
        found.append((Place(len(found), size), node_hash(left.pop(), right)))
    return found


class Frontier:
    """A log as it grows: only the full subtrees at its right edge, which is all that the next entry needs."""

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        """Begin with a log of `size` entries whose `full_subtrees(0, size)` have these hashes."""
        self.size = size
        self.hashes = list(hashes)

    def append(self, leaf: bytes) -> list[tuple[Place, bytes]]:
        """Take one more entry by its hash, and give the full subtrees that it completes."""
        found = completed(self.size, leaf, self.hashes)
        del self.hashes[len(self.hashes) - len(found) + 1 :]
        self.hashes.append(found[-1][1])
        self.size += 1
        return found

    @property
    def root(self) -> bytes:
        """The tree head of what was taken so far."""
        return folded(self.hashes)


def root(size: int, read: Reader) -> bytes:
    """The tree head of the first `size` entries."""
    return _ranges([(0, size)], read)[0]


def inclusion(index: int, size: int, read: Reader) -> list[bytes]:
    """The audit path (RFC 6962, 2.1.1): that the entry at `index` is in the log of the first `size` entries."""
    if not 0 <= index < size:
        raise SettingError(f"An entry of a log of {size} must have an index from 0 to {size - 1}, but got {index}.")
    ranges = []
    begin, end = 0, size
    while end - begin > 1:
        middle = begin + _split(end - begin)
        if index < middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((begin, middle))
            begin = middle
    return _ranges(ranges[::-1], read)


def consistency(old: int, new: int, read: Reader) -> list[bytes]:
    """The consistency proof (RFC 6962, 2.1.2): that the log of `new` entries begins with the log of `old` entries."""
    if not 0 <= old <= new:
        raise SettingError(f"A consistency proof leads from a smaller log to a larger, but got {old} and {new}.")
    if old in (0, new):
        return []
    ranges = []
    begin, end = 0, new
    while end != old:
        middle = begin + _split(end - begin)
        if old <= middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((begin, middle))
            begin = middle
    # Where the old log is itself a full subtree, whoever checks has its hash already.
    own = [] if begin == 0 else [(begin, end)]
    return _ranges([*own, *ranges[::-1]], read)


def check_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """Raise unless the path leads from the leaf at `index` to the root of the log of `size` entries."""
    if not 0 <= index < size:
        raise IntegrityError(f"The proof is of entry {index}, which a log of {size} entries does not have.")
    # Odd where the way comes from the right; where both are equal, the subtree stands alone at the right edge.
    place, last = index, size - 1
    found = leaf
    for sibling in path:
        if last == 0:
            raise IntegrityError("The inclusion proof is longer than the tree is high.")
        if place & 1 or place == last:
            found = node_hash(sibling, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        place, last = place >> 1, last >> 1
    if last:
        raise IntegrityError("The inclusion proof is shorter than the tree is high.")
    if found != root:
        raise IntegrityError("The inclusion proof does not lead to the tree head: this entry is not in the log.")


def check_consistency(old: int, new: int, old_root: bytes, new_root: bytes, path: Sequence[bytes]) -> None:
    """Raise unless the path shows that the log of `new` entries begins with the log of `old` entries."""
    if not 0 <= old <= new:
        raise IntegrityError(f"The later tree head has {new} entries, the earlier one {old}: entries were taken away.")
    if old == 0:
        _check_root(EMPTY, old_root, "earlier")
        _check_empty(path)
        return
    if old == new:
        _check_root(old_root, new_root, "later")
        _check_empty(path)
        return
    hashes = list(path)
    place, last = old - 1, new - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    if place and not hashes:
        raise IntegrityError("The consistency proof is shorter than the tree is high.")
    # A full old log is its own first hash.
    before = after = hashes.pop(0) if place else old_root
    for sibling in hashes:
        if last == 0:
            raise IntegrityError("The consistency proof is longer than the tree is high.")
        if place & 1 or place == last:
            before, after = node_hash(sibling, before), node_hash(sibling, after)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            after = node_hash(after, sibling)
        place, last = place >> 1, last >> 1
    if last:
        raise IntegrityError("The consistency proof is shorter than the tree is high.")
    _check_root(before, old_root, "earlier")
    _check_root(after, new_root, "later")


def _check_empty(path: Sequence[bytes]) -> None:
    if path:
        raise IntegrityError("The consistency proof must be empty where nothing was added, but it is not.")


def _check_root(found: bytes, told: bytes, which: str) -> None:
    if found != told:
        raise IntegrityError(
            f"The consistency proof does not lead to the {which} tree head: the log was rewritten between the two."
        )


def _split(length: int) -> int:
    """The largest power of two below `length`."""
    return 1 << (length - 1).bit_length() - 1


def _ranges(ranges: Sequence[tuple[int, int]], read: Reader) -> list[bytes]:
    """The root of each stretch of entries, from one reading."""
    parts = [full_subtrees(begin, end) for begin, end in ranges]
    hashes = read([place for places in parts for place in places])
    return [folded([hashes[place] for place in places]) for places in parts]


def in_memory(leaves: Iterable[bytes]) -> Reader:
    """A log held in memory, for tests and small logs."""
    held: dict[Place, bytes] = {}
    frontier = Frontier()
    for leaf in leaves:
        held.update(frontier.append(leaf))
    return lambda places: {place: held[place] for place in places}
