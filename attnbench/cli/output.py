"""How the command line prints: tables that fit the terminal, and strict JSON."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["console", "print_json", "print_table", "rows_as_json"]


def console(stderr: bool = False) -> Any:
    """A rich console that colours on a terminal and prints plain text, as wide as it needs, elsewhere."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, soft_wrap=True, emoji=False, markup=False)


def print_json(value: Any) -> None:
    """One strict JSON document on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[str] = (), title: str = ""
) -> None:
    """A plain table; columns named in `right` are aligned to the right. On a terminal the last column wraps to its width."""
    from tabulate import tabulate

    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths: list[int | None] = [None] * len(columns)
    taken = sum(max(map(len, column)) + 2 for column in list(zip(columns, *cells, strict=True))[:-1])
    room = shutil.get_terminal_size().columns - taken
    if sys.stdout.isatty() and columns[-1] not in right and room >= 20:
        widths[-1] = room
    if title:
        print(title)
    print(
        tabulate(
            cells,
            headers=columns,
            tablefmt="simple",
            disable_numparse=True,
            colalign=["right" if column in right else "left" for column in columns] if cells else None,
            maxcolwidths=widths if cells else None,
        )
    )


def rows_as_json(frame: Any) -> list[dict[str, Any]]:
    """The rows of a data frame as strict JSON values: what is missing is null."""
    return json.loads(frame.to_json(orient="records"))
