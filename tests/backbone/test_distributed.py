"""Two processes with half a batch each take the step that one process takes with the whole; slow, since each imports torch."""

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

from attnbench.backbone import Stack

VARIANTS: list[tuple[str, dict[str, Any]]] = [("full", {})]


def build(variant: str, options: dict[str, Any]) -> Stack:
    torch.manual_seed(4)
    return Stack(8, 2, 1, variant=variant, options=options, max_len=12)


def batch() -> Tensor:
    return torch.randn(4, 12, 8, generator=torch.Generator().manual_seed(7))


def step(model: torch.nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().mean().backward()
    optimizer.step()


def work(rank: int, port: int, variant: str, options: dict[str, Any], out: str) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    model = DistributedDataParallel(build(variant, options))
    step(model, batch()[2 * rank : 2 * rank + 2])
    torch.save(model.module.state_dict(), f"{out}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("variant", "options"), VARIANTS, ids=[name for name, _ in VARIANTS])
def test_two_ranks_take_the_step_of_one(variant: str, options: dict[str, Any], tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, variant, options, str(tmp_path)), nprocs=2)
    states = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items()), "the ranks went apart"
    single = build(variant, options)
    step(single, batch())
    for name, value in single.state_dict().items():
        torch.testing.assert_close(states[0][name], value, atol=1e-5, rtol=1e-5)
