"""Tokens mixed into slots, against products and sums by themselves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels.slots import mix_into_slots


def draw(batch: int, n: int, slots: int, width: int, both: bool, masked: bool) -> tuple[list[Tensor], Tensor | None]:
    generator = torch.Generator().manual_seed(n)
    real = torch.rand(batch, n, generator=generator) < 0.7 if masked else None
    x = torch.randn(batch, n, width, dtype=torch.float64, generator=generator)
    x = x if real is None else x.masked_fill(~real[..., None], 0)
    matrices = [torch.randn(slots, n, dtype=torch.float64, generator=generator) for _ in range(1 + both)]
    return [x, *matrices], real


def written_out(x: Tensor, real: Tensor | None, *matrices: Tensor) -> tuple[Tensor, Tensor]:
    ones = x.new_ones(1, x.shape[1]) if real is None else real.to(x.dtype)
    return torch.stack([e @ x for e in matrices]), torch.stack([ones @ e.mT for e in matrices])


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    n=st.integers(1, 9),
    slots=st.integers(1, 4),
    width=st.integers(1, 4),
    both=st.booleans(),
    masked=st.booleans(),
)
def test_equals_products_and_sums(batch: int, n: int, slots: int, width: int, both: bool, masked: bool) -> None:
    (x, *matrices), real = draw(batch, n, slots, width, both, masked)
    inputs = [y.requires_grad_() for y in (x, *matrices)]
    found, expected = mix_into_slots(x, real, *matrices), written_out(x, real, *matrices)
    torch.testing.assert_close(found, expected)
    weights = [torch.randn_like(y) for y in expected]
    for one, other in zip(
        torch.autograd.grad(found, inputs, weights), torch.autograd.grad(expected, inputs, weights), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_a_matrix_may_be_a_view_of_a_longer_one() -> None:
    (x, _), _ = draw(2, 5, 3, 2, False, False)
    longer = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    found, expected = mix_into_slots(x, None, longer[:, :5]), written_out(x, None, longer[:, :5])
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found[0].sum() + found[1].square().sum(), longer)
    assert not gradient[:, 5:].any()
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected[0].sum() + expected[1].square().sum(), longer))


def test_autocast_mixes_in_its_own_dtype_forwards_and_backwards() -> None:
    (x, *matrices), real = draw(2, 8, 3, 4, True, True)
    inputs = [y.float().requires_grad_() for y in (x, *matrices)]
    with torch.autocast("cpu", torch.bfloat16):
        found = mix_into_slots(inputs[0], real, *inputs[1:])
        gradients = torch.autograd.grad(found[0].sum(), inputs)
    assert {y.dtype for y in found} == {torch.bfloat16}
    assert {y.dtype for y in gradients} == {torch.float32}
    torch.testing.assert_close(found[0].double(), written_out(x, real, *matrices)[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_traced_differentiated_and_counted(both: bool, masked: bool) -> None:
    (x, *matrices), real = draw(2, 5, 3, 4, both, masked)
    real = None if real is None else real.to(x.dtype)
    inputs = [y.requires_grad_() for y in (x, *matrices)]
    second = matrices[1] if both else None
    torch.library.opcheck(torch.ops.attnbench.mix_into_slots.default, (x, real, matrices[0], second))
    with FlopCounterMode(display=False) as counter:
        mixed, share = mix_into_slots(x, real, *matrices)
        forward = counter.get_total_flops()
        torch.autograd.grad(mixed.sum() + share.sum(), inputs)
    products, sums = 2 * len(matrices) * 2 * 3 * 5 * 4, 2 * len(matrices) * 2 * 3 * 5 * masked
    assert forward == products + sums
    assert counter.get_total_flops() == forward + 2 * products + sums
