"""ListOps against a plain parser, and against the definition of its distribution."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.errors import UserError
from attnbench.tasks import create_task
from attnbench.tasks.listops import OPERATORS, SYMBOLS, ListOps, encode, evaluate

SMALL = {"train": 2000, "validation": 50, "test": 400}
APPLY = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(statistics.median(values)),
    "SM": lambda values: sum(values) % 10,
}


def parse(symbols: list[str]) -> int:
    """The value of a whole expression, by recursion."""

    def node() -> int:
        symbol = symbols.pop(0)
        if not symbol.startswith("["):
            return int(symbol)
        values = []
        while symbols[0] != "]":
            values.append(node())
        symbols.pop(0)
        return APPLY[symbol[1:]](values)

    value = node()
    assert not symbols, "more than one expression"
    return value


def depth(symbols: list[str]) -> int:
    deepest = level = 0
    for symbol in symbols:
        level += symbol.startswith("[") - (symbol == "]")
        deepest = max(deepest, level)
    return deepest


def test_labels_and_depths_are_those_of_a_plain_parser():
    task = create_task("listops", **SMALL)
    dataset = task.dataset("test")
    for index in range(len(dataset)):
        item = dataset[index]
        symbols = [SYMBOLS[token] for token in item.inputs]
        assert 10 < len(symbols) < 65
        assert depth(symbols) == int(item.slices["depth"]) < 5
        assert parse(symbols) == int(item.targets)


def test_brackets_are_kept_so_that_nesting_shows():
    shallow, deep = encode("[MAX 1 [MIN 2 3 ] 4 ]"), encode("[MAX 1 [MIN 2 3 4 ] ]")
    assert shallow.tolist() != deep.tolist()
    assert [parse([SYMBOLS[token] for token in tokens]) for tokens in (shallow, deep)] == [4, 2]
    closing = SYMBOLS.index("]")
    batch = create_task("listops", **SMALL).batch("test")
    opening = sum((batch.inputs == SYMBOLS.index(f"[{operator}")).sum(dim=1) for operator in OPERATORS)
    assert torch.equal((batch.inputs == closing).sum(dim=1), opening)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), min_size=1, max_size=10)), min_size=1, max_size=8)
)
def test_operators_over_their_children(nodes):
    operator = np.array([number for number, _ in nodes])
    children = np.array([len(values) for _, values in nodes])
    values = np.array([value for _, values in nodes for value in values])
    found = evaluate(operator, values, np.cumsum(children) - children, children)
    assert found.tolist() == [APPLY[OPERATORS[number]](values) for number, values in nodes]


def test_the_full_length_has_the_distribution_of_its_definition():
    rng = random.Random(0)

    def length(level: int) -> int:
        if level > 1 and (level == 10 or rng.random() > 0.25):
            return 1
        return 2 + sum(length(level + 1) for _ in range(rng.randint(2, 10)))

    drawn = [length(1) for _ in range(2500)]
    plain = [value for value in drawn if 500 < value < 2000]
    task = ListOps(preset="full", train=1, validation=1, test=1)
    found = task.draw(np.random.default_rng(0), 2500)
    assert found.lengths is not None
    assert found.lengths.min() > 500
    assert found.lengths.max() < 2000 == task.length + 1
    # Means within four standard errors of each other, and as many accepted within four deviations of a binomial's.
    error = np.hypot(np.std(plain) / len(plain) ** 0.5, found.lengths.std() / len(found.lengths) ** 0.5)
    assert abs(np.mean(plain) - found.lengths.mean()) < 4 * error
    assert abs(len(plain) - len(found.lengths)) < 4 * (2 * 2500 * 0.33 * 0.67) ** 0.5


def test_baselines_grow_with_what_they_look_at():
    baselines = create_task("listops", **SMALL).baselines()
    assert baselines["constant"] < 0.2 < baselines["root operator"] < baselines["root operator and direct digits"] < 0.6


@pytest.mark.slow
def test_the_published_shortcuts_of_the_full_length():
    baselines = create_task("listops", preset="full", train=20_000, validation=10, test=2_500).baselines()
    assert baselines["root operator"] == pytest.approx(0.36, abs=0.03)
    assert baselines["root operator and direct digits"] == pytest.approx(0.47, abs=0.03)


def test_an_unknown_preset_is_one_clear_line():
    with pytest.raises(UserError, match=r"unknown preset 'long'; valid: full, short"):
        create_task("listops", preset="long")
