"""Writes a report: tables, plots, and the page that holds both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnbench.analysis.loading import load
from attnbench.analysis.tabulate import tables, write_tables
from attnbench.errors import UserError, nearest
from attnbench.report.canvas import save
from attnbench.report.figures import figures
from attnbench.report.markdown import markdown_report

__all__ = ["FORMATS", "write_report"]

FORMATS = ("html", "md", "csv", "png", "svg")


def write_report(
    run_dir: str | Path, formats: Sequence[str] = FORMATS, *, also: Sequence[str | Path] = ()
) -> list[Path]:
    """Writes tables, plots, `report.md` and `report.html` into a run directory, and returns their paths.

    `also` names further runs of the same environment, read together with the first (say, the one that trained).

    Raises:
        UserError: a format is unknown, or a run cannot be read.
    """
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"unknown format {name!r}{nearest(name, FORMATS)}; valid formats: {', '.join(FORMATS)}")
    home = Path(run_dir)
    run = load(home, *also)
    found = tables(run)
    written = write_tables(found, home / "tables") if "csv" in formats else []
    images = [suffix for suffix in ("png", "svg") if suffix in formats]
    plots: list[Path] = []
    if images:
        (home / "plots").mkdir(exist_ok=True)
        for name, _, draw in figures(run, found):
            made = draw()
            plots += [save(made, home / "plots" / f"{name}.{suffix}") for suffix in images]
    written += plots
    if "md" in formats:
        shown = [path for path in plots if path.suffix == f".{images[-1]}"] if images else []
        page = home / "report.md"
        page.write_text(markdown_report(run.name, [], found, shown, home), encoding="utf-8")
        written.append(page)
    return written
