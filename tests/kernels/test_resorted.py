"""Attention to the own block and a mixture of blocks, against the mixture written out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import resorted
from attnbench.kernels.resorted import resorted_attention


def draw(blocks: int, size: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((blocks, size, 4), (blocks, size, 4), (blocks, size, 3), (blocks, blocks))
    q, k, v, mixture = (torch.randn(2, 2, *shape, dtype=dtype, generator=generator) for shape in shapes)
    return [q, k, v, mixture.softmax(dim=-1)]


def written_out(q: Tensor, k: Tensor, v: Tensor, mixture: Tensor, gain: Tensor | None, masks: list) -> list[Tensor]:
    mixed_k, mixed_v = (torch.einsum("bhij,bhjtd->bhitd", mixture, x) for x in (k, v))
    if gain is not None:
        mixed_k, mixed_v = mixed_k * gain[..., None], mixed_v * gain[..., None]
    scores = q @ torch.cat([k, mixed_k], dim=-2).mT * q.shape[-1] ** -0.5
    half = scores[..., : k.shape[-2]].shape
    seen = torch.cat([torch.ones(half, dtype=torch.bool) if m is None else m.expand(half) for m in masks], dim=-1)
    some = seen.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~seen & some, -torch.inf)
    lse = scores.logsumexp(dim=-1).masked_fill(~some[..., 0], -torch.inf)
    return [(scores.softmax(dim=-1) * some) @ torch.cat([v, mixed_v], dim=-2), lse]


@settings(max_examples=30, deadline=None)
@given(
    blocks=st.integers(1, 5),
    size=st.integers(1, 5),
    gained=st.booleans(),
    masked=st.booleans(),
    large=st.booleans(),
    tight=st.booleans(),
)
def test_equals_the_mixture_written_out(
    blocks: int, size: int, gained: bool, masked: bool, large: bool, tight: bool
) -> None:
    inputs = [x.requires_grad_() for x in draw(blocks, size)]
    gain = torch.rand(2, 2, blocks, size, dtype=torch.float64).requires_grad_() if gained else None
    masks: list[Tensor | None] = [None, None]
    if masked:
        masks = [torch.rand(2, 1, blocks, size, size) > 0.5, torch.rand(2, 2, blocks, 1, size) > 0.5]
    wanted = inputs + ([] if gain is None else [gain])
    factor = 100 if large else 1
    with pytest.MonkeyPatch.context() as patch:
        if tight:  # pieces of one block
            patch.setitem(resorted.PIECE_BYTES, "cpu", 1)
        out, lse = resorted_attention(factor * inputs[0], *inputs[1:], gain, *masks)
        expected, expected_lse = written_out(factor * inputs[0], *inputs[1:], gain, masks)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(lse, expected_lse)
        some = expected_lse > -torch.inf
        found = torch.autograd.grad(out.square().sum() + lse[some].sum(), wanted)
    correct = torch.autograd.grad(expected.square().sum() + expected_lse[some].sum(), wanted)
    for one, other in zip(found, correct, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_mixes_and_sums_in_float32(dtype: torch.dtype) -> None:
    q, k, v, mixture = draw(4, 16)
    out, lse = resorted_attention(q.to(dtype), k.to(dtype), v.to(dtype), mixture.float())
    expected, _ = resorted_attention(*(x.to(dtype).double() for x in (q, k, v)), mixture)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out.double(), expected, atol=1e-2, rtol=1e-2)


def test_traced_differentiated_and_counted() -> None:
    inputs = [x.requires_grad_() for x in draw(3, 4)]

    def run(*tensors: Tensor) -> Tensor:
        return resorted_attention(*tensors)[0]

    torch.library.opcheck(
        torch.ops.attnbench.resorted_attention.default,
        (*inputs, None, None, None, 0.5),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), run(*inputs))
    products = 2 * 2 * 3 * (2 * 4 * 4 + 3 * 4)
    with FlopCounterMode(display=False) as counter:
        run(*inputs).sum().backward()
    assert counter.get_total_flops() == 2 * products * (4 + 3) + 2 * products * (3 * 4 + 2 * 3)
