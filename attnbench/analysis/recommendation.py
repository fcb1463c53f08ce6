"""Which attention to use, for stated needs, with the evidence; and what was excluded, and why."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from attnbench.analysis.accuracy import CONTROLS
from attnbench.analysis.decision import common_tasks, task_names
from attnbench.analysis.loading import Run, rows_of
from attnbench.analysis.tabulate import tables
from attnbench.errors import UserError

__all__ = ["Recommendation", "parse_bytes", "recommend"]

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


@dataclass(frozen=True)
class Recommendation:
    """`answer` in one sentence, the `conditions` it holds under, `ranked` and `excluded` labels with their reasons."""

    answer: str
    conditions: str
    ranked: pd.DataFrame
    excluded: pd.DataFrame


def recommend(
    run: Run,
    length: int,
    *,
    max_memory: float | str | None = None,
    min_accuracy: float | None = None,
    causal: bool = False,
    task: str | None = None,
    found: Mapping[str, pd.DataFrame] | None = None,
    **setting: str | None,
) -> Recommendation:
    """Ranks what was measured at the length, or at the next measured one above it.

    Labels that are faster than the baseline with certainty (their whole interval) come first, the fastest ahead; then the
    baseline, since it is exact and the rest would buy nothing; then the others.

    Args:
        max_memory: bytes of peak memory, or text such as "2 GiB".
        min_accuracy: the least mean score that counts, on every task measured as a fraction, or on `task` alone.
        causal: whether attention must be causal.
        found: the run's tables, where they are at hand already.
        setting: mode, device, dtype or scope, where the run holds several.

    Raises:
        UserError: the run holds nothing at such a length or setting; what it holds is named.
    """
    found = tables(run) if found is None else found
    limit = None if max_memory is None else parse_bytes(max_memory)
    rows, at, words = _setting(found["decisions"], length, causal, setting)
    scored = _scored(found["accuracy"], causal, task, needed=min_accuracy is not None)
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    for row in rows_of(rows):
        row |= {"score": math.nan, "score_text": ""} | _worst(scored, row["label"])
        reason = _exclusion(row, limit, min_accuracy)
        (bad if reason else good).append(row | {"reason": reason})
    good = _ranked(good, run.baseline)
    conditions = [f"length {length}" + ("" if at == length else f" (measured at {at}, the next above)"), words]
    conditions += [f"at most {_size(limit)}"] if limit is not None else []
    conditions += (
        [f"accuracy at least {min_accuracy:g}" + (f" on {task}" if task else "")] if min_accuracy is not None else []
    )
    columns = ["label", "reason", "seconds", "low", "high", "speedup", "speedup_low", "speedup_high", "bytes", "score"]
    return Recommendation(
        _answer(good, run.baseline, at),
        ", ".join(conditions),
        pd.DataFrame(good, columns=columns),
        pd.DataFrame(bad, columns=["label", "reason", "status"]),
    )


def parse_bytes(value: float | str) -> float:
    """Bytes from a number, or from text such as "512MiB" or "2 GB". Raises UserError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-z]*)\s*", str(value).lower())
    if not match or (match[2] or "b") not in _UNITS:
        raise UserError(
            f"memory must be a number of bytes or text such as 2GiB, received {value!r}; units: {', '.join(_UNITS)}"
        )
    return float(match[1]) * _UNITS[match[2] or "b"]


def _setting(
    rows: pd.DataFrame, length: int, causal: bool, setting: Mapping[str, str | None]
) -> tuple[pd.DataFrame, int, str]:
    """The rows of one setting at one length, the length, and the setting in words."""
    rows = rows[(rows["causal"] == causal).fillna(not causal)]
    if rows.empty:
        raise UserError(f"the run timed nothing {'causal' if causal else 'bidirectional'}")
    preferred = {"mode": "forward", "scope": "attention", "device": None, "dtype": "float32"}
    for column in setting:
        if column not in preferred:
            raise UserError(f"unknown condition {column!r}; valid: {', '.join(preferred)}")
    words = ["causal" if causal else "bidirectional"]
    for column, usual in preferred.items():
        values = [str(value) for value in rows[column].dropna().unique()]
        wanted = setting.get(column) or (values[0] if len(values) == 1 else usual)
        if not values:
            continue
        if wanted not in values:
            received = f"received {wanted!r}" if setting.get(column) else "several were measured"
            raise UserError(f"{column} must be one of {', '.join(values)}; {received}")
        rows = rows[rows[column] == wanted]
        words.append("attention alone" if wanted == "attention" else str(wanted))
    lengths = sorted(int(value) for value in rows["length"].dropna().unique())
    if not lengths or length > lengths[-1]:
        raise UserError(f"length {length} lies beyond what was measured: {', '.join(map(str, lengths))}")
    at = next(value for value in lengths if value >= length)
    return rows[rows["length"] == at], at, ", ".join(words)


