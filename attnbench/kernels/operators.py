"""Operators with a backward pass of their own: whole to compilers, exporters and counters of operations, plain calls to others.

A custom operator's way through the dispatcher, with gradients registered in Python, is long beside attention over few tokens.
So where nobody looks at operators, the same body and the same gradients run in an autograd function instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

__all__ = ["Operator", "operator"]

PLAIN = (Tensor, torch.nn.Parameter)


class Operator:
    """A function on tensors that is registered as a custom operator, and called as one where somebody looks."""

    def __init__(self, name: str, body: Callable[..., Any]) -> None:
        self.body = body
        self.registered = torch.library.custom_op(name, body, mutates_args=())
        self.register_fake = self.registered.register_fake
        self.function: type[torch.autograd.Function] | None = None

    def register_autograd(self, gradients: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        """As for a custom operator: setup_context(ctx, inputs, output), and gradients(ctx, *grads)."""
        self.registered.register_autograd(gradients, setup_context=setup_context)

        # With a setup_context of its own, torch would bind a signature at every call.
        def forward(ctx: Any, *args: Any) -> Any:
            output = self.body(*args)
            setup_context(ctx, args, output)
            return output

        methods = {"forward": forward, "backward": once_differentiable(gradients)}
        static = {name: staticmethod(method) for name, method in methods.items()}
        self.function = type(self.body.__name__, (torch.autograd.Function,), static)

    def __call__(self, *args: Any) -> Any:
        tensors = [x for x in args if isinstance(x, Tensor)]
        if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or any(_odd(x) for x in tensors):
            return self.registered(*args)
        if self.function is not None and torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return self.function.apply(*args)
        return self.body(*args)


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """Decorates the body of the operator of that name ("attnbench::..."); it takes positional arguments alone."""
    return lambda body: Operator(name, body)


def _odd(x: Tensor) -> bool:
    """Whether x is not a tensor with data of its own."""
    return type(x) not in PLAIN or x.is_meta
