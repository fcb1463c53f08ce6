"""A cluster of several nodes on this machine: the same records as the local executor's, and a dead node loses nothing."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from attnbench.errors import UserError
from attnbench.sweep import records
from attnbench.sweep.executors import ray as on_ray
from attnbench.sweep.runner import run
from attnbench.sweep.spec import parse_spec

SPEC: dict[str, Any] = {
    "variants": ["fine", "twice", "causal-only", "raises"],
    "lengths": [64, 128, 600],
    "quantities": ["memory", "speed"],
    "model": {"dim": 16, "heads": 2},
    "threads": 1,
    "rounds": 3,
    "sample_seconds": 0.01,
}


def test_without_ray_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'attnbench\[ray\]'"):
        on_ray._import()


@pytest.fixture
def cluster(monkeypatch):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Nodes are processes of this machine: they find the variants of these tests as this process does.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def outcome(out: Path) -> dict[tuple[str, int], tuple[Any, ...]]:
    """All that timing does not change."""
    rows = list(records.read(out / records.FILE))
    assert max(Counter((row["cell"], row["session"], row["round"]) for row in rows).values()) == 1
    exact = {(row["cell"], row["round"]): row["value"] for row in rows if row["quantity"] == "memory"}
    return {
        (row["cell"], row["round"]): (
            row["label"],
            row["status"],
            row["reason"],
            exact.get((row["cell"], row["round"])),
        )
        for row in rows
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of Ray's own making
def test_a_cluster_measures_what_one_machine_does_though_a_node_dies(cluster, tmp_path):
    first, _ = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    killed: list[bool] = []

    def progress(done: int, total: int, eta: float | None, current: str) -> None:
        if done > 12 and not killed:
            killed.append(True)
            cluster.remove_node(first)

    run(parse_spec(SPEC), tmp_path / "ray", executor="ray", address=cluster.address, progress=progress)
    run(parse_spec(SPEC), tmp_path / "local")
    assert killed
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "local")
    nodes = json.loads((tmp_path / "ray" / "environment.json").read_text())["nodes"]
    assert len(nodes) == 2
    assert all(node["processor"] for node in nodes.values())
