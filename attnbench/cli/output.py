"""How the command line prints: tables that fit 80 columns, strict JSON, and nothing clever where the output is a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["console", "print_json", "print_table"]


def console(stderr: bool = False) -> Any:
    """A rich console; where the output is no terminal, plain text as wide as it needs."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, soft_wrap=not stream.isatty(), emoji=False, markup=False)


def print_json(value: Any) -> None:
    """One strict JSON document on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[str] = (), title: str = ""
) -> None:
    """A table without a frame; columns named in `right` are aligned to the right. The last column takes what width is left."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title=title or None, title_justify="left")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in right else "left",
            overflow="fold",
            no_wrap=column != columns[-1],
        )
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    out = console()
    if not sys.stdout.isatty():
        out.width = max(out.width, 120)
    out.print(table)
