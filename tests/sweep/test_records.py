"""Records: strict lines, appended whole, read back as written, and never trusted where damaged."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.sweep import records

RECORD = {"cell": "s1", "quantity": "speed", "label": "naïve", "status": "ok", "value": 0.25, "samples": [0.2, 0.3]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


def test_what_is_appended_is_read_back_with_every_column(path):
    records.append(path, RECORD)
    records.append(path, {**RECORD, "cell": "s2"})
    first, second = records.read(path)
    assert tuple(first) == records.COLUMNS
    assert first == dict.fromkeys(records.COLUMNS) | RECORD | {"schema": records.SCHEMA}
    assert second["cell"] == "s2"
    assert path.read_bytes().count(b"\n") == 2


def test_an_unknown_column_and_a_value_that_json_cannot_hold_are_refused(path):
    with pytest.raises(KeyError, match="valu"):
        records.append(path, {"valu": 1})
    with pytest.raises(ValueError, match="JSON"):
        records.append(path, {"value": float("nan")})
    assert not path.exists()


@given(cut=st.integers(min_value=1, max_value=200))
def test_a_torn_last_line_is_passed_over_and_cut_off_by_the_next_append(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("torn") / "records.jsonl"
    records.append(path, RECORD)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: min(cut, len(whole) - 1)])
    assert len(list(records.read(path))) == 1
    records.append(path, {**RECORD, "cell": "s2"})
    assert [record["cell"] for record in records.read(path)] == ["s1", "s2"]


def test_a_torn_line_longer_than_a_block_is_cut_off(path):
    records.append(path, RECORD)
    path.write_bytes(path.read_bytes() + b"x" * 10_000)
    records.append(path, RECORD)
    assert len(list(records.read(path))) == 2


def test_a_torn_first_line_leaves_an_empty_file(path):
    path.write_bytes(b'{"schema": 1, "ce')
    assert list(records.read(path)) == []
    records.append(path, RECORD)
    assert len(list(records.read(path))) == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"schema": 1, "cell"', "not a record"),
        (b"[1, 2]", "an object with a schema"),
        (b'{"cell": "s1"}', "an object with a schema"),
        (b'{"schema": 1, "value": NaN}', "NaN is not strict JSON"),
        (b'{"schema": 99}', "schema 99, newer than"),
        (b"\xff\xfe", "not a record"),
    ],
)
def test_a_damaged_middle_line_is_an_error_that_names_it(path, line, problem):
    records.append(path, RECORD)
    path.write_bytes(path.read_bytes() + line + b"\n")
    records.append(path, RECORD)
    with pytest.raises(records.RecordsError, match=f"records.jsonl:2: .*{problem}") as caught:
        list(records.read(path))
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_whole_lines_behind(path, monkeypatch):
    records.append(path, RECORD)
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))  # the next line does not fit
        with pytest.raises(OSError, match="large"):
            records.append(path, RECORD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert path.stat().st_size == size
    records.append(path, RECORD)
    assert len(list(records.read(path))) == 2


def test_a_cell_is_named_by_its_quantity_and_by_all_that_defines_it():
    definition = {"label": "full", "length": 256, "options": {"b": 1, "a": [1, 2]}}
    name = records.cell_id("speed", definition)
    assert name[0] == "s"
    assert len(name) == 16
    assert name == records.cell_id("speed", json.loads(json.dumps(dict(reversed(definition.items())))))
    assert name[1:] != records.cell_id("memory", definition)[1:]
    assert name != records.cell_id("speed", {**definition, "length": 257})


def test_every_quantity_has_a_letter_of_its_own():
    assert len(set(records.QUANTITIES.values())) == len(records.QUANTITIES)
