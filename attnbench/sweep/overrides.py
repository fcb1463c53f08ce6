"""Overrides from the command line: values by dotted key, put into a spec before it is validated. Imports no torch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from attnbench.sweep.grid import Complaint, shown

__all__ = ["apply_overrides"]


def apply_overrides(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the spec with each key set; "variants" picks entries by label, or else adds the variant of that name.

    Raises Complaint where a dotted key leads through something that is not a table.
    """
    result = copy.deepcopy(dict(data))
    for key, value in overrides.items():
        if key == "variants":
            result["variants"] = _picked(result.get("variants"), value)
        else:
            _put(result, key, list(value) if isinstance(value, tuple) else value)
    return result


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    table: Any = data
    for depth, part in enumerate(path, start=1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise Complaint(key, f"{'.'.join(path[:depth])} is not a table but {shown(table)}")
    table[last] = value


def _picked(written: Any, wanted: Any) -> Any:
    if not isinstance(written, list) or not isinstance(wanted, list):
        return wanted
    by_label: dict[str, Any] = {}
    for item in written:
        label = item.get("label", item.get("name")) if isinstance(item, dict) else item
        if isinstance(label, str):
            by_label.setdefault(label, item)
    return [by_label.get(item, item) if isinstance(item, str) else item for item in wanted]
