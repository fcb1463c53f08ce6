from __future__ import annotations

import pytest

from attnbench.analysis import load, tables
from attnbench.analysis import recommend as recommend_anew
from attnbench.analysis.recommendation import parse_bytes
from attnbench.errors import UserError

from .synthetic import Synthetic

LENGTHS = [256, 1024, 4096]
LAWS = {"full": (1e-9, 2.0), "local": (1e-6, 1.0), "linear": (5e-7, 1.0), "none": (1e-8, 1.0)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = Synthetic().speed(LAWS, LENGTHS).speed(LAWS, LENGTHS, causal=True)
    made.counted("memory", {"full": (1, 2.0), "local": (500, 1.0), "linear": (2000, 1.0), "none": (1, 1.0)}, LENGTHS)
    made.trained(
        "mqar", {"full": [1.0] * 3, "local": [0.95] * 3, "linear": [0.4] * 3, "none": [0.2] * 3}, {"seen": 0.25}
    )
    made.failed("lsh", 1024, "unsupported", "lsh has no causal form", causal=True)
    made.failed("lsh", 4096, "oom", "limit 8 GB")
    return load(made.write(tmp_path_factory.mktemp("recommend") / "run"))


@pytest.fixture(scope="module")
def recommend(run):
    """The function under test, with the run's tables at hand."""
    found = tables(run)
    return lambda run, length, **conditions: recommend_anew(run, length, found=found, **conditions)


def test_tables_are_made_where_none_are_given(run):
    assert recommend_anew(run, 4096).ranked["label"].tolist() == ["linear", "local", "full"]


def test_the_fastest_comes_first_with_evidence(run, recommend):
    found = recommend(run, 4096)
    assert found.ranked["label"].tolist() == ["linear", "local", "full"]
    assert found.answer.startswith("Use linear: 8.")
    assert "accuracy" in found.ranked["reason"].iloc[2] or "mqar 1.000" in found.ranked["reason"].iloc[2]
    assert found.excluded.set_index("label")["reason"].to_dict() == {
        "none": "a control, not an attention",
        "lsh": "oom: limit 8 GB",
    }


def test_ranks_are_by_the_ratio_within_rounds_not_by_seconds_of_different_rounds(run):
    found = dict(tables(run))
    slow_phase = found["decisions"]["label"].eq("linear")
    found["decisions"] = found["decisions"].assign(seconds=found["decisions"]["seconds"].mask(slow_phase, 100.0))
    assert recommend_anew(run, 4096, found=found).ranked["label"].tolist() == ["linear", "local", "full"]


def test_it_says_full_attention_when_that_is_the_answer(run, recommend):
    found = recommend(run, 256)
    assert found.ranked["label"].tolist()[0] == "full"
    assert found.answer.startswith("Use full attention: nothing that meets the conditions is faster")


def test_conditions_exclude_with_their_reasons(run, recommend):
    found = recommend(run, 4096, min_accuracy=0.9, max_memory="5 MB")
    reasons = found.excluded.set_index("label")["reason"]
    assert found.ranked["label"].tolist() == ["local"]
    assert reasons["linear"].startswith("takes 7.81 MiB, more than 4.77 MiB; reaches mqar 0.400")
    assert reasons["full"] == "takes 16 MiB, more than 4.77 MiB"
    assert "accuracy at least 0.9" in found.conditions


def test_causal_counts_only_what_is_causal(run, recommend):
    found = recommend(run, 1024, causal=True)
    assert found.excluded.set_index("label")["reason"]["lsh"] == "unsupported: lsh has no causal form"
    with pytest.raises(UserError, match="the run holds no causal training"):
        recommend(run, 1024, causal=True, min_accuracy=0.9)


def test_a_length_between_two_takes_the_next_above(run, recommend):
    assert "length 3000 (measured at 4096, the next above)" in recommend(run, 3000).conditions


def test_nothing_meets_impossible_conditions(run, recommend):
    found = recommend(run, 4096, max_memory=1)
    assert found.answer == "Nothing that was measured meets the conditions."
    assert found.ranked.empty


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 100_000}, "length 100000 lies beyond what was measured: 256, 1024, 4096"),
        ({"length": 256, "device": "cuda"}, "device must be one of cpu; received 'cuda'"),
        ({"length": 256, "colour": "red"}, "unknown condition 'colour'; valid: mode, scope, device, dtype"),
        ({"length": 256, "task": "sort"}, "unknown task 'sort'; the run holds scores of mqar"),
        ({"length": 256, "max_memory": "many"}, "memory must be a number of bytes"),
    ],
)
def test_what_cannot_be_answered_is_one_clear_line(run, recommend, arguments, message):
    with pytest.raises(UserError) as caught:
        recommend(run, **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_memory_is_read_with_its_unit():
    assert parse_bytes("2 GiB") == 2 * 2**30
    assert parse_bytes("1.5mb") == 1.5e6
    assert parse_bytes(77) == 77
