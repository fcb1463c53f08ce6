import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbench
from attnbench.contract import state_bytes


def uniform(**options: object) -> attnbench.Variant:
    return attnbench.create_variant("uniform", heads=2, head_dim=4, **options)


@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 40), causal=st.booleans(), seed=st.integers(0, 99))
def test_the_mean_of_the_visible_values(length: int, causal: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(3, 2, length, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, length, generator=generator) < 0.5
    out = uniform(causal=causal)(None, None, v, key_mask=mask)
    for sample in range(3):
        for i in range(length):
            seen = [j for j in range(i + 1 if causal else length) if mask[sample, j]]
            expected = v[sample, :, seen].mean(dim=1) if seen else torch.zeros(2, 4, dtype=torch.float64)
            torch.testing.assert_close(out[sample, :, i], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_long_sums_neither_overflow_nor_stall(dtype: torch.dtype) -> None:
    v = torch.full((1, 2, 16384, 4), 100.0, dtype=dtype)
    for causal in (False, True):
        out = uniform(causal=causal)(None, None, v)
        assert out.dtype == dtype
        torch.testing.assert_close(out, v, rtol=5e-3, atol=0)


def test_the_decoding_state_does_not_grow() -> None:
    attention = uniform(causal=True)
    v = torch.randn(2, 2, 30, 4)
    out, state = attention.prefill(None, None, v[:, :, :10], None)
    first = state_bytes(state)
    for position in range(10, 30):
        out, state = attention.step(None, None, v[:, :, position : position + 1], state)
    assert state_bytes(state) == first == 2 * 2 * 4 * 4 + 2 * 4
    torch.testing.assert_close(out[:, :, 0], v.mean(dim=2))
