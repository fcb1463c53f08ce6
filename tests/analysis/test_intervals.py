from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analysis import intervals


@pytest.mark.parametrize(("n", "rank"), [(1, -1), (5, -1), (6, 0), (7, 0), (8, 0), (9, 1), (10, 1), (20, 5), (40, 13)])
def test_rank_is_the_textbook_one(n, rank):
    assert intervals.rank_of(np.array([n]))[0] == rank


@pytest.mark.parametrize("n", [6, 7, 10, 15, 25])
@pytest.mark.parametrize("draw", ["normal", "exponential", "cauchy"])
def test_median_interval_covers_what_it_says_whatever_the_distribution(n, draw):
    rng = np.random.default_rng(n)
    truth = {"normal": 0.0, "exponential": np.log(2), "cauchy": 0.0}[draw]
    samples = np.sort(getattr(rng, f"standard_{draw}")((4000, n)), axis=1)
    rank = intervals.rank_of(np.array([n]))[0]
    covered = ((samples[:, rank] <= truth) & (truth <= samples[:, n - 1 - rank])).mean()
    assert covered > 0.94


def test_too_few_values_give_no_interval():
    middle, low, high = intervals.median_interval([3.0, 1.0, 2.0])
    assert middle == 2.0
    assert np.isnan([low, high]).all()
    assert np.isnan(intervals.median_interval([])).all()


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([1, None]), st.floats(-1e6, 1e6)), min_size=1, max_size=60
    )
)
def test_summarise_equals_one_group_at_a_time(rows):
    frame = pd.DataFrame(rows, columns=["key", "other", "value"])
    found = intervals.summarise(frame, ["key", "other"])
    assert found["n"].sum() == len(rows)
    for row in found.to_dict("records"):
        same_other = frame["other"].isna() if pd.isna(row["other"]) else frame["other"] == row["other"]
        own = frame[(frame["key"] == row["key"]) & same_other]["value"]
        expected = intervals.median_interval(own)
        np.testing.assert_allclose([row["median"], row["low"], row["high"]], expected, rtol=1e-12, equal_nan=True)


def test_t_interval_covers_over_three_seeds():
    rng = np.random.default_rng(0)
    hits = [low <= 0 <= high for _, low, high in (intervals.t_interval(rng.standard_normal(3)) for _ in range(2000))]
    assert 0.935 < np.mean(hits) < 0.965
    assert np.isnan(intervals.t_interval([1.0])[1])


def test_binomial_interval_stays_within_the_unit_interval():
    low, high = intervals.binomial_interval(1.0, 50)
    assert 0.9 < low < high == pytest.approx(1.0)
    low, high = intervals.binomial_interval(0.25, 1000)
    assert (low, high) == (pytest.approx(0.2242, abs=1e-4), pytest.approx(0.2778, abs=1e-4))


def test_holm_by_hand():
    np.testing.assert_allclose(intervals.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    assert len(intervals.holm([])) == 0


@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p):
    adjusted = intervals.holm(p)
    assert (adjusted >= np.array(p) - 1e-15).all()
    assert (adjusted <= 1).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()
