from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analysis import tables
from attnbench.analysis.scaling import crossover_of, exponent_of

from .synthetic import Synthetic

LENGTHS = [256, 512, 1024, 2048, 4096, 8192]


@given(st.floats(0.0, 3.0), st.floats(1e-9, 1e3))
def test_an_exact_power_is_found_exactly(exponent, factor):
    lengths = np.array(LENGTHS, dtype=float)
    found, low, high = exponent_of(lengths, factor * lengths[None] ** exponent)
    assert found == pytest.approx(exponent, abs=1e-9)
    assert low - 1e-9 <= exponent <= high + 1e-9


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5, 2.0])
def test_exponents_of_noisy_times_lie_in_their_intervals(loaded, exponent):
    run = loaded(Synthetic().speed({"full": (1e-6, exponent)}, LENGTHS, rounds=9, noise=0.05, drift=1.0))
    row = tables(run)["scaling"].iloc[0]
    assert row["exponent"] == pytest.approx(exponent, abs=0.06)
    assert (row["from_length"], row["to_length"], row["rounds"]) == (256, 8192, 9)
    rng = np.random.default_rng(0)
    lengths = np.array(LENGTHS, dtype=float)
    noise = np.exp(0.05 * rng.standard_normal((400, 9, len(LENGTHS))))
    found = [exponent_of(lengths, lengths**exponent * rounds) for rounds in noise]
    assert np.mean([low <= exponent <= high for _, low, high in found]) > 0.94


def test_the_fit_leaves_out_what_the_floor_drowns(loaded):
    run = Synthetic()
    for length in LENGTHS:
        for number in range(7):
            run.add("speed", "full", 1e-3 + 1e-9 * length**2, length=length, round=number)
    without = tables(loaded(run))["scaling"].iloc[0]["exponent"]
    run.add("floor", "full", 1e-3, length=4)
    row = tables(loaded(run))["scaling"].iloc[0]
    assert row["from_length"] == 1024  # the first that takes over twice the floor
    assert without + 0.3 < row["exponent"] < 2.0
    assert row["misfit"] < 0.2


def test_memory_and_operations_have_exponents_too(loaded):
    laws = {"full": (100.0, 2.0), "local": (1000.0, 1.0)}
    run = loaded(Synthetic().counted("memory", laws, LENGTHS).counted("operations", laws, LENGTHS))
    scaling = tables(run)["scaling"].set_index(["quantity", "label"])
    for quantity in ("memory", "operations"):
        for label, truth in (("full", 2.0), ("local", 1.0)):
            row = scaling.loc[(quantity, label)]
            assert row["exponent"] == pytest.approx(truth, abs=1e-6)
            assert row["low"] == pytest.approx(row["high"], abs=1e-6)


def test_one_length_has_no_exponent(loaded):
    found = tables(loaded(Synthetic().speed({"full": (1.0, 1.0)}, [64])))
    assert found["scaling"].empty


@pytest.mark.parametrize("truth", [300.0, 1000.0, 5000.0])
def test_crossover_is_where_the_laws_meet(loaded, truth):
    laws = {"full": (1e-9, 2.0), "local": (1e-9 * truth, 1.0)}
    run = loaded(
        Synthetic(1)
        .speed(laws, LENGTHS, rounds=9, noise=0.02)
        .counted("memory", {k: (a * 1e15, b) for k, (a, b) in laws.items()}, LENGTHS)
    )
    rows = tables(run)["crossover"].set_index("quantity")
    assert rows["verdict"].tolist() == ["crosses", "crosses"]
    assert rows.loc["speed", "crossover"] == pytest.approx(truth, rel=0.05)
    assert rows.loc["speed", "low"] <= truth <= rows.loc["speed", "high"]
    assert rows.loc["memory", "crossover"] == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize(
    ("law", "verdict"),
    [((1e-10, 1.0), "always ahead"), ((1e-3, 1.0), "not reached up to 8192"), ((1e-9, 2.0), "level")],
)
def test_verdicts_without_a_crossing(loaded, law, verdict):
    run = loaded(Synthetic().speed({"full": (1e-9, 2.0), "local": law}, LENGTHS, rounds=9))
    row = tables(run)["crossover"].iloc[0]
    assert row["verdict"] == verdict
    assert np.isnan(row["crossover"])


def test_a_label_that_outlives_the_baseline_is_ahead_from_there(loaded):
    run = (
        Synthetic()
        .speed({"full": (1e-9, 2.0), "local": (1e-3, 1.0)}, LENGTHS[:-1])
        .speed({"local": (1e-3, 1.0)}, LENGTHS[-1:])
    )
    run.failed("full", 8192, "oom", "out of memory")
    assert tables(loaded(run))["crossover"].iloc[0]["verdict"] == "ahead from 8192, where full ends in oom"


def test_crossover_of_ratios():
    lengths = np.array([1.0, 4.0, 16.0])
    assert crossover_of(lengths, np.array([2.0, 0.5, 0.25])) == pytest.approx(2.0)
    assert crossover_of(lengths, np.array([0.5, 2.0, 0.5])) == pytest.approx(8.0)  # the last one counts
    assert crossover_of(lengths, np.array([0.5, 0.5, 0.5])) == 0
    assert crossover_of(lengths, np.array([0.5, 0.5, 1.0])) == np.inf
