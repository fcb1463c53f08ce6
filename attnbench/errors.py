"""Errors that a user can cause: one clear line each, which the command line prints before it exits with status 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["UserError", "nearest"]


class UserError(ValueError):
    """What was wrong, what was received, what is valid: in one line."""


def nearest(name: object, valid: Iterable[str]) -> str:
    """' (did you mean X?)', or an empty string where nothing is near: the end of an error about an unknown name."""
    match = difflib.get_close_matches(str(name), list(valid), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""
