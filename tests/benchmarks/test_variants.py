"""Every registered variant under pytest-benchmark, grouped by length.

python -m pytest tests/benchmarks --benchmark-autosave
python -m pytest tests/benchmarks --benchmark-compare --benchmark-compare-fail=median:20%
"""

from __future__ import annotations

import pytest

from attnbench import list_variants, variant_info
from attnbench.measure import Workload, build

LENGTHS = (256, 1024)


def workload(name: str, mode: str, length: int) -> Workload:
    causal = not variant_info(name).supports.bidirectional
    return Workload(name, mode=mode, causal=causal, length=length, heads=4, head_dim=32)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", list_variants())
def test_forward(benchmark, name: str, length: int) -> None:
    benchmark.group = f"forward, length {length}"
    bench = build(workload(name, "forward", length))
    out = benchmark(bench.call)
    assert out.isfinite().all()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", list_variants())
def test_train_step(benchmark, name: str, length: int) -> None:
    benchmark.group = f"train step, length {length}"
    benchmark(build(workload(name, "train_step", length)).call)
