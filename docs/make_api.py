"""Writes docs/api.md from the docstrings of the public names: python docs/make_api.py > docs/api.md."""

from __future__ import annotations

import importlib
import inspect
import re

ROOMS = {
    "attnbench": "What most programs need.",
    "attnbench.conformance": "The conformance kit.",
    "attnbench.analysis": "Statistics over a run; imports no torch.",
    "attnbench.report": "Tables, plots and the page; imports no torch.",
    "attnbench.sweep": "From a spec to records.",
    "attnbench.measure": "One quantity of one workload, in this process.",
    "attnbench.tasks": "What accuracy is measured on.",
    "attnbench.backbone": "The shared Transformer.",
    "attnbench.kernels": "What block-structured and linear variants share.",
}


def page() -> str:
    """The page, in Markdown."""
    lines = ["# API reference", "", "Written by `python docs/make_api.py` from the docstrings.", ""]
    seen: set[int] = set()
    for room, words in ROOMS.items():
        module = importlib.import_module(room)
        lines += [f"## {room}", "", words, ""]
        for name in sorted(module.__all__, key=str.lower):
            lines += _entry(name, getattr(module, name), seen)
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, value: object, seen: set[int]) -> list[str]:
    if inspect.ismodule(value):  # a submodule that has been imported stands before the function of its name
        value = getattr(value, name, value)
    if not (inspect.isclass(value) or inspect.isroutine(value)) or id(value) in seen:
        return []
    seen.add(id(value))
    doc = inspect.getdoc(value) or ""
    lines = [f"### {name}", "", "```python", _signature(name, value), "```", ""]
    # Docstrings are laid out for a terminal: equations and argument lists keep their lines in a text block.
    return [*lines, "```text", doc, "```", ""] if doc else lines


def _signature(name: str, value: object) -> str:
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)  # annotations are strings here; defaults keep their quotes
    text = re.sub(r"<(?:function|object|class) .*? at 0x[0-9a-f]+>", "...", text)
    return f"{'class ' if inspect.isclass(value) else ''}{name}{text}"


if __name__ == "__main__":
    print(page(), end="")
