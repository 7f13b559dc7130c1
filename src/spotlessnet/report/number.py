"""`number`: a number as people read it."""

import math
from typing import Any


def number(value: Any) -> str:
    """A number for reading: three figures, no noise.

    >>> number(0.12345), number(float("inf")), number(1234567.0), number(float("nan"))
    ('0.123', '∞', '1.23e+06', '–')
    """
    if not isinstance(value, (int, float)):
        return str(value)
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.3g}"
