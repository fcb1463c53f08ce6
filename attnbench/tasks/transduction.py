"""What the tasks share that answer a sequence of symbols with a rearrangement of it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from attnbench.errors import UserError
from attnbench.tasks.base import IGNORE, PAD
from attnbench.tasks.generated import Examples, Generated, constant_baseline

__all__ = ["END", "START", "Transduction"]

START, END, FIRST = 1, 2, 3  # the tokens before the symbols; 0 is padding


class Transduction(Generated):
    """The base class of copy, reverse and sort: an encoder reads symbols, a decoder writes them rearranged and an end token.

    Lengths are uniform from `shortest` to `length`, symbols uniform among `symbols`. Accuracy is by token, with the
    true tokens before it given. Slice: `length`, the number of symbols.

    Baselines: `constant`; `commonest symbol seen`, the input's most frequent symbol at every place; `the token
    before`, which says the decoder's last token again.
    """

    answer = "sequence"
    causal = (True,)
    start = START

    def __init__(
        self,
        *,
        length: int = 32,
        shortest: int | None = None,
        symbols: int = 16,
        train: int = 20_000,
        validation: int = 1_000,
        test: int = 2_000,
    ) -> None:
        shortest = length // 2 if shortest is None else shortest
        if not 1 <= shortest <= length:
            raise UserError(f"task {self.name}: shortest must lie in 1 .. length = {length}, received {shortest}")
        if symbols < 2:
            raise UserError(f"task {self.name}: symbols must be at least 2, received {symbols}")
        super().__init__(
            train=train, validation=validation, test=test, length=length, shortest=shortest, symbols=symbols
        )
        self.length, self.shortest, self.output_length = length, shortest, length + 1
        self.vocab = self.classes = FIRST + symbols

    def rearranged(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The answers to symbols (count, length), PAD from `lengths` (count,) on; what the answers hold there is ignored."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, count: int) -> Examples:
        lengths = rng.integers(self.shortest, self.length, count, endpoint=True)
        rows = rng.integers(FIRST, self.vocab, (count, self.length))
        place = np.arange(self.length)
        rows[place >= lengths[:, None]] = PAD
        targets = np.full((count, self.length + 1), IGNORE)
        targets[:, :-1] = np.where(place < lengths[:, None], self.rearranged(rows, lengths), IGNORE)
        targets[np.arange(count), lengths] = END
        return Examples(rows, targets, lengths, {"length": lengths})

    def baselines(self) -> dict[str, float]:
        batch = self.batch("test")
        assert batch.decoder_inputs is not None
        counted = batch.targets != IGNORE
        seen = torch.zeros(len(batch), self.vocab, dtype=torch.int64)
        seen.scatter_add_(1, batch.inputs, batch.key_mask.long())
        commonest = seen.argmax(dim=1, keepdim=True)
        return {
            "constant": constant_baseline(self),
            "commonest symbol seen": float((batch.targets == commonest)[counted].double().mean()),
            "the token before": float((batch.targets == batch.decoder_inputs)[counted].double().mean()),
        }
