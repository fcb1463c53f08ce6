"""Every call in a process of its own: the sweep's end of the fork servers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from typing import Any

from attnbench.errors import UserError
from attnbench.sweep.outcomes import conclude

__all__ = ["Isolation"]

DIED = {"status": "error", "reason": "the fork server died, and this call with it", "elapsed": 0.0}


class Isolation:
    """Runs functions in processes of their own, from fork servers that are started when first needed. Thread-safe.

    Used as a context manager; on leaving, the servers and whatever they still run are killed. There is a server for each
    number of threads: OpenMP and MKL are born with it, since torch.set_num_threads slows down what runs small matrix products
    side by side, as fused attention does (by half and more), and users time without it.
    """

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._servers: dict[int, _Connection] = {}  # by number of threads
        self._closed = False

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, target: str, payload: Any, *, seconds: float, memory: int | None = None, threads: int = 1
    ) -> dict[str, Any]:
        """What target(payload) returns, a dict with a "status", or how it failed, {"status", "reason"}; and "elapsed", seconds.

        target: "module:function", importable by name. payload: JSON-ready. seconds: time limit. memory: bytes that it may
        allocate on the CPU above what a fresh process holds, given that it uses so many threads.
        """
        with self._lock:
            if self._closed:
                return DIED
            server = self._servers.get(threads)
            if server is not None and not server.alive:
                server.close()
            if server is None or not server.alive:
                server = self._servers[threads] = _Connection(threads)
            number = next(self._ids)
            answer = server.send(
                number, {"target": target, "payload": payload, "seconds": seconds, "memory": memory, "threads": threads}
            )
        reply = answer.get()
        if reply is None:
            return DIED
        return {**conclude(reply, seconds), "elapsed": reply["elapsed"]}

    def close(self) -> None:
        """Ends the servers, and every call that still runs or is yet to come."""
        with self._lock:
            self._closed = True
            while self._servers:
                self._servers.popitem()[1].close()


class _Connection:
    """One fork server, and a thread that hands its replies to those who wait for them."""

    def __init__(self, threads: int) -> None:
        self._channel, theirs = socket.socketpair()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the server must find what this process can import
            "OPENBLAS_NUM_THREADS": "1",  # threads that numpy's BLAS starts on import do not survive a fork
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "attnbench.sweep.forkserver", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the sweep, which then ends the server
            )
        self._lines = self._channel.makefile("rb")
        self._waiting: dict[int, queue.SimpleQueue[Any]] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True, name="attnbench-replies")
        self.alive = bool(self._lines.readline())
        if not self.alive:
            self.close()
            raise UserError(f"the fork server could not start: it left with exit status {self._process.returncode}")
        self._listener.start()

    def send(self, number: int, request: dict[str, Any]) -> queue.SimpleQueue[Any]:
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting[number] = answer
        line = json.dumps({"id": number, **request}, allow_nan=False).encode() + b"\n"
        try:
            self._channel.sendall(line)
        except OSError:
            self._lost()
        return answer

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # the server was killed
            for line in self._lines:
                reply = json.loads(line)
                self._waiting.pop(reply["id"]).put(reply)
        self._lost()

    def _lost(self) -> None:
        self.alive = False
        while self._waiting:
            with contextlib.suppress(KeyError):
                self._waiting.popitem()[1].put(None)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._process.wait()
        if self._listener.ident is not None:  # started
            self._listener.join()
        self._lines.close()
        self._channel.close()
