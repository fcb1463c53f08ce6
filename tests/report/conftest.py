from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnbench.analysis import Run, load, tables
from attnbench.report import write_report

from .synthetic import Synthetic, sweep

NAMES = ["full", "full-naive", "local", "linear", "<script>alert(1)</script>", "none"]


def make(path: Path) -> Path:
    """A small run that has everything: failures, a decode mode, an option grid, lengths, patterns, a label to be escaped."""
    run: Synthetic = sweep(NAMES, [256, 1024, 4096, 8192], modes=("forward",))
    for label, window in (("local(window=32)", 32), ("local(window=64)", 64)):
        run.speed({label: (1e-8 * window, 1.0)}, [256, 1024], options={"window": window}, variant="local")
        for task, options in (("mqar", {"pairs": 4}), ("mqar", {"pairs": 8}), ("code-tokens", {})):
            score = {label: [window / 100] * 3}
            run.trained(task, score, {}, task_options=options, causal=task == "mqar", variant="local")
    for label, factor in (("full", 64.0), ("linear", 5000.0)):
        run.speed({label: (1e-6, 0.1)}, [256, 1024, 4096], mode="decode", causal=True)
        run.counted(
            "state", {label: (factor, 1.0 if label == "full" else 0.0)}, [256, 1024, 4096], mode="decode", causal=True
        )
    run.failed(
        "never", 256, "unsupported", "never has no causal form; and | another\nreason", mode="decode", causal=True
    )
    for length, score in ((128, 0.9), (256, 0.7)):
        run.trained("code-tokens", {"full": [score] * 3, "local": [score - 0.2] * 3}, {"constant": 0.05}, length=length)
    run.write(path)
    np.savez(path / "patterns.npz", **{"full": np.ones((8, 8)), "full causal": np.tril(np.ones((8, 8)))})
    return path


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="session")
def written(run_dir) -> tuple[Path, list[Path]]:
    return run_dir, write_report(run_dir, ("html", "md", "csv", "svg"))


@pytest.fixture(scope="session")
def run(run_dir) -> Run:
    return load(run_dir)


@pytest.fixture(scope="session")
def found(run):
    return tables(run)
