"""Peaks, to the byte."""

from __future__ import annotations

import gc

import pytest
import torch

from attnbench.contract import Unsupported
from attnbench.measure import Workload, measure_memory, measure_resident
from attnbench.measure.memory import peak_bytes

SMALL = {"length": 64, "heads": 2, "head_dim": 8, "dim": 16, "depth": 1}


def test_naive_attention_with_all_kept_by_name():
    q, k, v = torch.randn(3, 1, 8, 1024, 64)

    def call():
        s = q @ k.transpose(-1, -2)
        p = s.softmax(dim=-1)
        return s, p, p @ v

    peak = peak_bytes(call)
    assert peak.bytes == 69_206_016
    assert peak.largest == 8 * 1024 * 1024 * 4
    assert peak.allocations == 3


def test_what_is_freed_on_the_way_does_not_add_up():
    def call():
        for _ in range(5):
            torch.empty(1000)

    assert peak_bytes(call).bytes == 4000


def test_memory_freed_from_before_the_call_lowers_no_peak_of_it():
    kept = [torch.empty(10_000)]

    def call():
        made = torch.empty(500)
        kept.clear()
        return made

    assert peak_bytes(call).bytes == 2000


def test_garbage_of_an_earlier_call_is_not_freed_within_this_one():
    def leave_a_cycle():
        cycle = [torch.empty(100_000)]
        cycle.append(cycle)

    def call():
        gc.collect()
        return torch.empty(500)

    before = peak_bytes(call)
    leave_a_cycle()
    assert peak_bytes(call) == before
    assert gc.isenabled()


@pytest.mark.parametrize("mode", ["forward", "backward", "train_step"])
def test_the_peak_does_not_depend_on_what_was_measured_before(mode):
    a = Workload("full", mode=mode, scope="model", **SMALL)
    b = Workload("full", mode=mode, **{**SMALL, "length": 96})
    first = measure_memory(a), measure_memory(b)
    second = measure_memory(b), measure_memory(a)
    assert (first[0], first[1]) == (second[1], second[0])


def test_a_training_step_counts_gradients_and_a_forward_pass_does_not():
    forward, step = (
        measure_memory(Workload("full", scope="model", mode=mode, **SMALL)) for mode in ("forward", "train_step")
    )
    assert step.value > forward.value + forward.details["parameters"]


def test_fused_attention_allocates_no_square():
    assert measure_memory(Workload("full", **{**SMALL, "length": 2048})).value < 2048 * 2048


def test_a_device_without_an_account_is_refused():
    with pytest.raises(Unsupported, match="not on meta"):
        peak_bytes(lambda: None, "meta")


def test_the_resident_peak_is_the_process_and_forgets_what_was_higher_before():
    torch.ones(64 << 20).sum()  # 256 MiB, come and gone
    measured = measure_resident(Workload("full", **SMALL))
    assert measured.unit == "bytes"
    assert 10 << 20 < measured.value < measured.details["before"] + (64 << 20)


class Allocator:
    """A stand-in for CUDA's caching allocator, with a workspace that a library took at its first call."""

    def __init__(self, resting: int, workspace: int) -> None:
        self.held, self.workspace, self.peak, self.count = resting + workspace, workspace, 10**9, 5
        self.asked: list[str] = []

    def take(self, size: int) -> None:
        self.held, self.count = self.held + size, self.count + 1
        self.peak = max(self.peak, self.held)

    def stats(self, device: str) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self.held,
            "allocated_bytes.all.peak": self.peak,
            "allocation.all.allocated": self.count,
        }

    def reset(self, device: str) -> None:
        self.peak = self.held

    def clear(self) -> None:
        self.held -= self.workspace


def test_the_allocator_peak_is_above_rest_and_knows_the_workspace_apart(monkeypatch):
    allocator = Allocator(resting=1000, workspace=300)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: allocator.asked.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_stats", allocator.stats)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", allocator.reset)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocator.held)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", allocator.clear, raising=False)

    def call():
        allocator.take(70)
        allocator.take(40)
        allocator.held -= 110

    peak = peak_bytes(call, "cuda")
    assert (peak.bytes, peak.allocations, peak.workspace) == (110, 2, 300)
    assert allocator.asked == ["synchronize", "synchronize"]


@pytest.mark.gpu
def test_the_allocator_peak_on_cuda():
    q, k, v = torch.randn(3, 1, 8, 1024, 64, device="cuda")

    def call():
        s = q @ k.transpose(-1, -2)
        p = s.softmax(dim=-1)
        return s, p, p @ v

    call()
    assert peak_bytes(call, "cuda").bytes == 69_206_016
