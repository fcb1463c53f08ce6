"""Blocks beside mixtures of all blocks, against the mixture written out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import mixtures
from attnbench.kernels.mixtures import beside_mixtures


def draw(batch: int, blocks: int, size: int, gained: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, mixture, gain = (
        torch.randn(batch, 2, *shape, dtype=torch.float64, generator=generator)
        for shape in ((blocks, size, 3), (blocks, blocks), (blocks, size))
    )
    return [x, mixture.softmax(dim=-1)] + ([gain] if gained else [])


def written_out(x: Tensor, mixture: Tensor, gain: Tensor | None = None) -> Tensor:
    mixed = torch.einsum("bhij,bhjtd->bhitd", mixture, x)
    return torch.cat([x, mixed if gain is None else mixed * gain[..., None]], dim=-2)


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 3), blocks=st.integers(1, 5), size=st.integers(1, 5), gained=st.booleans(), tight=st.booleans()
)
def test_equals_the_mixture_written_out(batch: int, blocks: int, size: int, gained: bool, tight: bool) -> None:
    inputs = [x.requires_grad_() for x in draw(batch, blocks, size, gained)]
    with pytest.MonkeyPatch.context() as patch:
        if tight:  # backward takes one head at a time
            patch.setattr(mixtures, "piece_scores", lambda x, share: 1)
        out = beside_mixtures(*inputs)
        expected = written_out(*inputs)
        torch.testing.assert_close(out, expected)
        weight = torch.randn(out.shape, dtype=out.dtype)
        found = torch.autograd.grad(out, inputs, weight)
    for one, other in zip(found, torch.autograd.grad(expected, inputs, weight), strict=True):
        torch.testing.assert_close(one, other)


def test_a_factor_of_zero_hides_a_place_and_gets_no_gradient() -> None:
    x, mixture, gain = draw(1, 3, 4, True)
    gain = torch.where(torch.arange(4) == 2, 0, gain).requires_grad_()
    out = beside_mixtures(x, mixture, gain)
    out.square().sum().backward()
    assert not out[..., 4 + 2, :].any()
    assert not gain.grad[..., 2].any()
    assert gain.grad[..., :2].all()


def test_samples_and_blocks_are_one_axis_in_memory() -> None:
    x, mixture = draw(3, 2, 4, False)
    out = beside_mixtures(x, mixture)
    assert out.transpose(1, 2).flatten(0, 1).data_ptr() == out.data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_mixes_in_float32(dtype: torch.dtype) -> None:
    x, mixture, gain = (y.float() for y in draw(2, 64, 4, True))
    x = x.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = beside_mixtures(x, mixture, gain)
    torch.testing.assert_close(out, written_out(x.float(), mixture, gain).to(dtype))
    weight = torch.randn(out.shape).to(dtype)
    (found,) = torch.autograd.grad(out, x, weight)
    (expected,) = torch.autograd.grad(written_out(x.float(), mixture, gain), x, weight.float())
    torch.testing.assert_close(found, expected.to(dtype))


@pytest.mark.parametrize("gained", [True, False])
def test_traced_differentiated_and_counted(gained: bool) -> None:
    inputs = [x.requires_grad_() for x in draw(2, 3, 4, gained)]
    torch.library.opcheck(
        torch.ops.attnbench.beside_mixtures.default,
        (*inputs, *([] if gained else [None])),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    compiled = torch.compile(beside_mixtures, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), beside_mixtures(*inputs))
    with FlopCounterMode(display=False) as counter:
        beside_mixtures(*inputs).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * (2 * 2 * 3 * 3 * 4 * 3)
