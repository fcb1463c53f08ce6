from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attnbench.backbone.norms import BatchNorm, create_norm
from attnbench.errors import UserError


@settings(max_examples=20, deadline=None)
@given(batch=st.integers(1, 4), n=st.integers(1, 6), seed=st.integers(0, 99))
def test_batch_norm_is_torch_s_over_the_real_tokens_alone(batch: int, n: int, seed: int) -> None:
    torch.manual_seed(seed)
    mask = torch.rand(batch, n) < 0.7
    if mask.sum() < 2:  # torch refuses a single value
        return
    ours, theirs = BatchNorm(5), nn.BatchNorm1d(5)
    for _ in range(3):
        x = torch.randn(batch, n, 5) * 3 + 1
        expected = theirs(x[mask])
        poisoned = x.masked_fill(~mask[..., None], torch.nan)
        torch.testing.assert_close(ours(poisoned, mask)[mask], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    x = torch.randn(batch, n, 5)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x.flatten(0, 1)).view_as(x))


def test_batch_norm_without_a_real_token_learns_nothing() -> None:
    norm = BatchNorm(3)
    out = norm(torch.full((2, 4, 3), torch.nan), torch.zeros(2, 4, dtype=torch.bool))
    assert out.isfinite().all()
    norm(torch.zeros(0, 4, 3))
    assert torch.equal(norm.running_mean, torch.zeros(3))
    assert torch.equal(norm.running_var, torch.ones(3))


@pytest.mark.parametrize("kind", ["layer", "rms", "batch"])
def test_norms_scale_by_what_they_say_and_keep_the_dtype(kind: str) -> None:
    x = torch.randn(4, 9, 6) * 5 + 2
    y = create_norm(kind, 6)(x)
    axes = (0, 1) if kind == "batch" else -1
    torch.testing.assert_close(y.square().mean(axes), torch.ones_like(y.square().mean(axes)), atol=1e-3, rtol=1e-3)
    if kind != "rms":
        torch.testing.assert_close(y.mean(axes), torch.zeros_like(y.mean(axes)), atol=1e-5, rtol=0)
    assert create_norm(kind, 6).bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_refusals() -> None:
    with pytest.raises(UserError, match="refused where causal"):
        create_norm("batch", 4, causal=True)
    with pytest.raises(UserError, match=r"unknown norm 'rsm' \(did you mean 'rms'\?\)"):
        create_norm("rsm", 4)
