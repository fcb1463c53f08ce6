"""The instrument held against itself: one variant entered twice must come out at 1.00, one that works twice at 2.00.

    python results/proofs/aa.py results/cpu-2core > results/cpu-2core/aa.md

Runs `experiments/aa.toml` into FOLDER/aa, and the same with a module that does its work twice into FOLDER/twice; both resume.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import twice  # noqa: F401 - registers the variant
from scipy.stats import binomtest

from attnbench.analysis import load, tables
from attnbench.sweep import load_spec, run

LONG = [
    1024,
    1280,
    1536,
    1792,
    2048,
]  # where a call costs a hundred times its launch, so that twice the work is twice the time


def ratios(folder: Path, label: str, **overrides: object) -> pd.DataFrame:
    run(load_spec("aa", overrides=overrides), folder)
    found = tables(load(folder))["ratios"]
    return found[(found["quantity"] == "speed") & (found["label"] == label)]


def report(found: pd.DataFrame, wanted: float) -> str:
    inside = int(((found["low"] <= wanted) & (found["high"] >= wanted)).sum())
    half = ((found["high"] - found["low"]) / 2 / found["ratio"]).median()
    chance = binomtest(inside, len(found), 0.95).pvalue
    return (
        f"| {wanted:.2f} | {len(found)} | {found['n'].min()} | {inside} | {chance:.3f} | {100 * half:.1f} % "
        f"| {found['ratio'].min():.3f} to {found['ratio'].max():.3f} | {found['ratio'].median():.3f} |"
    )


def main() -> None:
    folder = Path(sys.argv[1])
    same = ratios(folder / "aa", "full again")
    double = ratios(
        folder / "twice", "twice", variants=["full", "twice"], lengths=LONG, modes=["forward"], dtypes=["float32"]
    )
    print("# The instrument held against itself\n")
    print("Made by `python results/proofs/aa.py results/cpu-2core > results/cpu-2core/aa.md`.\n")
    print(
        "| true ratio | cells | rounds | 95 % intervals that hold it | p (binomial) | half-width, median | ratios | median |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print(report(same, 1.0))
    print(report(double, 2.0))


if __name__ == "__main__":
    main()
