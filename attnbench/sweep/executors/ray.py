"""A Ray cluster: each comparison group on one node that it has for itself, so that no ratio crosses machines.

A node holds one station, an actor that reserves all of the node and measures what it is handed. Turns of one group go to the
same node; trainings go wherever there is room, and never beside what is timed. A node that dies gives its turn back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from attnbench.errors import UserError
from attnbench.sweep.ledger import Turn
from attnbench.sweep.queue import TurnQueue

__all__ = ["execute"]

PATIENCE = 60.0  # seconds to wait for a node before giving up


def execute(sweep: Any, *, address: str | None = None, jobs: int = 1) -> Iterator[list[dict[str, Any]]]:
    """Yields the records of each job as soon as its turn is over. Attnbench and all plugins must be installed on every node.

    Raises UserError where Ray is not installed, the cluster cannot be reached, or no node is left.
    """
    ray = _import()
    started = not ray.is_initialized()
    if started:
        own = {} if address else {"include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"no Ray cluster at {address!r}: {' '.join(str(error).split())}") from None
    cluster = _Cluster(ray, sweep, jobs)
    try:
        yield from cluster.work()
    finally:
        cluster.close()
        if started:
            ray.shutdown()


def _import() -> Any:
    try:
        import ray
    except ImportError:
        raise UserError("the executor 'ray' needs Ray: pip install 'attnbench[ray]'") from None
    return ray


class Station:
    """What runs on a node: a worker, behind an actor that has the node for itself."""

    def __init__(self) -> None:
        from attnbench.sweep.worker import Worker

        self._worker = Worker()

    def describe(self, devices: list[str]) -> dict[str, Any]:
        """The node's environment, and the devices asked for that it lacks."""
        import socket

        from attnbench.measure import environment
        from attnbench.measure.workload import check_device

        missing = []
        for device in devices:
            try:
                check_device(device)
            except UserError:
                missing.append(device)
        seen = next((device for device in devices if device not in missing), "cpu")
        return {"host": socket.gethostname(), "missing": missing, "environment": environment(seen)}

    def measure(self, jobs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """The records of each job, measured one after the other."""
        return [self._worker.measure(job) for job in jobs]


class _Node:
    """The driver's view of a node: its station, and the turns that it is busy with."""

    def __init__(self, station: Any, facts: dict[str, Any]) -> None:
        self.station, self.facts = station, facts
        self.running: dict[Any, Turn] = {}

    @property
    def exclusive(self) -> bool:
        return any(turn.group.exclusive for turn in self.running.values())


class _Cluster:
    def __init__(self, ray: Any, sweep: Any, jobs: int) -> None:
        self.ray, self.sweep, self.jobs = ray, sweep, jobs
        self.queue = TurnQueue(list(sweep.turns()))
        self.nodes: dict[str, _Node] = {}
        self.unfit: set[str] = set()

    def work(self) -> Iterator[list[dict[str, Any]]]:
        while not self.queue.empty:
            self._look_for_nodes()
            for name, node in self.nodes.items():
                yield from self._fill(name, node)
            waiting = {future: (name, node) for name, node in self.nodes.items() for future in node.running}
            if not waiting:
                continue
            ready, _ = self.ray.wait(list(waiting), timeout=1.0)
            for future in ready:
                name, node = waiting[future]
                if future not in node.running:  # given back with its node
                    continue
                yield from self._collect(name, node, future)

    def _fill(self, name: str, node: _Node) -> Iterator[list[dict[str, Any]]]:
        """Hands a node what it has room for. Turns with nothing left are done at once; their records are the sweep's own."""
        while not node.exclusive and len(node.running) < self.jobs:
            turn = self.queue.next(name, exclusive=not node.running)
            if turn is None:
                return
            environment = node.facts["environment"]
            jobs = self.sweep.begin(turn, cores=environment["cores"])
            if not jobs:
                self.queue.done(turn)
                continue
            for job in jobs:
                self.sweep.announce(job)
                job["payload"].pop("checkpoint", None)  # the run directory is here, and not there
            node.running[node.station.measure.remote(jobs)] = turn
        yield from ()

    def _collect(self, name: str, node: _Node, future: Any) -> Iterator[list[dict[str, Any]]]:
        turn = node.running.pop(future)
        try:
            measured = self.ray.get(future)
        except self.ray.exceptions.RayActorError:
            for lost in (turn, *node.running.values()):
                self.queue.give_back(lost)
            node.running.clear()
            self.queue.forget(name)
            del self.nodes[name]
            return
        yield from measured
        self.queue.done(turn)

    def _look_for_nodes(self) -> None:
        """Puts a station on every node that has none; waits for a first node for a while."""
        end = time.monotonic() + PATIENCE
        while True:
            for node in self.ray.nodes():
                name = node["NodeID"]
                if node["Alive"] and node["Resources"].get("CPU") and name not in self.nodes and name not in self.unfit:
                    self._settle(name, node["Resources"])
            if self.nodes:
                return
            if time.monotonic() > end:
                raise UserError(
                    "no node of the Ray cluster is left that can measure this; what was measured so far is kept"
                )
            time.sleep(0.5)

    def _settle(self, name: str, resources: dict[str, float]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node_id=name, soft=False)
        actor = self.ray.remote(Station).options(
            num_cpus=resources["CPU"],
            num_gpus=resources.get("GPU", 0),
            scheduling_strategy=strategy,
            max_concurrency=self.jobs,
        )
        try:
            station = actor.remote()
            facts = self.ray.get(station.describe.remote(list(self.sweep.plan.spec.devices)), timeout=PATIENCE)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.GetTimeoutError):
            self.unfit.add(name)
            return
        if facts["missing"]:
            self.unfit.add(name)
            self.ray.kill(station)
            return
        self.sweep.directory.add_node(facts["host"], name, facts["environment"])
        self.nodes[name] = _Node(station, facts)

    def close(self) -> None:
        for node in self.nodes.values():
            self.ray.kill(node.station)
