"""Foreign results as runs: pytest-benchmark's JSON, and tables in CSV whatever their headers look like."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from attnbench.analysis.loading import rows_of
from attnbench.errors import UserError, nearest
from attnbench.sweep.records import COLUMNS, SCHEMA, append, canonical, cell_id

__all__ = ["clean_table", "import_results", "read_csv_records", "read_pytest_benchmark"]

_FACTORS = {  # our unit -> how others write it, and what one of theirs is worth
    "s": {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9},
    "bytes": {"bytes": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30},
    "flop": {"flop": 1.0, "flops": 1.0, "gflop": 1e9, "gflops": 1e9, "tflop": 1e12, "tflops": 1e12},
    "fraction": {"%": 0.01, "percent": 0.01},
}
_UNITS = {written: (unit, factor) for unit, ways in _FACTORS.items() for written, factor in ways.items()}
# our column -> words by which foreign tables call it, the most telling first
_WORDS = {
    "label": (
        "label",
        "variant",
        "attention",
        "attention type",
        "method",
        "model",
        "implementation",
        "name",
        "kernel",
        "backend",
    ),
    "length": ("length", "sequence length", "seq len", "seqlen", "seq length", "context length", "tokens", "n"),
    "speed": (
        "time",
        "latency",
        "runtime",
        "duration",
        "seconds",
        "forward time",
        "elapsed",
        "mean time",
        "median time",
    ),
    "memory": ("memory", "peak memory", "mem", "max memory", "memory usage"),
    "operations": ("operations", "flops", "flop", "macs"),
    "accuracy": ("accuracy", "acc", "score", "test accuracy"),
    "batch": ("batch", "batch size", "bs"),
    "heads": ("heads", "num heads", "n heads"),
    "head_dim": ("head dim", "d head", "head size"),
    "dim": ("dim", "d model", "hidden size", "embed dim", "width"),
    "depth": ("depth", "layers", "num layers"),
    "mode": ("mode", "pass", "direction"),
    "dtype": ("dtype", "precision"),
    "device": ("device",),
    "causal": ("causal",),
}
_QUANTITIES = {"speed": "s", "memory": "bytes", "operations": "flop", "accuracy": "fraction"}
_OOM = ("oom", "out of memory")
_INTEGERS = ("length", "batch", "heads", "head_dim", "dim", "depth")


def clean_table(path: str | Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """A foreign CSV with its names stripped, and the unit that each name carried: "Time (ms) " is `Time` in ms.

    Raises:
        UserError: the file is not a table, or two columns have one name.
    """
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"{path}: not a table in CSV: {error}") from None
    units, names = {}, []
    for header in frame.columns:
        name, unit = _split_unit(str(header))
        names.append(name)
        if unit:
            units[name] = unit
    if len(set(names)) < len(names):
        raise UserError(
            f"{path}: two columns have one name: {', '.join(sorted({n for n in names if names.count(n) > 1}))}"
        )
    frame.columns = pd.Index(names)
    return frame.map(str.strip), units


def _split_unit(header: str) -> tuple[str, str]:
    name = " ".join(header.split())
    bracketed = re.fullmatch(r"(.*?)\s*[(\[]\s*([^)\]]+?)\s*[)\]]", name)
    if bracketed and bracketed[2].lower() in _UNITS:
        return bracketed[1], bracketed[2].lower()
    stem, joint, last = name.rpartition("_") if "_" in name else name.rpartition(" ")
    return (stem, last.lower()) if joint and stem and last.lower() in _UNITS and last.lower() != "b" else (name, "")


def _column_for(key: str, columns: list[str]) -> str | None:
    plain = {re.sub(r"[\s_\-]+", " ", column).strip().lower(): column for column in columns}
    return next((plain[word] for word in _WORDS[key] if word in plain), None)


def read_csv_records(path: str | Path, columns: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Records from a foreign table: one per row and quantity.

    Args:
        columns: our column -> theirs, where the usual names do not find it; valid are those of `_WORDS`.

    Raises:
        UserError: no column says the label or holds a quantity, a named column is missing, or a number is not one.
    """
    frame, units = clean_table(path)
    given = dict(columns or {})
    for key, name in given.items():
        if key not in _WORDS:
            raise UserError(f"unknown column {key!r}{nearest(key, _WORDS)}; valid columns: {', '.join(_WORDS)}")
        if name not in frame:
            raise UserError(
                f"{path}: no column {name!r}{nearest(name, frame.columns)}; it has: {', '.join(frame.columns)}"
            )
    mapped = {key: given.get(key) or _column_for(key, list(frame.columns)) for key in _WORDS}
    quantities = [key for key in _QUANTITIES if mapped[key]]
    if not mapped["label"] or not quantities:
        missing = "a label" if not mapped["label"] else f"a quantity ({', '.join(_QUANTITIES)})"
        raise UserError(f"{path}: no column is known to hold {missing}; name it; it has: {', '.join(frame.columns)}")
    found = []
    for number, row in enumerate(rows_of(frame), start=2):
        common = {key: row[name] for key, name in mapped.items() if name and key not in _QUANTITIES}
        for quantity in quantities:
            column = str(mapped[quantity])
            value = _number(path, number, column, row[column])
            unit, factor = _UNITS.get(units.get(column, ""), (_QUANTITIES[quantity], 1.0))
            found.append(_record(quantity, unit, None if value is None else value * factor, common, f"{path}:{number}"))
            if value is None and row[column].lower() in _OOM:
                found[-1] |= {"status": "oom", "reason": "out of memory, as the imported table says"}
    return _numbered(found)


