"""Amounts as people read them: losses, shares, bytes, seconds, rates."""

from __future__ import annotations

import math


def format_number(value: float) -> str:
    """Format with four significant digits and separated thousands: 0.4213, 12,345, 1.234e-05."""
    value = float(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("-inf" if value < 0 else "inf")
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 9:
        return f"{value:.3e}"
    digits = 0 if value == int(value) else max(0, 3 - exponent)
    return f"{value:,.{digits}f}"


def measure(value: float, is_share: bool) -> str:
    """Format a metric: a share of one as 88.1 %, any other value as `format_number`."""
    if is_share and math.isfinite(value):
        return f"{100 * value:.1f} %"
    return format_number(value)


def format_size(nbytes: float) -> str:
    """Format bytes in decimal units: 118 MB, 1.2 GB."""
    amount = float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(amount) < 999.5 or unit == "TB":
            digits = 1 if unit != "B" and abs(amount) < 9.95 else 0
            return f"{amount:,.{digits}f} {unit}"
        amount /= 1000
    raise AssertionError("the loop returns at its last unit")


def format_duration(seconds: float) -> str:
    """Format seconds: 4.2 s, 3 min 12 s, 2 h 05 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_rate(per_second: float) -> str:
    """Format samples per second: 1,240 samples/s, 0.31 samples/s."""
    digits = 0 if per_second >= 100 else 1 if per_second >= 10 else 2
    return f"{per_second:,.{digits}f} samples/s"
