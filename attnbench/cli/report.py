"""attnbench report and recommend: from records to tables, plots, the page, and a decision. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnbench.cli.output import print_json, print_table, rows_as_json


def report(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="html, md, csv, png or svg; may be repeated. Default: all.")
    ] = None,
    also: Annotated[
        list[Path] | None, typer.Option("--also", help="A further run of the same machine, read with it.")
    ] = None,
) -> None:
    """Write the tables, plots and page of a run from its records alone."""
    from attnbench.report import FORMATS, write_report

    for path in write_report(run, tuple(formats or FORMATS), also=also or ()):
        typer.echo(path)


def recommend(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    length: Annotated[int, typer.Option(min=1, help="The length you need.")],
    max_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Peak memory allowed, such as 2GiB.")] = None,
    min_accuracy: Annotated[float | None, typer.Option(help="Accuracy needed, from 0 to 1.")] = None,
    task: Annotated[str | None, typer.Option(help="The task that accuracy is taken from.")] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Attention must be causal.")] = False,
    mode: Annotated[
        str | None, typer.Option(help="forward, backward, train_step or decode, where several were measured.")
    ] = None,
    also: Annotated[
        list[Path] | None, typer.Option("--also", help="A further run of the same machine, read with it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rank the variants for a length and limits, with the evidence; and say what was excluded and why."""
    from attnbench.analysis import load
    from attnbench.analysis.recommendation import recommend as rank

    advice = rank(
        load(run, *(also or ())),
        length,
        max_memory=max_memory,
        min_accuracy=min_accuracy,
        causal=causal,
        task=task,
        mode=mode,
    )
    if as_json:
        ranked, excluded = rows_as_json(advice.ranked), rows_as_json(advice.excluded)
        print_json({"answer": advice.answer, "conditions": advice.conditions, "ranked": ranked, "excluded": excluded})
        return
    typer.echo(f"{advice.answer}\n({advice.conditions})\n")
    places = [[place, row["label"], row["reason"]] for place, row in enumerate(rows_as_json(advice.ranked), start=1)]
    print_table(["", "label", "why"], places, right=[""])
    if len(advice.excluded):
        typer.echo("")
        print_table(["excluded", "why"], [[row["label"], row["reason"]] for row in rows_as_json(advice.excluded)])
