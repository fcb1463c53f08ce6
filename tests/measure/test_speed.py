"""Clocks: blocks of calls, device events with synchronisation, threads left as they were, and the kernel that ran."""

from __future__ import annotations

import time

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnbench.measure import Workload, measure_floor, measure_rate, measure_speed, pin_threads
from attnbench.measure.backends import watch_sdpa
from attnbench.measure.speed import event_times, wall_times

SMALL = {"length": 16, "heads": 2, "head_dim": 8, "dim": 16, "depth": 1}


class Device:
    """A stand-in for torch.cuda: calls queue up, and run when someone waits for them. Time is counted, not taken."""

    def __init__(self) -> None:
        self.queue: list[float] = []
        self.clock = 0.0
        self.waits: list[int] = []
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at: float | None = None

            def record(self) -> None:
                device.queue.append(self)

            def synchronize(self) -> None:
                device.run()

            def elapsed_time(self, end: Event) -> float:
                assert self.at is not None, "read before the device got there"
                assert end.at is not None, "read before the device got there"
                return (end.at - self.at) * 1e3

        self.Event = Event

    def launch(self, seconds: float) -> None:
        self.queue.append(seconds)

    def synchronize(self) -> None:
        self.run()

    def run(self) -> None:
        self.waits.append(sum(isinstance(item, float) for item in self.queue))
        for item in self.queue:
            if isinstance(item, float):
                self.clock += item
            else:
                item.at = self.clock
        self.queue.clear()


@pytest.mark.parametrize("seconds", [0.25, 2e-3, 5e-6])
def test_events_give_the_device_time_of_large_and_tiny_calls(seconds):
    device = Device()
    samples, calls = event_times(lambda: device.launch(seconds), 0.05, device)
    assert all(sample == pytest.approx(seconds) for sample in samples)
    assert calls * seconds >= 1e-3
    assert sum(samples) * calls >= 0.05 - 1e-9


def test_a_block_is_waited_for_as_a_whole_and_never_within():
    device = Device()
    samples, calls = event_times(lambda: device.launch(1e-5), 0.01, device)
    assert calls > 1
    assert device.waits.count(calls) >= len(samples)
    assert set(device.waits[-2 * len(samples) :]) == {0, calls}


def test_work_queued_earlier_is_not_billed_to_the_first_sample():
    device = Device()
    device.launch(7.0)
    samples, _ = event_times(lambda: device.launch(0.25), 0.25, device)
    assert samples == [0.25]


def test_the_wall_clock_counts_calls_and_restores_threads():
    calls = []
    with pin_threads(1):
        samples, number = wall_times(lambda: calls.append(time.sleep(1e-4)), 0.02)
        assert torch.get_num_threads() == 1
    assert min(samples) >= 1e-4
    assert len(calls) >= len(samples) * number


@pytest.mark.parametrize("scope", ["attention", "model"])
@pytest.mark.parametrize("mode", ["forward", "backward", "train_step", "decode"])
def test_every_mode_and_scope_has_a_speed(scope, mode):
    measured = measure_speed(Workload("full", scope=scope, mode=mode, causal=True, **SMALL), seconds=0.005)
    assert measured.unit == "s"
    assert measured.value > 0
    assert measured.details["sdpa"] == ["flash"]
    assert measured.details["tokens_per_call"] == (8 if mode == "decode" else 1)


def test_the_floor_is_taken_on_one_tiny_sample():
    floor = measure_floor(Workload("full", **{**SMALL, "length": 512, "batch": 4}), seconds=0.005)
    assert (floor.details["length"], floor.details["batch"]) == (8, 1)


def test_the_rate_is_operations_over_seconds():
    rate = measure_rate(side=64, seconds=0.005)
    assert rate.unit == "flop/s"
    assert rate.details["side"] == 64
    assert 1e6 < rate.value < 1e16


@pytest.mark.parametrize(("backend", "name"), [(SDPBackend.MATH, "math"), (SDPBackend.FLASH_ATTENTION, "flash")])
def test_the_backend_that_ran_is_named(backend, name):
    q = torch.randn(1, 2, 8, 4)
    with watch_sdpa() as found, sdpa_kernel(backend):
        scaled_dot_product_attention(q, q, q)
    assert found == {name}


def test_the_backend_is_empty_where_none_is_called():
    with watch_sdpa() as found:
        torch.ones(2) @ torch.ones(2)
    assert found == set()
