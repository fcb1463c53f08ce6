"""Patterns are found by probing: the weights where the output is linear in v, the Jacobian where it is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnbench.capabilities import Supports
from attnbench.contract import Variant
from attnbench.measure.bench import attention_inputs
from attnbench.measure.pattern import pattern
from attnbench.measure.workload import Workload
from attnbench.registry import register


@register("pattern-squares", supports=Supports(linear_in_v=False, reads=("v",)))
class Squares(Variant):
    """Half of the token before, squared."""

    def mix(self, q, k, v, key_mask):
        return 0.5 * v.roll(1, dims=2).square()


def window(n: int, width: int) -> np.ndarray:
    return np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= width


@pytest.mark.parametrize("n", [1, 5, 16, 33])
@pytest.mark.parametrize("causal", [False, True])
def test_the_pattern_of_full_attention_is_its_weights(n, causal):
    found = pattern("full", n, causal=causal, heads=2, head_dim=4)
    module, (q, k, _), _ = attention_inputs(Workload("full", causal=causal, length=n, heads=2, head_dim=4))
    assert found.shape == (n, n)
    np.testing.assert_allclose(found, module.dense_weights(q, k)[0].mean(dim=0).numpy(), atol=1e-6)


def test_a_pattern_that_is_not_linear_is_the_norm_of_the_jacobian():
    found = pattern("pattern-squares", 5, heads=2, head_dim=3)
    _, (_, _, v), _ = attention_inputs(Workload("pattern-squares", length=5, heads=2, head_dim=3))
    expected = np.zeros((5, 5))
    for i in range(5):
        expected[i, i - 1] = v[0, :, i - 1].norm(dim=-1).mean()  # d(v^2 / 2) = v dv
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_pattern_is_repeatable_and_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    np.testing.assert_array_equal(pattern("full", 8), pattern("full", 8))
    assert torch.equal(torch.get_rng_state(), before)
