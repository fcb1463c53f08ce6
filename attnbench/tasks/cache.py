"""Data made once and kept on disk, under a name that says all that defines it."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

__all__ = ["Arrays", "cache_directory", "cached", "code_digest", "compact", "digest"]

Arrays = dict[str, NDArray[Any]]


def cache_directory() -> Path:
    """The folder of generated and prepared data: $ATTNBENCH_CACHE, or attnbench in $XDG_CACHE_HOME, or in ~/.cache."""
    chosen = os.environ.get("ATTNBENCH_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnbench"


def cached(name: str, key: str, make: Callable[[], Mapping[str, NDArray[Any]]]) -> Arrays:
    """The arrays that `make` gives, read from disk where they were made before under this name and key.

    Two processes that want the same data make it once. A damaged file is made again. No pickle is ever loaded.
    """
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{key}.npz"
    with FileLock(path.with_suffix(".lock")):
        try:
            return _read(path)
        except (FileNotFoundError, zipfile.BadZipFile, ValueError, EOFError, KeyError):
            arrays = {label: compact(array) for label, array in make().items()}
            _write(path, arrays)
            return arrays


def _read(path: Path) -> Arrays:
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        return {label: archive[label] for label in archive.files}


def _write(path: Path, arrays: Arrays) -> None:
    """Under another name first, so that no reader ever meets half a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def compact(array: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in the smallest signed type that holds them all; anything else as it is."""
    if array.dtype.kind not in "iu" or array.size == 0:
        return array
    low, high = int(array.min()), int(array.max())
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


def code_digest(cls: type, *modules: str) -> str:
    """A hash of the source that makes a task's data: of the modules of its class and its bases, and of others by name.

    A class that was defined interactively has no source; its data is then told apart by its options alone.
    """
    names = {base.__module__ for base in cls.__mro__ if base is not object}.union(modules)
    sources = []
    for name in sorted(names):
        try:
            sources.append(inspect.getsource(sys.modules[name]))
        except (OSError, TypeError):
            sources.append(name)
    return digest(*sources)


def digest(*parts: bytes | str) -> str:
    """A short hash of texts and bytes, the same in every process."""
    total = hashlib.sha256()
    for part in parts:
        piece = part.encode() if isinstance(part, str) else part
        total.update(len(piece).to_bytes(8, "little") + piece)
    return total.hexdigest()[:16]
