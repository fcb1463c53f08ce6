"""The fork server: a process that imports torch, does nothing else with it, and forks a child for every request.

Run as `python -m attnbench.sweep.forkserver FD`, FD being its end of a socket pair. Requests and replies are lines of JSON:

    {"id", "target": "module:function", "payload", "seconds", "memory"}   target(payload) is run in a child of its own
    {"id", "result", "exit", "timed_out", "elapsed", "output"}            result: what it returned, or null where it died

A tensor operation, a plugin, or a look at CUDA in this process would break its children (a thread pool does not survive a fork,
nor does a CUDA context), so there is none. A child is a process group of its own, killed as a whole at its time limit and when
it ends; it dies with the server, and the server ends with the sweep, whose end of the socket closes however it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any, NoReturn

from attnbench.sweep.outcomes import describe

PRELOADED = (  # what every child would import for itself; none of it runs a tensor operation on import, which a test watches
    "torch",
    "torch._dynamo",  # a second and a half, which the profiler and custom operators would take from every child
    "torch.profiler",
    "torch.utils.flop_counter",
    "attnbench.conformance",
    "attnbench.kernels",  # registers custom operators, which runs none
    "attnbench.measure.bench",
    "attnbench.measure.machine",
    "attnbench.measure.memory",
    "attnbench.measure.operations",
    "attnbench.measure.rate",
    "attnbench.measure.speed",
    "attnbench.measure.state",
    "attnbench.sweep.work",
)
OUTPUT_TAIL = 4000  # bytes kept of what a child prints
SLACK_PER_THREAD = 80 << 20  # address space that a thread takes for its stack and malloc's arena, used or not
PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """A running child: its request, its deadline, and what it has written so far."""

    pid: int
    request: dict[str, Any]
    result_fd: int
    output_fd: int
    started: float = field(default_factory=time.monotonic)
    result: bytearray = field(default_factory=bytearray)
    output: bytearray = field(default_factory=bytearray)
    timed_out: bool = False

    @property
    def deadline(self) -> float:
        return self.started + self.request["seconds"]

    def take(self) -> list[int]:
        """Takes what is in the pipes, without waiting for more; returns those that have ended."""
        ended = []
        for end, into in ((self.result_fd, self.result), (self.output_fd, self.output)):
            data, at_end = _available(end)
            into += data
            if at_end:
                ended.append(end)
        del self.output[:-OUTPUT_TAIL]
        return ended

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Server:
    """One thread, one loop: it reads requests, forks, watches the clock, reaps and replies."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pending = bytearray()
        self.children: dict[int, Child] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ)
        wake, self.waker = os.pipe()
        for end in (wake, self.waker):
            os.set_blocking(end, False)
        self.wake = wake
        self.selector.register(wake, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, no wake-up
        signal.set_wakeup_fd(self.waker)

    def serve(self) -> None:
        """Until the other end of the channel closes; then every child is killed."""
        try:
            self._reply({"ready": True})
            while self._turn():
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass  # the sweep died
        finally:
            for child in self.children.values():
                child.kill()

    def _turn(self) -> bool:
        deadlines = [child.deadline for child in self.children.values() if not child.timed_out]
        wait = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        ready = {key.fileobj for key, _ in self.selector.select(wait)}
        if self.channel in ready and not self._read_requests():
            return False
        _available(self.wake)
        for child in self.children.values():
            for end in child.take():
                self._unwatch(end)
            if not child.timed_out and time.monotonic() >= child.deadline:
                child.timed_out = True
                child.kill()
        self._reap()
        return True

    def _read_requests(self) -> bool:
        data = self.channel.recv(1 << 16)
        self.pending += data
        *lines, rest = self.pending.split(b"\n")
        self.pending = bytearray(rest)
        for line in lines:
            self._fork(json.loads(line))
        return bool(data)

    def _fork(self, request: dict[str, Any]) -> None:
        result_fd, result_end = os.pipe()
        output_fd, output_end = os.pipe()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(server, request, result_end, output_end)
        with contextlib.suppress(PermissionError, ProcessLookupError):  # the child does the same, whoever is first
            os.setpgid(pid, pid)
        for end in (result_end, output_end):
            os.close(end)
        for end in (result_fd, output_fd):
            os.set_blocking(end, False)
            self.selector.register(end, selectors.EVENT_READ)
        self.children[pid] = Child(pid, request, result_fd, output_fd)

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self.children.pop(pid)
            child.kill()  # what it started and left behind
            child.take()
            for end in (child.result_fd, child.output_fd):
                self._unwatch(end)
                os.close(end)
            self._reply(
                {
                    "id": child.request["id"],
                    "result": json.loads(child.result) if child.result.endswith(b"\n") else None,
                    "exit": os.waitstatus_to_exitcode(status),
                    "timed_out": child.timed_out,
                    "elapsed": time.monotonic() - child.started,
                    "output": child.output.decode(errors="replace"),
                }
            )

    def _unwatch(self, end: int) -> None:
        with contextlib.suppress(KeyError):  # already, at its end
            self.selector.unregister(end)

    def _reply(self, message: dict[str, Any]) -> None:
        self.channel.sendall(json.dumps(message).encode() + b"\n")

    def _become_child(self, server: int, request: dict[str, Any], result_end: int, output_end: int) -> NoReturn:
        """Runs the request and leaves; nothing of the server's is touched on the way out."""
        try:
            os.setpgid(0, 0)
            _die_with(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.selector.close()
            self.channel.close()
            for child in self.children.values():
                os.close(child.result_fd)
                os.close(child.output_fd)
            os.dup2(output_end, 1)
            os.dup2(output_end, 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.enable(2)
            _write(result_end, _run(request))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            raise
        finally:
            os._exit(70)


def _run(request: dict[str, Any]) -> bytes:
    """The line that goes back: what the target returned, or what it raised, described."""
    try:
        if request.get("memory"):
            _limit_memory(request["memory"], request.get("threads") or 1)
        module, _, function = request["target"].partition(":")
        result = getattr(importlib.import_module(module), function)(request["payload"])
        line = json.dumps(result, allow_nan=False)
    except Exception as error:  # noqa: BLE001 - a variant may raise anything, and it costs only this cell
        _lift_memory_limit()  # what filled the memory is still held, and saying so takes some
        line = json.dumps(describe(error))
    return line.encode() + b"\n"


def _write(end: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(end, view) :]


def _available(end: int) -> tuple[bytes, bool]:
    """What is in a pipe now, and whether nothing more will come."""
    data = b""
    try:
        while chunk := os.read(end, 1 << 16):
            data += chunk
    except BlockingIOError:
        return data, False
    return data, True


def _die_with(server: int) -> None:
    """Asks the kernel to kill this process when the server dies, and leaves at once where it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:
        os._exit(0)


def _limit_memory(allowed: int, threads: int) -> None:
    """Bounds the address space to `allowed` bytes above what it is now, so that the allocator fails, and not the machine."""
    if sys.platform != "linux":
        return
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    limit = held + allowed + threads * SLACK_PER_THREAD
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _lift_memory_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # children share these pages for as long as nobody writes to them
    Server(channel).serve()


if __name__ == "__main__":
    main()
