"""Peak memory: what torch allocates, exactly, and what the process holds, as the system sees it."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from attnbench.contract import Unsupported
from attnbench.measure.bench import build
from attnbench.measure.workload import Measurement, Workload

__all__ = ["Peak", "measure_memory", "measure_resident", "peak_bytes"]

WARMUP = 2  # the second call meets what the first left: an optimizer's state, cached masks, a library's workspace


@dataclass(frozen=True)
class Peak:
    """Bytes above the resting state at the highest point of a call, the largest single allocation, and how many there
    were.

    `workspace`: bytes that a library's workspace keeps and that are in no peak. The last three are None where unknown.
    """

    bytes: int
    largest: int | None
    allocations: int | None
    workspace: int | None = None


def measure_memory(workload: Workload) -> Measurement:
    """Peak of bytes allocated during one call above the resting state: inputs, parameters and what warm-up calls left
    behind.

    On a CPU from the profiler's allocation events, repeatable to the byte at a fixed number of threads, since some
    kernels take a buffer per thread; on CUDA the allocator's peak. In mode "backward" the graph is part of the
    resting state.

    Raises:
        Unsupported: the variant does not declare what the workload needs.
        UserError: the variant, an option or the device does not exist.
    """
    bench = build(workload)
    for _ in range(WARMUP):
        bench.call()
    peak = peak_bytes(bench.call, workload.device)
    details: dict[str, Any] = {"largest": peak.largest, "allocations": peak.allocations, "workspace": peak.workspace}
    details["parameters"] = sum(parameter.nbytes for parameter in bench.module.parameters())
    details["buffers"] = sum(buffer.nbytes for buffer in bench.module.buffers())
    return Measurement(float(peak.bytes), "bytes", [float(peak.bytes)], details)


def peak_bytes(call: Callable[[], Any], device: str = "cpu") -> Peak:
    """The peak of one call; what it returns is held until it has ended.

    Raises Unsupported on a device that keeps no account of its memory.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        return _cpu_peak(call)
    if kind == "cuda":
        return _cuda_peak(call, device)
    raise Unsupported([f"peak memory is measured on cpu and cuda, not on {kind}"])


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Objects of an earlier call must not be freed within this one, or its peak would depend on what ran before."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _cpu_peak(call: Callable[[], Any]) -> Peak:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or every profile prints two lines; read when first used
    with _garbage_kept(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        kept = call()
    del kept
    events = profiled.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    taken = [size for size in sizes if size > 0]
    return Peak(max(itertools.accumulate(sizes, initial=0)), max(taken, default=0), len(taken))


def _cuda_peak(call: Callable[[], Any], device: str) -> Peak:
    with _garbage_kept():
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_stats(device)
        kept = call()
        torch.cuda.synchronize(device)
        after = torch.cuda.memory_stats(device)
    del kept
    resting = before["allocated_bytes.all.current"]
    torch._C._cuda_clearCublasWorkspaces()
    workspace = resting - torch.cuda.memory_allocated(device)
    allocations = after["allocation.all.allocated"] - before["allocation.all.allocated"]
    return Peak(after["allocated_bytes.all.peak"] - resting, None, allocations, max(0, workspace))


def measure_resident(workload: Workload) -> Measurement:
    """Peak of the process's resident bytes while the workload is built and called, torch and all else included.

    The details hold what was resident before. Take it in a fresh process: memory once freed may stay resident.
    """
    before = _status("VmRSS")
    _forget_peak()
    bench = build(workload)
    for _ in range(WARMUP):
        bench.call()
    peak = float(_status("VmHWM") or _peak_of_life())
    return Measurement(peak, "bytes", [peak], {"before": before})


def _status(name: str) -> int | None:
    """A line of Linux's /proc/self/status in bytes; None elsewhere."""
    path = Path("/proc/self/status")
    if not path.exists():
        return None
    for line in path.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None


def _forget_peak() -> None:
    """Linux can lower a process's peak to what it holds now; elsewhere the peak is that of the process's whole life."""
    path = Path("/proc/self/clear_refs")
    if path.exists() and os.access(path, os.W_OK):
        path.write_text("5")


def _peak_of_life() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
