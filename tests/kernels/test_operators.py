"""One body, two ways to call it: both must give the same, and those who look at operators must see one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels.operators import operator
from attnbench.kernels.prefix import linear_attention

calls: list[str] = []


@operator("attnbench_tests::scaled")
def scaled(x: Tensor, by: float) -> Tensor:
    calls.append("body")
    return x * by


@scaled.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.by = inputs[1]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return grad * ctx.by, None


scaled.register_autograd(_gradients, setup_context=_setup)


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    return [torch.randn(2, 3, 40, 8, requires_grad=True) for _ in range(3)]


def test_a_plain_call_and_the_registered_operator_agree(inputs):
    found = []
    for call in (scaled, scaled.registered):
        out = call(inputs[0], 3.0)
        found.append((out, *torch.autograd.grad(out.square().sum(), inputs[0])))
    for plain, registered in zip(*found, strict=True):
        assert torch.equal(plain, registered)


def test_a_plain_call_does_not_go_through_the_dispatcher(inputs, monkeypatch):
    monkeypatch.setattr(scaled, "registered", None)
    assert scaled(inputs[0], 2.0).grad_fn is not None
    assert scaled(inputs[0].detach(), 2.0).grad_fn is None
    with torch.no_grad():
        assert scaled(inputs[0], 2.0).grad_fn is None


def test_tensors_without_data_take_the_registered_operator(inputs):
    calls.clear()
    assert scaled(inputs[0].to("meta"), 2.0).is_meta
    assert not calls


def test_a_counter_of_operations_sees_the_operator(inputs):
    with FlopCounterMode(display=False) as counter:
        linear_attention(*inputs)[0].sum().backward()
    counted = {str(op) for op in counter.get_flop_counts()["Global"]}
    assert {"attnbench.linear_attention", "attnbench.linear_attention_backward"} <= counted


def test_a_second_derivative_is_refused(inputs):
    (grad,) = torch.autograd.grad(scaled(inputs[0], 2.0).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()
