"""Ratios to the baseline: equal work alone, and for timed quantities within one round of one session on one machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from attnbench.analysis.costs import KEYS, REST, arrange
from attnbench.analysis.intervals import summarise
from attnbench.analysis.loading import COST, EXACT, WORK, Run

__all__ = ["all_pairs", "paired", "ratios"]


def paired(run: Run, quantity: str) -> pd.DataFrame:
    """One row per record that has a partner: the record, and `ratio`, its value over the baseline's.

    A partner did equal work, on the same host with the same threads, and, where the clock is involved, in the same round of the
    same session: what slows the machine for a while slows both.
    """
    records = run.positive(quantity)
    together = [*WORK, "host", "threads", *(["session", "round"] if quantity == "speed" else [])]
    base = records[records["label"] == run.baseline].groupby(together, dropna=False, sort=False)["value"].median()
    joined = records.merge(base.rename("base").reset_index(), on=together)
    return joined.assign(ratio=joined["value"] / joined["base"])


def all_pairs(run: Run) -> dict[str, pd.DataFrame]:
    """The paired records of every quantity that the run holds."""
    held = set(run.frame["quantity"]) & set(COST)
    return {quantity: paired(run, quantity) for quantity in COST if quantity in held or not held}


def ratios(run: Run, pairs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Median ratio to the baseline with its interval over rounds; 2 means twice as much time, bytes or operations."""
    parts = []
    for quantity, pair in pairs.items():
        part = summarise(pair, ["quantity", *WORK, "label", "variant"], "ratio")
        if quantity in EXACT:
            part["low"] = part["high"] = part["median"]
        parts.append(part)
    frame = pd.concat(parts, ignore_index=True).rename(columns={"median": "ratio"})
    frame["ratio"] = frame["ratio"].astype(np.float64)
    return arrange(frame, run.baseline)[["quantity", *KEYS, "ratio", "low", "high", "n", *REST]]
