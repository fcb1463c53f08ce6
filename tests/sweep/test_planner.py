"""Plans: every cell once, with its group, its refusals from capabilities alone, and names that do not change."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.errors import UserError
from attnbench.sweep.ledger import Ledger
from attnbench.sweep.planner import plan
from attnbench.sweep.spec import parse_spec

BASE: dict[str, Any] = {"variants": ["fine", "twice"], "lengths": [64, 256], "quantities": ["speed", "memory"]}


def planned(**changes: Any):
    return plan(parse_spec(BASE | changes, source="my.toml"))


def quantities(cells) -> list[str]:
    return [cell.quantity for cell in cells]


def test_cells_of_every_label_length_mode_dtype_and_quantity():
    cells = planned(modes=["forward", "train_step"], dtypes=["float32", "bfloat16"]).cells
    assert quantities(cells).count("memory") == 2 * 2 * 2 * 2
    assert quantities(cells).count("speed") == 2 * 2 * 2 * 2
    assert quantities(cells).count("floor") == 2 * 2 * 2  # it has one length, its own
    assert len({cell.id for cell in cells}) == len(cells)


def test_a_group_holds_equal_work_and_every_label_once():
    for group in planned(modes=["forward", "train_step"]).groups:
        assert [cell.definition["label"] for cell in group.cells] == ["fine", "twice"]
        assert len({cell.group for cell in group.cells}) == 1
        assert group.exclusive
        assert group.rounds == (7 if group.cells[0].quantity == "speed" else 1)


def test_exact_quantities_come_first_and_lengths_ascend():
    cells = planned(quantities=["speed", "memory", "operations"], lengths=[256, 64]).cells
    assert quantities(cells)[:1] == ["rate"]
    lengths = [cell.definition["length"] for cell in cells if cell.quantity == "speed"]
    assert lengths == sorted(lengths)
    assert quantities(cells).index("speed") > max(i for i, name in enumerate(quantities(cells)) if name == "memory")


def test_a_models_grid_multiplies_its_cells_where_it_changes_them():
    grid = {"dim": [64, 128], "heads": [2], "depth": [1, 3]}
    attention = planned(model=grid, quantities=["memory"]).cells
    assert {cell.definition["head_dim"] for cell in attention} == {32, 64}
    assert len(attention) == 2 * 2 * 2  # the mixing alone has no depth
    assert attention[0].definition["depth"] is None
    model = planned(model=grid, scope="model", quantities=["memory"]).cells
    assert len(model) == 2 * 2 * 2 * 2
    assert {(cell.definition["dim"], cell.definition["depth"]) for cell in model} == {
        (64, 1),
        (64, 3),
        (128, 1),
        (128, 3),
    }


def test_names_of_cells_are_stable_and_depend_on_all_that_defines_them():
    first = {cell.id: cell.definition for cell in planned().cells}
    assert list(first) == [cell.id for cell in planned().cells]
    other = {cell.id for cell in planned(model={"dim": 128}).cells}
    assert not first.keys() & other
    assert first.keys() == {cell.id for cell in planned(rounds=3, seed=4, limits={"seconds": 1}).cells}


def test_refusals_are_planned_with_all_their_reasons():
    cells = planned(variants=["fine", "causal-only"], modes=["decode"], quantities=["speed"]).cells
    by_label = {cell.definition["label"]: cell.refusals for cell in cells if cell.quantity == "speed"}
    assert "fine does not decode token by token" in by_label["fine"]
    assert any("causal" in reason for reason in by_label["fine"])
    assert len(by_label["causal-only"]) >= 1
    assert plan(parse_spec(BASE)).estimate() > 0


def test_rates_are_chosen_on_each_task_or_on_the_first_for_all():
    accuracy = {"tasks": [{"name": "mqar", "pairs": [2, 4]}], "seeds": [0], "learning_rates": [1e-3, 3e-3], "steps": 10}
    for tune_on, wanted in (("each", 2), ("first", 1)):
        made = plan(parse_spec({"variants": ["full"], "accuracy": accuracy | {"tune_on": tune_on}}))
        tuning = [cell.id for cell in made.cells if cell.definition["quantity"] == "tuning"]
        waiting = [cell for cell in made.cells if cell.definition["quantity"] == "accuracy"]
        assert len(tuning) == wanted
        assert [cell.after for cell in waiting] == (tuning if tune_on == "each" else tuning * 2)
        tuned_on = None if tune_on == "each" else {"task": "mqar", "options": {"pairs": 2}}
        assert [cell.definition.get("tuned_on") for cell in waiting] == [None, tuned_on]


def test_lengths_of_testing_define_a_training_and_the_choice_of_its_rate():
    accuracy = {"tasks": ["mqar"], "seeds": [0], "learning_rates": [1e-3, 3e-3], "steps": 10}
    plain, longer = (
        plan(parse_spec({"variants": ["full"], "accuracy": accuracy | more})) for more in ({}, {"test_lengths": [128]})
    )
    assert not any("test_lengths" in cell.definition for cell in plain.cells)  # so that older records keep their names
    known = {cell.quantity: cell.definition.get("test_lengths") for cell in longer.cells}
    assert known == {"baseline": None, "tuning": [128], "accuracy": [128]}
    assert {cell.id for cell in plain.cells} & {cell.id for cell in longer.cells} == {
        cell.id for cell in plain.cells if cell.quantity == "baseline"
    }


def test_planning_constructs_nothing(monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a variant was constructed")

    monkeypatch.setattr("attnbench.contract.Variant.__init__", refuse)
    assert planned(variants=["fine", "bounded", "causal-only"]).cells


def test_state_is_measured_in_decoding_alone_and_compilation_never():
    cells = planned(quantities=["state", "compile"], modes=["forward", "decode"]).cells
    assert {cell.definition["mode"] for cell in cells if cell.quantity == "state"} == {"decode"}
    assert {cell.definition["mode"] for cell in cells if cell.quantity == "compile"} == {"forward"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": ["fin"]}, r"my.toml: variants: fin: unknown variant 'fin' .did you mean 'fine'"),
        (
            {"variants": [{"name": "fine", "att": 3}]},
            r"my.toml: variants: fine: fine: unknown option 'att' .did you mean 'at'",
        ),
        (
            {"variants": [{"name": "bounded", "max_len": 100}]},
            r"my.toml: variants: bounded.max_len: received 100, shorter than the length 256 in lengths",
        ),
        ({"variants": [{"name": "bounded", "max_len": "x"}]}, r"max_len: received 'x'; valid: a whole number"),
        (
            {"accuracy": {"tasks": ["mqr"], "steps": 1}, "quantities": ["accuracy"]},
            r"accuracy.tasks: unknown task 'mqr'",
        ),
        (
            {"accuracy": {"tasks": ["digits"], "test_lengths": [128], "steps": 1}, "quantities": ["accuracy"]},
            r"accuracy.test_lengths: received \[128\], but task digits has no option length",
        ),
    ],
)
def test_what_the_registries_do_not_know_ends_in_one_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        planned(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_cuda_is_an_error():
    with pytest.raises(UserError, match=r"my.toml: devices: device .cuda. was asked for.*available: cpu"):
        planned(devices=["cpu", "cuda"])


def test_a_variant_defined_in_a_script_is_an_error(monkeypatch):
    monkeypatch.setattr("faulty.Fine.__module__", "__main__")
    with pytest.raises(UserError, match="fine: defined in __main__, which a cell's own process cannot import"):
        planned()


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 10**6), min_size=1, max_size=4, unique=True),
    modes=st.lists(st.sampled_from(["forward", "backward", "train_step", "decode"]), min_size=1, unique=True),
    wanted=st.lists(st.sampled_from(["speed", "memory", "operations", "state", "compile"]), min_size=1, unique=True),
)
def test_no_cell_is_planned_twice_and_each_has_a_positive_estimate(lengths, modes, wanted):
    cells = planned(lengths=lengths, modes=modes, quantities=wanted).cells
    assert len({cell.id for cell in cells}) == len(cells)
    assert all(cell.estimate > 0 or cell.refusals for cell in cells)


def test_ten_thousand_cells_are_planned_and_found_again_quickly():
    spec = parse_spec(BASE | {"lengths": list(range(1, 2501)), "rounds": 2, "quantities": ["speed", "memory"]})
    began = time.process_time()
    whole = plan(spec)
    assert time.process_time() - began < 2
    assert len(whole.cells) > 10_000
    records = [
        {"cell": cell.id, "status": "ok", "session": "a", "round": 1}
        for cell in whole.cells
        if cell.quantity != "floor"
    ]
    began = time.process_time()
    ledger = Ledger(whole, records)
    left = [cell for turn in ledger.turns() for cell in ledger.left(turn)]
    assert time.process_time() - began < 3
    assert len(left) == 5000 + 2  # the second round of speed, and the floors
