"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from attnbench.report.present import TITLES, present

__all__ = ["markdown_report", "markdown_table"]


def markdown_table(name: str, frame: pd.DataFrame) -> str:
    """One table in Markdown; whatever a label holds is shown as text."""
    shown = present(name, frame)
    rows = [[_escaped(cell.text) for cell in row] for row in shown.rows]
    align = ["right" if numeric else "left" for numeric in shown.numeric]
    text = tabulate(
        rows, headers=shown.columns, tablefmt="pipe", colalign=align if rows else None, disable_numparse=True
    )
    return text + (f"\n\n{_escaped(shown.shared)}" if shown.shared else "")


def _escaped(text: str) -> str:
    for mark in "\\`*_[]#|":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").split())


def markdown_report(
    title: str, summary: Sequence[str], tables: Mapping[str, pd.DataFrame], plots: Sequence[Path], home: Path
) -> str:
    """Summary, plots and tables of a run; paths are relative to `home`."""
    parts = [f"# {_escaped(title)}", *("- " + _escaped(sentence) for sentence in summary)]
    parts = [parts[0], "\n".join(parts[1:])] if len(parts) > 1 else parts
    parts += [f"![{_escaped(path.stem)}]({path.relative_to(home).as_posix()})" for path in plots]
    for name, heading in TITLES.items():
        if name in tables and len(tables[name]):
            parts += [f"## {heading}", markdown_table(name, tables[name])]
    return "\n\n".join(parts) + "\n"
