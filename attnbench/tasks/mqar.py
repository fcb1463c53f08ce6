"""Multi-query associative recall: pairs of key and value, then keys again, each to be answered with its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnbench.errors import UserError, nearest
from attnbench.tasks.base import IGNORE, register_task
from attnbench.tasks.generated import Examples, Generated, constant_baseline

__all__ = ["GAPS", "Mqar"]

GAPS = {"power": 0.01, "uniform": 1.0}  # the exponent a of the gaps' distribution
FILLERS = ("zero", "random")


@register_task("mqar")
class Mqar(Generated):
    """Multi-query associative recall.

    The first 2 `pairs` tokens alternate key and value: keys from 1 .. vocab/2 - 1, values from vocab/2 .. vocab - 1,
    each without replacement. The remaining tokens form (length - 2 pairs) / 2 slots; each key comes again at the
    start of a slot of its own, and the label there is its value. No other token has a label. Slot i (from 1) is drawn
    with weight i^(a-1): a = .01 for gaps "power", which puts most of them close behind the pairs, and a = 1 for
    "uniform".

    Slices: `gap`, the distance from a query back to its value, as the power of two that it does not exceed; `pairs`.
    Baselines: `constant`, and `any value seen`, which answers with one of the values that stand in the context: 1 /
    pairs. Curriculum: sequences without filler, of 4, 8, ... pairs at the shortest length that holds them, take the
    first half of the budget; without it, training stays at that last baseline for long.

    Args:
        length: tokens, even. pairs: at most length / 4. vocab: even, with a key and a value for each pair.
        gaps: "power" | "uniform". filler: what stands where nothing else does, "zero" | "random" (any token but 0).
        curriculum: whether `stages` names easier tasks. train, validation, test: numbers of examples.

    Source: Arora et al. 2023, "Zoology", arXiv 2312.04927, section 3 and appendix A. They use vocab 8192 and 100,000
    examples.
    """

    answer = "tokens"
    causal = (True, False)

    def __init__(
        self,
        *,
        length: int = 64,
        pairs: int = 4,
        vocab: int = 64,
        gaps: str = "power",
        filler: str = "zero",
        curriculum: bool = True,
        train: int = 40_000,
        validation: int = 1_000,
        test: int = 2_000,
    ) -> None:
        for option, value, valid in (("gaps", gaps, tuple(GAPS)), ("filler", filler, FILLERS)):
            if value not in valid:
                raise UserError(
                    f"task mqar: unknown {option} {value!r}{nearest(value, valid)}; valid: {', '.join(valid)}"
                )
        if length % 2 or vocab % 2:
            raise UserError(f"task mqar: length and vocab must be even, received {length} and {vocab}")
        if not 1 <= pairs <= length // 4:
            raise UserError(f"task mqar: pairs must lie in 1 .. length / 4 = {length // 4}, received {pairs}")
        if pairs > vocab // 2 - 1:
            raise UserError(f"task mqar: {pairs} pairs need a vocab of at least {2 * pairs + 2}, received {vocab}")
        super().__init__(
            train=train,
            validation=validation,
            test=test,
            length=length,
            pairs=pairs,
            vocab=vocab,
            gaps=gaps,
            filler=filler,
        )
        self.length, self.pairs, self.vocab, self.classes = length, pairs, vocab, vocab
        self.gaps, self.filler, self.curriculum = gaps, filler, curriculum

    def draw(self, rng: np.random.Generator, count: int) -> Examples:
        half, pairs, begin = self.vocab // 2, self.pairs, 2 * self.pairs
        keys = 1 + distinct(rng, count, pairs, half - 1)
        values = half + distinct(rng, count, pairs, half)
        queries = begin + 2 * self._slots(rng, count)  # (count, pairs): where each key comes again

        filled = rng.integers(1, self.vocab, (count, self.length)) if self.filler == "random" else 0
        inputs = np.broadcast_to(filled, (count, self.length)).copy()
        inputs[:, 0:begin:2], inputs[:, 1:begin:2] = keys, values
        targets = np.full((count, self.length), IGNORE)
        gaps = np.full((count, self.length), IGNORE)
        np.put_along_axis(inputs, queries, keys, axis=1)
        np.put_along_axis(targets, queries, values, axis=1)
        distance = queries - np.arange(1, begin, 2)
        np.put_along_axis(gaps, queries, 2 ** np.ceil(np.log2(distance)).astype(np.int64), axis=1)
        return Examples(inputs, targets, slices={"gap": gaps, "pairs": np.full(count, pairs)})

    def _slots(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """One slot for each pair, without replacement: the largest of log-weights with Gumbel noise, in their order."""
        slots = (self.length - 2 * self.pairs) // 2
        weights = (GAPS[self.gaps] - 1) * np.log(np.arange(1, slots + 1))
        noisy = weights + rng.gumbel(size=(count, slots))
        return np.argsort(-noisy, axis=1, kind="stable")[:, : self.pairs]

    def stages(self) -> Sequence[Mapping[str, Any]]:
        grown = [pairs for pairs in (2**power for power in range(2, 20)) if pairs < self.pairs] + [self.pairs]
        dense = [pairs for pairs in grown if pairs > 1 and 4 * pairs < self.length]
        if not (self.curriculum and dense):
            return ()
        return [{"share": 0.5 / len(dense), "options": {"pairs": pairs, "length": 4 * pairs}} for pairs in dense]

    def baselines(self) -> dict[str, float]:
        return {"constant": constant_baseline(self), "any value seen": 1 / self.pairs}


def distinct(rng: np.random.Generator, count: int, size: int, space: int) -> NDArray[np.int64]:
    """(count, size) whole numbers from 0 .. space - 1, uniform and without replacement within a row."""
    if 4 * size >= space:
        return rng.random((count, space)).argsort(axis=1)[:, :size]
    rows = rng.integers(0, space, (count, size))
    while True:  # rows with a repetition are drawn again, which leaves the others as likely as they were
        ordered = np.sort(rows, axis=1)
        again = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        if not again.any():
            return rows
        rows[again] = rng.integers(0, space, (int(again.sum()), size))
