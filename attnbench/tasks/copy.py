"""Say the input again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnbench.tasks.base import register_task
from attnbench.tasks.transduction import Transduction

__all__ = ["Copy"]


@register_task("copy")
class Copy(Transduction):
    """The answer is the input. Cross-attention has to move along the input one token at a time.

    Args: as Transduction.

    Source: the copy task of Graves et al. 2014, "Neural Turing Machines", section 4.1, with symbols for bit vectors.
    """

    def rearranged(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows
