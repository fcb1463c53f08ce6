"""Counting: padding and batch size change no metric; registry and names."""

from __future__ import annotations

import pytest
import torch

from attnbench.errors import UserError
from attnbench.tasks import IGNORE, Batch, Item, Score, Task, create_task, list_tasks, register_task, task_class


class Toy(Task):
    """Labels every other token, in rows of different lengths."""

    name = "toy"
    answer = "tokens"
    length, vocab, classes = 9, 4, 3

    def dataset(self, split: str, seed: int = 0):
        generator = torch.Generator().manual_seed(0)
        items = []
        for _ in range(1003):
            n = int(torch.randint(1, 10, (), generator=generator))
            targets = torch.randint(0, 3, (n,), generator=generator)
            targets[1::2] = IGNORE
            items.append(Item(torch.randint(1, 4, (n,), generator=generator), targets, {"n": n}))
        return items


def answers(batch: Batch) -> torch.Tensor:
    """Logits that depend on the tokens alone."""
    return torch.nn.functional.one_hot(batch.inputs % 3, 3).float()


def total(task: Task, size: int) -> Score:
    items = task.dataset("test")
    score = Score(0.0, 0)
    for begin in range(0, len(items), size):
        batch = task.collate(items[begin : begin + size])
        score = score + task.score(answers(batch), batch)
    return score


def test_the_metric_is_the_same_at_every_batch_size_and_counts_no_padding():
    task = Toy()
    items = task.dataset("test")
    by_hand = [
        (int(token) % 3 == int(target))
        for item in items
        for token, target in zip(item.inputs, item.targets, strict=True)
        if target != IGNORE
    ]
    for size in (1, 32, 1003):
        score = total(task, size)
        assert (score.correct, score.total) == (sum(by_hand), len(by_hand))
        assert score.by_slice["n"] == total(task, 7).by_slice["n"]
        assert sum(count for _, count in score.by_slice["n"].values()) == score.total


def test_1003_labels_are_1003_at_every_batch_size():
    class Labels(Toy):
        answer = "label"

        def dataset(self, split: str, seed: int = 0):
            return [Item(item.inputs, item.inputs[0] % 3) for item in super().dataset(split, seed)]

    def right(batch: Batch) -> torch.Tensor:
        return torch.nn.functional.one_hot(batch.inputs[:, 0] % 3, 3).float()

    task = Labels()
    items = task.dataset("test")
    for size in (1, 32, 1003):
        scores = [
            task.score(right(batch), batch)
            for batch in (task.collate(items[i : i + size]) for i in range(0, 1003, size))
        ]
        assert sum(score.total for score in scores) == sum(score.correct for score in scores) == 1003


def test_padding_by_hand():
    batch = Batch(
        inputs=torch.tensor([[1, 2, 0, 0, 0]]),
        key_mask=torch.tensor([[True, True, False, False, False]]),
        targets=torch.tensor([[0, 1, IGNORE, IGNORE, IGNORE]]),
    )
    logits = torch.tensor([[[9.0, 0], [9.0, 0], [9.0, 0], [9.0, 0], [9.0, 0]]])
    assert Toy().score(logits, batch) == Score(1.0, 2, {})
    alone = Toy().loss(logits[:, :2], Batch(batch.inputs[:, :2], batch.key_mask[:, :2], batch.targets[:, :2]))
    assert torch.equal(Toy().loss(logits, batch), alone)


def test_the_whole_split_as_one_batch():
    task = Toy()
    batch = task.batch("test")
    assert len(batch) == 1003
    assert torch.equal(batch.key_mask.sum(dim=1), torch.tensor([len(item.inputs) for item in task.dataset("test")]))
    assert batch.rows(torch.tensor([5])).to("cpu").inputs.shape == (1, 9)


def test_all_tasks_are_there_and_say_what_they_are():
    expected = {"mqar", "copy", "reverse", "sort", "listops", "pathfinder", "digits", "code-tokens", "byte-lm"}
    assert expected <= set(list_tasks())
    for name in expected:
        cls = task_class(name)
        assert cls.answer in ("label", "tokens", "sequence")
        assert cls.causal
        assert "Args:" in cls.__doc__ or name == "digits"


def test_names():
    with pytest.raises(UserError, match=r"unknown task 'mqra' \(did you mean 'mqar'\?\); valid tasks: "):
        create_task("mqra")
    with pytest.raises(ValueError, match="registered twice: by attnbench"):
        register_task("mqar")(Toy)
