"""Tasks whose examples are drawn: seeded, without duplicates, and split by what an example is, not by when it was drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnbench.errors import UserError
from attnbench.tasks.base import SPLITS, Batch, Item, Rows, Task
from attnbench.tasks.cache import Arrays, cached, code_digest, digest

__all__ = ["Examples", "Generated", "constant_baseline", "row_hashes", "split_of"]

SHARES = (8, 1, 1)  # of the space of all examples: train, validation, test
BARREN = 0.02  # a chunk that brings a smaller share of new examples than this says that the space is used up


@dataclass(frozen=True)
class Examples:
    """Drawn examples: inputs (count, n), targets as the answer's shape says, lengths (count,) where shorter than n.

    `slices` as in Item, with a leading axis.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    lengths: NDArray[Any] | None = None
    slices: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def arrays(self) -> Arrays:
        arrays = {"inputs": self.inputs, "targets": self.targets}
        if self.lengths is not None:
            arrays["lengths"] = self.lengths
        return arrays | {f"slice:{name}": values for name, values in self.slices.items()}


class Generated(Task):
    """The base class of generated tasks; a subclass writes `draw`.

    Examples come from one stream that is seeded by the task's options alone. The hash of an example's inputs says
    which split it belongs to, and none is taken twice: the splits are disjoint, whatever their sizes, and a larger
    split begins with the smaller one. Training data is the same for every seed, which then decides initial weights
    and order.

    Args:
        train, validation, test: numbers of examples.
        options: all else that defines the examples, JSON-ready.
    """

    chunk: ClassVar[int] = 4096  # examples drawn at a time; part of what defines the stream
    drawn_by: ClassVar[
        tuple[str, ...]
    ] = ()  # further modules that define the examples: when they change, data is drawn anew

    def __init__(self, *, train: int, validation: int, test: int, **options: Any) -> None:
        self.sizes = dict(zip(SPLITS, (train, validation, test), strict=True))
        for split, size in self.sizes.items():
            if not isinstance(size, int) or size < 1:
                raise UserError(f"task {self.name}: {split} must be a whole number of at least 1, received {size!r}")
        self.defining = options
        self.options = {**options, **self.sizes}
        self._arrays: Arrays | None = None
        self._batches: dict[str, Batch] = {}

    def draw(self, rng: np.random.Generator, count: int) -> Examples:
        """About `count` examples, all of one width."""
        raise NotImplementedError

    def batch(self, split: str, seed: int = 0) -> Batch:
        if split not in self.sizes:
            raise UserError(f"task {self.name}: unknown split {split!r}; valid: {', '.join(SPLITS)}")
        if split not in self._batches:
            prefix = f"{split}/"
            mine = {name.removeprefix(prefix): array for name, array in self._all().items() if name.startswith(prefix)}
            self._batches[split] = self._collated(mine)
        return self._batches[split]

    def dataset(self, split: str, seed: int = 0) -> torch.utils.data.Dataset[Item]:
        return Rows(self.batch(split, seed))

    def data_hash(self) -> str:
        return digest(*(name.encode() + array.tobytes() for name, array in sorted(self._all().items())))

    def _collated(self, arrays: Arrays) -> Batch:
        inputs, targets = _tensor(arrays["inputs"]), _tensor(arrays["targets"])
        lengths = _tensor(arrays["lengths"]) if "lengths" in arrays else torch.full((len(inputs),), inputs.shape[1])
        key_mask = torch.arange(inputs.shape[1])[None] < lengths[:, None]
        decoder_inputs = self.shifted(targets) if self.answer == "sequence" else None
        slices = {
            name.removeprefix("slice:"): _tensor(array) for name, array in arrays.items() if name.startswith("slice:")
        }
        return Batch(inputs, key_mask, targets, decoder_inputs, slices)

    def _all(self) -> Arrays:
        """Every split's arrays, under names such as train/inputs."""
        if self._arrays is None:
            definition = json.dumps([self.defining, self.sizes], sort_keys=True)
            key = digest(definition, code_digest(type(self), *self.drawn_by))
            self._arrays = cached(self.name, key, self._generate)
        return self._arrays

    def _generate(self) -> Arrays:
        kept: dict[str, list[Arrays]] = {split: [] for split in SPLITS}
        missing = dict(self.sizes)
        seen = np.zeros(0, np.uint64)
        for arrays in self._stream():
            hashes = row_hashes(arrays["inputs"])
            fresh, first = np.unique(hashes, return_index=True)
            first = np.sort(first[~np.isin(fresh, seen, assume_unique=True)])
            seen = np.union1d(seen, fresh)
            if len(first) < BARREN * len(hashes):
                wanted = ", ".join(f"{size} {split}" for split, size in self.sizes.items())
                raise UserError(
                    f"task {self.name}: about {len(seen)} different examples exist under {self.defining}, too few for "
                    f"{wanted}; ask for fewer, or for longer ones"
                )
            belongs = split_of(hashes[first])
            for number, split in enumerate(SPLITS):
                rows = first[belongs == number][: missing[split]]
                missing[split] -= len(rows)
                kept[split].append({name: array[rows] for name, array in arrays.items()})
            if not any(missing.values()):
                break
        return {
            f"{split}/{name}": np.concatenate([piece[name] for piece in pieces])
            for split, pieces in kept.items()
            for name in pieces[0]
        }

    def _stream(self) -> Iterator[Arrays]:
        """Chunk after chunk, each from a generator of its own."""
        entropy = int(digest(self.name, json.dumps(self.defining, sort_keys=True)), 16)
        for child in _children(entropy):
            yield self.draw(np.random.default_rng(child), self.chunk).arrays()


def _children(entropy: int) -> Iterator[np.random.SeedSequence]:
    number = 0
    while True:
        yield np.random.SeedSequence(entropy, spawn_key=(number,))
        number += 1


def row_hashes(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """A 64-bit hash of each row (count, n) of whole numbers, the same on every machine."""
    weights = np.random.default_rng(0).integers(0, 2**64, rows.shape[1] + 1, dtype=np.uint64) | np.uint64(1)
    with np.errstate(over="ignore"):
        total = (rows.astype(np.uint64) * weights[:-1]).sum(axis=1, dtype=np.uint64) + weights[-1]
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # SplitMix64's mixing
            total = (total ^ (total >> np.uint64(shift))) * np.uint64(factor)
    return total ^ (total >> np.uint64(31))


def split_of(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Which split (0 train, 1 validation, 2 test) an example with this hash belongs to."""
    place = (hashes % np.uint64(sum(SHARES))).astype(np.int64)
    return np.searchsorted(np.cumsum(SHARES), place, side="right")


def constant_baseline(task: Task) -> float:
    """Accuracy on test of the answer most common in train."""
    train, test = task.batch("train").targets, task.batch("test").targets
    counted = test[test >= 0]
    return float((counted == train[train >= 0].mode().values).double().mean())


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))
