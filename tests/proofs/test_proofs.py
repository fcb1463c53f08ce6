"""The scripts behind results/*/*.md still run, and count what they say they count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROOFS = Path(__file__).parents[2] / "results" / "proofs"


def script(name: str, *arguments: str) -> str:
    command = [sys.executable, str(PROOFS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_shares_are_printed_for_every_case_and_full_attention_is_the_unit():
    rows = [
        line for line in script("share.py", "--lengths", "64", "--rounds", "1").splitlines() if line.startswith("| 64")
    ]
    assert rows[0] == "| 64 | full | 64 | 1.00 | 1.00 |"
    assert len(rows) == 8
    assert rows[1].startswith("| 64 | local, window 128 | 64 |")  # a window wider than the sequence sees all of it


def test_both_ways_of_getting_threads_are_compared_for_every_case():
    lines = script("threads.py", "--length", "128", "--rounds", "1").splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    assert len(rows) == 4
    assert rows[-1][1:3] == ["1.00", "1.00"]  # local against itself, either way


@pytest.mark.parametrize("name", ["peers.py", "overhead.py", "first_steps.py"])
def test_a_script_says_what_it_takes(name):
    assert "usage" in script(name, "--help")


def test_intervals_that_hold_the_true_ratio_are_counted():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import aa, pandas; print(aa.report(pandas.DataFrame({"
    code += "'ratio': [1.0, 1.1, 0.9], 'low': [0.9, 1.05, 0.8], 'high': [1.1, 1.2, 1.0], 'n': [12, 12, 12]}), 1.0))"
    made = subprocess.run([sys.executable, "-c", code, str(PROOFS)], capture_output=True, text=True, check=True)
    assert made.stdout == "| 1.00 | 3 | 12 | 2 | 0.143 | 10.0 % | 0.900 to 1.100 | 1.000 |\n"
