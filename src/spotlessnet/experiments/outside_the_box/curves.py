"""Rows that lie on a curve: the readout's name carries where. Without a unit they are for figures alone, not tables."""

from collections.abc import Iterable

from spotlessnet.auditing.rows import Row

AT = " @ "


def at(readout: str, *positions: float) -> str:
    """The readout of one point: `"loss on retain @ 0.5"`.

    >>> at("loss", 0.5), at("loss", 1, 2)
    ('loss @ 0.5', 'loss @ 1, 2')
    """
    return f"{readout}{AT}{', '.join(f'{position:g}' for position in positions)}"


def place_of(readout: str) -> tuple[str, tuple[float, ...]]:
    """The name and the position that `at` put together.

    >>> place_of("loss @ 1, 2")
    ('loss', (1.0, 2.0))
    """
    name, _, positions = readout.partition(AT)
    return name, tuple(float(position) for position in positions.split(", ")) if positions else ()


def curve(rows: Iterable[Row], method: str, readout: str, seed: int | None = None) -> dict[float, list[float]]:
    """Values by position along a curve, one per seed, in the order of the positions.

    **Arguments:**

    - `seed`: only this one.
    """
    found: dict[float, list[float]] = {}
    for row in rows:
        name, positions = place_of(row.readout)
        if row.method == method and name == readout and positions and seed in (None, row.seed):
            found.setdefault(positions[0], []).append(row.value)
    return dict(sorted(found.items()))
