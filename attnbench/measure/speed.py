"""Time per call, in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from timeit import Timer
from typing import Any

import torch

from attnbench.measure.backends import watch_sdpa
from attnbench.measure.bench import build
from attnbench.measure.workload import Measurement, Workload

__all__ = ["event_times", "measure_speed", "time_call", "wall_times"]

BLOCK_SECONDS = 1e-3  # a sample spans at least this, so that the clock's own resolution does not show
MOST_CALLS = 100_000


def measure_speed(workload: Workload, *, seconds: float = 0.2, warmup: int = 1) -> Measurement:
    """Seconds per call, or per new token in mode "decode": the median of samples taken for at least `seconds`.

    The details say how many calls a sample is the mean of, which backend scaled_dot_product_attention ran on in the
    first of the warm-up calls, and how exact float32 matrix products were allowed to be.

    Raises:
        Unsupported: the variant does not declare what the workload needs.
        UserError: the variant, an option or the device does not exist.
    """
    with watch_sdpa() as backends:
        bench = build(workload)
        bench.call()
    for _ in range(warmup - 1):
        bench.call()
    samples, calls = time_call(bench.call, workload.device, seconds)
    details = {
        "calls_per_sample": calls,
        "tokens_per_call": bench.tokens,
        "sdpa": sorted(backends),
        "matmul_precision": torch.get_float32_matmul_precision(),
    }
    return Measurement.of([sample / bench.tokens for sample in samples], "s", details)


def time_call(call: Callable[[], Any], device: str, seconds: float) -> tuple[list[float], int]:
    """Samples in seconds per call, and the number of calls that each is the mean of."""
    kind = torch.device(device).type
    if kind == "cpu":
        return wall_times(call, seconds)
    return event_times(call, seconds, getattr(torch, kind))


def wall_times(call: Callable[[], Any], seconds: float) -> tuple[list[float], int]:
    """Samples by the wall clock, in blocks long enough that reading it costs nothing; garbage is collected between them.

    torch.utils.benchmark would set the thread count anew, and so measure another machine than its user has (`pin_threads`).
    """
    return _blocks(Timer(call, timer=time.perf_counter).timeit, seconds)


def event_times(call: Callable[[], Any], seconds: float, runtime: Any) -> tuple[list[float], int]:
    """Samples by device events, recorded around a block of calls on the stream that they run on.

    `runtime` has `Event(enable_timing=True)` and `synchronize()`, as torch.cuda and torch.mps do. A block is waited
    for before the next begins, and never within: calls of a block queue up as they would in use.
    """

    def block(number: int) -> float:
        start, end = runtime.Event(enable_timing=True), runtime.Event(enable_timing=True)
        runtime.synchronize()
        start.record()
        for _ in range(number):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3  # events speak of milliseconds

    return _blocks(block, seconds)


def _blocks(block: Callable[[int], float], seconds: float) -> tuple[list[float], int]:
    """Samples of blocks whose seconds `block(calls)` tells, for at least `seconds` in all, and the calls of each."""
    calls, taken = 1, block(1)
    while taken < BLOCK_SECONDS and calls < MOST_CALLS:
        calls = min(MOST_CALLS, max(2 * calls, int(calls * BLOCK_SECONDS / max(taken, 1e-9))))
        taken = block(calls)
    samples = [taken / calls]
    while sum(samples) * calls < seconds:
        samples.append(block(calls) / calls)
    return samples, calls
