"""attnbench report and recommend: from records to tables, plots, the page, and a decision. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnbench.cli.output import print_json, print_table
from attnbench.errors import UserError

FORMATS = ("html", "md", "csv", "png", "svg")


def report(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    formats: Annotated[
        list[str] | None, typer.Option("--format", help=f"One of {', '.join(FORMATS)}; may be repeated. Default: all.")
    ] = None,
) -> None:
    """Write the tables, plots and page of a run from its records alone."""
    from attnbench.errors import nearest
    from attnbench.report import write_report

    for name in formats or ():
        if name not in FORMATS:
            raise UserError(f"unknown format {name!r}{nearest(name, FORMATS)}; valid formats: {', '.join(FORMATS)}")
    for path in write_report(run, tuple(formats or FORMATS)):
        typer.echo(path)


def recommend(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    length: Annotated[int, typer.Option(min=1, help="The length you need.")],
    max_memory: Annotated[float | None, typer.Option(metavar="GB", help="Peak memory allowed, in GB.")] = None,
    min_accuracy: Annotated[float | None, typer.Option(help="Accuracy needed, from 0 to 1.")] = None,
    task: Annotated[str | None, typer.Option(help="The task that accuracy is taken from.")] = None,
    causal: Annotated[bool | None, typer.Option("--causal/--bidirectional", help="Only cells of this kind.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rank the variants for a length and limits, with the evidence; and say what was excluded and why."""
    from attnbench.analysis import load
    from attnbench.analysis.recommend import recommend as rank

    advice = rank(load(run), length, max_memory=max_memory, min_accuracy=min_accuracy, task=task, causal=causal)
    if as_json:
        print_json(advice.as_dict())
        return
    typer.echo(advice.text())


def print_run(folder: Path) -> None:
    """The tables that a reader wants first, at 80 columns: time, memory and accuracy by label."""
    from attnbench.analysis import load, tables
    from attnbench.report.terminal import overview

    run = load(folder)
    for title, columns, rows in overview(tables(run)):
        typer.echo("")
        print_table(columns, rows, right=columns[1:], title=title)
