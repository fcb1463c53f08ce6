"""Where a measurement was taken: all that may change a number, and nothing that names a person or a path."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import attnbench
from attnbench.measure.workload import check_device

__all__ = ["environment", "pin_threads", "usable_cores"]

PACKAGES = ("attnbench", "torch", "numpy", "einops", "pandas", "scipy")


def environment(device: str = "cpu") -> dict[str, Any]:
    """The environment as flat, JSON-ready data.

    The machine: processor, cpu_capability (widest vector unit in use), cores (usable), memory (bytes), accelerator (null on
    a CPU). The software: system, python, and the version of each package. git_commit and git_dirty: of the checkout, null
    outside one. The settings: threads, interop_threads, matmul_precision. load_average: over 1, 5 and 15 minutes, now.

    Raises UserError where the device does not exist here.
    """
    commit, dirty = _git() or (None, None)
    return {
        "processor": processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": usable_cores(),
        "memory": _memory(),
        "accelerator": accelerator(device),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: _version(name) for name in PACKAGES},
        "git_commit": commit,
        "git_dirty": dirty,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "load_average": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


@contextmanager
def pin_threads(number: int | None = None) -> Iterator[int]:
    """torch computes with `number` threads (by default the usable cores) inside the block, and with as many as before after.

    Where it does so anyhow, nothing is set: setting the number it has already makes MKL start threads inside those of OpenMP.
    """
    before, wanted = torch.get_num_threads(), usable_cores() if number is None else number
    if wanted != before:
        torch.set_num_threads(wanted)
    try:
        yield torch.get_num_threads()
    finally:
        if wanted != before:
            torch.set_num_threads(before)


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: by its affinity, and by the CPU quota of its control groups, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(root)
    return max(1, min(cores, math.ceil(quota))) if quota is not None else cores


def _cgroup_quota(root: Path) -> float | None:
    """The tightest CPU quota, in cores, over the control groups that hold this process; None where there is none."""
    groups = root / "proc/self/cgroup"
    if not groups.exists():
        return None
    quotas = []
    for line in groups.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        below = base / path.lstrip("/")
        for group in (below, *below.parents):
            quotas.append(_quota_of(group))
            if group == base:
                break
    known = [quota for quota in quotas if quota is not None]
    return min(known, default=None)


def _quota_of(group: Path) -> float | None:
    second, first = group / "cpu.max", group / "cpu.cfs_quota_us"  # the two versions of Linux's control groups
    if second.exists():
        quota, period = second.read_text().split()[:2]
    elif first.exists():
        quota, period = first.read_text().strip(), (group / "cpu.cfs_period_us").read_text().strip()
    else:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def processor() -> str:
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() in ("model name", "hardware", "cpu model"):
                return value.strip()
    return platform.processor() or platform.machine()


def accelerator(device: str) -> dict[str, Any] | None:
    """The accelerator behind a device; None for the processor itself."""
    wanted = check_device(device)
    if wanted.type == "cpu":
        return None
    if wanted.type == "mps":
        return {"name": "Apple GPU", "memory": int(torch.mps.recommended_max_memory())}
    seen = torch.cuda.get_device_properties(wanted)
    return {
        "name": seen.name,
        "memory": seen.total_memory,
        "capability": f"{seen.major}.{seen.minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "tf32": torch.get_float32_matmul_precision() != "highest",
    }


def _memory() -> int | None:
    """Bytes of main memory."""
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git() -> tuple[str, bool] | None:
    """The commit of the checkout that attnbench runs from, and whether its files differ from it."""
    root = Path(attnbench.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        commit = _run(root, "rev-parse", "HEAD")
        changed = _run(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # no git here, or a checkout of another user that git will not read
        return None
    return commit, bool(changed)


def _run(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
