"""What torch.compile costs and gives, and what a variant prepares before it first runs."""

from __future__ import annotations

import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attnbench.contract import Unsupported
from attnbench.measure.bench import build
from attnbench.measure.workload import Measurement, Workload
from attnbench.registry import variant_info

__all__ = ["default_backend", "measure_compile"]

LENGTHS = 10


def default_backend(device: str) -> str:
    """The backend "inductor", or "aot_eager" on a CPU without a C++ compiler, which inductor needs there."""
    compilers = ("c++", "g++", "clang++")
    return "inductor" if device != "cpu" or any(map(shutil.which, compilers)) else "aot_eager"


def measure_compile(
    workload: Workload, *, backend: str | None = None, lengths: Sequence[int] | None = None
) -> Measurement:
    """Seconds that torch.compile takes before the first call has ended, less that call itself.

    Then the same module meets ten lengths up to the workload's (or `lengths`), in ascending order. The details:
    `backend`; `graphs` of the first call (more than one: it broke); `recompiles` over the lengths (torch gives up at
    a limit of its own) and `recompile_seconds`, their calls included; `eager` and `compiled` seconds a call. And
    without compilation: `construct` seconds, and `masks`, by how many seconds the first eager call at this length
    exceeds a later one, as index tables and masks are built in it.

    Raises:
        Unsupported: the variant declares that it does not compile, or does not declare what the workload needs.
        UserError: the variant, an option, the device or the backend does not exist.
    """
    _refuse(workload)
    backend = backend or default_backend(workload.device)
    details = _eager(workload)
    lengths = list(lengths or _spread(workload.length))
    counted = _Counting(backend)
    torch._dynamo.reset()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a compiler's remarks on its own workings are no part of the measurement
            details |= _compiled(workload, counted, lengths, details["construct"])
    finally:
        torch._dynamo.reset()
    details |= {"backend": backend, "lengths": lengths}
    value = details.pop("seconds")
    return Measurement(value, "s", [value], details)


def _refuse(workload: Workload) -> None:
    supports = variant_info(workload.variant, **workload.options).supports
    if not supports.compiles:
        raise Unsupported([f"{workload.variant} does not compile" + "".join(f": {note}" for note in supports.notes)])
    if workload.mode == "decode":
        raise Unsupported(["compile time is measured for forward, backward and train_step, not for decode"])


def _spread(longest: int) -> list[int]:
    """Ten lengths up to the longest, evenly apart."""
    return sorted({max(1, longest * step // LENGTHS) for step in range(1, LENGTHS + 1)})


class _Counting:
    """A backend of torch.compile that counts the graphs it is handed."""

    def __init__(self, backend: str) -> None:
        self.compile: Callable[..., Any] = torch._dynamo.lookup_backend(backend)
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return self.compile(graph, inputs)


def _compiled(workload: Workload, backend: _Counting, lengths: Sequence[int], building: float) -> dict[str, Any]:
    longest = max(*lengths, workload.length)
    begun = time.perf_counter()
    # One module for all lengths: code is compiled for a module, and found again where its guards still hold.
    first = build(workload, max_len=longest, wrap=lambda module: torch.compile(module, backend=backend))
    _once(first.call, workload.device)
    taken = time.perf_counter() - begun - building
    steady = _steady(first.call, workload.device)
    graphs, begun = backend.graphs, time.perf_counter()
    for length in lengths:
        _once(first.at(length).call, workload.device)
    return {
        "seconds": max(0.0, taken - steady),
        "compiled": steady,
        "graphs": graphs,
        "recompiles": backend.graphs - graphs,
        "recompile_seconds": time.perf_counter() - begun,
    }


def _eager(workload: Workload) -> dict[str, Any]:
    """Building and first call of the module as it is, against a later call."""
    begun = time.perf_counter()
    bench = build(workload)
    construct = time.perf_counter() - begun
    first = _once(bench.call, workload.device)
    steady = _steady(bench.call, workload.device)
    return {"construct": construct, "eager": steady, "masks": max(0.0, first - steady)}


def _once(call: Callable[[], Any], device: str) -> float:
    """Seconds of one call, to its end on the device."""
    begun = time.perf_counter()
    call()
    if device != "cpu":
        getattr(torch, torch.device(device).type).synchronize()
    return time.perf_counter() - begun


def _steady(call: Callable[[], Any], device: str, times: int = 3) -> float:
    return statistics.median(_once(call, device) for _ in range(times))
