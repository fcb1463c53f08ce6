"""Say the input in ascending order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnbench.tasks.base import PAD, register_task
from attnbench.tasks.transduction import Transduction

__all__ = ["Sort"]


@register_task("sort")
class Sort(Transduction):
    """The answer is the input's symbols in ascending order, repetitions kept. Every token of it depends on the whole input.

    Args: as Transduction.

    Source: the priority sort of Graves et al. 2014, "Neural Turing Machines", section 4.5, each symbol being its own
    priority.
    """

    def rearranged(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.sort(np.where(rows == PAD, self.vocab, rows), axis=1)
