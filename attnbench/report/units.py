"""Numbers as people read them."""

from __future__ import annotations

import math

__all__ = ["ratio_text", "readable", "share_text"]

_PREFIXES = {
    "s": [(1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s")],
    "bytes": [(1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB")],
    "flop": [(10.0 ** (3 * i), f"{prefix}flop") for i, prefix in enumerate(("", "k", "M", "G", "T", "P", "E"))],
    "flop/s": [(10.0 ** (3 * i), f"{prefix}flop/s") for i, prefix in enumerate(("", "k", "M", "G", "T", "P"))],
    "tokens/s": [(1.0, "tokens/s"), (1e3, "k tokens/s"), (1e6, "M tokens/s"), (1e9, "G tokens/s")],
    "": [(10.0 ** (3 * i), prefix) for i, prefix in enumerate(("", "k", "M", "G", "T"))],
}


def readable(value: float | None, unit: str = "") -> str:
    """Three digits and a fitting prefix: 0.0123 s is 12.3 ms; nothing where there is no value."""
    if value is None or not isinstance(value, (int, float)) or math.isnan(value):
        return ""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    steps = _PREFIXES.get(unit, [(1.0, unit)])
    size = abs(value)
    factor, name = next(((f, n) for f, n in reversed(steps) if size >= f * 0.9995), steps[0])
    scaled = value / factor
    digits = 0 if value == 0 or abs(scaled) >= 99.95 else 2 if abs(scaled) < 9.995 else 1
    text = f"{scaled:.{digits}f}" if abs(scaled) >= 0.01 or value == 0 else f"{scaled:.1e}"
    if "." in text and "e" not in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text} {name}".rstrip()


def ratio_text(value: float | None) -> str:
    """2.04x, 31x, 0.052x."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:.3g}×" if value < 99.5 else f"{value:.0f}×"


def share_text(value: float | None) -> str:
    """A share in percent."""
    return "" if value is None or math.isnan(value) else f"{100 * value:.1f} %"
