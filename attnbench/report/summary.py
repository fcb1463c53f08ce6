"""What a run says, in words made from its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from attnbench.analysis.accuracy import CONTROLS
from attnbench.analysis.decision import common_tasks, overall, task_name
from attnbench.analysis.loading import Run, rows_of
from attnbench.report.growth import describe
from attnbench.report.units import ratio_text, readable

__all__ = ["summary"]

GOOD = 0.9
_SETTING = ["scope", "mode", "causal", "device", "dtype", "batch", "heads", "head_dim", "dim", "depth"]


def summary(run: Run, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """A handful of sentences, the most useful first."""
    decisions = tables["decisions"]
    sentences = []
    for _, part in list(decisions.groupby(_SETTING, dropna=False, sort=False))[:6]:
        sentences += _fastest(run, part, tables["crossover"])
    sentences += _accuracy(run, tables)
    sentences += _memory(run, decisions)
    if run.frame.empty:
        return ["The run holds no measurement yet."]
    return [*sentences, *_troubles(tables)]


def _fastest(run: Run, part: pd.DataFrame, crossover: pd.DataFrame) -> list[str]:
    """Who is fastest at the longest length, and from which length on leaving full attention pays."""
    good = part[(part["status"] == "ok") & ~part["variant"].isin(CONTROLS) & part["seconds"].notna()]
    if good["label"].nunique() < 2:
        return []
    length = int(good["length"].max())
    rows = rows_of(good[good["length"] == length])
    best = rows[0]
    where = f"At length {length} ({describe(part)})"
    if not any(row["label"] == run.baseline for row in rows):
        ended = part[(part["label"] == run.baseline) & (part["length"] == length)]["status"]
        why = f" ({run.baseline} ends in {ended.iloc[0]} there)" if len(ended) else ""
        return [f"{where} {best['label']} is fastest, {readable(best['seconds'], 's')}{why}."]
    if best["label"] == run.baseline:
        return [f"{where} nothing is faster than {run.baseline}, {readable(best['seconds'], 's')}."]
    sure = best["speedup_low"] > 1
    interval = "" if math.isnan(best["speedup_low"]) else f" ({best['speedup_low']:.2f} to {best['speedup_high']:.2f})"
    words = f"{where} {best['label']} is fastest: {ratio_text(best['speedup'])} the speed of {run.baseline}{interval}"
    words += "" if sure else ", which is not certain" if interval else ", from too few rounds for an interval"
    close = [
        row["label"] for row in rows[1:] if row["speedup_high"] >= best["speedup_low"] and row["label"] != run.baseline
    ]
    words += f"; not told apart from it: {_listed(close)}." if close else "."
    return [words, *_crossings(run, part, crossover)]


def _crossings(run: Run, part: pd.DataFrame, crossover: pd.DataFrame) -> list[str]:
    first = rows_of(part[_SETTING])[0]
    same = crossover["quantity"].eq("speed") & crossover["mode"].eq(first["mode"])
    for column in ("device", "dtype", "scope", "causal"):
        same &= crossover[column].isna() if pd.isna(first[column]) else crossover[column].eq(first[column])
    here = crossover[same.fillna(False) & ~crossover["variant"].isin(CONTROLS)]
    crossing = rows_of(here[here["verdict"] == "crosses"].sort_values("crossover"))
    ahead = list(here[here["verdict"] == "always ahead"]["label"])
    never = [row["label"] for row in rows_of(here) if str(row["verdict"]).startswith("not reached")]
    words = []
    if crossing:
        words.append("overtaking it: " + _listed([f"{row['label']} at {row['crossover']:.0f}" for row in crossing]))
    if ahead:
        words.append("ahead at every length: " + _listed(ahead))
    if never:
        words.append("behind throughout: " + _listed(never))
    return [f"Against {run.baseline}, {'; '.join(words)}."] if words else []


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _listed(names: list[str], most: int = 4) -> str:
    shown = names[:most] + ([f"{len(names) - most} more"] if len(names) > most else [])
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def _accuracy(run: Run, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    found = []
    for task in rows_of(tables["tasks"])[:8]:
        own = _rows_of_task(tables["accuracy"], task)
        own = own[own["mean"].notna() & ~own["variant"].isin(CONTROLS)]
        if own.empty:
            continue
        rows = rows_of(own.sort_values("mean", ascending=not bool(own["higher_is_better"].iloc[0])))
        seeds = int(rows[0]["seeds"])
        words = (
            f"On {task_name(task)} {rows[0]['label']} scores best, {rows[0]['mean']:.3f} over {_counted(seeds, 'seed')}"
        )
        if seeds == 1:
            words += " (one seed is one seed)"
        if isinstance(task["best_baseline"], str):
            words += f"; without any attention ({task['best_baseline']}) one gets {task['baseline_value']:.3f}"
        low = [row["label"] for row in rows if row["verdict"] == "not above"]
        words += f"; not above that: {_listed(low)}" if low else ""
        if task["verdict"] == "does not test attention":
            words += ". This task does not test attention: what looks nothing up comes close to " + run.baseline
        if task["verdict"] == "not learned":
            words += f". {run.baseline} itself did not learn it, so this says nothing about the others"
        found.append(words + ".")
    return [*found, *_everywhere(tables["accuracy"])]


def _everywhere(accuracy: pd.DataFrame) -> list[str]:
    """Who gets `GOOD` on every task, where there are several."""
    scored = accuracy[~accuracy["variant"].isin(CONTROLS)]
    count = common_tasks(scored)["name"].nunique()
    if count < 2:
        return []
    whole = overall(scored)
    good = [str(label) for label in whole["label"][whole["worst_accuracy"] >= GOOD]]
    return [f"At least {GOOD:g} on each of the {count} tasks: {_listed(good or ['no one'])}."]


def _rows_of_task(frame: pd.DataFrame, task: Mapping[str, Any]) -> pd.DataFrame:
    same = pd.Series(True, index=frame.index)
    for column in ("task", "task_options", "metric", "causal", "length"):
        value = task[column]
        same &= frame[column].isna() if pd.isna(value) else frame[column].eq(value).fillna(False)
    return frame[same.astype(bool)]


def _memory(run: Run, decisions: pd.DataFrame) -> list[str]:
    known = decisions[decisions["bytes"].notna() & ~decisions["variant"].isin(CONTROLS)]
    if known["label"].nunique() < 2:
        return []
    length = known["length"].max()
    rows = rows_of(known[known["length"] == length].sort_values("bytes"))
    base = [row for row in rows if row["label"] == run.baseline]
    words = f"At length {length} {rows[0]['label']} needs the least memory, {readable(rows[0]['bytes'], 'bytes')}"
    if base and base[0]["label"] != rows[0]["label"]:
        words += f" where {run.baseline} needs {readable(base[0]['bytes'], 'bytes')}"
    return [words + f" ({describe(pd.DataFrame(rows[:1]))})."]


def _troubles(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    failed = tables["outcomes"]
    if failed.empty:
        return ["Every cell ended well."]
    counts = failed["status"].value_counts()
    return [
        "Not everything ended well: "
        + ", ".join(f"{count} {status}" for status, count in counts.items())
        + "; each is listed below with its reason."
    ]
