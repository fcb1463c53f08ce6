"""Scanned digits, a token per pixel."""

from __future__ import annotations

import importlib.util

import numpy as np
import torch
from torch import Tensor

from attnbench.errors import UserError
from attnbench.tasks.base import SPLITS, Batch, Item, Rows, Task, register_task
from attnbench.tasks.cache import digest
from attnbench.tasks.generated import constant_baseline, row_hashes

__all__ = ["Digits"]


@register_task("digits")
class Digits(Task):
    """Which digit is it? 8 x 8 pixels of 17 grey levels, read row by row: 64 tokens, 10 classes, 1,797 images.

    A hash of the image says which split it is in: about six tenths train, two validation, two test.

    Baselines: `constant`; `mean pixel`, the digit most common in train at the image's mean; `one pixel`, the same for
    the one pixel of the 64 that tells most.

    Raises UserError where scikit-learn, which ships the images, is not installed.

    Source: the test part of Alpaydin & Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI, as in
    scikit-learn.
    """

    answer = "label"
    causal = (False,)
    length = 64
    vocab = 18  # padding, and 17 grey levels
    classes = 10

    def __init__(self) -> None:
        if importlib.util.find_spec("sklearn") is None:
            raise UserError(
                "task digits: scikit-learn is not installed, which ships the images; pip install 'attnbench[data]'"
            )
        self.options = {}
        self._batches: dict[str, Batch] | None = None

    def batch(self, split: str, seed: int = 0) -> Batch:
        if split not in SPLITS:
            raise UserError(f"task digits: unknown split {split!r}; valid: {', '.join(SPLITS)}")
        if self._batches is None:
            self._batches = _splits()
        return self._batches[split]

    def dataset(self, split: str, seed: int = 0) -> torch.utils.data.Dataset[Item]:
        return Rows(self.batch(split, seed))

    def data_hash(self) -> str:
        batches = [self.batch(split) for split in SPLITS]
        return digest(*(tensor.numpy().tobytes() for batch in batches for tensor in (batch.inputs, batch.targets)))

    def baselines(self) -> dict[str, float]:
        train, test = self.batch("train"), self.batch("test")

        def mean(batch: Batch) -> Tensor:
            return batch.inputs.double().mean(dim=1).round().long()

        pixels = [_told(train.inputs[:, pixel], train, train.inputs[:, pixel], train) for pixel in range(self.length)]
        best = int(np.argmax(pixels))
        return {
            "constant": constant_baseline(self),
            "mean pixel": _told(mean(train), train, mean(test), test),
            "one pixel": _told(train.inputs[:, best], train, test.inputs[:, best], test),
        }


def _splits() -> dict[str, Batch]:
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = loaded.data.astype(np.int64)
    place = (row_hashes(images) % np.uint64(10)).astype(np.int64)
    batches = {}
    for number, split in enumerate(SPLITS):
        rows = np.searchsorted([6, 8], place, side="right") == number
        inputs = torch.from_numpy(images[rows] + 1)
        targets = torch.from_numpy(loaded.target[rows].astype(np.int64))
        batches[split] = Batch(inputs, torch.ones_like(inputs, dtype=torch.bool), targets)
    return batches


def _told(feature: Tensor, train: Batch, of: Tensor, test: Batch) -> float:
    """Accuracy on test of the answer most common in train at the same value of a feature."""
    table = torch.zeros(64, 10)
    table.index_put_((feature, train.targets), torch.ones(len(feature)), accumulate=True)
    return float((table.argmax(dim=1)[of] == test.targets).double().mean())