def _number(path: str | Path, line: int, column: str, text: str) -> float | None:
    if text.lower() in (*_OOM, "", "-", "na", "n/a", "nan", "null", "none"):
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise UserError(f"{path}:{line}: {column} must be a number, received {text!r}") from None


def _record(quantity: str, unit: str, value: float | None, common: Mapping[str, Any], source: str) -> dict[str, Any]:
    record: dict[str, Any] = dict.fromkeys(COLUMNS) | {"schema": SCHEMA, "session": "imported", "round": 0}
    record |= {"quantity": quantity, "unit": unit, "value": value, "mode": "forward", "device": "unknown"}
    record |= {key: text for key, text in common.items() if text != ""}
    for key in _INTEGERS:
        if record[key] is not None:
            record[key] = _whole(source, key, record[key])
    if record["causal"] is not None:
        record["causal"] = str(record["causal"]).lower() in ("true", "1", "yes")
    record["variant"] = record["label"]
    record["status"] = "ok" if value is not None else "error"
    record["reason"] = None if value is not None else f"{source}: no value"
    if quantity == "accuracy":
        record |= {"task": record["task"] or "imported", "metric": "accuracy"}
    return record


def _whole(source: str, key: str, text: Any) -> int:
    try:
        number = float(text)
    except (TypeError, ValueError):
        number = 0.5
    if not number.is_integer():
        raise UserError(f"{source}: {key} must be a whole number, received {text!r}")
    return int(number)


def _numbered(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that repeat a cell are its further rounds (seeds, for scores)."""
    seen: dict[str, int] = {}
    keys = ("label", "mode", "causal", "device", "dtype", "task", *_INTEGERS)
    for record in found:
        definition = {key: record[key] for key in keys}
        name = cell_id(record["quantity"], definition)
        count = seen[name] = seen.get(name, -1) + 1
        record |= {"cell": name, "round": count}
        if record["quantity"] == "accuracy":
            record |= {"seed": count, "cell": cell_id("accuracy", definition | {"seed": count})}
    return found


def read_pytest_benchmark(path: str | Path) -> list[dict[str, Any]]:
    """Records from pytest-benchmark's JSON: parameters by name, the test's name as label where none is a variant's.

    Raises:
        UserError: the file is not pytest-benchmark's JSON.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        benchmarks = content["benchmarks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not pytest-benchmark's JSON: {type(error).__name__}: {error}") from None
    return _numbered([record for item in benchmarks for record in _benchmark_rounds(path, item)])


def _benchmark_rounds(path: str | Path, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    parameters = {
        str(key): value for key, value in {**(item.get("params") or {}), **(item.get("extra_info") or {})}.items()
    }
    common: dict[str, Any] = {"label": str(item.get("name", "unnamed"))}
    for key in _WORDS:
        name = _column_for(key, list(parameters)) if key not in _QUANTITIES else None
        if name is not None:
            common[key] = (
                parameters[name]
                if isinstance(parameters[name], (str, int, float, bool))
                else canonical(parameters[name])
            )
    stats = item.get("stats") or {}
    if not isinstance(stats.get("median"), (int, float)):
        raise UserError(f"{path}: benchmark {item.get('name')!r} has no median")
    for value in stats.get("data") or [stats["median"]]:
        yield _record("speed", "s", float(value), common, str(path))


def import_results(source: str | Path, out: str | Path, columns: Mapping[str, str] | None = None) -> Path:
    """Reads foreign results (by suffix: .json or .csv) into a run directory, which can then be reported and compared.

    Raises:
        UserError: the source cannot be read, has another suffix, or the directory holds a run already.
    """
    source, out = Path(source), Path(out)
    readers = {".json": lambda: read_pytest_benchmark(source), ".csv": lambda: read_csv_records(source, columns)}
    if source.suffix.lower() not in readers:
        raise UserError(f"{source}: a file that ends in .json or .csv is expected")
    if (out / "records.jsonl").exists():
        raise UserError(f"{out}: holds a run already")
    found = readers[source.suffix.lower()]()
    out.mkdir(parents=True, exist_ok=True)
    labels = list(dict.fromkeys(str(record["label"]) for record in found))
    baseline = "full" if "full" in labels or not labels else labels[0]
    lines = [f"name = {json.dumps(source.stem)}", f"baseline = {json.dumps(baseline)}"]
    (out / "spec.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "environment.json").write_text(canonical({"imported_from": source.name}), encoding="utf-8")
    for record in found:
        append(out / "records.jsonl", record)
    return out
