from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench.analysis import Run, load

from .synthetic import Synthetic


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Run]:
    """Writes a synthetic run and reads it back."""
    count = 0

    def write(run: Synthetic, **spec: object) -> Run:
        nonlocal count
        count += 1
        return load(run.write(tmp_path / f"run{count}", **spec))

    return write
