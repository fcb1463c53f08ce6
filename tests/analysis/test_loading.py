from __future__ import annotations

import json

import pytest

from attnbench.analysis import load, tables
from attnbench.errors import UserError
from attnbench.sweep import records

from .synthetic import Synthetic

LAWS = {"full": (1e-9, 2.0), "local": (1e-6, 1.0)}


def test_a_directory_without_a_run_says_so(tmp_path):
    with pytest.raises(UserError, match=r"no run here: a directory that holds records\.jsonl is expected"):
        load(tmp_path)


def test_a_run_without_records_has_empty_tables(tmp_path):
    (tmp_path / "records.jsonl").touch()
    run = load(tmp_path)
    assert run.name == tmp_path.name
    assert run.baseline == "full"
    assert all(table.empty for table in tables(run).values())


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("spec.toml", "name = ", "not TOML"),
        ("environment.json", '{"a": NaN', "not JSON"),
        ("environment.json", "[1]", "an object is expected, received list"),
        ("records.jsonl", '{"schema": 1}\nbroken\n', r"records\.jsonl:2: not a record"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, file, text, message):
    path = Synthetic().speed(LAWS, [64], 1).write(tmp_path / "run")
    (path / file).write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_records_appended_by_the_sweep_are_read(tmp_path):
    records.append(
        tmp_path / "records.jsonl", {"cell": "s1", "quantity": "speed", "label": "full", "status": "ok", "value": 1.5}
    )
    run = load(tmp_path)
    assert list(run.frame.columns) == list(records.COLUMNS)
    assert run.frame["value"].tolist() == [1.5]
    assert run.frame["length"].isna().all()


def test_incomplete_rounds_are_left_out(loaded):
    run = Synthetic().speed(LAWS, [64], rounds=3)
    run.add(
        "speed", "full", 9.0, length=64, round=3
    )  # the sweep died here, and measured round 3 again in a new session
    run.session = "two"
    run.add("speed", "full", 5.0, length=64, round=3)
    run.add("speed", "local", 5.0, length=64, round=3)
    speed = tables(loaded(run))["speed"]
    assert speed["n"].tolist() == [4, 4]
    usable = loaded(run).usable("speed")
    assert 9.0 not in usable["value"].tolist()
    assert (usable["value"] == 5.0).sum() == 2


def test_memory_measured_in_two_sessions_loses_nothing(loaded):
    run = Synthetic()
    run.add("memory", "full", 100.0, length=64)
    run.session = "two"
    run.add("memory", "local", 50.0, length=64)
    found = tables(loaded(run))
    assert found["memory"]["bytes"].tolist() == [100.0, 50.0]
    assert found["ratios"].set_index("label")["ratio"]["local"] == 0.5


def test_tables_do_not_depend_on_the_order_of_records(loaded):
    run = Synthetic().counted("memory", LAWS, [64, 128]).counted("operations", LAWS, [64, 128])
    first = tables(loaded(run))
    run.records.reverse()
    second = tables(loaded(run))
    for name in ("memory", "operations"):
        assert first[name].to_csv() == second[name].to_csv()


def test_a_cell_that_failed_in_a_later_round_carries_no_number(loaded):
    run = Synthetic().speed(LAWS, [64], rounds=7)
    run.failed("local", 64, "timeout", "over 60 s", round=7)
    row = tables(loaded(run))["speed"].set_index("label").loc["local"]
    assert (row["status"], row["reason"], row["n"]) == ("timeout", "over 60 s", 0)
    assert row.isna()["seconds"]


def test_two_runs_are_read_as_one(tmp_path):
    timed = Synthetic().speed(LAWS, [64]).write(tmp_path / "timed")
    trained = (
        Synthetic().trained("mqar", {"full": [1.0], "local": [0.5]}, {"constant": 0.1}).write(tmp_path / "trained")
    )
    found = tables(load(timed, trained))
    assert len(found["speed"]) == 2
    assert found["decisions"].set_index("label")["accuracy"].to_dict() == {"full": 1.0, "local": 0.5}


def test_runs_of_different_environments_are_not_read_as_one(tmp_path):
    first = Synthetic().speed(LAWS, [64]).write(tmp_path / "first")
    other = Synthetic()
    other.environment["processor"] = "another"
    other.environment["git_commit"] = "def"
    second = other.speed(LAWS, [64]).write(tmp_path / "second")
    with pytest.raises(UserError, match="processor 'synthetic' and 'another'") as caught:
        load(first, second)
    assert "git_commit" not in str(caught.value)


def test_one_label_with_two_meanings_is_refused(tmp_path):
    first = Synthetic().speed(LAWS, [64], options={"window": 32}).write(tmp_path / "first")
    second = Synthetic().speed(LAWS, [64], options={"window": 64}).write(tmp_path / "second")
    with pytest.raises(UserError, match=r"label '(full|local)' is"):
        load(first, second)


def test_environment_is_read_as_it_is(tmp_path):
    run = Synthetic()
    run.environment["variants"] = {"full": {"path": "1"}}
    path = run.speed(LAWS, [64], 1).write(tmp_path / "run")
    assert load(path).environment == json.loads((path / "environment.json").read_text())
    assert load(path).capabilities == {"full": {"path": "1"}}
