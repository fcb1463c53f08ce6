"""This project's variants beside the public packages of the same methods, alternating, in one process.

    python -m venv .venv-peers
    .venv-peers/bin/pip install -e . -r results/proofs/peers.txt
    .venv-peers/bin/python results/proofs/peers.py > results/cpu-2core/peers.md

Every side is a module (batch, n, 256) -> same with 4 heads and projections of its own, in training mode, float32, on a CPU.
Options give both sides the same number of visible keys. Ratios are peer over ours, so that above 1 we are ahead.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import attnbench
from attnbench.backbone import projection
from attnbench.measure.machine import processor
from attnbench.measure.memory import peak_bytes

DIM, HEADS = 256, 4
WIDTH = DIM // HEADS


class Projected(nn.Module):
    """Projections round a core that mixes (batch, heads, n, width)."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.inner, self.outer, self.core = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM), core

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        return self.outer(self.core(q, k, v).transpose(1, 2).flatten(2))


class Called(nn.Module):
    """A module that is called in a way of its own; what it returns may be a tuple."""

    def __init__(self, module: nn.Module, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, x: Tensor) -> Tensor:
        found = self.call(self.module, x)
        return found[0] if isinstance(found, tuple) else found


def full(n: int) -> nn.Module:
    return Called(nn.MultiheadAttention(DIM, HEADS, batch_first=True), lambda m, x: m(x, x, x, need_weights=False))


def local(n: int) -> nn.Module:
    from local_attention import LocalAttention

    return Projected(
        LocalAttention(
            window_size=128, look_backward=1, look_forward=1, autopad=True, use_rotary_pos_emb=False, dim=WIDTH
        )
    )


def longformer(n: int) -> nn.Module:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_window=[256], attention_probs_dropout_prob=0.0
    )

    def call(module: nn.Module, x: Tensor) -> Any:
        mask = torch.zeros(x.shape[:2])
        mask[:, 0] = 1
        return module(
            x, attention_mask=mask, is_index_masked=mask < 0, is_index_global_attn=mask > 0, is_global_attn=True
        )

    return Called(LongformerSelfAttention(config, 0), call)


def linformer(n: int) -> nn.Module:
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(DIM, n, k=256, heads=HEADS)


def sinkhorn(n: int) -> nn.Module:
    from sinkhorn_transformer.sinkhorn_transformer import SinkhornSelfAttention

    return SinkhornSelfAttention(DIM, bucket_size=128, max_seq_len=n, heads=HEADS, causal=False, n_local_attn_heads=0)


def routing(n: int) -> nn.Module:
    from routing_transformer.routing_transformer import SelfAttention

    module = SelfAttention(
        DIM, heads=HEADS, max_seq_len=n, depth=1, window_size=128, local_attn_heads=0, local_attn_window_size=128,
        causal=False,
    )  # fmt: skip
    return Called(module, lambda m, x: m(x))


def lsh(n: int) -> nn.Module:
    from reformer_pytorch import LSHSelfAttention

    return Called(LSHSelfAttention(DIM, heads=HEADS, bucket_size=64, n_hashes=4, causal=False), lambda m, x: m(x))


def performer(n: int) -> nn.Module:
    from performer_pytorch import SelfAttention

    return SelfAttention(DIM, heads=HEADS, dim_head=WIDTH, causal=False)


def nystrom(n: int) -> nn.Module:
    from nystrom_attention import NystromAttention

    return NystromAttention(dim=DIM, dim_head=WIDTH, heads=HEADS, num_landmarks=256)


def linear(n: int) -> nn.Module:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    return Called(SelfAttention(DIM, HEADS, causal=False, n_local_attn_heads=0), lambda m, x: m(x))


PEERS: dict[str, tuple[Callable[[int], nn.Module], dict[str, Any]]] = {  # the peer, and our options
    "full": (full, {}),
    "local": (local, {"window": 192}),  # 383 keys; the peer sees three blocks of 128
    "longformer": (longformer, {"window": 129}),  # 257 keys and a global token on both sides
    "linformer": (linformer, {"rank": 256, "bias": False}),
    "sinkhorn": (sinkhorn, {"block": 128, "bias": False}),
    "routing": (routing, {"window": 128, "bias": False}),
    "lsh": (lsh, {"bucket": 64, "hashes": 4, "bias": False}),
    "performer": (performer, {"bias": False}),
    "nystrom": (nystrom, {"landmarks": 256, "bias": False}),
    "linear": (linear, {"bias": False}),
}
MODES = ("forward", "forward and backward")


def calls(module: nn.Module, x: Tensor) -> dict[str, Callable[[], None]]:
    module.train()

    def forward() -> None:
        with torch.no_grad():
            module(x)

    return {MODES[0]: forward, MODES[1]: lambda: module(x).sum().backward()}


def timed(call: Callable[[], None], seconds: float = 0.3) -> float:
    """Mean seconds of a block of calls. torch's own timer would set the thread count: see docs/measuring.md."""
    number, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
        call()
        number += 1
    return taken / number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--names", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mkl", action="store_true", help="our projections by torch's linear layer on any processor")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if arguments.mkl:
        projection._slighted_by_mkl = lambda: False
    print("# Beside the public packages\n")
    print(
        "Made by `python results/proofs/peers.py > results/cpu-2core/peers.md`; peer over ours, above 1 we are ahead. "
        f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}.\n"
    )
    print("| variant | length | mode | time x | memory x | ours, MiB |")
    print("|---|---|---|---|---|---|")
    ratios: list[tuple[float, float]] = []
    for length in arguments.lengths:
        for name in arguments.names:
            build, options = PEERS[name]
            x = torch.randn(1, length, DIM, requires_grad=True)
            sides = {
                "peer": calls(build(length), x),
                "ours": calls(attnbench.MultiHeadAttention(DIM, HEADS, variant=name, max_len=length, **options), x),
            }
            for mode in MODES:
                for side in sides.values():
                    side[mode]()
                rounds = [{side: timed(call[mode]) for side, call in sides.items()} for _ in range(arguments.rounds)]
                ratio = statistics.median(each["peer"] / each["ours"] for each in rounds)
                peak = {side: peak_bytes(call[mode]).bytes for side, call in sides.items()}
                memory = peak["peer"] / peak["ours"]
                ratios.append((ratio, memory))
                ours = peak["ours"] / 2**20
                print(f"| {name} | {length} | {mode} | {ratio:.2f} | {memory:.2f} | {ours:.1f} |", flush=True)
            del sides
            gc.collect()
    means = [statistics.geometric_mean(column) for column in zip(*ratios, strict=True)]
    behind = sum(ratio < 0.95 or memory < 1 for ratio, memory in ratios)
    print(f"\nGeometric means: time {means[0]:.2f}, memory {means[1]:.2f}.")
    print(f"Slower than .95 or larger than the peer in {behind} of {len(ratios)} cells.")


if __name__ == "__main__":
    main()
