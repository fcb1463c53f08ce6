"""Tasks over windows of real text: by default Python's standard library, whose source is on every user's machine."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnbench.errors import UserError
from attnbench.tasks.base import IGNORE, PAD, SPLITS, Batch, Item, Rows, Task
from attnbench.tasks.cache import Arrays, cached, code_digest, digest
from attnbench.tasks.generated import row_hashes

__all__ = ["Corpus", "byte_tokens", "split_of_text", "standard_library"]

LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
SPARE = 1.3  # windows prepared for each that is asked for, since some will be duplicates


class Corpus(Task):
    """The base class of tasks over text; a subclass labels a file's bytes in `labelled`.

    Whole files belong to a split, by a hash of their content; windows do not overlap, are in random but fixed order,
    and none is in two splits or twice in one. A file's last window is padded. Where there is less text than asked
    for, a split is smaller.

    Args:
        length: bytes of a window. train, validation, test: at most so many windows.
        options: all else that defines the data, JSON-ready.
    """

    answer = "tokens"
    vocab = 257  # padding, and a token for each byte

    def __init__(self, *, length: int, train: int, validation: int, test: int, **options: Any) -> None:
        self.sizes = dict(zip(SPLITS, (train, validation, test), strict=True))
        for name, value in {"length": length, **self.sizes}.items():
            if not isinstance(value, int) or value < 1:
                raise UserError(f"task {self.name}: {name} must be a whole number of at least 1, received {value!r}")
        self.length = length
        self.options = {"length": length, **options, **self.sizes}
        self._arrays: Arrays | None = None

    def labelled(self, text: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """The tokens of a text's bytes, and their targets; None leaves the text out."""
        raise NotImplementedError

    def texts(self) -> Iterator[tuple[str, str]]:
        """The texts, each with its split."""
        texts = sorted(standard_library(), key=_content)  # in an order that has nothing to do with what they are about
        return ((split_of_text(text), text) for text in texts)

    def source(self) -> str:
        """A fingerprint of where the texts come from."""
        root = _library()
        return digest(
            *(f"{path.relative_to(root)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in _modules(root))
        )

    def batch(self, split: str, seed: int = 0) -> Batch:
        if split not in self.sizes:
            raise UserError(f"task {self.name}: unknown split {split!r}; valid: {', '.join(SPLITS)}")
        inputs = _tensor(self._all()[f"{split}/inputs"])
        targets = _tensor(self._all()[f"{split}/targets"])
        return Batch(inputs, inputs != PAD, targets, slices=self.sliced(targets))

    def sliced(self, targets: Tensor) -> dict[str, Tensor]:
        """The slices of a split, out of its targets."""
        return {}

    def dataset(self, split: str, seed: int = 0) -> torch.utils.data.Dataset[Item]:
        return Rows(self.batch(split, seed))

    def data_hash(self) -> str:
        return digest(*(name.encode() + array.tobytes() for name, array in sorted(self._all().items())))

    def _all(self) -> Arrays:
        if self._arrays is None:
            definition = json.dumps(self.options, sort_keys=True)
            key = digest(definition, self.source(), sys.version, code_digest(type(self)))
            self._arrays = cached(self.name, key, self._prepare)
        return self._arrays

    def _prepare(self) -> Arrays:
        inputs: dict[str, list[NDArray[Any]]] = {split: [] for split in SPLITS}
        targets: dict[str, list[NDArray[Any]]] = {split: [] for split in SPLITS}
        missing = {split: int(SPARE * size) + 1 for split, size in self.sizes.items()}
        for split, text in self.texts():
            labelled = self.labelled(text) if missing[split] > 0 else None
            if labelled is None or len(labelled[0]) == 0:
                continue
            inputs[split].append(_windows(labelled[0], self.length, PAD))
            targets[split].append(_windows(labelled[1], self.length, IGNORE))
            missing[split] -= len(inputs[split][-1])
            if not any(count > 0 for count in missing.values()):
                break
        for split in SPLITS:
            if not inputs[split]:
                raise UserError(f"task {self.name}: the text holds nothing for the {split} split; give more of it")
        joined = {split: np.concatenate(rows) for split, rows in inputs.items()}
        answers = {split: np.concatenate(rows) for split, rows in targets.items()}
        arrays = {}
        for split, rows in _chosen(joined, self.sizes).items():
            arrays[f"{split}/inputs"], arrays[f"{split}/targets"] = joined[split][rows], answers[split][rows]
        return arrays


def byte_tokens(text: str) -> NDArray[np.int64]:
    """A token for each byte of a text in UTF-8: its value and one, since 0 is padding."""
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int64) + 1


def standard_library() -> Iterator[str]:
    """The text of every module of the standard library, with newlines as "\\n", in the order of their paths.

    Left out are other packages, the library's own tests (which not every installation has, and which hold broken
    source on purpose), and files that cannot be decoded.
    """
    for path in _modules(_library()):
        try:
            with tokenize.open(path) as file:
                yield file.read()
        except (SyntaxError, UnicodeDecodeError):
            continue


def split_of_text(text: str) -> str:
    """The split that a file belongs to, by its content: of ten files, one is validation and one test."""
    return SPLITS[max(0, _content(text)[0] % 10 - 7)]


def _content(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _modules(root: Path) -> list[Path]:
    paths = [path for path in root.rglob("*.py") if LEFT_OUT.isdisjoint(path.relative_to(root).parts)]
    return sorted(paths, key=lambda path: path.relative_to(root).as_posix())


def _windows(row: NDArray[Any], length: int, fill: int) -> NDArray[np.int64]:
    """A row cut into (count, length), the last window filled up."""
    count = -(-len(row) // length)
    padded = np.full(count * length, fill)
    padded[: len(row)] = row
    return padded.reshape(count, length)


def _chosen(inputs: dict[str, NDArray[Any]], sizes: dict[str, int]) -> dict[str, NDArray[np.int64]]:
    """Rows of each split to use, at most its size. Two files may hold the same window, such as a licence's text."""
    rng = np.random.default_rng(0)
    taken = np.zeros(0, np.uint64)
    rows = {}
    for split in SPLITS:
        hashes, first = np.unique(row_hashes(inputs[split]), return_index=True)
        fresh = np.sort(first[~np.isin(hashes, taken)])
        taken = np.union1d(taken, hashes)
        rows[split] = rng.permutation(fresh)[: sizes[split]]
    return rows


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))
