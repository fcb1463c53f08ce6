"""Grids: a list as an option's value stands for one entry per element, each with a label of its own. Imports no torch."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from attnbench.errors import UserError

__all__ = ["Complaint", "entries", "labelled", "one_line", "shown"]

LARGEST = 10_000  # entries that one grid may stand for
LINE = 1000  # characters of an error
SPAN = 80  # characters of a received value that an error shows


class Complaint(UserError):
    """What is wrong with one key of a spec; `key` is its dotted path."""

    def __init__(self, key: str, problem: str) -> None:
        self.key, self.problem = key, problem
        super().__init__(f"{key}: {problem}" if key else problem)


def shown(value: Any) -> str:
    """A received value on one line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= SPAN else text[: SPAN - 3] + "..."


def one_line(text: str) -> str:
    """An error's text as one printable line, cut where it is long."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in " ".join(text.split()))
    return plain if len(plain) <= LINE else plain[: LINE - 3] + "..."


def entries(key: str, raw: Any, reserved: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Names and tables, grids expanded, as [{"name", "label", "options", and the reserved keys that were given}].

    "local" stands for {"name": "local"}; {"name": "local", "window": [32, 128]} for two entries. A list that is itself an
    option's value is written as a grid of one: [[1, 2]]. `varied` names the options that differ within the entry's grid.
    """
    if not isinstance(raw, list) or not raw:
        raise Complaint(key, f"a list of names or tables is needed, with at least one, received {shown(raw)}")
    found: list[dict[str, Any]] = []
    for index, item in enumerate(raw):
        found += _expand(f"{key}[{index}]", {"name": item} if isinstance(item, str) else item, reserved)
    return found


def labelled(key: str, raw: Any) -> list[dict[str, Any]]:
    """Entries with a label each: a grid's say what was varied, as in local(window=32). Raises Complaint where two share one."""
    found = entries(key, raw)
    for entry in found:
        suffix = ", ".join(f"{option}={_plain(entry['options'][option])}" for option in entry.pop("varied"))
        entry["label"] += f"({suffix})" if suffix else ""
    for label, count in Counter(entry["label"] for entry in found).items():
        if count > 1:
            raise Complaint(key, f'label {label!r} is used twice; give one of them a label of its own (label = "...")')
    return found


def _expand(key: str, item: Any, reserved: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if not isinstance(item, Mapping):
        raise Complaint(
            key, f'a name or a table such as {{ name = "local", window = 32 }} is needed, received {shown(item)}'
        )
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise Complaint(f"{key}.name", f"a name is needed, received {shown(name)}")
    label = item.get("label", name)
    if not isinstance(label, str) or not label.strip() or not label.isprintable():
        raise Complaint(f"{key}.label", f"a label is printable text on one line, received {shown(label)}")
    kept = {word: item[word] for word in reserved if word in item}
    options = {option: value for option, value in item.items() if option not in ("name", "label", *reserved)}
    for option, value in options.items():
        _check_option(f"{key}.{option}", value)
    grids = {option: value if isinstance(value, list) else [value] for option, value in options.items()}
    size = math.prod(len(values) for values in grids.values())
    if size > LARGEST:
        raise Complaint(key, f"a grid of {size} entries; at most {LARGEST} are valid")
    varied = [option for option, values in grids.items() if len(values) > 1]
    for chosen in itertools.product(*grids.values()):
        picked = dict(zip(grids, chosen, strict=True))
        yield {"name": name, "label": label, "options": picked, "varied": varied, **kept}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else str(value).replace("'", "")


def _check_option(key: str, value: Any) -> None:
    """An option is what JSON can hold: text, a finite number, true or false, a list or a table of these."""
    if isinstance(value, list):
        if not value:
            raise Complaint(key, "an empty list is a grid without values; give at least one")
        for item in value:
            _check_value(key, item)
    else:
        _check_value(key, value)


def _check_value(key: str, value: Any) -> None:
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return
    if isinstance(value, list):
        for item in value:
            _check_value(key, item)
    elif isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        for name, item in value.items():
            _check_value(f"{key}.{name}", item)
    else:
        raise Complaint(
            key, f"an option is text, a finite number, true, false, a list or a table, received {shown(value)}"
        )
