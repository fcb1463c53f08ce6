"""What is built does what its mode says, from its seed, and leaves the random state alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnbench.capabilities import Stream, Supports
from attnbench.contract import Variant
from attnbench.measure import Workload, build
from attnbench.measure.bench import DECODE_TOKENS, attention_inputs
from attnbench.registry import register

SMALL = {"length": 12, "heads": 2, "head_dim": 4, "batch": 3, "dim": 8, "depth": 1}


@register(
    "build-gated",
    supports=Supports(
        reads=("v",), streams=(Stream("gate", 2),), global_tokens="anchors", max_len=True, decode=True, causal=True
    ),
)
class Gated(Variant):
    """Reads v and a gate, has a parameter, and asks for global tokens."""

    def __init__(self, *, anchors: int = 3, **common) -> None:
        super().__init__(**common)
        self.scale = nn.Parameter(torch.ones(self.head_dim))
        self.seen: list[tuple] = []

    def mix(self, q, k, v, key_mask, *, gate: Tensor) -> Tensor:
        self.seen.append((q, k, tuple(v.shape), tuple(gate.shape), v.stride(), self.training))
        return v * self.scale * gate.mean(-1, keepdim=True)


def gated(mode: str = "forward") -> Workload:
    return Workload("build-gated", mode=mode, **SMALL)


def test_inputs_are_what_the_variant_reads_with_global_tokens_in_front():
    bench = build(gated())
    bench.call()
    q, k, v, gate, stride, training = bench.module.seen[-1]
    assert (q, k) == (None, None)
    assert v == (3, 2, 12 + 3, 4)
    assert gate == (3, 2, 12 + 3, 2)
    assert bench.module.max_len == 12 + 3
    assert stride == (15 * 8, 4, 8, 1)  # the layout of a projection: tokens are the outer axis in memory
    assert not training


def test_grouped_heads_and_dtype_reach_the_inputs():
    _, (q, k, v), streams = attention_inputs(Workload("full", {"kv_heads": 1}, **SMALL))
    assert (q.shape[1], k.shape[1], v.shape[1], streams) == (2, 1, 1, {})
    assert build(Workload("full", dtype="bfloat16", **SMALL)).call().dtype == torch.bfloat16


@pytest.mark.parametrize("scope", ["attention", "model"])
def test_the_seed_decides_everything_and_the_global_state_is_left_alone(scope):
    workload = Workload("full", scope=scope, **SMALL)
    before = torch.get_rng_state()
    first, again, other = build(workload), build(workload), build(workload, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.call(), again.call())
    assert not torch.equal(first.call(), other.call())
    assert not first.call().requires_grad


def test_backward_gives_the_gradients_of_inputs_and_parameters_every_time():
    bench = build(gated("backward"))
    v, gate, scale = bench.call()
    assert v.shape == (3, 2, 15, 4)
    assert gate.shape == (3, 2, 15, 2)
    assert scale.shape == (4,)
    assert torch.equal(bench.call()[2], scale)
    assert len(bench.module.seen) == 1  # the forward pass is outside of the call
    assert bench.module.training


def test_a_training_step_changes_the_parameters_and_leaves_no_gradient():
    bench = build(gated("train_step"))
    before = bench.module.scale.detach().clone()
    bench.call()
    assert not torch.equal(bench.module.scale, before)
    assert bench.module.scale.grad is None


@pytest.mark.parametrize("scope", ["attention", "model"])
def test_decoding_goes_on_from_the_prompt_and_starts_again_at_each_call(scope):
    bench = build(Workload("full", mode="decode", scope=scope, causal=True, **SMALL))
    assert bench.tokens == DECODE_TOKENS
    assert torch.equal(bench.call(), bench.call())


def test_the_same_module_at_another_length():
    bench = build(Workload("full", **SMALL), max_len=20)
    other = bench.at(20)
    assert other.module is bench.module
    assert other.call().shape[2] == 20


def test_the_wrapped_module_is_the_one_that_is_called():
    calls = []
    bench = build(
        Workload("full", **SMALL),
        wrap=lambda module: lambda *args, **streams: calls.append(1) or module(*args, **streams),
    )
    bench.call()
    assert calls == [1]
