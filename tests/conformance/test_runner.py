import json
import unittest
from collections.abc import Callable

import pytest
import torch

import attnbench
from attnbench.conformance import CHECKS, Case, Report, Result, cases, check, families, family, gate
from attnbench.contract import Unsupported
from attnbench.errors import UserError

pytestmark = pytest.mark.usefixtures("broken")

Gate = Callable[..., list[str]]


def gated(variant: str, **changes: object) -> list[str]:
    settings = {"heads": 2, "head_dim": 8, "max_len": 64, "causal": False, "device": "cpu", "dtype": "float32"}
    settings |= {"quantity": "speed", "mode": "forward", "length": 64, "options": {}} | changes
    return gate(variant, **settings)  # type: ignore[arg-type]


# -- results -----------------------------------------------------------------------------------------------------------------


def test_a_failure_names_property_input_and_discrepancy() -> None:
    (failure,) = check("ignores-causal", causal=True, only=["strict-causality"]).failures
    assert failure.property == "strict-causality"
    assert failure.causal is True
    assert failure.settings["n_q"] == 7  # one token has no later one
    assert failure.settings["options"] == {"heads": 2, "head_dim": 8, "max_len": None, "causal": True}
    assert {"dtype", "batch", "input_seed", "construction_seed", "t", "change"} <= set(failure.settings)
    assert "output at or before token" in failure.reason
    assert "differs by" in failure.reason
    assert "strict-causality (causal): output at or before" in str(failure)


def test_an_exception_fails_its_property_with_type_message_and_place() -> None:
    (failure,) = check("even-lengths-only", causal=False, only=["any-length"]).failures
    assert failure.reason.startswith("RuntimeError: ")
    assert "broken_variants.py" in failure.reason or "torch" in failure.reason
    assert failure.settings["n_q"] == 3


def test_what_is_not_declared_is_skipped_with_the_reason() -> None:
    report = check("half-sums", only=["strict-causality", "dropout", "decoding-steps", "exact-when"])
    assert {result.property: result.reason for result in report.results} == {
        "strict-causality": "not causal",
        "dropout": "has no dropout",
        "decoding-steps": "does not decode token by token",
        "exact-when": "declares no options under which it equals full attention",
    }
    assert {result.status for result in report.results} == {"skipped"}
    assert report.ok


def test_every_direction_that_is_declared_is_checked() -> None:
    assert {result.causal for result in check("correct", only=["any-length"]).results} == {False, True}
    assert {result.causal for result in check("correct", only=["any-length"], causal=True).results} == {True}
    assert {result.causal for result in check("half-sums", only=["any-length"]).results} == {False}
    with pytest.raises(Unsupported, match="half-sums has no causal form"):
        check("half-sums", causal=True)


def test_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    check("correct", only=["determinism", "dropout", "state-dict"])
    assert torch.equal(torch.get_rng_state(), before)


def test_determinism_flags_are_restored() -> None:
    check("correct", only=["fresh-memory"])
    assert not torch.are_deterministic_algorithms_enabled()


def test_options_go_over_the_small_ones() -> None:
    assert check("window-off-by-one", only=["empty-batch"]).options == {"window": 4}
    assert check("window-off-by-one", {"window": 7}, only=["empty-batch"]).options == {"window": 7}


# -- selection and expectation -----------------------------------------------------------------------------------------------


