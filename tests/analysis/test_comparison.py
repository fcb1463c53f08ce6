from __future__ import annotations

import numpy as np
import pytest

from attnbench.analysis import compare
from attnbench.errors import UserError

from .synthetic import Synthetic

LENGTHS = [64, 128, 256, 512]
LAWS = {"full": (1e-8, 2.0), "local": (1e-6, 1.0), "linear": (2e-6, 1.0)}


def timed(seed, laws=LAWS, noise=0.02, **fields):
    return Synthetic(seed).speed(laws, LENGTHS, rounds=9, noise=noise, **fields)


def test_aa_of_five_hundred_cells_reports_none(loaded):
    def noisy(seed):
        """Noise as machines make it: a few per cent, and now and then a round that takes half as long again."""
        run, rng = Synthetic(seed), np.random.default_rng(seed)
        for length in range(100, 150):
            for number in range(7):
                for label in ("full", *(f"v{i}" for i in range(10))):
                    spike = 1.5 if rng.random() < 0.05 else 1.0
                    run.add("speed", label, spike * np.exp(0.05 * rng.standard_normal()), length=length, round=number)
        return loaded(run)

    found = compare(noisy(1), noisy(2))
    assert len(found.frame) == 500
    assert found.regressions.empty
    assert found.improvements.empty


def test_a_regression_and_an_improvement_are_found_and_the_rest_left_alone(loaded):
    changed = LAWS | {"local": (1.2e-6, 1.0), "linear": (1.6e-6, 1.0)}
    found = compare(loaded(timed(1)), loaded(timed(2, changed)))
    assert set(found.regressions["label"]) == {"local"}
    assert set(found.improvements["label"]) == {"linear"}
    assert len(found.regressions) == len(LENGTHS)
    row = found.regressions.iloc[0]
    assert row["change"] == pytest.approx(1.2, rel=0.03)
    assert row["low"] < 1.2 < row["high"]


def test_a_change_below_five_per_cent_is_no_regression_however_certain(loaded):
    changed = LAWS | {"local": (1.03e-6, 1.0)}
    found = compare(loaded(timed(1, noise=0.001)), loaded(timed(2, changed, noise=0.001)))
    assert found.regressions.empty
    own = found.frame[found.frame["label"] == "local"]
    assert (own["adjusted"] < 1e-6).all()


def test_a_slower_machine_is_no_regression(loaded):
    slower = {label: (2 * factor, exponent) for label, (factor, exponent) in LAWS.items()}
    assert compare(loaded(timed(1)), loaded(timed(2, slower))).regressions.empty


def test_exact_quantities_need_no_rounds(loaded):
    a = Synthetic().counted("memory", {"full": (1000, 1.0), "local": (100, 1.0)}, [64])
    b = Synthetic().counted("memory", {"full": (1000, 1.0), "local": (110, 1.0)}, [64])
    found = compare(loaded(a), loaded(b))
    assert found.regressions[["quantity", "label"]].values.tolist() == [["memory", "local"]]
    assert found.regressions["change"].tolist() == pytest.approx([1.1])


def test_too_few_rounds_are_said_to_be_too_few(loaded):
    runs = [loaded(Synthetic(seed).speed(LAWS, [64], rounds=1)) for seed in (1, 2)]
    assert set(compare(*runs).frame["verdict"]) == {"too few rounds"}


def test_a_cell_that_now_fails_is_a_regression(loaded):
    a, b = timed(1), timed(1)
    b.records = [record for record in b.records if (record["label"], record["length"]) != ("local", 512)]
    b.failed("local", 512, "oom", "limit 8 GB")
    found = compare(loaded(a), loaded(b))
    assert found.regressions[["label", "length", "reason"]].values.tolist() == [
        ["local", 512, "ok became oom: limit 8 GB"]
    ]
    assert len(compare(loaded(b), loaded(a)).improvements) == 1


def test_a_lower_score_is_a_regression(loaded):
    a = Synthetic().trained("mqar", {"full": [1.0, 0.99, 1.0, 0.98]}, {})
    b = Synthetic().trained("mqar", {"full": [0.5, 0.51, 0.5, 0.49]}, {})
    assert compare(loaded(a), loaded(b)).regressions["quantity"].tolist() == ["accuracy"]
    assert compare(loaded(b), loaded(a)).improvements["quantity"].tolist() == ["accuracy"]


@pytest.mark.parametrize("difference", ["environment", "data"])
def test_differences_are_refused_unless_allowed(loaded, difference):
    a, b = (timed(seed).trained("mqar", {"full": [1.0]}, {}) for seed in (1, 2))
    if difference == "environment":
        b.environment["torch"] = "2.9.0"
    for run, mark in ((a, "one"), (b, "two" if difference == "data" else "one")):
        for record in run.records:
            if record["quantity"] == "accuracy":
                record["details"]["data_hash"] = mark
    runs = loaded(a), loaded(b)
    with pytest.raises(UserError, match="cannot be compared: (torch|data of mqar)"):  # noqa: RUF043
        compare(*runs)
    found = compare(*runs, allow_differences=True)
    assert len(found.differences) == 1
    assert len(found.frame)


def test_different_commits_and_loads_are_what_comparing_is_for(loaded):
    a, b = timed(1), timed(2)
    b.environment |= {"git_commit": "other", "load_average": 3.0}
    assert compare(loaded(a), loaded(b)).differences == []


def test_different_baselines_are_refused(loaded):
    other = timed(2)
    other.baseline = "local"
    with pytest.raises(UserError, match="'full' and 'local'"):
        compare(loaded(timed(1)), loaded(other))
