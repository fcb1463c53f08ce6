"""The classic table (cost per layer, sequential steps, path length): what is declared, and beside it what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from attnbench.analysis.costs import arrange
from attnbench.analysis.loading import Run, rows_of

__all__ = ["complexity", "path_length", "patterns", "reach"]

_MEASURED = {"speed": "measured_time", "operations": "measured_operations", "memory": "measured_memory"}
_COLUMNS = [
    *("label", "declared_time", "measured_time", "measured_operations", "declared_memory", "measured_memory"),
    *("sequential", "path", "measured_path", "from_length", "to_length", "variant"),
]


def complexity(run: Run, grown: pd.DataFrame) -> pd.DataFrame:
    """One row per label: declared formulas, and the measured exponents of a forward pass (on the largest range of lengths there
    is). `measured_path` is the number of layers after which every position has reached every other that it may reach."""
    forward = grown[grown["mode"].eq("forward").fillna(False)].sort_values("to_length", kind="stable")
    labels = dict.fromkeys([*run.capabilities, *grown["label"], *run.frame["label"][run.frame["variant"].notna()]])
    drawn = patterns(run)
    variants = run.frame.dropna(subset=["variant"]).drop_duplicates("label").set_index("label")["variant"]
    rows = []
    for label in labels:
        said: Mapping[str, Any] = run.capabilities.get(label, {})
        row: dict[str, Any] = dict.fromkeys(_COLUMNS)
        row |= {
            "label": label,
            "variant": variants.get(label),
            "sequential": said.get("sequential"),
            "path": said.get("path"),
        }
        row |= {f"declared_{name}": (said.get(name) or {}).get("formula") for name in ("time", "memory")}
        for quantity, column in _MEASURED.items():
            own = forward[(forward["label"] == label) & (forward["quantity"] == quantity)]
            if len(own):
                row[column] = own["exponent"].iloc[-1]
                row |= rows_of(own[["from_length", "to_length"]])[-1]
        lengths = [path_length(weights) for name, weights in drawn.items() if name.removesuffix(" causal") == label]
        row["measured_path"] = max(lengths, default=np.nan)
        rows.append(row)
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    numbers = [column for column in _COLUMNS if column.startswith("measured") or column.endswith("length")]
    return arrange(frame.astype(dict.fromkeys(numbers, float)), run.baseline)


def patterns(run: Run) -> dict[str, np.ndarray]:
    """Who sees whom: the (n, n) weights of each label, where the run holds `patterns.npz`.

    `LABEL causal` is the causal form.
    """
    file = run.path / "patterns.npz"
    if not file.is_file():
        return {}
    with np.load(file, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _steps(weights: np.ndarray) -> np.ndarray:
    """Layers that information needs from position j (column) to position i (row), by shortest paths; 0 on the diagonal."""
    sees = np.abs(np.asarray(weights)) > 0
    return shortest_path(csr_array(sees.astype(np.int8)), method="D", unweighted=True)


def path_length(weights: np.ndarray) -> float:
    """The most layers that information needs from any position to any other that may see it.

    Residual connections count as seeing oneself. Infinity where some pair never meets.
    """
    steps = _steps(weights)
    causal = not np.triu(np.asarray(weights), 1).any()
    wanted = np.tril(np.ones_like(steps, dtype=bool)) if causal else np.ones_like(steps, dtype=bool)
    return float(steps[wanted].max())


def reach(weights: np.ndarray, depth: int) -> np.ndarray:
    """The share of positions that each position has heard of after `depth` layers.

    Where the pattern is causal: the share of those up to it.
    """
    steps = _steps(weights)
    n = len(steps)
    causal = not np.triu(np.asarray(weights), 1).any()
    possible = np.arange(1, n + 1) if causal else np.full(n, n)
    return (steps <= depth).sum(axis=1) / possible
