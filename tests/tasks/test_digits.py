"""Scanned digits, from scikit-learn where it is installed."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from attnbench.errors import UserError
from attnbench.tasks import create_task


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"scikit-learn is not installed, which ships the images; pip install 'attnbench\[data\]'"
    ):
        create_task("digits")


def test_digits():
    pytest.importorskip("sklearn")
    task = create_task("digits")
    batches = [task.batch(split) for split in ("train", "validation", "test")]
    assert sum(map(len, batches)) == 1797
    images = [{tuple(row.tolist()) for row in batch.inputs} for batch in batches]
    assert len(set.union(*images)) == sum(map(len, images))
    assert all(batch.inputs.shape[1] == 64 and batch.inputs.min() >= 1 for batch in batches)
    assert max(int(batch.inputs.max()) for batch in batches) == 17 < task.vocab
    assert torch.cat([batch.targets for batch in batches]).unique().tolist() == list(range(10))
    baselines = task.baselines()
    assert baselines["constant"] < baselines["one pixel"] < 0.4
    item = task.dataset("test")[0]
    assert item.inputs.shape == (64,)
    assert item.targets.shape == ()
    assert task.data_hash() == create_task("digits").data_hash()
