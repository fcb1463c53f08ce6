"""What `torch.set_num_threads` costs: the same calls on threads given at birth, and after the number was set again.

    python results/proofs/threads.py > results/cpu-2core/threads.md

Each row is two processes a round, one of which sets the number of threads that it has already. CPU, float32, 4 heads of 64.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

import attnbench
from attnbench.measure import usable_cores

HEADS, HEAD_DIM, WINDOW, TILE = 4, 64, 128, 64


def long_sequence(n: int) -> Callable[[], Tensor]:
    q, k, v = torch.randn(3, 1, HEADS, n, HEAD_DIM)
    return lambda: scaled_dot_product_attention(q, k, v)


def small_blocks(n: int) -> Callable[[], Tensor]:
    """As sinkhorn uses it: blocks of 128 queries over 256 keys."""
    blocks = max(1, n // 128)
    q, k, v = (torch.randn(blocks, HEADS, rows, HEAD_DIM) for rows in (128, 256, 256))
    return lambda: scaled_dot_product_attention(q, k, v)


def overlapping_views(n: int) -> Callable[[], Tensor]:
    """A window by fused attention: tiles of queries over views of one padded sequence of keys, which share their memory."""
    width, tiles = TILE + 2 * WINDOW, n // TILE
    mask = (
        ((torch.arange(TILE)[:, None] + WINDOW - torch.arange(width)).abs() < WINDOW)
        .expand(tiles, 1, TILE, width)
        .clone()
    )
    at = torch.arange(tiles)[:, None] * TILE + torch.arange(width) - WINDOW  # which key stands in each place
    mask &= ((at >= 0) & (at < n))[:, None, None]

    def views(x: Tensor, rows: int) -> Tensor:
        head, place, one = x.stride()[1:]
        return x.as_strided((tiles, HEADS, rows, HEAD_DIM), (TILE * place, head, place, one))

    q, k, v = torch.randn(3, 1, HEADS, n, HEAD_DIM)

    def call() -> Tensor:
        wide_k, wide_v = (pad(x, (0, 0, WINDOW, WINDOW)) for x in (k, v))
        return scaled_dot_product_attention(views(q, TILE), views(wide_k, width), views(wide_v, width), attn_mask=mask)

    module = attnbench.create_variant("local", heads=HEADS, head_dim=HEAD_DIM, window=WINDOW)
    torch.testing.assert_close(
        call().transpose(0, 1).reshape(HEADS, n, HEAD_DIM), module(q, k, v)[0], rtol=1e-4, atol=1e-5
    )
    return call


def local_module(n: int) -> Callable[[], Tensor]:
    q, k, v = torch.randn(3, 1, HEADS, n, HEAD_DIM)
    module = attnbench.create_variant("local", heads=HEADS, head_dim=HEAD_DIM, window=WINDOW)
    return lambda: module(q, k, v)


CASES = {
    "fused attention, one long sequence": long_sequence,
    "fused attention, blocks of 128 x 256": small_blocks,
    "a window of 128 by fused attention over overlapping views": overlapping_views,
    "a window of 128 by `local`": local_module,
}


def sample(n: int, again: bool) -> None:
    """Prints the median seconds of each case as JSON: one of the two processes."""
    torch.manual_seed(0)
    if again:
        torch.set_num_threads(torch.get_num_threads())
    medians = []
    with torch.no_grad():
        for case in CASES.values():
            call, times = case(n), []
            for _ in range(12):
                began = time.perf_counter()
                call()
                times.append(time.perf_counter() - began)
            medians.append(statistics.median(times[2:]))
    print(json.dumps(medians))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=4096, help="a multiple of 64")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sample", choices=["born", "set"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sample:
        sample(arguments.length, arguments.sample == "set")
        return
    threads = str(usable_cores())
    environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    seconds: dict[str, list[list[float]]] = {"born": [], "set": []}
    for _ in range(arguments.rounds):
        for state, rounds in seconds.items():
            command = [sys.executable, __file__, "--length", str(arguments.length), "--sample", state]
            made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            rounds.append(json.loads(made.stdout))
    print("# What `torch.set_num_threads` costs\n")
    print("Made by `python results/proofs/threads.py > results/cpu-2core/threads.md`.\n")
    print(
        f"Length {arguments.length}, {threads} threads, {arguments.rounds} rounds; medians of the ratios within a round.\n"
    )
    print(
        "| call | time against `local`, threads given at birth | the same, number set again | set again against given |"
    )
    print("|---|---|---|---|")
    local = len(CASES) - 1
    for index, label in enumerate(CASES):
        against = [statistics.median(row[index] / row[local] for row in rounds) for rounds in seconds.values()]
        pairs = zip(seconds["born"], seconds["set"], strict=True)
        slower = statistics.median(after[index] / before[index] for before, after in pairs)
        print(f"| {label} | {against[0]:.2f} | {against[1]:.2f} | {slower:.2f} |")


if __name__ == "__main__":
    main()
