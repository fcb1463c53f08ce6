"""A process per call: whatever a call does costs only itself, and no process outlives the sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench.sweep.isolation import Isolation

HERE = "misbehaviour"  # beside this file, which pytest puts on the path
ROOM = 512 << 20


@pytest.fixture(scope="module")
def isolation() -> Iterator[Isolation]:
    with Isolation() as isolation:
        yield isolation


def call(isolation: Isolation, function: str, payload: object = None, seconds: float = 30.0, memory: int | None = None):
    return isolation.call(f"{HERE}:{function}", payload, seconds=seconds, memory=memory)


def gone(pid: int, patience: float = 10.0) -> bool:
    """Whether a process ends soon; a zombie that nobody reaps has ended."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def wait_for(path: Path) -> list[int]:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.01)
    return [int(pid) for pid in path.read_text().split()]


def test_a_call_runs_in_a_process_and_a_group_of_its_own(isolation):
    first, second = (call(isolation, "echo", {"n": n}) for n in (1, 2))
    assert first["status"] == "ok"
    assert first["payload"] == {"n": 1}
    assert first["pid"] == first["group"]
    assert len({first["pid"], second["pid"], os.getpid()}) == 3


def test_the_server_holds_one_thread_no_plugin_and_no_cuda_context(isolation):
    result = call(isolation, "threads")
    assert result["server"] == 1
    assert not result["variants"]
    assert not result["cuda"]


def test_what_the_server_preloads_runs_no_tensor_operation():
    code = """
import importlib
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from attnbench.sweep.forkserver import PRELOADED

class Refuse(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} ran on import")

with Refuse():
    for module in PRELOADED:
        importlib.import_module(module)
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_children_run_parallel_operations(isolation):
    for _ in range(3):
        assert call(isolation, "multiply", 600)["corner"] == 600


def test_a_hang_is_a_timeout_and_its_whole_group_is_killed(isolation, tmp_path):
    result = call(isolation, "hang", str(tmp_path / "pids"), seconds=1.0)
    assert result["status"] == "timeout"
    assert result["reason"] == "over the time limit of 1 s"
    assert 1.0 <= result["elapsed"] < 10
    cell, sleeper, _ = wait_for(tmp_path / "pids")
    assert gone(cell)
    assert gone(sleeper)


@pytest.mark.parametrize(
    ("function", "payload", "status", "reason"),
    [
        ("leave", 3, "error", "left with exit status 3 before it gave a result"),
        ("leave", 0, "error", "left with exit status 0 before it gave a result"),
        ("leave_politely", 3, "error", "before it gave a result"),
        ("crash", None, "error", "SIGSEGV"),
        ("kill_itself", signal.SIGABRT, "error", "SIGABRT"),
        ("kill_itself", signal.SIGKILL, "oom", "SIGKILL"),
        ("fail", "no\ngood", "error", "ValueError: no good [" + str(Path(__file__).with_name("misbehaviour.py"))),
        ("missing", None, "error", "AttributeError"),
        ("return_nan", None, "error", "ValueError"),
    ],
)
def test_a_death_is_told_with_its_reason(isolation, function, payload, status, reason):
    result = call(isolation, function, payload)
    assert result["status"] == status
    assert reason in result["reason"]
    assert "\n" not in result["reason"]
    assert call(isolation, "echo", 1)["status"] == "ok", "the next call must not notice"


def test_a_crash_names_the_function_it_happened_in(isolation):
    assert "in string_at [" in call(isolation, "crash")["reason"]


@pytest.mark.parametrize("unit", ["tensors", "objects"])
def test_eating_memory_is_oom(isolation, unit):
    result = call(isolation, "eat", unit, memory=ROOM)
    assert result["status"] == "oom", result["reason"]


def test_what_a_call_prints_neither_blocks_it_nor_shows(isolation, capfd):
    assert call(isolation, "chatter", 1000)["status"] == "ok"
    assert capfd.readouterr() == ("", "")


def test_calls_from_many_threads_run_side_by_side(isolation):
    results = {}
    threads = [threading.Thread(target=lambda n=n: results.update({n: call(isolation, "echo", n)})) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: result["payload"] for n, result in results.items()} == {n: n for n in range(8)}


def test_a_dead_server_costs_the_call_it_ran_and_is_replaced(tmp_path):
    with Isolation() as isolation:
        answer = {}
        thread = threading.Thread(
            target=lambda: answer.update(call(isolation, "hang", str(tmp_path / "pids"), seconds=100))
        )
        thread.start()
        cell, _, server = wait_for(tmp_path / "pids")
        os.kill(server, signal.SIGKILL)
        thread.join(timeout=30)
        assert answer["status"] == "error"
        assert "fork server died" in answer["reason"]
        assert gone(cell), "a cell must die with its server"
        assert call(isolation, "echo", 1)["status"] == "ok"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_sweep_that_is_ended(tmp_path, how):
    code = (  # tests in the background of a shell inherit an ignored SIGINT
        "import signal, sys\nfrom attnbench.sweep.isolation import Isolation\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"Isolation().call('{HERE}:hang', sys.argv[1], seconds=1000)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", code, str(tmp_path / "pids")]
    sweep = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    pids = wait_for(tmp_path / "pids")
    sweep.send_signal(how)
    sweep.wait(timeout=60)
    assert all(gone(pid) for pid in pids)


def test_a_process_is_born_with_its_number_of_threads_so_that_nothing_need_be_set(isolation, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for wanted in (1, 2, 1):
        found = isolation.call(f"{HERE}:threads", None, seconds=30, threads=wanted)
        assert found["own"] == wanted
