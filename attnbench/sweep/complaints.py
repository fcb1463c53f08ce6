"""A validation error as one line: the key, what was received, what is valid. Imports no torch."""

from __future__ import annotations

import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from attnbench.errors import nearest
from attnbench.sweep.grid import Complaint, shown

__all__ = ["complaint"]

VALID = {  # what pydantic calls an error -> what is valid, in the words of a reader of TOML
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "finite_number": "a finite number",
    "too_short": "a list with at least one value",
}


def complaint(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing that is wrong, as 'key: problem'."""
    first = error.errors(include_url=False)[0]
    key = _dotted(first["loc"])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Complaint):
        return f"{key}.{cause}" if key else str(cause)
    if first["type"] == "extra_forbidden":
        return _unknown_key(first["loc"], model)
    return f"{key}: {_problem(first)}"


def _problem(first: Any) -> str:
    received, context = shown(first["input"]), first.get("ctx", {})
    if first["type"] == "missing":
        return "needed, and not given"
    if first["type"] == "literal_error":
        options = re.findall(r"'([^']*)'", context["expected"])
        return f"unknown value {received}{nearest(first['input'], options)}; valid: {', '.join(options)}"
    if first["type"] == "value_error":
        return " ".join(str(context["error"]).split())
    if first["type"] in VALID:
        return f"received {received}; valid: {VALID[first['type']]}"
    message = first["msg"].removeprefix("Input should be ")
    return " ".join(f"received {received}; valid: {message}".split())


def _dotted(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _unknown_key(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """An unknown key, with the keys that are valid in its place and the nearest of them."""
    place: Any = model
    for part in location[:-1]:
        if isinstance(part, str):
            place = _section(place.model_fields[part].annotation)
    valid = list(place.model_fields)
    *_, key = location
    return f"unknown key {_dotted(location)!r}{nearest(key, valid)}; valid keys: {', '.join(valid)}"


def _section(annotation: Any) -> Any:
    """The model inside an annotation such as list[TaskEntry] or Accuracy | None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_section(inner) for inner in get_args(annotation) if inner is not type(None))
