"""Linear attention: its feature maps against the published equation, decoding on running sums, and no n x n tensor."""

from __future__ import annotations

import pytest
import torch

import attnbench
from attnbench.contract import state_bytes


def build(**options):
    return attnbench.create_variant("linear", **({"heads": 2, "head_dim": 8} | options))


def draw(n, batch=2, heads=2, dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, heads, n, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("feature", ["elu", "relu"])
@pytest.mark.parametrize("causal", [False, True])
def test_every_row_is_the_published_sum(feature, causal):
    q, k, v = draw(33, dtype=torch.float64)
    out = build(feature=feature, causal=causal)(q, k, v)
    phi = {"elu": lambda x: torch.nn.functional.elu(x) + 1, "relu": torch.relu}[feature]
    for i in range(33):
        seen = slice(0, i + 1 if causal else 33)
        weights = (phi(q[:, :, i, None]) * phi(k[:, :, seen])).sum(-1, keepdim=True)
        expected = (weights * v[:, :, seen]).sum(2) / weights.sum(2)
        torch.testing.assert_close(out[:, :, i], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_decoding_equals_the_forward_pass_with_a_state_that_does_not_grow(kv_heads):
    variant = build(heads=4, kv_heads=kv_heads, causal=True).eval()
    q, _, _ = draw(20, heads=4)
    _, k, v = draw(20, heads=kv_heads)
    whole = variant(q, k, v)
    out, state = variant.prefill(q[:, :, :11], k[:, :, :11], v[:, :, :11])
    torch.testing.assert_close(out, whole[:, :, :11])
    sizes = {state_bytes(state)}
    for t in range(11, 20):
        row, state = variant.step(*(x[:, :, t : t + 1] for x in (q, k, v)), state)
        torch.testing.assert_close(row, whole[:, :, t : t + 1])
        sizes.add(state_bytes(state))
    assert sizes == {2 * 4 * (8 * 9 + 1) * 4}


def test_gradients_in_half_precision_follow_those_in_double():
    q, k, v = draw(200)
    variant = build(causal=True)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    half = [x.to(torch.bfloat16).requires_grad_() for x in (q, k, v)]
    for inputs in (exact, half):
        variant(*inputs).square().sum().backward()
    for a, b in zip(half, exact, strict=True):
        assert a.grad.dtype == torch.bfloat16
        assert (a.grad.double() - b.grad).norm() < 5e-2 * b.grad.norm()


def test_an_unknown_feature_is_one_clear_line():
    with pytest.raises(ValueError, match=r"feature must be one of elu, relu, received 'elo' .did you mean 'elu'"):
        build(feature="elo")
