"""What bounds a measurement from either side: the fixed cost of a call, and the machine's own speed at matrix products."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnbench.measure.speed import measure_speed, time_call
from attnbench.measure.workload import Measurement, Workload, check_device

__all__ = ["FLOOR_LENGTH", "measure_floor", "measure_rate"]

FLOOR_LENGTH = 8
SIDES = {"cpu": 1024, "cuda": 8192, "mps": 4096}


def measure_floor(workload: Workload, *, seconds: float = 0.2, warmup: int = 1) -> Measurement:
    """Seconds of the same workload for one sample of a handful of tokens: launches, Python, and padding to a whole block.

    A time that is not well above its floor says little about how the variant grows.
    """
    tiny = replace(workload, batch=1, length=min(FLOOR_LENGTH, workload.length))
    measured = measure_speed(tiny, seconds=seconds, warmup=warmup)
    return replace(measured, details={**measured.details, "length": tiny.length, "batch": tiny.batch})


def measure_rate(
    device: str = "cpu", dtype: str = "float32", *, side: int | None = None, seconds: float = 0.5
) -> Measurement:
    """Floating-point operations per second of one product of two square matrices: the rate that attention is held against.

    It is measured, at the current number of threads, and no data sheet's peak.
    """
    kind = check_device(device).type
    side = side or SIDES[kind]
    left, right = (torch.ones(side, side, device=device, dtype=getattr(torch, dtype)) for _ in range(2))

    def call() -> torch.Tensor:
        return left @ right

    call()
    samples, calls = time_call(call, device, seconds)
    details = {"side": side, "calls_per_sample": calls, "matmul_precision": torch.get_float32_matmul_precision()}
    return Measurement.of([2 * side**3 / sample for sample in samples], "flop/s", details)
