"""The whole way with real processes: what goes wrong in a cell costs that cell, and what kills the sweep costs nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench.sweep import records
from attnbench.sweep.isolation import Isolation
from attnbench.sweep.runner import run
from attnbench.sweep.spec import parse_spec

SPEC: dict[str, Any] = {
    "variants": [
        *("fine", "raises", "hangs", "leaves", "crashes", "eats", "wrong", "causal-only"),
        {"name": "fine", "label": "fine again"},
        {"name": "linformer", "label": "short", "max_len": 700},
        {"name": "linformer", "label": "long", "max_len": 2000},
    ],
    "lengths": [64, 600, 700],
    "quantities": ["memory"],
    "model": {"dim": 16, "heads": 2},
    "threads": 1,
    "limits": {"seconds": 10, "memory_gb": 0.5},
}


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("misbehaving")
    run(parse_spec(SPEC), out)
    return out


@pytest.fixture(scope="module")
def found(out) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["label"], row["length"]): row for row in records.read(out / records.FILE)}


@pytest.mark.parametrize(
    ("label", "status", "reason", "longer"),
    [
        ("fine", "ok", None, "ok"),
        ("raises", "error", "ValueError: too long for me [", "error"),
        ("hangs", "timeout", "over the time limit of 10 s", "skipped"),
        ("leaves", "error", "left with exit status 7", "error"),
        ("crashes", "error", "SIGSEGV", "error"),
        ("eats", "oom", "", "skipped"),
    ],
)
def test_a_cell_that_goes_wrong_costs_itself_alone(found, label, status, reason, longer):
    assert found[label, 64]["status"] == "ok", found[label, 64]["reason"]
    row = found[label, 600]
    assert row["status"] == status, row["reason"]
    assert (row["value"] is None) == (status != "ok")
    if reason is not None:
        assert reason in row["reason"]
    assert found[label, 700]["status"] == longer


def test_a_variant_that_fails_the_gate_carries_no_number(found):
    for length in (64, 600, 700):
        row = found["wrong", length]
        assert row["status"] == "incorrect"
        assert row["value"] is None
        assert "reference" in row["reason"]


def test_memory_is_exact_to_the_byte_whatever_ran_before(found):
    for length in (64, 600, 700):
        assert found["fine", length]["value"] == found["fine again", length]["value"]


def test_who_sees_whom_is_drawn_for_all_that_can_be_built(out):
    with np.load(out / "patterns.npz", allow_pickle=False) as drawn:
        assert {"fine", "fine again", "causal-only causal", "raises", "wrong"} <= set(drawn)
        assert "causal-only" not in drawn
        assert drawn["fine"].shape == (64, 64)
        assert np.allclose(drawn["fine"].sum(axis=1), 1, atol=1e-5)


def test_a_max_len_of_the_users_own_is_what_is_built(found):
    held = {label: found[label, 64]["details"] for label in ("short", "long")}
    assert held["long"]["parameters"] > held["short"]["parameters"] > 0


# -- trainings

TRAINED = {
    "variants": ["full", "causal-only"],
    "accuracy": {
        "tasks": [{"name": "mqar", "length": 16, "pairs": 2, "train": 64, "validation": 32, "test": 32}],
        "seeds": [0],
        "steps": 3,
        "batch": 8,
        "learning_rates": [1e-3, 3e-3],
        "causal": False,
        "model": {"dim": 16, "heads": 2, "depth": 1},
    },
}


def test_a_training_brings_its_score_its_curve_its_learning_rate_and_the_baselines(tmp_path):
    summary = run(parse_spec(TRAINED), tmp_path, jobs=2)
    rows = list(records.read(tmp_path / records.FILE))
    by_quantity = {row["quantity"]: row for row in rows if row["label"] == "full"}
    assert {row["status"] for row in rows if row["label"] == "full"} == {"ok"}, rows
    scored, tuned = by_quantity["accuracy"], by_quantity["tuning"]
    assert 0 <= scored["value"] <= 1
    assert (scored["unit"], scored["metric"], scored["length"]) == ("fraction", "accuracy", 16)
    assert scored["details"]["learning_rate"] == tuned["value"]
    assert [point["rate"] for point in tuned["details"]["grid"]] == [1e-3, 3e-3]
    assert {"parameters", "operations", "seconds", "data_hash", "by_slice"} <= scored["details"].keys()
    assert by_quantity["curve"]["details"]["curve"][-1]["step"] == 3
    baselines = [row for row in rows if row["quantity"] == "baseline"]
    assert {row["details"]["total"] for row in baselines} == {scored["details"]["test"]["total"]}
    assert len({row["cell"] for row in baselines}) == len(baselines) > 1
    assert summary.outcomes == {
        "ok": 3,
        "unsupported": 2,
    }  # cells of the plan: the curve and further baselines are none


# -- kills

KILLED = {
    "variants": ["fine", "twice"],
    "lengths": [64, 128, 256],
    "quantities": ["speed", "memory"],
    "rounds": 10,
    "sample_seconds": 0.01,
    "threads": 1,
}


def check_whole(out: Path) -> None:
    """Nothing lost, nothing doubled."""
    rows = list(records.read(out / records.FILE))
    once = Counter((row["cell"], row["session"], row["round"]) for row in rows)
    assert set(once.values()) == {1}
    exact = Counter(row["cell"] for row in rows if row["quantity"] != "speed")
    assert len(exact) == 2 * 3 + 2
    assert set(exact.values()) == {1}
    timed: dict[tuple[int, int], Counter] = {}
    for row in rows:
        if row["quantity"] == "speed":
            timed.setdefault((row["length"], row["round"]), Counter())[row["session"]] += 1
    assert set(timed) == {(length, round_) for length in (64, 128, 256) for round_ in range(1, 11)}
    for sessions in timed.values():
        assert list(sessions.values()).count(2) == 1, "each round is whole in one session, and in one alone"


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing_and_double_nothing(tmp_path):
    """Each session is itself a child of a fork server, whose time limit is the kill."""
    kills, whole = 0, 0
    with Isolation() as isolation:
        while kills < 100:
            out = tmp_path / str(whole)
            payload = {"spec": KILLED, "out": str(out), "seed": kills, "nap": 0.005, "real": False}
            result = isolation.call("victim:sweep_and_die", payload, seconds=120)
            if "SIGKILL" in result.get("reason", ""):
                kills += 1
                continue
            assert result["status"] == "ok", result
            check_whole(out)
            whole += 1
        payload = {"spec": KILLED, "out": str(out), "seed": None, "nap": 0.0, "real": False}
        assert isolation.call("victim:sweep_and_die", payload, seconds=120)["status"] == "ok"
        check_whole(out)


@pytest.mark.slow
def test_kills_of_a_sweep_with_real_measurements(tmp_path):
    with Isolation() as isolation:
        for seed in [1, 2, 3, 4, 5, None]:
            payload = {"spec": KILLED | {"rounds": 10}, "out": str(tmp_path), "seed": seed, "nap": 0.05, "real": True}
            result = isolation.call("victim:sweep_and_die", payload, seconds=300)
            assert ("SIGKILL" in result.get("reason", "")) == (seed is not None), result
    check_whole(tmp_path)
