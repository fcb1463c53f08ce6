"""Associative recall as it is defined: what stands where, and what it is drawn from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.errors import UserError
from attnbench.tasks import IGNORE, create_task
from attnbench.tasks.mqar import Mqar, distinct

SMALL = {"train": 60, "validation": 20, "test": 20}


@settings(max_examples=30, deadline=None)
@given(
    pairs=st.integers(1, 8),
    spare=st.integers(0, 20),
    vocab=st.sampled_from([18, 64, 256]),
    gaps=st.sampled_from(["power", "uniform"]),
    filler=st.sampled_from(["zero", "random"]),
    seed=st.integers(0, 1000),
)
def test_every_query_is_answered_by_the_pair_in_front(pairs, spare, vocab, gaps, filler, seed):
    length = 4 * pairs + 2 * spare
    task = Mqar(length=length, pairs=pairs, vocab=vocab, gaps=gaps, filler=filler, **SMALL)
    drawn = task.draw(np.random.default_rng(seed), 7)
    for inputs, targets, gap in zip(drawn.inputs, drawn.targets, drawn.slices["gap"], strict=True):
        keys, values = inputs[0 : 2 * pairs : 2], inputs[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert keys.min() >= 1
        assert keys.max() < vocab // 2 <= values.min()
        assert values.max() < vocab
        queried = np.flatnonzero(targets != IGNORE)
        assert len(queried) == pairs
        assert (queried >= 2 * pairs).all()
        assert (queried % 2 == 0).all()
        answer = dict(zip(keys, values, strict=True))
        assert [answer[inputs[at]] for at in queried] == list(targets[queried])
        place = {value: 2 * index + 1 for index, value in enumerate(values)}
        distance = queried - np.array([place[value] for value in targets[queried]])
        assert ((gap[queried] >= distance) & (gap[queried] < 2 * distance)).all()
        assert (gap[targets == IGNORE] == IGNORE).all()
        rest = np.setdiff1d(np.arange(2 * pairs, length), queried)
        assert (inputs[rest] == 0).all() if filler == "zero" else (inputs[rest] > 0).all()


def test_gaps_are_drawn_with_their_weights_one_by_one():
    task = Mqar(length=20, pairs=2, gaps="power", **SMALL)  # 8 slots
    slots = task._slots(np.random.default_rng(0), 60_000)
    weights = np.arange(1, 9) ** (0.01 - 1)
    first = np.bincount(slots[:, 0], minlength=8) / len(slots)
    np.testing.assert_allclose(first, weights / weights.sum(), atol=0.01)
    after_zero = slots[slots[:, 0] == 0, 1]
    weights[0] = 0
    np.testing.assert_allclose(
        np.bincount(after_zero, minlength=8) / len(after_zero), weights / weights.sum(), atol=0.015
    )
    uniform = Mqar(length=20, pairs=2, gaps="uniform", **SMALL)._slots(np.random.default_rng(0), 60_000)
    np.testing.assert_allclose(np.bincount(uniform.ravel(), minlength=8) / uniform.size, 1 / 8, atol=0.01)


@pytest.mark.parametrize(("size", "space"), [(3, 100), (3, 4), (1, 1), (5, 5)])
def test_numbers_without_replacement_are_uniform(size, space):
    rows = distinct(np.random.default_rng(0), 20_000, size, space)
    assert all(len(set(row)) == size for row in rows[:500].tolist())
    np.testing.assert_allclose(np.bincount(rows.ravel(), minlength=space) / rows.size, 1 / space, atol=0.01)


def test_the_curriculum_grows_the_pairs_over_half_of_the_budget():
    stages = Mqar(length=128, pairs=8, **SMALL).stages()
    assert [stage["options"] for stage in stages] == [
        {"pairs": 4, "length": 16},
        {"pairs": 8, "length": 32},
    ]
    assert sum(stage["share"] for stage in stages) == 0.5
    assert Mqar(pairs=1, **SMALL).stages() == Mqar(pairs=8, curriculum=False, **SMALL).stages() == ()


def test_baselines():
    task = create_task("mqar", pairs=4, vocab=16, length=16, train=2000, validation=20, test=500)
    baselines = task.baselines()
    assert baselines["any value seen"] == 0.25
    assert baselines["constant"] == pytest.approx(1 / 8, abs=0.03)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"length": 63}, "length and vocab must be even, received 63 and 64"),
        ({"pairs": 17}, r"pairs must lie in 1 .. length / 4 = 16, received 17"),
        ({"pairs": 16, "vocab": 32}, "16 pairs need a vocab of at least 34, received 32"),
        ({"gaps": "powers"}, r"unknown gaps 'powers' \(did you mean 'power'\?\); valid: power, uniform"),
        ({"filler": "noise"}, "unknown filler 'noise'; valid: zero, random"),
        ({"test": 0}, "test must be a whole number of at least 1, received 0"),
        ({"lenght": 64}, r"unknown option 'lenght' \(did you mean 'length'\?\)"),
    ],
)
def test_bad_options_are_one_clear_line(options, said):
    with pytest.raises(UserError, match=said):
        create_task("mqar", **options)
