"""What attention costs: one row per cell for time, memory, operations and decoding state, failed cells included."""

from __future__ import annotations

import pandas as pd

from attnbench.analysis.intervals import summarise
from attnbench.analysis.loading import EXACT, WORK, Run, last_outcomes

__all__ = [
    "FLOOR_SHARE",
    "KEYS",
    "cells",
    "compile_table",
    "cost_table",
    "operations_table",
    "outcomes",
    "rates",
    "speed",
]

FLOOR_SHARE = 0.5  # a cell is dominated by the floor when more than this share of its time is spent there too
KEYS = ["mode", "device", "dtype", "length", "label"]
REST = ["scope", "causal", "batch", "heads", "head_dim", "dim", "depth", "variant"]
_MACHINE = ["scope", "mode", "causal", "device", "dtype", "label", "heads", "head_dim", "dim", "depth"]


def cells(run: Run, quantity: str) -> pd.DataFrame:
    """One row per cell of a quantity: what defines it, median, low, high, n, status and reason."""
    keys = ["cell", *WORK, "label", "variant"]
    found = summarise(run.usable(quantity), ["cell"])
    if quantity in EXACT:
        found["low"] = found["high"] = found["median"]
    ended = last_outcomes(run.of(quantity))[[*keys, "status", "reason"]]
    frame = ended.merge(found, on="cell", how="left")
    frame["n"] = frame["n"].fillna(0).astype(int)
    return arrange(frame, run.baseline)


def arrange(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Rows in an order that depends on what they say and not on when they were measured: the baseline first."""
    order = [column for column in ("quantity", "task", *WORK) if column in frame]
    rank = (frame["label"] != baseline).fillna(True) if "label" in frame else True
    return (
        frame.assign(_rank=rank)
        .sort_values([*order, "_rank", *(["label"] if "label" in frame else [])], kind="stable", na_position="first")
        .drop(columns="_rank")
        .reset_index(drop=True)
    )


def cost_table(run: Run, quantity: str, name: str) -> pd.DataFrame:
    """The table of a quantity whose value is called `name`, such as `bytes`."""
    frame = cells(run, quantity).rename(columns={"median": name})
    return frame[[*KEYS, name, "low", "high", "n", "status", "reason", *REST]]


def _tokens(frame: pd.DataFrame) -> pd.Series:
    """Tokens that one value speaks of: a whole batch of sequences, or one new token of each when decoding."""
    each = frame["length"].astype(float).mask((frame["mode"] == "decode").fillna(False), 1.0)
    return frame["batch"].astype(float) * each


def speed(run: Run) -> pd.DataFrame:
    """Seconds with their interval over rounds, tokens per second, and whether the fixed floor dominates."""
    frame = cells(run, "speed").rename(columns={"median": "seconds"})
    frame["tokens_per_second"] = _tokens(frame) / frame["seconds"]
    floors = summarise(run.usable("floor"), _MACHINE)[[*_MACHINE, "median"]]
    frame = frame.merge(floors.rename(columns={"median": "floor"}), on=_MACHINE, how="left")
    known = frame["floor"].notna() & frame["seconds"].notna()
    frame["at_floor"] = (frame["floor"] > FLOOR_SHARE * frame["seconds"]).astype("boolean").where(known)
    columns = ["seconds", "low", "high", "n", "tokens_per_second", "floor", "at_floor", "status", "reason"]
    return frame[[*KEYS, *columns, *REST]]


def operations_table(run: Run) -> pd.DataFrame:
    """Counted operations of a pass, in total and per token."""
    frame = cells(run, "operations").rename(columns={"median": "flop"})
    frame["flop_per_token"] = frame["flop"] / _tokens(frame)
    return frame[[*KEYS, "flop", "flop_per_token", "low", "high", "n", "status", "reason", *REST]]


def rates(run: Run, seconds: pd.DataFrame, counted: pd.DataFrame) -> pd.DataFrame:
    """Operations achieved per second, and their share of the matrix product's measured rate on the same device and dtype."""
    on = [*KEYS, *REST]
    frame = counted[[*on, "flop"]].merge(seconds[[*on, "seconds", "low", "high"]], on=on)
    frame = frame[frame["flop"].notna() & frame["seconds"].notna()].copy()
    for column, divisor in (("flop_per_second", "seconds"), ("slowest", "high"), ("fastest", "low")):
        frame[column] = frame["flop"] / frame[divisor]
    best = summarise(run.usable("rate"), ["device", "dtype"])[["device", "dtype", "median"]]
    frame = frame.merge(best.rename(columns={"median": "matmul_rate"}), on=["device", "dtype"], how="left")
    frame["share"] = frame["flop_per_second"] / frame["matmul_rate"]
    frame = frame.drop(columns=["low", "high"]).rename(columns={"slowest": "low", "fastest": "high"})
    columns = ["flop_per_second", "low", "high", "matmul_rate", "share", "flop", "seconds"]
    return arrange(frame, run.baseline)[[*KEYS, *columns, *REST]]


def compile_table(run: Run) -> pd.DataFrame:
    """Seconds to compile, graphs, recompiles, and seconds to construct and to build masks: never part of a running time.

    `eager` and `compiled` are seconds a call without and with compilation.
    """
    frame = cells(run, "compile").rename(columns={"median": "seconds"})
    details = last_outcomes(run.of("compile")).set_index("cell")["details"]
    named = {"graphs": "graphs", "recompiles": "recompiles", "recompile_seconds": "recompile_seconds"}
    named |= {"construct_seconds": "construct", "mask_seconds": "masks", "eager": "eager", "compiled": "compiled"}
    for column, key in named.items():
        values = [(details.get(cell) or {}).get(key) for cell in frame["cell"]]
        frame[column] = pd.Series(values, index=frame.index, dtype=object).astype("Float64")
    return frame[[*KEYS, "seconds", *named, "n", "status", "reason", *REST]]


def outcomes(run: Run) -> pd.DataFrame:
    """Every cell that did not end ok, with its reason."""
    ended = last_outcomes(run.frame)
    rest = [column for column in REST if column != "variant"]
    columns = ["quantity", *KEYS, "status", "reason", "task", "seed", "variant", *rest]
    return arrange(ended[ended["status"] != "ok"], run.baseline)[columns]
