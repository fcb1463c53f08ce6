"""Say the input backwards."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnbench.tasks.base import register_task
from attnbench.tasks.transduction import Transduction

__all__ = ["Reverse"]


@register_task("reverse")
class Reverse(Transduction):
    """The answer is the input from its last token to its first. Where an answer begins depends on the input's length.

    Args: as Transduction.

    Source: the reversal task of Grefenstette et al. 2015, "Learning to Transduce with Unbounded Memory", section 4.1.
    """

    def rearranged(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        mirrored = lengths[:, None] - 1 - np.arange(rows.shape[1])
        return np.take_along_axis(rows, np.maximum(mirrored, 0), axis=1)