def _scored(accuracy: pd.DataFrame, causal: bool, task: str | None, *, needed: bool) -> pd.DataFrame:
    """Mean scores of the tasks that count: fractions on common tasks, causal or not as wanted where that is known."""
    frame = accuracy[(accuracy["causal"] == causal).fillna(True)]
    if task is not None:
        names = pd.Series(task_names(accuracy), index=accuracy.index)
        if task not in {*names, *accuracy["task"]}:
            known = list(dict.fromkeys([*names, *accuracy["task"]]))
            raise UserError(f"unknown task {task!r}; the run holds scores of {', '.join(known) or 'none'}")
        frame = frame[(names[frame.index] == task) | (frame["task"] == task)]
    frame = common_tasks(frame)
    if needed and frame.empty:
        kind = "causal" if causal else "bidirectional"
        raise UserError(f"no accuracy to judge by: the run holds no {kind} training{f' on {task}' if task else ''}")
    return frame


def _worst(scored: pd.DataFrame, label: str) -> dict[str, Any]:
    """The lowest mean score of a label over the tasks; nothing where one of them is missing."""
    own = rows_of(scored[(scored["label"] == label) & scored["mean"].notna()].sort_values("mean"))
    if not own or len(own) < scored["name"].nunique():
        return {}
    row = own[0]
    text = f"{row['name']} {row['mean']:.3f}"
    text += "" if math.isnan(row["low"]) else f" ({row['low']:.3f} to {row['high']:.3f})"
    return {"score": row["mean"], "score_text": text}


def _exclusion(row: Mapping[str, Any], limit: float | None, min_accuracy: float | None) -> str:
    reasons = []
    if row["variant"] in CONTROLS:
        reasons.append("a control, not an attention")
    if row["status"] != "ok":
        reasons.append(row["status"] + ("" if pd.isna(row["reason"]) else f": {row['reason']}"))
    elif pd.isna(row["seconds"]):
        reasons.append("no complete round")
    if limit is not None and row["status"] == "ok":
        if math.isnan(row["bytes"]):
            reasons.append("its memory was not measured")
        elif row["bytes"] > limit:
            reasons.append(f"takes {_size(row['bytes'])}, more than {_size(limit)}")
    if min_accuracy is not None:
        if math.isnan(row["score"]):
            reasons.append("its accuracy was not measured on every task")
        elif row["score"] < min_accuracy:
            reasons.append(f"reaches {row['score_text']}, less than {min_accuracy:g}")
    return "; ".join(reasons)


def _surely_faster(row: Mapping[str, Any]) -> bool:
    bound = row["speedup"] if math.isnan(row["speedup_low"]) else row["speedup_low"]
    return bool(bound > 1)


def _ranked(rows: list[dict[str, Any]], baseline: str) -> list[dict[str, Any]]:
    """What is faster than the baseline with certainty, the baseline, and the rest; each in the order of `decisions`."""

    def place(row: dict[str, Any]) -> int:
        return 1 if row["label"] == baseline else 0 if _surely_faster(row) else 2

    ranked = sorted(rows, key=place)
    for row in ranked:
        row["reason"] = _evidence(row, ranked[0], baseline)
    return ranked


def _evidence(row: Mapping[str, Any], best: Mapping[str, Any], baseline: str) -> str:
    words = []
    if row["label"] == baseline:
        words.append("the baseline")
    elif not math.isnan(row["speedup"]):
        words.append(f"{row['speedup']:.2f} times as fast as {baseline}")
        if math.isnan(row["speedup_low"]):
            words[-1] += " (too few rounds for an interval)"
        else:
            words[-1] += f" ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"
        if not _surely_faster(row):
            words.append("not faster with certainty" if row["speedup_high"] > 1 else "slower")
    if not math.isnan(row["bytes"]):
        words.append(_size(row["bytes"]))
    words.append(row["score_text"] or "accuracy not measured")
    if row is not best and row["speedup_high"] >= best["speedup_low"] and _surely_faster(row):
        words.append(f"not told apart from {best['label']}")
    return ", ".join(words)


def _answer(ranked: list[dict[str, Any]], baseline: str, length: int) -> str:
    if not ranked:
        return "Nothing that was measured meets the conditions."
    best = ranked[0]
    if best["label"] == baseline:
        name = "full attention" if baseline == "full" else baseline
        return f"Use {name}: nothing that meets the conditions is faster with certainty at length {length}."
    return f"Use {best['label']}: {best['reason']}, at length {length}."


def _size(value: float) -> str:
    step = max(
        (unit for unit in ("b", "kib", "mib", "gib", "tib") if value >= _UNITS[unit]),
        key=lambda u: _UNITS[u],
        default="b",
    )
    return f"{value / _UNITS[step]:.3g} {step[:-2].upper() + 'iB' if len(step) > 1 else 'B'}"
