"""The iterated pseudo-inverse times a matrix, against the iteration written out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels.inverses import inverse_times


def draw(batch: int, m: int, e: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    a, right = (torch.randn(batch, m, width, dtype=torch.float64, generator=generator) for width in (m, e))
    a = a.softmax(dim=-1)
    return [a, a.sum(dim=-2).amax(dim=-1), right]


def written_out(a: Tensor, norms: Tensor, right: Tensor, iterations: int) -> Tensor:
    z, one = a.mT / norms[:, None, None], torch.eye(a.shape[1], dtype=a.dtype)
    for _ in range(iterations):
        x = a @ z
        z = z @ (13 * one - x @ (15 * one - x @ (7 * one - x))) / 4
    return z @ right


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 3), m=st.integers(1, 6), e=st.integers(1, 4), iterations=st.integers(1, 5))
def test_equals_the_iteration_written_out(batch: int, m: int, e: int, iterations: int) -> None:
    inputs = [x.requires_grad_() for x in draw(batch, m, e)]
    out, expected = (function(*inputs, iterations) for function in (inverse_times, written_out))
    torch.testing.assert_close(out, expected)
    weight = torch.randn(out.shape, dtype=out.dtype)
    found = torch.autograd.grad(out, inputs, weight)
    for one, other in zip(found, torch.autograd.grad(expected, inputs, weight), strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():  # nothing is kept, and memory is taken in turns
        torch.testing.assert_close(inverse_times(*inputs, iterations), expected)


def test_a_graph_that_is_kept_may_be_walked_again() -> None:
    inputs = [x.requires_grad_() for x in draw(2, 5, 3)]
    out = inverse_times(*inputs, 4).square().sum()
    first, second = (torch.autograd.grad(out, inputs, retain_graph=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("iterations", [1, 3])
def test_traced_differentiated_and_counted(iterations: int) -> None:
    inputs = [x.requires_grad_() for x in draw(2, 5, 3)]
    torch.library.opcheck(
        torch.ops.attnbench.inverse_times.default,
        (*inputs, iterations, True),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    compiled = torch.compile(inverse_times, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs, iterations), inverse_times(*inputs, iterations))
    with FlopCounterMode(display=False) as counter:
        inverse_times(*inputs, iterations).sum().backward()
    wide, narrow = 2 * 2 * 5 * 5 * 5, 2 * 2 * 5 * 5 * 3
    assert counter.get_total_flops() == 3 * (4 * (iterations - 1) * wide + 7 * narrow)
