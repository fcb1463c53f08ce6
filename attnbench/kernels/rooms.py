"""Memory that the pieces of one call take turns with: pages that were written to before are quicker to write to."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Rooms"]


class Rooms:
    """What each piece of a call needs once, by name."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._flat: dict[str, Tensor] = {}

    def empty(self, name: str, dtype: torch.dtype, *shape: int) -> Tensor:
        """An empty tensor on the device, in place of the last one of that name."""
        size = math.prod(shape)
        if name not in self._flat or self._flat[name].numel() < size:
            self._flat.pop(name, None)  # before the larger one
            self._flat[name] = self._like.new_empty(size, dtype=dtype)
        return self._flat[name][:size].view(shape)
