"""Seconds and bytes in words; needs no torch, so that the desk can use it."""

import math

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def seconds_in_words(value: float) -> str:
    """For people.

    >>> seconds_in_words(0.123), seconds_in_words(61), seconds_in_words(600), seconds_in_words(9000)
    ('0.12 s', '61 s', '10 min', '2.5 h')
    """
    if value < 1:
        return f"{value:.2g} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def size_in_words(bytes: float) -> str:
    """For people.

    >>> size_in_words(24_000), size_in_words(3 * 2**30), size_in_words(float("inf"))
    ('23 KiB', '3.0 GiB', 'unknown')
    """
    if not math.isfinite(bytes):
        return "unknown"
    power = next((power for power in range(len(UNITS)) if bytes < 1024 ** (power + 1)), len(UNITS) - 1)
    value = bytes / 1024**power
    return f"{value:.0f} {UNITS[power]}" if value >= 10 or not power else f"{value:.1f} {UNITS[power]}"
