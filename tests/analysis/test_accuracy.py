from __future__ import annotations

import numpy as np
import pytest

from attnbench.analysis import tables
from attnbench.analysis.intervals import t_interval

from .synthetic import Synthetic

BASELINES = {"constant": 0.1, "any value seen": 0.25}


def scored(loaded, values, baselines=BASELINES, **fields):
    return tables(loaded(Synthetic().trained("mqar", values, baselines, **fields)))


def test_mean_interval_and_share_of_seeds_that_solved(loaded):
    found = scored(loaded, {"full": [1.0, 0.99, 0.6]})
    row = found["accuracy"].iloc[0]
    mean, low, high = t_interval([1.0, 0.99, 0.6])
    assert high > 1  # which no share can be
    assert [row["mean"], row["low"], row["high"]] == pytest.approx([mean, low, 1.0])
    assert (row["seeds"], row["solved"]) == (3, pytest.approx(2 / 3))
    assert found["scores"]["value"].tolist() == [1.0, 0.99, 0.6]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.9, 0.91, 0.92], "above"),
        ([0.24, 0.25, 0.26], "not above"),
        ([0.26, 0.27, 0.27], "not above"),  # within the interval of 0.25 over 1,000 answers
        ([0.3, 0.9, 0.3], "unclear"),
    ],
)
def test_a_score_not_above_the_best_baseline_is_marked(loaded, values, verdict):
    row = scored(loaded, {"full": values})["accuracy"].iloc[0]
    assert row["verdict"] == verdict
    assert row["best_baseline"] == "any value seen"
    assert ("not above any value seen" in row["notes"]) == (verdict == "not above")


def test_one_seed_is_said_to_be_one_seed(loaded):
    row = scored(loaded, {"full": [0.9]})["accuracy"].iloc[0]
    assert np.isnan(row["low"])
    assert "one seed" in row["notes"]


def test_where_lower_is_better_the_lowest_baseline_is_the_best(loaded):
    fields = {"metric": "bits_per_byte", "unit": "bits"}
    found = scored(
        loaded, {"full": [2.0, 2.01, 1.99], "none": [4.0, 4.0, 4.01]}, {"constant": 8.0, "unigram": 3.5}, **fields
    )
    rows = found["accuracy"].set_index("label")
    assert rows["best_baseline"].tolist() == ["unigram", "unigram"]
    assert rows["verdict"].to_dict() == {"full": "above", "none": "not above"}
    assert rows["solved"].isna().all()
    assert found["tasks"].iloc[0]["verdict"] == "tests attention"


def test_a_parameter_gap_is_marked(loaded):
    run = Synthetic().trained("mqar", {"full": [1.0], "linformer": [1.0]}, {})
    for record in run.records:
        if record["label"] == "linformer" and record["quantity"] == "accuracy":
            record["details"]["parameters"] = 115_000
    rows = tables(loaded(run))["accuracy"].set_index("label")
    assert rows["parameter_gap"].to_dict() == {"full": 0.0, "linformer": pytest.approx(0.15)}
    assert "+15% parameters" in rows.loc["linformer", "notes"]
    assert "parameters" not in rows.loc["full", "notes"]


@pytest.mark.parametrize(
    ("control", "verdict"), [(0.25, "tests attention"), (0.9, "weakly"), (0.97, "does not test attention")]
)
def test_a_task_that_a_control_solves_is_flagged(loaded, control, verdict):
    found = scored(loaded, {"full": [1.0] * 3, "uniform": [control] * 3, "none": [0.1] * 3})
    row = found["tasks"].iloc[0]
    assert (row["control"], row["verdict"]) == ("uniform", verdict)
    notes = found["accuracy"].set_index("label")["notes"]
    assert "control" in notes["uniform"]
    assert "control" not in notes["full"]


def test_a_task_that_was_not_learned_says_nothing_about_attention(loaded):
    found = scored(loaded, {"full": [0.1] * 3, "uniform": [0.1] * 3})
    assert found["tasks"]["verdict"].tolist() == ["not learned"]


def test_a_diverged_seed_is_an_outcome_and_not_a_score(loaded):
    run = Synthetic().trained("mqar", {"full": [1.0, 0.9]}, BASELINES)
    common = {"task": "mqar", "metric": "accuracy", "mode": None, "scope": "model", "length": 64}
    run.add(
        "accuracy",
        "full",
        None,
        seed=2,
        status="error",
        reason="loss is NaN at step 40",
        details={"diverged_at": 40},
        **common,
    )
    found = tables(loaded(run))
    row = found["accuracy"].iloc[0]
    assert (row["seeds"], row["reason"]) == (2, "loss is NaN at step 40")
    assert "seed 2 error" in row["notes"]
    assert found["outcomes"][["quantity", "label", "seed"]].values.tolist() == [["accuracy", "full", 2]]


def test_a_training_that_did_not_take_place_stays_in_its_task(loaded):
    run = Synthetic().trained("mqar", {"full": [1.0, 0.9]}, BASELINES, task_options={"pairs": 4})
    unknown = {"unit": None, "length": None, "samples": None}  # what only a training can tell
    said = {"status": "unsupported", "reason": "no causal form", "details": {"task_options": {"pairs": 4}}}
    fields = {"task": "mqar", "metric": "accuracy", "mode": None, "scope": "model", "seed": 0, **unknown, **said}
    run.add("accuracy", "linformer", None, **fields)
    found = tables(loaded(run))
    assert found["tasks"]["task"].tolist() == ["mqar"]
    rows = found["accuracy"].set_index("label")
    assert rows["length"].tolist() == [64, 64]
    assert rows.loc["linformer", "status"] == "unsupported"


def test_one_task_under_two_options_is_two_rows(loaded):
    run = Synthetic().trained("mqar", {"full": [1.0]}, {"seen": 0.25}, task_options={"pairs": 4})
    run.trained("mqar", {"full": [0.5]}, {"seen": 0.125}, task_options={"pairs": 8})
    rows = tables(loaded(run))["accuracy"].set_index("task_options")
    assert rows["mean"].to_dict() == {"pairs=4": 1.0, "pairs=8": 0.5}
    assert rows["baseline_value"].to_dict() == {"pairs=4": 0.25, "pairs=8": 0.125}


def test_slices_and_curves(loaded):
    found = scored(loaded, {"full": [1.0, 0.5]})
    slices = found["slices"].set_index("slice_value")
    assert slices["value"].to_dict() == pytest.approx({"4": 0.675, "32": 0.45})  # pooled over seeds
    assert slices["total"].to_dict() == {"4": 200, "32": 200}
    assert found["curves"].groupby("seed")["step"].max().to_dict() == {0: 600, 1: 600}


def test_decisions_leave_out_the_accuracy_of_who_missed_a_task(loaded):
    laws = {"full": (1e-6, 1.0), "local": (1e-6, 1.0)}
    run = Synthetic().speed(laws, [64]).trained("mqar", {"full": [1.0], "local": [0.5]}, {})
    run.trained("sort", {"full": [0.8], "other": [0.1]}, {}).trained("reverse", {"full": [0.3]}, {})
    rows = tables(loaded(run))["decisions"].set_index("label")
    assert rows.loc["full", ["accuracy", "worst_accuracy", "worst_task"]].tolist() == pytest.approx([0.9, 0.8, "sort"])
    assert rows.loc["local", ["accuracy", "worst_accuracy"]].isna().all()
