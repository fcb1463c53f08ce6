"""What became of a cell: ok, unsupported, incorrect, oom, timeout, error or skipped, and why."""

from __future__ import annotations

import re
import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Any

__all__ = ["conclude", "describe"]

# How running out of memory reads where it is no exception of its own: torch's CPU allocator, the C++ runtime, OpenMP.
OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator|CUDA out of memory|MPS backend out of memory|bad_alloc|[Cc]annot allocate memory|not enough memory|"
    r"can't allocate memory|Thread creation failed|can't start new thread"
)
REASON = 500  # characters


def describe(error: BaseException) -> dict[str, Any]:
    """The outcome of a cell that raised, as {"status", "reason"}."""
    reasons = getattr(error, "reasons", None)
    if type(error).__name__ == "Unsupported" and reasons:
        return {"status": "unsupported", "reason": "; ".join(reasons)}
    text = _one_line(f"{type(error).__name__}: {error}")
    if isinstance(error, MemoryError) or _is_torch_oom(error) or OUT_OF_MEMORY.search(str(error)):
        return {"status": "oom", "reason": text}
    return {"status": "error", "reason": f"{text}{_where(error)}"}


def conclude(reply: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The outcome of a cell from the fork server's reply: its own result, or how it died."""
    if reply["timed_out"]:
        return {"status": "timeout", "reason": f"over the time limit of {seconds:g} s"}
    if reply["result"] is not None:
        return dict(reply["result"])
    code, output = reply["exit"], reply["output"]
    if code == -signal.SIGKILL:
        reason = "killed from outside (SIGKILL), as the kernel does when memory runs out"
        return {"status": "oom", "reason": reason}
    if code < 0:
        reason = f"killed by signal {-code} ({signal.Signals(-code).name}){_crash_site(output)}"
    else:
        reason = f"the process left with exit status {code} before it gave a result"
    return {"status": "oom" if OUT_OF_MEMORY.search(output) else "error", "reason": reason}


def _is_torch_oom(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" [{frames[-1].filename}:{frames[-1].lineno}]" if frames else ""


def _crash_site(output: str) -> str:
    """Where Python was when a signal came, out of faulthandler's report."""
    match = re.search(r'File "([^"]+)", line (\d+) in (\S+)', output)
    return f" in {match[3]} [{match[1]}:{match[2]}]" if match else ""


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= REASON else text[: REASON - 3] + "..."
