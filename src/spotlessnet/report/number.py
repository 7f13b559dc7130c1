"""`number`: a number as people read it."""

import math
import re
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


def without_codes(text: str) -> str:
    """A text for reading, in which infinite and unknown numbers have signs that people know.

    >>> without_codes("0.1 [-inf, inf], single nan; information")
    '0.1 [−∞, ∞], single –; information'
    """
    return re.sub(r"\bnan\b", "–", re.sub(r"\binf\b", "∞", text.replace("-inf", "−inf")))
