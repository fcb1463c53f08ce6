"""Two processes with half a batch each stay together, and take the step that one process takes with the whole.

Slow, since two processes import torch; both run every variant that is registered.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from attnbench import list_variants, variant_info
from attnbench.backbone import Stack

pytestmark = pytest.mark.slow
OURS = [name for name in list_variants() if variant_info(name).cls.__module__.startswith("variants.")]
VARIANTS = [name for name in OURS if variant_info(name).supports.bidirectional]


def build(variant: str) -> Stack:
    torch.manual_seed(4)
    return Stack(8, 2, 1, variant=variant, options=dict(variant_info(variant).supports.small), max_len=12)


def batch() -> Tensor:
    return torch.randn(4, 12, 8, generator=torch.Generator().manual_seed(7))


def step(model: torch.nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(8)  # what is drawn in training is drawn alike on every rank
    model(x).square().mean().backward()
    optimizer.step()


def work(rank: int, port: int, variants: list[str], out: str) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    for variant in variants:
        model = DistributedDataParallel(build(variant), find_unused_parameters=True)
        step(model, batch()[2 * rank : 2 * rank + 2])
        torch.save(model.module.state_dict(), f"{out}/{variant}-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both ranks' states after a step, by variant."""
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, VARIANTS, str(out)), nprocs=2)
    return out


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_ranks_stay_together_and_take_the_step_of_one(variant: str, ranks: Path) -> None:
    states: list[dict[str, Any]] = [torch.load(ranks / f"{variant}-{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert states[0].keys() == states[1].keys()
    apart = [name for name, value in states[0].items() if not torch.equal(value, states[1][name])]
    assert not apart, f"the ranks went apart in {apart}"
    single = build(variant)
    step(single, batch())
    for name, value in single.state_dict().items():
        torch.testing.assert_close(states[0][name], value, atol=1e-5, rtol=1e-5, msg=name)
