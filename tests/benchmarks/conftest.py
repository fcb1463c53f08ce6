"""`pytest tests/benchmarks` runs the benchmarks, which every other run skips; one thread, so that runs compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench.measure import pin_threads

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # The project's options skip benchmarks, and a run that names this folder wants them. pytest-benchmark looks after us.
    named = [Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args]
    if any(path == HERE or HERE in path.parents for path in named):
        config.option.benchmark_skip = False


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with pin_threads(1):
        yield
