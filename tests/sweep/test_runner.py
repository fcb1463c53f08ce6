"""Runs from spec to records, with an isolation that only pretends: the order of things, resuming, refusing, reporting."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from attnbench.errors import UserError
from attnbench.sweep import records
from attnbench.sweep.planner import plan
from attnbench.sweep.runner import run
from attnbench.sweep.spec import parse_spec

SPEC: dict[str, Any] = {
    "name": "small",
    "variants": ["fine", "twice"],
    "lengths": [64, 128, 256],
    "quantities": ["speed", "memory", "operations"],
    "rounds": 3,
}
pytestmark = pytest.mark.usefixtures("instant")


def sweep(out: Path, changes: dict[str, Any] | None = None, **arguments: Any):
    return run(parse_spec(SPEC | (changes or {})), out, **arguments)


def written(out: Path) -> list[dict[str, Any]]:
    return list(records.read(out / records.FILE))


def identities(rows: list[dict[str, Any]]) -> Counter:
    return Counter((row["cell"], row["session"], row["round"], row["label"]) for row in rows)


def test_every_cell_of_every_round_is_recorded_once(tmp_path):
    summary = sweep(tmp_path / "out")
    rows = written(tmp_path / "out")
    assert summary.measured == len(rows) == 1 + 2 * 3 * 2 + 2 + 2 * 3 * 3
    assert set(identities(rows).values()) == {1}
    assert summary.outcomes == {"ok": len({row["cell"] for row in rows})}
    assert {row["cell"] for row in rows} == {cell.id for cell in plan(parse_spec(SPEC)).cells}


def test_a_record_says_all_about_its_cell(tmp_path):
    sweep(tmp_path)
    row = next(row for row in written(tmp_path) if row["quantity"] == "speed")
    expected = {"label": row["variant"], "scope": "attention", "mode": "forward", "causal": False, "device": "cpu"}
    expected |= {"dtype": "float32", "batch": 1, "length": 64, "heads": 4, "head_dim": 64, "round": 1, "status": "ok"}
    assert expected.items() <= row.items()
    for column in ("code", "session", "value", "unit", "samples", "started", "elapsed", "host", "threads"):
        assert row[column] is not None


def test_the_directory_holds_the_resolved_spec_and_the_environment(tmp_path):
    sweep(tmp_path)
    assert (tmp_path / "spec.toml").read_text() == parse_spec(SPEC).toml()
    surroundings = json.loads((tmp_path / "environment.json").read_text())
    assert surroundings["processor"]
    assert surroundings["variants"]["fine"]["cross"] is True


def test_a_finished_run_has_nothing_left(tmp_path, instant):
    sweep(tmp_path)
    before = (tmp_path / records.FILE).read_bytes()
    instant.calls.clear()
    assert sweep(tmp_path).measured == 0
    assert instant.calls == []
    assert (tmp_path / records.FILE).read_bytes() == before


class Killed(BaseException):
    pass


def killed_after(count: int):
    """A progress callback that ends the sweep when so many measurements are done."""

    def progress(done: int, total: int, eta: float | None, current: str) -> None:
        if done >= count:
            raise Killed

    return progress


def test_an_interrupted_run_goes_on_and_measures_the_interrupted_round_whole(tmp_path):
    sweep(tmp_path / "whole")
    with pytest.raises(Killed):
        sweep(tmp_path / "cut", progress=killed_after(1 + 12 + 2 + 3))  # in the middle of a round of speed
    summary = sweep(tmp_path / "cut")
    whole, cut = written(tmp_path / "whole"), written(tmp_path / "cut")
    assert {row["cell"] for row in whole} == {row["cell"] for row in cut}
    assert set(identities(cut).values()) == {1}
    assert len(cut) == len(whole) + 1, "one record of the interrupted round stays behind"
    assert summary.measured == len(whole) - 18 + 1
    exact = [[(r["cell"], r["value"], r["samples"]) for r in rows if r["quantity"] != "speed"] for rows in (whole, cut)]
    assert exact[0] == exact[1]


def test_outcomes_are_recorded_with_their_reasons_and_not_repeated(tmp_path, instant):
    variants = [
        "fine",
        {"name": "pretender", "label": "oom", "fail": {"status": "oom", "from": 128}},
        {"name": "pretender", "label": "error", "fail": {"status": "error", "from": 128}},
        {"name": "pretender", "label": "incorrect", "fail": {"status": "incorrect"}},
        "causal-only",
    ]
    summary = sweep(tmp_path, {"variants": variants, "quantities": ["speed"]})
    rows = [row for row in written(tmp_path) if row["quantity"] == "speed" and row["status"] != "ok"]
    found = {(row["label"], row["length"]): (row["status"], row["reason"]) for row in rows}
    assert len(found) == len(rows), "a failed cell has one record"
    assert found["oom", 128] == ("oom", "as asked")
    assert found["oom", 256] == ("skipped", "longer than 128, where it ran out of memory")
    assert found["error", 128] == ("error", "as asked")
    assert found["error", 256] == ("error", "as asked")
    assert {found["incorrect", length] for length in (64, 128, 256)} == {("incorrect", "as asked")}
    assert found["causal-only", 64] == ("unsupported", "causal-only is causal only; build it with causal=True")
    assert all(row["value"] is None for row in rows)
    assert summary.outcomes["incorrect"] == 4  # its floor as well
    ok = Counter(row["label"] for row in written(tmp_path) if row["quantity"] == "speed" and row["status"] == "ok")
    assert ok == {"fine": 9, "oom": 3, "error": 3}
    assert sweep(tmp_path, {"variants": variants, "quantities": ["speed"]}).measured == 0


def test_the_gate_is_asked_once_for_all_cells_that_rely_on_the_same(tmp_path, instant):
    sweep(tmp_path, {"modes": ["forward", "train_step", "backward"]})
    asked = [payload for name, payload in instant.calls if name == "check"]
    assert sorted((gate["variant"], gate["settings"]["mode"]) for gate in asked) == [
        ("fine", "backward"),
        ("fine", "forward"),
        ("twice", "backward"),
        ("twice", "forward"),
    ]


# -- trainings

TRAINED = {"quantities": ["accuracy"], "accuracy": {"tasks": ["pretended"], "seeds": [0, 1], "steps": 5}}


@pytest.fixture
def pretended_task(monkeypatch):
    from attnbench.tasks import Task, base

    class Pretended(Task):
        """A task for the plan alone."""

        causal = (False, True)

        def __init__(self, *, length: int = 8) -> None:
            self.length = length

    monkeypatch.setitem(base._tasks, "pretended", Pretended)
    return Pretended


@pytest.mark.usefixtures("pretended_task")
@pytest.mark.parametrize("jobs", [1, 3])
def test_trainings_bring_their_curves_and_the_tasks_baselines(tmp_path, jobs):
    sweep(tmp_path, TRAINED, jobs=jobs)
    rows = written(tmp_path)
    counts = Counter(row["quantity"] for row in rows)
    assert counts == {"accuracy": 4, "curve": 4, "baseline": 2}
    assert len({row["cell"] for row in rows}) == len(rows)
    assert {row["label"] for row in rows if row["quantity"] == "baseline"} == {"bag", "constant"}
    scored = next(row for row in rows if row["quantity"] == "accuracy")
    assert scored["details"]["task_options"] == {}
    assert scored["details"]["recipe"]["steps"] == 5
    assert scored["task"] == "pretended"
    assert scored["threads"] == (1 if jobs > 1 else scored["threads"])
    assert sweep(tmp_path, TRAINED).measured == 0


@pytest.mark.usefixtures("pretended_task")
def test_a_training_whose_score_was_lost_is_repeated_and_its_curve_is_not_doubled(tmp_path):
    sweep(tmp_path, TRAINED)
    path = tmp_path / records.FILE
    lines = path.read_bytes().splitlines(keepends=True)
    cut = next(i for i, line in enumerate(lines) if json.loads(line)["quantity"] == "accuracy")
    path.write_bytes(b"".join(lines[:cut] + lines[cut + 1 :]))
    assert sweep(tmp_path, TRAINED).measured == 1
    assert Counter(row["quantity"] for row in written(tmp_path)) == {"accuracy": 4, "curve": 4, "baseline": 2}


@pytest.mark.usefixtures("pretended_task")
def test_trainings_run_side_by_side_and_timed_cells_alone(tmp_path, instant, monkeypatch):
    running: list[str] = []
    seen: set[tuple[str, ...]] = set()
    lock, original = threading.Lock(), instant.call

    def watched(self, target, payload, **limits):
        kind = target.rpartition(":")[2]
        with lock:
            running.append(kind)
            seen.add(tuple(sorted(running)))
        try:
            return original(self, target, payload, **limits)
        finally:
            with lock:
                running.remove(kind)

    monkeypatch.setattr(instant, "call", watched)
    monkeypatch.setattr(instant, "nap", 0.05)
    sweep(tmp_path, TRAINED | {"quantities": ["speed", "accuracy"], "rounds": 1, "lengths": [64]}, jobs=4)
    assert ("train", "train") in seen
    assert {together for together in seen if "measure" in together} == {("measure",)}


@pytest.mark.usefixtures("pretended_task")
def test_a_grid_of_learning_rates_is_searched_on_a_seed_of_its_own_before_what_is_scored(tmp_path, instant):
    section = TRAINED["accuracy"] | {"learning_rates": [1e-3, 1e-2]}
    failing = {"name": "pretender", "label": "failing", "fail": {"status": "error"}}
    sweep(tmp_path, TRAINED | {"accuracy": section, "variants": ["fine", failing]}, jobs=2)
    rows = written(tmp_path)
    tuned = {row["label"]: row for row in rows if row["quantity"] == "tuning"}
    assert tuned["fine"]["seed"] == 1000
    trained = [payload for name, payload in instant.calls if name == "train"]
    assert [payload["recipe"]["learning_rate"] for payload in trained] == [tuned["fine"]["value"]] * 2
    names = [name for name, _ in instant.calls]
    assert names.index("train") > max(index for index, name in enumerate(names) if name == "tune")
    scored = {(row["label"], row["seed"]): row for row in rows if row["quantity"] == "accuracy"}
    assert scored["failing", 0]["status"] == "skipped"
    assert scored["failing", 0]["reason"] == "no learning rate was chosen: the search ended in error"
    assert scored["fine", 1]["status"] == "ok"
    assert scored["failing", 0]["details"]["task_options"] == {}, "which task it was is said all the same"
    with pytest.raises(UserError, match="tuning_seed: must not be among the seeds"):
        sweep(tmp_path, TRAINED | {"accuracy": section | {"tuning_seed": 1}})


# -- refusals


def test_another_spec_another_environment_and_other_code_are_refused_and_touch_nothing(tmp_path, monkeypatch):
    sweep(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name[0] != "."}
    with pytest.raises(UserError, match="holds a run with another spec: rounds is 3 there and 4 here"):
        sweep(tmp_path, {"rounds": 4})
    with pytest.raises(UserError, match=r"another spec: model\.dim"):
        sweep(tmp_path, {"model": {"dim": 64}})
    with monkeypatch.context() as patch:
        patch.setattr("attnbench.registry.source_hash", lambda cls: "changed")
        with pytest.raises(UserError, match="another code: fine is"):
            sweep(tmp_path)
    surroundings = json.loads((tmp_path / "environment.json").read_text())
    (tmp_path / "environment.json").write_text(json.dumps(surroundings | {"torch": "0.1"}))
    with pytest.raises(UserError, match=r"another environment: torch is .0\.1. there"):
        sweep(tmp_path)
    (tmp_path / "environment.json").write_bytes(before["environment.json"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name[0] != "."} == before


def test_what_may_change_between_sessions_does_not_refuse(tmp_path):
    sweep(tmp_path)
    surroundings = json.loads((tmp_path / "environment.json").read_text())
    changed = surroundings | {"load_average": [9, 9, 9], "git_commit": "other", "git_dirty": True}
    (tmp_path / "environment.json").write_text(json.dumps(changed))
    assert sweep(tmp_path).measured == 0


def test_fresh_discards_the_run_and_nothing_else(tmp_path):
    sweep(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "speed.csv").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    sweep(tmp_path, {"rounds": 1}, fresh=True)
    assert {row["round"] for row in written(tmp_path)} == {1}
    assert not (tmp_path / "tables").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_directory_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    for fresh in (False, True):
        with pytest.raises(UserError, match=r"not a run directory: it holds 'thesis.tex'"):
            sweep(tmp_path, fresh=fresh)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(UserError, match="not a directory"):
        sweep(tmp_path / "thesis.tex")


def test_a_second_sweep_on_a_directory_is_refused(tmp_path):
    refused = []

    def progress(done: int, total: int, eta: float | None, current: str) -> None:
        if done == 1 and not refused:
            with pytest.raises(UserError, match="another sweep is writing to this directory") as caught:
                sweep(tmp_path)
            refused.append(caught.value)

    assert sweep(tmp_path, progress=progress).measured == 33
    assert refused


def test_a_start_that_was_killed_before_the_spec_was_there_begins_again(tmp_path):
    (tmp_path / "environment.json").write_text("{")
    (tmp_path / ".spec.toml.part").write_text("nam")
    assert sweep(tmp_path).measured == 33


def test_a_damaged_line_is_an_error_that_names_it(tmp_path):
    sweep(tmp_path)
    path = tmp_path / records.FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b'{"half', b"\n", *lines[3:]]))
    with pytest.raises(UserError, match=r"records.jsonl:4: not a record"):
        sweep(tmp_path)


def test_a_full_disk_says_so_and_the_same_command_goes_on(tmp_path, monkeypatch):
    original, count = records.append, iter(range(100))

    def full(path, record):
        if next(count) == 5:
            raise OSError(28, "No space left on device")
        original(path, record)

    with monkeypatch.context() as patch:
        patch.setattr("attnbench.sweep.records.append", full)
        with pytest.raises(UserError, match="No space left on device; what was measured so far is kept"):
            sweep(tmp_path)
    assert len(written(tmp_path)) == 5
    assert sweep(tmp_path).measured == 33 - 5


def test_an_unknown_executor_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"unknown executor 'locl' .did you mean 'local'"):
        sweep(tmp_path, executor="locl")


def test_progress_counts_up_to_all_with_the_time_left(tmp_path):
    seen: list[tuple[int, int, float | None, str]] = []
    sweep(tmp_path, progress=lambda *state: seen.append(state))
    done, totals = [state[0] for state in seen], {state[1] for state in seen}
    assert done == sorted(done)
    assert totals == {33}
    assert done[-1] == 33
    assert seen[0][2] is None
    assert seen[-1][2] == pytest.approx(0)
    assert "speed fine forward 64 float32 cpu" in {state[3] for state in seen}
