"""attnbench compare and import: two runs side by side, and tables that others made. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.cli.output import print_json, print_table, rows_as_json
from attnbench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def compare(
    run_a: Annotated[Path, typer.Argument(help="The run to compare with.")],
    run_b: Annotated[Path, typer.Argument(help="The newer run.")],
    allow: Annotated[
        bool, typer.Option("--allow-differences", help="Compare runs of different environments or data all the same.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Regressions and improvements of B over A, on ratios to the baseline; exit status 1 on a regression."""
    from attnbench.analysis import load
    from attnbench.analysis.comparison import compare as compare_runs

    comparison = compare_runs(load(run_a), load(run_b), allow_differences=allow)
    if as_json:
        print_json({"differences": comparison.differences, "cells": rows_as_json(comparison.frame)})
    else:
        _print(comparison.frame, comparison.differences)
    if len(comparison.regressions):
        raise typer.Exit(1)


def _print(frame: pd.DataFrame, differences: list[str]) -> None:
    from attnbench.report.present import present

    for difference in differences:
        typer.echo(f"compared all the same: {difference}")
    counts = frame["verdict"].value_counts()
    moved = frame[frame["verdict"].isin(["regression", "improvement"])]
    typer.echo(f"{len(frame)} cells: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if len(moved):
        shown = present("comparison", moved)
        print_table(shown.columns, [[cell.text for cell in row] for row in shown.rows])


def import_(
    source: Annotated[Path, typer.Argument(help="A pytest-benchmark JSON file, or a CSV table.")],
    out: Annotated[Path, typer.Option(help="Run directory to make.")],
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column", metavar="OURS=THEIRS", help="Which column of the CSV holds one of ours; may be repeated."
        ),
    ] = None,
) -> None:
    """Turn a foreign table of results into a run directory that report and compare read."""
    from attnbench.analysis.imports import import_results

    pairs = [item.partition("=") for item in column or ()]
    for ours, sign, theirs in pairs:
        if not (theirs and sign and ours):
            raise UserError(f"--column takes OURS=THEIRS, received {ours + sign + theirs!r}")
    path = import_results(source, out, {ours: theirs for ours, _, theirs in pairs} or None)
    typer.echo(f"{path}/records.jsonl is written; next: attnbench report {path}")