def test_only_takes_properties_and_families() -> None:
    names = families()
    assert [name for group in names.values() for name in group] == list(CHECKS)
    assert family("strict-causality") == "causality"
    report = check("correct", only=["causality", "any-length"], causal=False)
    assert [result.property for result in report.results] == [*names["causality"], "any-length"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: check("correct", only=["strict-casuality"]),
            r"unknown property 'strict-casuality' \(did you mean 'strict-causality'",
        ),
        (lambda: check("correct", expected={"nonsense": "why"}), "unknown property 'nonsense'"),
        (lambda: cases("correct", only=["nonsense"]), "unknown property 'nonsense'"),
        (lambda: check("corect"), r"unknown variant 'corect' \(did you mean 'correct'\?\)"),
        (lambda: check("correct", {"windw": 3}), "unknown option 'windw'"),
        (lambda: gated("corect"), "unknown variant"),
    ],
)
def test_a_wrong_name_is_one_clear_line(call: Callable[[], object], says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


def test_an_expected_failure_is_skipped_and_an_expected_pass_fails() -> None:
    report = check("wrong-scale", only=["reference-forward"], causal=False, expected={"reference-forward": "known"})
    (result,) = report.results
    assert result.status == "skipped"
    assert result.reason.startswith("expected to fail: known (output against reference differs by")
    report = check("correct", only=["reference-forward"], causal=False, expected={"reference-forward": "known"})
    (result,) = report.failures
    assert "but passes" in result.reason


# -- presentation ------------------------------------------------------------------------------------------------------------


def test_a_report_is_strict_json() -> None:
    report = check("ignores-key-mask", only=["padding"])
    assert not report.ok
    read = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert read["variant"] == "ignores-key-mask"
    assert read["ok"] is False
    assert {row["status"] for row in read["results"]} == {"passed", "failed"}


def test_the_table_fits_in_80_columns() -> None:
    headers, rows = check("correct", only=["any-length", "state-dict-new-process", "refusals", "causality"]).table()
    assert headers == ["property", "bidirectional", "causal"]
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(3)]
    assert sum(widths) + 3 * 4 <= 80
    assert ["any-length", "passed", "passed"] in rows


def test_every_check_states_its_promise() -> None:
    for name, function in CHECKS.items():
        assert function.__doc__, name
        assert len(function.__doc__.splitlines()[0]) <= 116


# -- under pytest ------------------------------------------------------------------------------------------------------------


def test_cases_are_named_and_raise_what_pytest_understands() -> None:
    every = cases("ignores-causal", causal=True)
    assert [case.__name__ for case in every] == [f"ignores-causal-{name}" for name in CHECKS]
    by_name = {case.prop: case for case in every}
    by_name["any-length"]()
    with pytest.raises(AssertionError, match=r"ignores-causal: strict-causality \(causal\): "):
        by_name["strict-causality"]()
    with pytest.raises(unittest.SkipTest, match="max_len does not bind"):
        by_name["max-len"]()


def test_a_case_with_one_direction_skipped_still_counts() -> None:
    done = Result("p", "passed", True)
    Case("v", "p", lambda: [Result("p", "skipped", False, "not causal"), done])()


def test_an_empty_report_is_ok() -> None:
    assert Report("v", {}, []).ok


# -- the gate ----------------------------------------------------------------------------------------------------------------


def test_the_gate_lets_a_correct_variant_through() -> None:
    for causal in (False, True):
        for mode in ("forward", "backward", "train_step"):
            assert gated("correct", causal=causal, mode=mode) == []
    assert gated("correct", causal=True, mode="decode") == []
    assert gated("correct", dtype="bfloat16") == []
    assert gated("correct", quantity="accuracy", causal=True) == []
    assert gated("correct", length=1) == []


@pytest.mark.parametrize(
    ("variant", "changes", "prop"),
    [
        ("wrong-scale", {}, "reference-forward"),
        ("wrong-gradient", {"mode": "backward"}, "reference-gradient"),
        ("wrong-gradient", {"mode": "train_step"}, "reference-gradient"),
        ("ignores-causal", {"causal": True}, "strict-causality"),
        ("ignores-key-mask", {"quantity": "accuracy"}, "padding-content"),
        ("forgets-first-token", {"mode": "decode", "causal": True}, "decoding-steps"),
        ("float32-out", {"dtype": "bfloat16"}, "dtypes"),
        ("noise-in-eval", {}, "deterministic-eval"),
        ("simulates-sparsity", {"quantity": "memory"}, "no-dense-tensor"),
        ("even-lengths-only", {"length": 33}, "any-length"),
    ],
)
def test_the_gate_holds_back_what_a_measurement_relies_on(variant: str, changes: dict[str, object], prop: str) -> None:
    held = gated(variant, **changes)
    assert any(line.startswith(f"{prop}: ") for line in held), held


@pytest.mark.parametrize(
    ("variant", "changes"),
    [("wrong-gradient", {}), ("ignores-causal", {}), ("float32-out", {}), ("dropout-in-eval", {})],
)
def test_the_gate_asks_for_no_more_than_the_measurement_needs(variant: str, changes: dict[str, object]) -> None:
    assert gated(variant, **changes) == []


def test_the_gate_never_goes_beyond_max_len() -> None:
    assert gated("linformer", max_len=40, length=40, options={"rank": 8}) == []
    assert attnbench.variant_info("linformer").supports.max_len
