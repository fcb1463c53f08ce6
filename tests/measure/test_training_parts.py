from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.backbone import Transformer
from attnbench.errors import UserError
from attnbench.measure.recipe import Recipe
from attnbench.measure.train_data import Shuffle, Split
from attnbench.measure.train_model import optimizer_groups, parameter_counts
from attnbench.tasks import IGNORE, Item, Task


class Given(Task):
    """A task whose examples are handed in."""

    name = "given"

    def __init__(self, items: list[Item], answer: str = "tokens") -> None:
        self.items = items
        self.answer = answer  # type: ignore[misc]

    def dataset(self, split: str, seed: int = 0) -> Any:
        return self.items


def items(lengths: list[int], high: int = 9) -> list[Item]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for n in lengths:
        tokens = torch.randint(1, high, (n,), generator=generator)
        made.append(Item(tokens, tokens, {"gap": torch.arange(n), "length": n}))
    return made


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12), high=st.sampled_from([9, 300, 70_000]))
def test_batches_cut_from_whole_tensors_are_those_of_collate(lengths: list[int], high: int) -> None:
    task = Given(items(lengths, high))
    rows = Split(task, "train")
    picked = torch.arange(len(lengths)).flip(0)[: max(1, len(lengths) // 2)]
    batch = rows.batch(picked)
    expected = task.collate([task.items[row] for row in picked.tolist()])
    n = expected.inputs.shape[1]
    for name in ("inputs", "key_mask", "targets"):
        assert torch.equal(getattr(batch, name)[:, :n], getattr(expected, name))
        assert getattr(batch, name).dtype == getattr(expected, name).dtype
    assert torch.equal(batch.slices["gap"][:, :n], expected.slices["gap"])
    assert torch.equal(batch.slices["length"], expected.slices["length"])
    assert not batch.key_mask[:, n:].any()
    assert (batch.targets[:, n:] == IGNORE).all()
    assert batch.inputs.shape[1] <= min(-(-n // 16) * 16, max(lengths))
    assert rows.padded == (len(set(lengths)) > 1)


def test_an_empty_split_is_an_error() -> None:
    task = Given(items([3]))
    nothing = task.batch("test").rows(torch.tensor([], dtype=torch.int64))
    task.batch = lambda split, seed=0: nothing  # type: ignore[method-assign]
    with pytest.raises(UserError, match="its test split is empty"):
        Split(task, "test")


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 20), batch=st.integers(1, 30), seed=st.integers(0, 5))
def test_every_pass_reads_every_row_once(count: int, batch: int, seed: int) -> None:
    order = Shuffle(count, batch, seed)
    read = torch.cat([order.next() for _ in range(2 * count)])
    assert all(len(order.next()) == batch for _ in range(3))
    for begin in range(0, len(read) - count + 1, count):
        assert read[begin : begin + count].sort().values.tolist() == list(range(count))


def test_an_order_goes_on_from_its_state() -> None:
    one, other = Shuffle(10, 4, seed=1), Shuffle(10, 4, seed=2)
    one.next()
    other.load_state_dict(one.state_dict())
    assert [one.next().tolist() for _ in range(9)] == [other.next().tolist() for _ in range(9)]


def test_decay_pulls_on_matrices_alone() -> None:
    model = Transformer(vocab=7, dim=8, heads=2, depth=1, answer="label", classes=3, pooling="cls")
    decayed, free = optimizer_groups(model, 0.1)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all(names[id(p)].endswith("weight") and "norm" not in names[id(p)] for p in decayed["params"])
    assert len(decayed["params"]) + len(free["params"]) == len(names)
    counts = parameter_counts(model)
    assert counts["total"] == sum(p.numel() for p in model.parameters())
    assert counts["attention"] == 4 * (8 * 8 + 8)


def test_rates_rise_then_fall() -> None:
    cosine = Recipe(steps=100, learning_rate=2.0, warmup=0.1)
    assert [cosine.rate(share) for share in (0, 0.05, 0.1, 0.55, 1.0)] == pytest.approx([0, 1, 2, 1, 0])
    root = Recipe(steps=100, learning_rate=2.0, warmup=0.1, schedule="inverse-sqrt")
    assert [root.rate(share) for share in (0.05, 0.1, 0.4)] == pytest.approx([1, 2, 1])
    constant = Recipe(steps=100, learning_rate=2.0, warmup=0.0, schedule="constant")
    assert [constant.rate(share) for share in (0, 0.5, 1.0)] == [2, 2, 2]
    assert Recipe(steps=1, warmup=0.0, schedule="inverse-sqrt").rate(0.0) == 1e-3


def test_the_first_budget_that_is_spent_counts() -> None:
    recipe = Recipe(steps=100, seconds=10.0)
    spent = {"steps": 50, "seconds": 1.0, "tokens": 10**9, "operations": 10**12}
    assert recipe.progress(spent) == 0.5
    assert recipe.progress(spent | {"seconds": 12.0}) == 1.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a budget, received none; valid: one or more of steps, tokens"),
        ({"steps": 0}, "steps must be above 0, received 0"),
        ({"steps": 1, "batch": 0}, "batch must be at least 1, received 0"),
        ({"steps": 1, "warmup": 1.0}, r"warmup must be in \[0, 1\), received 1.0"),
        ({"steps": 1, "clip": -1.0}, "clip must be 0 or more, received -1.0"),
        ({"steps": 1, "learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"steps": 1, "schedule": "cosin"}, "unknown schedule 'cosin' .did you mean 'cosine'"),
        ({"steps": 1, "lr": 0.1}, "unknown option 'lr' of a recipe"),
    ],
)
def test_a_recipe_that_makes_no_sense_says_why(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Recipe.of(options)
