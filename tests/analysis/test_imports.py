from __future__ import annotations

import json

import pytest

from attnbench.analysis import import_results, load, tables
from attnbench.analysis.imports import clean_table, read_csv_records, read_pytest_benchmark
from attnbench.errors import UserError


def foreign(path, rows=135):
    """A table as found in public: spaces in its header, units in names."""
    lines = [" Attention Type , Seq Len ,Batch Size, Time (ms) ,Memory [MB] , comment"]
    for row in range(rows):
        label = ("full", "flash", "linear")[row % 3]
        lines.append(f"{label}, {2 ** (6 + row // 3 % 5)} ,2, {1.5 + row} , {row + 1}, run {row}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_names_are_stripped_and_all_rows_stay(tmp_path):
    frame, units = clean_table(foreign(tmp_path / "table.csv"))
    assert list(frame.columns) == ["Attention Type", "Seq Len", "Batch Size", "Time", "Memory", "comment"]
    assert units == {"Time": "ms", "Memory": "mb"}
    assert len(frame) == 135
    assert frame["Attention Type"].tolist()[:3] == ["full", "flash", "linear"]


def test_a_foreign_table_becomes_a_run_that_can_be_tabulated(tmp_path):
    run = load(import_results(foreign(tmp_path / "table.csv"), tmp_path / "run"))
    assert len(run.of("speed")) == len(run.of("memory")) == 135
    found = tables(run)
    assert run.baseline == "full"
    assert len(found["speed"]) == 15
    assert found["speed"]["n"].tolist() == [9] * 15
    first = run.of("speed").iloc[0]
    assert (first["value"], first["unit"], first["length"], first["batch"]) == (pytest.approx(1.5e-3), "s", 64, 2)
    assert run.of("memory").iloc[0]["value"] == 1e6
    assert len(found["ratios"])


@pytest.mark.parametrize(
    ("header", "name", "unit"),
    [
        ("latency_ms", "latency", "ms"),
        ("peak memory (GiB)", "peak memory", "gib"),
        ("runtime us", "runtime", "us"),
        ("acc [%]", "acc", "%"),
    ],
)
def test_units_in_names(tmp_path, header, name, unit):
    (tmp_path / "t.csv").write_text(f"name,n,{header}\nfull,64,3\n")
    frame, units = clean_table(tmp_path / "t.csv")
    assert list(frame.columns)[2] == name
    assert units == {name: unit}
    assert len(read_csv_records(tmp_path / "t.csv")) == 1


def test_columns_can_be_named(tmp_path):
    (tmp_path / "t.csv").write_text("who,how long,T\nfull,64,3\nfull,64,oom\n")
    found = read_csv_records(tmp_path / "t.csv", {"label": "who", "length": "how long", "speed": "T"})
    assert [(r["label"], r["length"], r["value"], r["status"], r["round"]) for r in found] == [
        ("full", 64, 3.0, "ok", 0),
        ("full", 64, None, "oom", 1),
    ]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a,b\n1,2\n", None, "no column is known to hold a label"),
        ("name,b\n1,2\n", None, "no column is known to hold a quantity"),
        ("name,time\nfull,fast\n", None, "t.csv:2: time must be a number, received 'fast'"),
        ("name,n,time\nfull,6.5,1\n", None, "t.csv:2: length must be a whole number, received '6.5'"),
        ("name,time\nfull,1\n", {"speed": "tme"}, "no column 'tme' (did you mean 'time'?)"),
        ("name,time\nfull,1\n", {"sped": "time"}, "unknown column 'sped' (did you mean 'speed'?)"),
        ("time (s),time (ms)\n1,2\n", None, "two columns have one name: time"),
        ("", None, "not a table in CSV"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(tmp_path, text, columns, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError) as caught:
        read_csv_records(tmp_path / "t.csv", columns)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pytest_benchmark(tmp_path):
    stats = {"median": 0.002, "data": [0.001, 0.002, 0.003]}
    content = {
        "benchmarks": [
            {"name": "test_forward[full-64]", "params": {"variant": "full", "n": 64}, "stats": stats},
            {"name": "test_plain", "params": None, "stats": {"median": 0.5}},
        ]
    }
    (tmp_path / "b.json").write_text(json.dumps(content))
    found = read_pytest_benchmark(tmp_path / "b.json")
    assert [(r["label"], r["length"], r["value"], r["round"]) for r in found] == [
        ("full", 64, 0.001, 0),
        ("full", 64, 0.002, 1),
        ("full", 64, 0.003, 2),
        ("test_plain", None, 0.5, 0),
    ]
    assert len(tables(load(import_results(tmp_path / "b.json", tmp_path / "run")))["speed"]) == 2


def test_what_is_not_pytest_benchmark_says_so(tmp_path):
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(UserError, match="not pytest-benchmark's JSON"):
        read_pytest_benchmark(tmp_path / "b.json")


def test_nothing_is_overwritten(tmp_path):
    source = foreign(tmp_path / "table.csv", 3)
    import_results(source, tmp_path / "run")
    with pytest.raises(UserError, match="holds a run already"):
        import_results(source, tmp_path / "run")
    with pytest.raises(UserError, match=r"ends in \.json or \.csv"):
        import_results(tmp_path / "table.parquet", tmp_path / "other")
