"""`number`: a number as people read it; and words in which code stands."""

import math
import re
from typing import Any

from markupsafe import Markup, escape


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


def with_code(text: str) -> Markup:
    """A text for a page, escaped, in which what stands between backticks is shown as code.

    >>> with_code("more (`--seeds`) <b>")
    Markup('more (<code>--seeds</code>) &lt;b&gt;')
    """
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
