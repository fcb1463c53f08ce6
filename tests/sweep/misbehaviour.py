"""Functions for the fork server to run in a child: the good, and every way to go wrong."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from typing import Any

import torch


def echo(payload: Any) -> dict[str, Any]:
    return {"status": "ok", "payload": payload, "pid": os.getpid(), "group": os.getpgid(0)}


def multiply(size: int) -> dict[str, Any]:
    torch.set_num_threads(2)
    product = torch.ones(size, size) @ torch.ones(size, size)
    return {"status": "ok", "corner": float(product[0, 0])}


def threads(_: Any) -> dict[str, Any]:
    with open(f"/proc/{os.getppid()}/status") as file:
        server = next(int(line.split()[1]) for line in file if line.startswith("Threads"))
    return {
        "status": "ok",
        "server": server,
        "own": torch.get_num_threads(),
        "variants": "variants" in sys.modules,
        "cuda": torch.cuda.is_initialized(),
    }


def hang(path: str | None) -> None:
    """Starts a process that would outlive it, writes both pids down, and hangs."""
    if path:
        sleeper = subprocess.Popen(["sleep", "1000"])
        with open(path + ".part", "w") as file:
            file.write(f"{os.getpid()} {sleeper.pid} {os.getppid()}")
        os.rename(path + ".part", path)
    while True:
        time.sleep(0.01)


def leave(status: int) -> None:
    os._exit(status)


def leave_politely(status: int) -> None:
    sys.exit(status)


def crash(_: Any) -> None:
    ctypes.string_at(0)


def kill_itself(signal: int) -> None:
    os.kill(os.getpid(), signal)


def fail(message: str) -> None:
    raise ValueError(message)


def eat(unit: str) -> None:
    """Allocates without end: tensors, or small Python objects."""
    held: list[Any] = []
    while True:
        held.append(torch.ones(1 << 22) if unit == "tensors" else bytes(10_000))


def return_nan(_: Any) -> dict[str, Any]:
    return {"status": "ok", "value": float("nan")}


def chatter(lines: int) -> dict[str, Any]:
    for _ in range(lines):
        os.write(1, b"x" * 1000)
    os.close(1)
    os.close(2)
    return {"status": "ok"}
