"""attnbench run: a spec goes in; records, tables, plots and the page come out."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.cli.pairs import parse_pairs


def run(
    spec: Annotated[str, typer.Argument(help="A TOML file, or the name of a packaged experiment.")],
    out: Annotated[Path | None, typer.Option(help="Run directory; default results/NAME.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps: measure on this device alone.")] = None,
    variants: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these labels of the spec, or these variants.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as model.depth=4.")
    ] = None,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time, one thread each.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, discarding the directory's records.")] = False,
) -> None:
    """Run a sweep, or go on with it; then write its tables, plots and page."""
    from attnbench.sweep.spec import load_spec

    overrides = parse_pairs(set_, "--set")
    if device:
        overrides["devices"] = [device]
    if variants:
        overrides["variants"] = [name.strip() for name in variants.split(",") if name.strip()]
    loaded = load_spec(spec, overrides=overrides)
    folder = out or Path("results") / loaded.name
    if dry_run:
        _print_plan(loaded, jobs)
        return
    from attnbench.sweep import run as run_sweep

    began = time.monotonic()
    with _Progress() as progress:
        summary = run_sweep(
            loaded, folder, executor=executor, address=address, jobs=jobs, fresh=fresh, progress=progress.update
        )
    _finish(folder, summary, time.monotonic() - began)


def _finish(folder: Path, summary: Any, seconds: float) -> None:
    from attnbench.cli.overview import print_run
    from attnbench.report import write_report

    paths = write_report(folder, ("csv", "md", "png", "svg", "html"))
    print_run(folder)
    counts = ", ".join(f"{count} {status}" for status, count in summary.outcomes.items() if count)
    typer.echo(
        f"\n{counts} of {sum(summary.outcomes.values())} cells; {summary.measured} measurements in {_duration(seconds)}"
    )
    groups: dict[Path, list[str]] = {}
    for path in paths:
        groups.setdefault(path.parent, []).append(path.name)
    for parent, names in groups.items():
        typer.echo(f"  {parent}/: {len(names)} files" if len(names) > 3 else f"  {parent}/" + ", ".join(names))
    for path in paths:
        if path.suffix == ".png":
            typer.echo(f"  {path}")
    typer.echo(f"  open {folder / 'report.html'}")


def _print_plan(spec: Any, jobs: int) -> None:
    from attnbench.cli.output import print_table
    from attnbench.sweep import plan as make_plan

    plan = make_plan(spec)
    counts: dict[tuple[str, str], int] = {}
    for cell in plan.cells:
        key = (cell.definition["quantity"], cell.definition.get("label") or "(machine)")
        counts[key] = counts.get(key, 0) + 1
    quantities = list(dict.fromkeys(quantity for quantity, _ in counts))
    labels = list(dict.fromkeys(label for _, label in counts))
    rows = [[label, *(counts.get((quantity, label), "") for quantity in quantities)] for label in labels]
    print_table(["label", *quantities], rows, right=quantities, title=f"plan of {spec.name}: cells")
    unsupported = [cell for cell in plan.cells if cell.refusals]
    typer.echo(
        f"\n{len(plan.cells)} cells in {len(plan.groups)} comparison groups, about {_duration(plan.estimate(jobs))}"
    )
    for line in dict.fromkeys(f"{cell.definition['label']}: {'; '.join(cell.refusals)}" for cell in unsupported):
        typer.echo(f"  unsupported: {line}")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class _Progress:
    """Cells done, time left and the current cell: a bar on a terminal, a line now and then elsewhere."""

    def __enter__(self) -> _Progress:
        self._began = self._printed = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=None, left="")
        return self

    def update(self, done: int, total: int, eta: float | None, current: str) -> None:
        """Called by the sweep after each cell: cells done of total, seconds left (None: unknown), the cell now running."""
        left = "" if eta is None else f"{_duration(eta)} left"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=current, left=left)
            return
        now = time.monotonic()
        if now - self._printed >= 10 or done == total:
            self._printed = now
            print(f"{done}/{total} measurements  {left}  {current}", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
