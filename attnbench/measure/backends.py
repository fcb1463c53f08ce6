"""Which kernel torch chose: it decides on shapes, masks, types and devices, and says nothing when it changes its mind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["watch_sdpa"]

_FUSED = re.compile(r"^_scaled_dot_product_(?:fused_)?attention_(\w+)$|^_scaled_dot_product_(\w+?)_attention(?:_|$)")


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _FUSED.match(func.overloadpacket.__name__)
        if found:
            self.seen.append(found[1] or found[2])
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    def __init__(self, operators: _Operators, found: set[str]) -> None:
        super().__init__()
        self.operators, self.found = operators, found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = len(self.operators.seen)
        out = func(*args, **(kwargs or {}))
        if func is scaled_dot_product_attention:
            # The unfused path is no operator of its own: it shows as a call that ran no fused one.
            self.found.update(self.operators.seen[before:] or ["math"])
        return out


@contextmanager
def watch_sdpa() -> Iterator[set[str]]:
    """Collects the backends that `scaled_dot_product_attention` runs on inside the block.

    The set holds "flash", "efficient", "cudnn", "math" or another of torch's own names, and stays empty where it is not called.
    Calls from inside a compiled graph or a custom operator are not seen.
    """
    found: set[str] = set()
    operators = _Operators()
    with operators, _Calls(operators, found):
        yield found
