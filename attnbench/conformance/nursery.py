"""New processes, cheaply: one server that has imported torch and done nothing else with it, and forks for each request.

The server reads a line of JSON (the files, and where the asking process finds its modules now) and writes one (file ->
None or the discrepancy). Every request is answered by a child that has seen no other.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from attnbench.conformance.core import Failure, expect_same
from attnbench.conformance.subject import Inputs
from attnbench.registry import create_variant

__all__ = ["verify_in_new_process"]

_server: subprocess.Popen[str] | None = None


def verify_in_new_process(paths: Sequence[Path]) -> dict[Path, str | None]:
    """Loads each saved instance in a new process; None where its output is the same to the bit, else the discrepancy."""
    server = _start()
    assert server.stdin is not None
    assert server.stdout is not None
    request = {"files": [str(path) for path in paths], "path": [entry for entry in sys.path if entry]}
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        raise RuntimeError(f"the new process died with status {server.wait()}")
    return {Path(path): message for path, message in json.loads(answer).items()}


def _start() -> subprocess.Popen[str]:
    global _server
    if _server is None or _server.poll() is not None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        _server = subprocess.Popen(
            [sys.executable, "-c", f"import {__name__} as nursery; nursery.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        atexit.register(_stop, _server)
    return _server


def _stop(server: subprocess.Popen[str]) -> None:
    server.communicate()  # closes its input, at which it ends


def _verify(path: str) -> str | None:
    with torch.serialization.safe_globals([Inputs]):
        saved = torch.load(path, weights_only=True)
    importlib.import_module(saved["module"])
    torch.set_num_threads(saved["threads"])
    torch.manual_seed(987654321)
    variant = create_variant(saved["name"], **saved["options"]).to(saved["device"]).eval()
    variant.load_state_dict(saved["state"], strict=True)
    try:
        with torch.no_grad():
            inputs = saved["inputs"].map(torch.clone)  # fresh memory is aligned, and kernels may round by alignment
            expect_same(inputs(variant), saved["expected"], "output in a new process")
    except Failure as failure:
        return str(failure)
    return None


def _answer(request: dict[str, list[str]]) -> dict[str, str | None]:
    messages: dict[str, str | None] = {}
    sys.path[:0] = [entry for entry in request["path"] if entry not in sys.path]
    for path in request["files"]:
        try:
            messages[path] = _verify(path)
        except Exception as error:  # noqa: BLE001 - reported as this instance's failure, with its place
            place = traceback.extract_tb(error.__traceback__)[-1]
            messages[path] = f"in a new process {type(error).__name__}: {error} [{place.filename}:{place.lineno}]"
    return messages


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints is no answer
                answer = _answer(json.loads(line))
            print(json.dumps(answer), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(
                json.dumps(dict.fromkeys(json.loads(line)["files"], f"the new process died with status {status}")),
                flush=True,
            )
