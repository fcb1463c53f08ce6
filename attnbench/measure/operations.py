"""Operations, counted by shape: what the mathematics costs, whatever the machine makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from attnbench.measure.bench import build
from attnbench.measure.workload import Measurement, Workload

__all__ = ["FORMULAS", "count_operations", "measure_operations"]

aten = torch.ops.aten
_WRITE_NOTHING = {aten._unsafe_view, aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty}  # beside views


def measure_operations(workload: Workload) -> Measurement:
    """Floating-point operations of one call, or of one new token in mode "decode".

    Counted are matrix products, convolutions, Fourier transforms and fused attention; a multiply and an add are two.
    Fused attention counts as its two products, 4 x batch x heads x n_q x n_k x head_dim, on every device and whether or
    not it is causal; its backward pass as the five of a kernel that computes the weights again. Work on single elements
    (softmax, gates, scans) is not in the value: the details count the elements that it wrote.

    Raises:
        Unsupported: the variant does not declare what the workload needs.
        UserError: the variant, an option or the device does not exist.
    """
    bench = build(workload)
    bench.call()
    by_operator, elements = count_operations(bench.call)
    value = sum(by_operator.values()) / bench.tokens
    details = {"by_operator": by_operator, "elements": elements, "tokens_per_call": bench.tokens}
    return Measurement(value, "flop", [value], details)


def count_operations(call: Callable[[], Any]) -> tuple[dict[str, int], int]:
    """Operations of one call by operator, and the number of elements that all other operators wrote."""
    with _Elements() as elements, FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        call()
    counts = counter.get_flop_counts().get("Global", {})
    return {str(operator).removeprefix("aten."): int(count) for operator, count in counts.items()}, elements.written


class _Elements(TorchDispatchMode):
    """Counts the elements written by operators that no formula speaks of."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self._others = _WRITE_NOTHING | flop_registry.keys() | FORMULAS.keys()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not (func.is_view or func.overloadpacket in self._others):
            self.written += sum(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        return out


# Formulas that torch lacks: its counter gives fused attention on a CPU, and Fourier transforms, as 0.


def _attention_forward(q: Any, k: Any, v: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    batch, heads, n_q, width = q
    return 2 * batch * heads * n_q * k[-2] * (width + v[-1])


def _attention_backward(gradient: Any, q: Any, k: Any, v: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Five products: the scores again, dV, dP, dQ and dK; three are as wide as q, and two as v."""
    batch, heads, n_q, width = q
    return 2 * batch * heads * n_q * k[-2] * (3 * width + 2 * v[-1])


def _transform(real: bool) -> Callable[..., int]:
    """5 N log2 N a complex transform of N points, the usual count; half where one side is real."""

    def count(source: Any, axes: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        whole = max(math.prod(source), math.prod(out_shape))  # the real side, where one is real
        points = math.prod(max(source[axis], out_shape[axis]) for axis in axes)
        return int(5 * whole * math.log2(points) / (2 if real else 1)) if points > 1 else 0

    return count


FORMULAS: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_forward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten._fft_c2c: _transform(real=False),
    aten._fft_r2c: _transform(real=True),
    aten._fft_c2r: _transform(real=True),
}
