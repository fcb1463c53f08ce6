"""FlexAttention's block mask, as far as a CPU can show it: the blocks, the mask inside them, and who is sent there."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.kernels import backend, sparse_attention
from attnbench.kernels.flex import band_blocks, band_mask
from attnbench.kernels.layout import Band

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@settings(max_examples=60, deadline=None)
@given(
    n_q=st.integers(1, 60),
    n_k=st.integers(1, 60),
    before=st.integers(0, 70),
    after=st.integers(0, 70),
    shift=st.integers(-60, 60),
    hidden=st.booleans(),
)
def test_blocks_are_seen_and_full_exactly_where_the_band_says(n_q, n_k, before, after, shift, hidden):
    block, band = 8, Band(n_q, n_k, before, after, shift)
    offset = torch.arange(n_k) - torch.arange(n_q)[:, None] - shift
    visible = (offset >= -before) & (offset <= after)
    counts, indices, full_counts, full = band_blocks(band, CPU, hidden=hidden, block=block)
    for row in range(-(-n_q // block)):
        tiles = [visible[row * block : (row + 1) * block, c * block : (c + 1) * block] for c in range(-(-n_k // block))]
        all_seen = [c for c, tile in enumerate(tiles) if tile.numel() == block**2 and tile.all() and not hidden]
        assert full[row, : full_counts[row]].tolist() == all_seen
        partial = indices[row, : counts[row]].tolist()
        # A corner may touch a block without any of its pairs being visible; what is visible is never left out.
        assert {c for c, tile in enumerate(tiles) if tile.any()} <= {*partial, *all_seen}
        assert not {*partial} & {*all_seen}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("before", "after"), [(40, 40), (200, 0), (0, 0)])
def test_the_mask_hides_what_the_pieces_hide(before, after, padded):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 300, 16)
    key_mask = torch.rand(2, 300) < 0.7 if padded else None
    mask = band_mask(Band(300, 300, before, after), key_mask, CPU)
    index = torch.arange(300)
    visible = mask.mask_mod(torch.arange(2)[:, None, None], torch.tensor(0), index[:, None], index).expand(2, 300, 300)
    some = visible.any(dim=-1)[:, None, :, None]
    scores = (q @ k.mT / 4).masked_fill(~visible[:, None], -torch.inf)
    expected = torch.where(some, scores.softmax(dim=-1) @ v, 0)
    torch.testing.assert_close(sparse_attention(q, k, v, before=before, after=after, band_mask=key_mask)[0], expected)


def test_the_backend_is_told_and_never_exchanged_in_silence():
    assert backend(CUDA, torch.bfloat16, 64) == "flex"
    assert backend(CUDA, torch.bfloat16, 48) == "pieces"
    assert backend(CUDA, torch.float32, 64, listed=True) == "pieces"
    assert backend(CPU, torch.float32, 64) == "pieces"
    q = torch.randn(1, 1, 4, 16)
    with pytest.raises(ValueError, match="on='flex' is not possible here: FlexAttention has no backward pass on cpu"):
        sparse_attention(q, q, q, before=1, after=1, on="flex")


@pytest.mark.gpu
@pytest.mark.parametrize("padded", [False, True])
def test_flex_equals_the_pieces(padded):
    torch.manual_seed(0)
    inputs = [x.requires_grad_() for x in torch.randn(3, 2, 2, 300, 64, device="cuda")]
    key_mask = torch.rand(2, 300, device="cuda") < 0.7 if padded else None
    results = [sparse_attention(*inputs, before=40, after=7, band_mask=key_mask, on=on) for on in ("flex", "pieces")]
    gradients = [torch.autograd.grad(out.square().sum(), inputs) for out, _ in results]
    for a, b in zip((*results[0], *gradients[0]), (*results[1], *gradients[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)
