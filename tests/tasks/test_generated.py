"""Splits never meet, streams never change, and what is cached is what was drawn."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from attnbench.errors import UserError
from attnbench.tasks import IGNORE, create_task
from attnbench.tasks.cache import cache_directory, cached, code_digest, compact, digest
from attnbench.tasks.generated import Examples, Generated, row_hashes, split_of

SMALL = {"train": 300, "validation": 40, "test": 50}


class Digits(Generated):
    """Numbers below `space`, written in one token; the label is their parity."""

    name = "digits-below"

    def __init__(self, *, space: int, **sizes: int) -> None:
        super().__init__(space=space, **sizes)
        self.length, self.vocab, self.classes, self.space = 1, space, 2, space

    def draw(self, rng: np.random.Generator, count: int) -> Examples:
        inputs = rng.integers(0, self.space, (count, 1))
        return Examples(inputs, inputs[:, 0] % 2)


def rows(task: Generated, split: str) -> set[tuple[int, ...]]:
    batch = task.batch(split)
    return {tuple(row[mask].tolist()) for row, mask in zip(batch.inputs, batch.key_mask, strict=True)}


@pytest.mark.parametrize(
    "sizes", [SMALL, {"train": 1, "validation": 1, "test": 1}, {"train": 9, "validation": 60, "test": 3}]
)
def test_splits_have_their_sizes_and_share_nothing(sizes):
    task = create_task("mqar", length=16, pairs=2, vocab=16, **sizes)
    found = {split: rows(task, split) for split in sizes}
    assert {split: len(examples) for split, examples in found.items()} == sizes
    assert not found["train"] & found["validation"]
    assert not found["train"] & found["test"]
    assert not found["validation"] & found["test"]


def test_a_larger_split_begins_with_the_smaller_and_leaves_the_others_alone():
    small = create_task("mqar", **SMALL)
    large = create_task("mqar", **{**SMALL, "train": 6000})
    assert torch.equal(small.batch("test").inputs, large.batch("test").inputs)
    assert torch.equal(small.batch("train").inputs, large.batch("train").inputs[:300])


def test_a_space_that_is_too_small_is_an_error_and_not_a_leak():
    Digits(space=100, train=40, validation=3, test=3).batch("train")
    with pytest.raises(
        UserError, match=r"about 100 different examples exist under \{'space': 100\}, too few for 95 train"
    ):
        Digits(space=100, train=95, validation=3, test=3).batch("train")


def test_the_same_data_in_another_process_under_another_hash_seed(tmp_path):
    script = (
        "from attnbench.tasks import create_task;"
        f"print(*(create_task(name, **{SMALL!r}).data_hash() for name in ('mqar', 'sort', 'listops')))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed, "ATTNBENCH_CACHE": str(tmp_path / seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1


def test_other_options_give_other_data():
    hashes = {
        create_task("mqar", **options, **SMALL).data_hash() for options in ({}, {"gaps": "uniform"}, {"vocab": 66})
    }
    assert len(hashes) == 3


def test_data_is_drawn_once_and_read_after(monkeypatch):
    first = create_task("mqar", **SMALL).batch("test")
    monkeypatch.setattr("attnbench.tasks.mqar.Mqar.draw", None)
    again = create_task("mqar", **SMALL).batch("test")
    for name in ("inputs", "targets", "key_mask"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert torch.equal(first.slices["gap"], again.slices["gap"])


def test_changed_source_is_drawn_anew(monkeypatch):
    sort, reverse = (type(create_task(name, **SMALL)) for name in ("sort", "reverse"))
    assert code_digest(sort) == code_digest(sort) != code_digest(reverse)
    before = code_digest(sort)
    source = inspect.getsource(sys.modules["attnbench.tasks.transduction"])
    monkeypatch.setattr(inspect, "getsource", lambda module: source + "#" if "transduction" in module.__name__ else "")
    changed = code_digest(sort)
    monkeypatch.setattr(inspect, "getsource", lambda module: source if "transduction" in module.__name__ else "")
    assert len({before, changed, code_digest(sort)}) == 3


def test_a_class_without_source_has_a_digest_still():
    interactive = type("Interactive", (Digits,), {"__module__": "builtins"})
    assert code_digest(interactive) != code_digest(Digits)


def test_a_damaged_cache_is_made_again():
    made = []

    def make():
        made.append(1)
        return {"x": np.arange(300)}

    cached("some", "key", make)
    cached("some", "key", make)
    assert len(made) == 1
    (path,) = cache_directory().glob("some-key.npz")
    path.write_bytes(path.read_bytes()[:100])
    np.testing.assert_array_equal(cached("some", "key", make)["x"], np.arange(300))
    assert len(made) == 2


def test_the_cache_goes_where_it_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("ATTNBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "attnbench"


@pytest.mark.parametrize(
    ("values", "kind"), [([0, 127], "int8"), ([-100, 128], "int16"), ([0, 40_000], "int32"), ([2**40], "int64")]
)
def test_numbers_are_stored_in_the_smallest_type(values, kind):
    array = compact(np.array(values))
    assert array.dtype == kind
    assert array.tolist() == values


def test_digests_tell_the_parts_apart():
    assert digest("ab", "c") != digest("a", "bc")


def test_hashes_spread_over_splits_in_their_shares():
    hashes = row_hashes(np.arange(50_000)[:, None])
    assert len(np.unique(hashes)) == 50_000
    assert row_hashes(np.array([[1, 2]])) != row_hashes(np.array([[2, 1]]))
    np.testing.assert_allclose(np.bincount(split_of(hashes)) / 50_000, [0.8, 0.1, 0.1], atol=0.01)


def test_items_and_batches_say_the_same():
    task = create_task("mqar", **SMALL)
    dataset, batch = task.dataset("test"), task.batch("test")
    collated = task.collate([dataset[index] for index in (3, 7)])
    picked = batch.rows(torch.tensor([3, 7]))
    assert torch.equal(collated.inputs, picked.inputs)
    assert torch.equal(collated.targets, picked.targets)
    assert torch.equal(collated.slices["gap"], picked.slices["gap"])
    assert len(list(dataset)) == len(batch) == 50
    assert (batch.slices["gap"][batch.targets == IGNORE] == IGNORE).all()


def test_an_unknown_split_is_named():
    with pytest.raises(UserError, match="unknown split 'dev'; valid: train, validation, test"):
        create_task("mqar", **SMALL).batch("dev")
