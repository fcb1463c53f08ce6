"""The main job, end to end, on a tiny spec: records, tables, plots and page come out, and the same command resumes."""

import csv
import json

import pytest

SPEC = """
# A sweep small enough for a test.
name = "tiny"
variants = ["full", "none"]
lengths = [16, 32]
quantities = ["speed", "memory", "operations"]
modes = ["forward"]
rounds = 2

[model]
dim = 16
heads = 2
depth = 1
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(SPEC)
    return path


def test_a_spec_goes_in_and_tables_plots_and_page_come_out(cli, spec, tmp_path):
    out = tmp_path / "out"
    outcome = cli("run", spec, "--out", out)
    assert outcome.code == 0, outcome.err
    assert "full" in outcome.out
    records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    assert {record["status"] for record in records} == {"ok"}
    assert {(r["label"], r["length"]) for r in records if r["quantity"] == "memory"} == {
        (label, length) for label in ("full", "none") for length in (16, 32)
    }
    with open(out / "tables" / "memory.csv") as file:
        assert {row["label"] for row in csv.DictReader(file)} == {"full", "none"}
    assert (out / "report.html").exists()
    assert list((out / "plots").glob("*.png"))

    before = (out / "records.jsonl").read_bytes()
    assert cli("run", spec, "--out", out).code == 0
    assert (out / "records.jsonl").read_bytes() == before, "a finished sweep measures nothing again"

    spec.write_text(SPEC.replace("[16, 32]", "[16, 64]"))
    refused = cli("run", spec, "--out", out)
    assert refused.code == 2
    assert (out / "records.jsonl").read_bytes() == before


def test_dry_run_prints_the_plan_and_touches_nothing(cli, spec, tmp_path):
    out = tmp_path / "out"
    outcome = cli("run", spec, "--out", out, "--dry-run")
    assert outcome.code == 0, outcome.err
    assert "cells in" in outcome.out
    assert not out.exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"none"]', '"nome"]', "nome"),
        ("rounds = 2", "round = 2", "round"),
        ('"speed"', '"sped"', "sped"),
        ('["forward"]', '["forwards"]', "forwards"),
        ("lengths = [16, 32]", "lengths = [0]", "lengths"),
        ("name =", "name", "TOML"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(cli, spec, tmp_path, old, new, said):
    spec.write_text(SPEC.replace(old, new))
    outcome = cli("run", spec, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert said in outcome.err
    assert str(spec) in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pair", ["rounds", "=2"])
def test_set_wants_a_key_and_a_value(cli, spec, pair):
    assert "--set takes KEY=VALUE" in cli("run", spec, "--set", pair).err


def test_cuda_without_cuda_is_refused(cli, spec, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    outcome = cli("run", spec, "--device", "cuda", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "cuda" in outcome.err.lower()
    assert not (tmp_path / "out").exists()
