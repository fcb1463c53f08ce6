"""Useful operations per second of the block-sparse variants, as a share of what fused full attention reaches.

    python results/proofs/share.py > results/cpu-2core/share.md

Useful are the scores that the method defines, whatever else is computed. Calls alternate; medians over rounds. CPU, float32.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import attnbench
from attnbench.measure.machine import processor

HEADS, HEAD_DIM = 4, 64
CASES = {
    "full": ("full", {}),
    "local, window 128": ("local", {"window": 128}),
    "local, window 192": ("local", {"window": 192}),
    "local, window 128, causal": ("local", {"window": 128, "causal": True}),
    "longformer, window 128": ("longformer", {"window": 128}),
    "bigbird": ("bigbird", {}),
    "strided, sqrt": ("strided", {}),
    "global-token, 16": ("global-token", {}),
}


def calls(name: str, options: dict[str, object], n: int) -> tuple[Callable[[], object], Callable[[], object], float]:
    """Forward, forward and backward, and the scores that the method defines per query."""
    q, k, v, grad = (torch.randn(1, n, HEADS, HEAD_DIM).transpose(1, 2) for _ in range(4))
    module = attnbench.create_variant(name, heads=HEADS, head_dim=HEAD_DIM, max_len=n, **options)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]

    def forward() -> object:
        with torch.no_grad():
            return module(q, k, v)

    def both() -> object:
        return torch.autograd.grad(module(*leaves), leaves, grad)

    alone = attnbench.create_variant(name, heads=1, head_dim=HEAD_DIM, max_len=n, **options)
    with torch.no_grad():
        seen = (alone.dense_weights(q[:, :1], k[:, :1]) > 0).sum().item() / n
    return forward, both, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print("# Useful operations per second, as a share of fused full attention's\n")
    print(
        "Made by `python results/proofs/share.py > results/cpu-2core/share.md`. "
        f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}.\n"
    )
    print("| length | variant | keys per query | forward | forward and backward |")
    print("|---|---|---|---|---|")
    for n in arguments.lengths:
        cases = {label: calls(name, options, n) for label, (name, options) in CASES.items()}
        seconds: dict[tuple[str, int], list[float]] = {(label, mode): [] for label in cases for mode in (0, 1)}
        for _ in range(arguments.rounds):
            for label, case in cases.items():
                for mode in (0, 1):
                    case[mode]()
                    began = time.perf_counter()
                    case[mode]()
                    seconds[label, mode].append(time.perf_counter() - began)
        rate = {key: cases[key[0]][2] / statistics.median(times) for key, times in seconds.items()}
        for label, case in cases.items():
            shares = " | ".join(f"{rate[label, mode] / rate['full', mode]:.2f}" for mode in (0, 1))
            print(f"| {n} | {label} | {case[2]:.0f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
