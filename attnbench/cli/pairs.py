"""KEY=VALUE arguments of the command line."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from attnbench.errors import UserError

__all__ = ["parse_pairs"]

_WORDS = {"true": True, "false": False}


def parse_pairs(pairs: Sequence[str] | None, flag: str) -> dict[str, Any]:
    """Values by key: true, false, Python literals, and whatever else is a string."""
    parsed: dict[str, Any] = {}
    for pair in pairs or ():
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise UserError(f"{flag} takes KEY=VALUE, such as window=64; received {pair!r}")
        try:
            parsed[key] = _WORDS[text] if text in _WORDS else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            parsed[key] = text  # a bare word
    return parsed
