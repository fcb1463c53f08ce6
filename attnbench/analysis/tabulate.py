"""All tables of a run. Their names are the files' names, and both are public."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from attnbench.analysis import accuracy as scoring
from attnbench.analysis.complexity import complexity
from attnbench.analysis.costs import compile_table, cost_table, operations_table, outcomes, rates, speed
from attnbench.analysis.decision import decisions
from attnbench.analysis.files import write_table
from attnbench.analysis.loading import Run
from attnbench.analysis.ratios import all_pairs, ratios
from attnbench.analysis.scaling import crossover, scaling

__all__ = ["tables", "write_tables"]


def tables(run: Run) -> dict[str, pd.DataFrame]:
    """Every table of a run by its name; one that has no rows is there, empty."""
    timed, counted, failed = speed(run), operations_table(run), outcomes(run)
    pairs = all_pairs(run)
    trained, beside = scoring.scores(run), scoring.baselines(run)
    scored = scoring.accuracy(run, trained, beside)
    found = {
        "speed": timed,
        "memory": cost_table(run, "memory", "bytes"),
        "resident": cost_table(run, "resident", "bytes"),
        "operations": counted,
        "state": cost_table(run, "state", "bytes"),
        "rates": rates(run, timed, counted),
        "compile": compile_table(run),
        "ratios": ratios(run, pairs),
        "scaling": scaling(run, timed),
        "crossover": crossover(run, pairs, failed),
        "accuracy": scored,
        "scores": trained,
        "baselines": beside,
        "tasks": scoring.tasks(run, scored),
        "curves": scoring.curves(run),
        "slices": scoring.slices(run),
    }
    found["decisions"] = decisions(found, run.baseline)
    found["complexity"] = complexity(run, found["scaling"])
    found["outcomes"] = failed
    return found


def write_tables(found: Mapping[str, pd.DataFrame], directory: Path) -> list[Path]:
    """Writes each table that has rows as `<name>.csv`, and `outcomes.csv` always: an empty one says that nothing failed."""
    directory.mkdir(parents=True, exist_ok=True)
    return [
        write_table(frame, directory / f"{name}.csv")
        for name, frame in found.items()
        if len(frame) or name == "outcomes"
    ]
