"""Language modelling: the next byte of real text."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from attnbench.errors import UserError
from attnbench.tasks.base import IGNORE, SPLITS, Batch, Score, register_task
from attnbench.tasks.cache import digest
from attnbench.tasks.corpus import Corpus, byte_tokens

__all__ = ["ByteLm"]


@register_task("byte-lm")
class ByteLm(Corpus):
    """The next byte, in bits per byte: the mean of -log2 of the probability given to the byte that came. Lower is better.

    The text is the source of Python's standard library, split by files, or any text file, of which the first eight
    tenths are train, the next validation and the last test.

    Baselines, with counts from train and one added to each: `constant`, the bytes' frequencies; `the byte before`,
    their frequencies after each byte. And `zlib`, what that compressor takes for the test text.

    Args:
        length: bytes of a window. file: a text file; None: the standard library. train, validation, test: at most so
        many windows.

    Raises:
        UserError: the file does not exist, or is too short for three splits.
    """

    causal = (True,)
    classes = 257
    metric = "bits per byte"
    unit = "bits"
    higher_is_better = False

    def __init__(
        self,
        *,
        length: int = 256,
        file: str | None = None,
        train: int = 8_000,
        validation: int = 500,
        test: int = 1_000,
    ) -> None:
        if file is not None and not Path(file).is_file():
            raise UserError(f"task byte-lm: file {file!r} does not exist")
        self.file = None if file is None else Path(file)
        super().__init__(length=length, train=train, validation=validation, test=test, file=file)

    def texts(self) -> Iterator[tuple[str, str]]:
        if self.file is None:
            return super().texts()
        text = self.file.read_text(encoding="utf-8", errors="replace")
        ends = [0, len(text) * 8 // 10, len(text) * 9 // 10, len(text)]
        return ((split, text[begin:end]) for split, begin, end in zip(SPLITS, ends[:-1], ends[1:], strict=True))

    def source(self) -> str:
        return super().source() if self.file is None else digest(self.file.read_bytes())

    def labelled(self, text: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
        tokens = byte_tokens(text)
        return tokens[:-1], tokens[1:]

    def score(self, logits: Tensor, batch: Batch) -> Score:
        """Bits in total over the bytes counted, so that the score's value is bits per byte."""
        nats = torch.nn.functional.cross_entropy(
            logits.flatten(0, -2).float(), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"
        )
        return Score(float(nats) / math.log(2), int((batch.targets != IGNORE).sum()))

    def baselines(self) -> dict[str, float]:
        train, test = self.batch("train"), self.batch("test")
        return {
            "constant": _bits(train, test, 1, lambda batch: torch.zeros_like(batch.inputs)),
            "the byte before": _bits(train, test, 257, lambda batch: batch.inputs),
            "zlib": _zlib_bits(test),
        }


def _bits(train: Batch, test: Batch, size: int, feature: Any) -> float:
    """Bits per byte on test under frequencies given a feature, smoothed by one count for each of the 256 bytes."""
    counted = train.targets != IGNORE
    flat = feature(train)[counted] * 257 + train.targets[counted]
    counts = torch.bincount(flat, minlength=size * 257).view(size, 257).double()
    counts[:, 1:] += 1
    probability = counts / counts.sum(dim=1, keepdim=True)
    counted = test.targets != IGNORE
    return float(-probability[feature(test)[counted], test.targets[counted]].log2().mean())


def _zlib_bits(test: Batch) -> float:
    text = bytes((test.targets[test.targets != IGNORE] - 1).tolist())
    return 8 * len(zlib.compress(text, 9)) / len(text)
