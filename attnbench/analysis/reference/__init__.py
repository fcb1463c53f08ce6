"""Published figures, as reference rows with their caveats: never mixed with what was measured here."""

from __future__ import annotations

from importlib.resources import as_file, files

import pandas as pd

from attnbench.analysis.files import read_table

__all__ = ["CAVEATS", "SOURCE", "reference_tables"]

SOURCE = "Tay et al. 2020, Long Range Arena: A Benchmark for Efficient Transformers (arXiv 2011.04006)"
CAVEATS = (
    "On ListOps a constant answer scores about 17 % and reading only the root operator about 36.6 %: a row near 37 is a "
    "first-token shortcut, a row near 17 a constant guess.",
    "The public repository's local and sinkhorn code folds the length so that a block is a stride; these two rows are not "
    "ground truth.",
    "Depth, width and pooling differ between variants in the released configurations, and the text task is validated on "
    "its test set.",
    "Public re-runs with 2 layers of width 64 move Retrieval by over 20 points (the Transformer: 37.10, 65.02, 79.35, "
    "38.20, 74.16).",
)


def reference_tables() -> dict[str, pd.DataFrame]:
    """`lra_accuracy` and `lra_efficiency`; in both `variant` is our name for the model's method.

    Accuracy in percent on five tasks, and their average; efficiency as steps per second and gigabytes per device at four
    lengths (text task, batch 32, 4x4 TPU v3).
    """
    tables = {}
    for name in ("lra_accuracy", "lra_efficiency"):
        with as_file(files(__name__) / f"{name}.csv") as path:
            tables[name] = read_table(path)
    return tables
