"""Copy, reverse and sort: the right answer, whatever the length, and what a decoder reads."""

from __future__ import annotations

import pytest
import torch

from attnbench.errors import UserError
from attnbench.tasks import IGNORE, create_task
from attnbench.tasks.transduction import END, START

SMALL = {"train": 200, "validation": 20, "test": 60, "length": 9, "shortest": 1, "symbols": 5}
ANSWER = {"copy": list, "reverse": lambda row: row[::-1], "sort": sorted}


@pytest.mark.parametrize("name", sorted(ANSWER))
def test_answers(name):
    task = create_task(name, **SMALL)
    dataset = task.dataset("test")
    lengths = set()
    for index in range(len(dataset)):
        item = dataset[index]
        row = item.inputs.tolist()
        lengths.add(len(row))
        assert int(item.slices["length"]) == len(row)
        assert item.targets.tolist() == [*ANSWER[name](row), END]
        assert all(3 <= token < task.vocab for token in row)
    assert lengths >= {3, 9}


@pytest.mark.parametrize("name", sorted(ANSWER))
def test_a_decoder_reads_the_answer_behind_the_start(name):
    batch = create_task(name, **SMALL).batch("test")
    assert (batch.decoder_inputs[:, 0] == START).all()
    real = batch.targets[:, :-1] != IGNORE
    assert torch.equal(batch.decoder_inputs[:, 1:][real], batch.targets[:, :-1][real])
    assert (batch.decoder_inputs[:, 1:][~real] == 0).all()


def test_baselines_are_what_they_say():
    task = create_task("copy", **SMALL)
    batch = task.batch("test")
    right = total = repeated = 0
    for inputs, mask, targets, read in zip(
        batch.inputs, batch.key_mask, batch.targets, batch.decoder_inputs, strict=True
    ):
        counted = targets != IGNORE
        symbols = inputs[mask].tolist()
        votes = [symbols.count(token) for token in range(task.vocab)]
        commonest = int((targets == votes.index(max(votes))).sum())
        right, total = right + commonest, total + int(counted.sum())
        repeated += int((targets == read)[counted].sum())
    baselines = task.baselines()
    assert baselines["commonest symbol seen"] == pytest.approx(right / total)
    assert baselines["the token before"] == pytest.approx(repeated / total)
    assert 0 < baselines["constant"] < 0.4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shortest": 40}, r"task sort: shortest must lie in 1 .. length = 32, received 40"),
        ({"symbols": 1}, "task sort: symbols must be at least 2, received 1"),
    ],
)
def test_bad_options_are_one_clear_line(options, said):
    with pytest.raises(UserError, match=said):
        create_task("sort", **options)
