"""Writes a report: tables, plots, and the page that holds both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnbench.analysis.loading import load
from attnbench.analysis.tabulate import tables, write_tables
from attnbench.errors import UserError, nearest
from attnbench.report.canvas import save, svg_text
from attnbench.report.figures import Plot, figures
from attnbench.report.markdown import markdown_report
from attnbench.report.page import render_page
from attnbench.report.summary import summary

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
    drawn: list[tuple[Plot, str]] = []
    plots: list[Path] = []
    if images or "html" in formats:
        for plot in figures(run, found):
            made = plot.draw()
            plots += [save(made, home / "plots" / f"{plot.name}.{suffix}") for suffix in images]
            if "html" in formats:
                svg = home / "plots" / f"{plot.name}.svg"
                drawn.append((plot, svg.read_text(encoding="utf-8") if svg in plots else svg_text(made)))
    written += plots
    sentences = summary(run, found)
    if "md" in formats:
        shown = [path for path in plots if path.suffix == f".{images[-1]}"] if images else []
        text = markdown_report(run.name, sentences, found, shown, home)
        written.append(_write(home / "report.md", text))
    if "html" in formats:
        written.append(_write(home / "report.html", render_page(run, found, sentences, drawn)))
    return written


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="\n")
    return path
