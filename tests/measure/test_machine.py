"""The environment is complete, names no one, and reads quotas where Linux keeps them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from attnbench.errors import UserError
from attnbench.measure import environment, pin_threads, usable_cores


def test_the_environment_is_flat_json_without_paths():
    seen = environment()
    text = json.dumps(seen)
    assert str(Path.home()) + "/" not in text
    assert os.getcwd() not in text
    assert {"processor", "cores", "threads", "torch", "python", "git_commit", "git_dirty", "load_average"} <= set(seen)
    assert seen["torch"] == torch.__version__
    assert seen["accelerator"] is None
    assert seen["threads"] == torch.get_num_threads()


def test_a_device_that_is_not_here_has_no_environment():
    with pytest.raises(UserError, match="available: cpu"):
        environment("meta")


def test_threads_are_pinned_and_restored_even_after_an_error():
    before = torch.get_num_threads()
    with pin_threads(before + 1) as pinned:
        assert pinned == torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(RuntimeError), pin_threads(before + 1):
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_the_number_that_torch_has_already_is_not_set_again(monkeypatch):
    def refuse(number: int) -> None:
        raise AssertionError(f"set to {number}")

    monkeypatch.setattr(torch, "set_num_threads", refuse)
    with pin_threads(torch.get_num_threads()):
        pass


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n2:memory:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({}, None),
    ],
)
def test_quotas_of_control_groups(tmp_path, files, quota):
    affinity = len(os.sched_getaffinity(0))
    assert usable_cores(write(tmp_path, files)) == min(affinity, quota or affinity)
