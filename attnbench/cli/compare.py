"""attnbench compare and import: two runs side by side, and tables that others made. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnbench.cli.output import print_json


def compare(
    run_a: Annotated[Path, typer.Argument(help="The run to compare with.")],
    run_b: Annotated[Path, typer.Argument(help="The newer run.")],
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs of different environments or data all the same.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Regressions and improvements of B over A, on ratios to the baseline; exit status 1 on a regression."""
    from attnbench.analysis import load
    from attnbench.analysis.compare import compare as compare_runs

    comparison = compare_runs(load(run_a), load(run_b), force=force)
    if as_json:
        print_json(comparison.as_dict())
    else:
        typer.echo(comparison.text())
    if comparison.regressions:
        raise typer.Exit(1)


def import_(
    source: Annotated[Path, typer.Argument(help="A pytest-benchmark JSON file, or a CSV table.")],
    out: Annotated[Path, typer.Option(help="Run directory to make.")],
) -> None:
    """Turn a foreign table of results into a run directory that report and compare read."""
    from attnbench.analysis.imports import import_run

    count = import_run(source, out)
    typer.echo(f"{count} records written to {out}/records.jsonl; next: attnbench report {out}")
