from __future__ import annotations

import time

import numpy as np
import pytest

from attnbench.analysis import load, read_table, tables, write_table, write_tables
from attnbench.analysis.costs import speed
from attnbench.analysis.files import TEXT

from .synthetic import Synthetic, sweep

LAWS = {"full": (1e-9, 2.0), "local": (1e-6, 1.0)}
FIXED = {
    "ratios": ["quantity", "mode", "device", "dtype", "length", "label", "ratio", "low", "high", "n"],
    "scaling": ["quantity", "mode", "label", "exponent", "low", "high", "from_length", "to_length"],
    "speed": ["mode", "device", "dtype", "length", "label", "seconds", "low", "high", "n", "tokens_per_second"],
    "memory": ["mode", "device", "dtype", "length", "label", "bytes"],
    "operations": ["mode", "device", "dtype", "length", "label", "flop"],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    return tables(load(sweep(["full", "full-naive", "local", "none"], [256, 512, 1024, 2048]).write(path)))


def test_names_of_files_and_columns_are_fixed(whole, tmp_path):
    written = {path.name for path in write_tables(whole, tmp_path / "tables")}
    named = ("speed", "memory", "operations", "rates", "accuracy", "ratios", "scaling", "crossover", "outcomes")
    assert {f"{name}.csv" for name in named} <= written
    for name, columns in FIXED.items():
        assert list(whole[name].columns[: len(columns)]) == columns


def test_the_same_variant_twice_is_one_and_double_work_is_two(loaded):
    laws = {"full": (1e-6, 1.0), "again": (1e-6, 1.0), "twice": (2e-6, 1.0)}
    run = loaded(Synthetic().speed(laws, [64, 128], rounds=15, noise=0.005))
    ratios = tables(run)["ratios"]
    for label, truth in (("full", 1.0), ("again", 1.0), ("twice", 2.0)):
        own = ratios[ratios["label"] == label]
        assert own["ratio"].to_numpy() == pytest.approx(truth, rel=0.01)  # though rounds drift by a factor of two
        assert (own["low"] <= own["ratio"]).all()
        assert (own["ratio"] <= own["high"]).all()
        assert own["n"].tolist() == [15, 15]


def test_decisions_are_ordered_by_the_ratio_within_rounds_not_by_seconds_of_different_rounds(loaded):
    made = Synthetic()
    shares = {"full": (1.0, 1.0, 1.0), "local": (0.5, 0.5, 0.5), "linear": (0.4, 0.9, 0.4)}
    for number in range(9):
        slow = 1 + number % 3
        for label, share in shares.items():
            made.add("speed", label, slow * share[number % 3], length=64, round=number)
    found = tables(loaded(made))["decisions"]
    assert found["label"].tolist() == ["linear", "local", "full"]
    assert found["seconds"].tolist() == pytest.approx([1.2, 1.0, 2.0])


def test_aa_intervals_contain_one_about_as_often_as_they_say(loaded):
    run = loaded(
        Synthetic(3).speed({"full": (1e-6, 1), "again": (1e-6, 1)}, list(range(64, 264)), rounds=10, noise=0.05)
    )
    ratios = tables(run)["ratios"].query("label == 'again'")
    inside = ((ratios["low"] <= 1) & (ratios["high"] >= 1)).mean()
    assert 0.94 < inside < 1.0


def test_only_equal_work_is_compared(loaded):
    run = Synthetic()
    for number in range(7):
        run.add("speed", "full", 1.0, length=64, batch=4, round=number)
        run.add("speed", "local", 0.1, length=64, batch=1, round=number)
        run.add("speed", "strided", 0.5, length=64, batch=4, heads=8, round=number)
    found = tables(loaded(run))
    assert found["ratios"]["label"].tolist() == ["full"]
    timed = found["speed"].set_index("label")
    assert timed["tokens_per_second"].to_dict() == pytest.approx({"full": 256.0, "local": 640.0, "strided": 512.0})


def test_ratios_never_cross_machines(loaded):
    run = Synthetic()
    for number in range(7):
        run.add("speed", "full", 1.0, length=64, round=number, host="one")
        run.add("speed", "local", 0.5, length=64, round=number, host="two")
    assert tables(loaded(run))["ratios"]["label"].tolist() == ["full"]


def test_decoding_counts_one_token_a_step(loaded):
    run = Synthetic()
    run.add("speed", "full", 0.5, length=1024, batch=4, mode="decode")
    run.add("state", "full", 4096.0, length=1024, batch=4, mode="decode")
    found = tables(loaded(run))
    assert found["speed"]["tokens_per_second"].tolist() == [8.0]
    assert found["state"]["bytes"].tolist() == [4096.0]
    assert found["decisions"]["state_bytes"].tolist() == [4096.0]


def test_tiny_cells_are_marked_as_dominated_by_the_floor(loaded):
    run = Synthetic().speed({"full": (1e-6, 1.0)}, [64, 4096], noise=0.0, drift=1.0)
    run.add("floor", "full", 4e-5, length=4)
    timed = tables(loaded(run))["speed"]
    assert timed["floor"].tolist() == [4e-5, 4e-5]
    assert timed["at_floor"].tolist() == [True, False]


def test_achieved_rate_and_its_share(loaded):
    run = (
        Synthetic()
        .speed({"full": (1e-3, 0.0)}, [64], noise=0.0, drift=1.0)
        .counted("operations", {"full": (2e9, 0.0)}, [64])
    )
    run.add("rate", None, 8e12, variant=None)
    row = tables(loaded(run))["rates"].iloc[0]
    assert row["flop_per_second"] == pytest.approx(2e12)
    assert row["share"] == pytest.approx(0.25)


def test_compile_time_has_columns_of_its_own(loaded):
    run = Synthetic()
    run.add("compile", "full", 3.0, length=64, details={"recompiles": 2, "masks": 0.25, "graphs": 1})
    row = tables(loaded(run))["compile"].iloc[0]
    assert (row["seconds"], row["recompiles"], row["mask_seconds"]) == (3.0, 2, 0.25)


@pytest.mark.parametrize("status", ["unsupported", "incorrect", "oom", "timeout", "error", "skipped"])
def test_every_outcome_appears_as_itself(loaded, status):
    run = Synthetic().speed(LAWS, [64])
    run.failed("local", 128, status, f"why {status}")
    found = tables(loaded(run))
    assert found["outcomes"][["label", "length", "status", "reason"]].values.tolist() == [
        ["local", 128, status, f"why {status}"]
    ]
    row = found["speed"].query("length == 128").iloc[0]
    assert (row["status"], row["reason"]) == (status, f"why {status}")
    assert np.isnan(row["seconds"])
    assert found["decisions"].query("length == 128")["status"].tolist() == [status]


@pytest.mark.parametrize(
    "label", ["null", "NA", "nan", "", "NaN", "None", "1", "1e5", "True", 'a,"b"', "<script>", "zeile\nzwei", "é–×"]
)
def test_csv_keeps_every_name(loaded, tmp_path, label):
    run = loaded(Synthetic(baseline=label).speed({label: (1e-6, 1.0), "other": (1e-6, 1.0)}, [64]))
    table = speed(run)
    back = read_table(write_table(table, tmp_path / "speed.csv"))
    assert back["label"].tolist() == table["label"].tolist() == [label, "other"]
    assert back["seconds"].tolist() == table["seconds"].tolist()
    assert back["length"].tolist() == [64, 64]
    assert back["at_floor"].isna().all()


def test_csv_round_trip_of_every_table(whole, tmp_path):
    for path in write_tables(whole, tmp_path):
        table, back = whole[path.stem], read_table(path)
        assert list(back.columns) == list(table.columns)
        assert len(back) == len(table)
        for column in table.columns:
            if column in TEXT:
                assert back[column].tolist() == table[column].fillna("").tolist(), (path.stem, column)
            elif table[column].dtype.kind == "f":
                np.testing.assert_array_equal(back[column].to_numpy(dtype=float), table[column].to_numpy(dtype=float))


@pytest.mark.slow
def test_a_hundred_thousand_records_are_read_and_tabulated_in_ten_seconds(tmp_path):
    labels = {f"v{i}": (1e-6 * (i + 1), 1.0) for i in range(31)} | {"full": (1e-9, 2.0)}
    run = Synthetic()
    lengths = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    run.speed(labels, lengths, rounds=400)
    path = run.write(tmp_path / "run")
    began = time.process_time()
    tables(load(path))
    assert time.process_time() - began < 10.0
