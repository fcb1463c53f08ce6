"""The packaged experiments: each is found, valid, planned without complaint, and says what it is."""

from __future__ import annotations

import math

import pytest

from attnbench.sweep import experiment_path, list_experiments, load_spec, plan

NAMED = ["full", "local", "strided", "global-token", "clustering", "sinkhorn", "linformer", "synthesizer"]


@pytest.mark.parametrize("name", list_experiments())
def test_an_experiment_is_planned_and_every_cell_of_its_baseline_is_supported(name):
    spec = load_spec(name)
    assert spec.name == name
    assert experiment_path(name).read_text(encoding="utf-8").startswith("# ")
    whole = plan(spec)
    assert len({cell.id for cell in whole.cells}) == len(whole.cells)
    assert all(not cell.refusals for cell in whole.cells if cell.definition.get("label") == spec.baseline)


def test_the_experiments_that_the_documents_name_are_there():
    assert {"quick", "default", "mqar", "aa", "decode"} <= set(list_experiments())


def test_quick_measures_the_named_eight_with_one_seed_and_says_so():
    spec = load_spec("quick")
    assert [entry.name for entry in spec.variants] == NAMED
    assert (spec.lengths[0], spec.lengths[-1]) == (256, 4096)
    assert spec.accuracy is not None
    assert spec.accuracy.seeds == [0]
    assert "one seed is one seed" in experiment_path("quick").read_text(encoding="utf-8").lower()
    assert not any(cell.refusals for cell in plan(spec).cells)
    assert plan(spec).estimate() < 360


def test_aa_has_sixty_ratios_and_enough_rounds_for_their_intervals():
    spec = load_spec("aa")
    groups = [group for group in plan(spec).groups if group.cells[0].quantity == "speed"]
    assert len(groups) == 60
    assert {entry.name for entry in spec.variants} == {"full"}
    assert min(group.rounds for group in groups) >= 10


def test_mqar_trains_full_attention_on_five_seeds_beside_a_window_too_short():
    spec = load_spec("mqar")
    trained = [cell.definition for cell in plan(spec).cells if cell.quantity == "accuracy"]
    assert {definition["seed"] for definition in trained} == set(range(5))
    assert all(definition["causal"] for definition in trained)
    assert {definition["variant"] for definition in trained} == {"full", "local"}
    task = spec.accuracy.tasks[0] if spec.accuracy else None
    assert task is not None
    assert (task.options["length"], task.options["pairs"]) == (64, 4)


def test_a_default_sweep_reaches_16384():
    spec = load_spec("default")
    assert max(spec.lengths) == 16384
    assert math.isfinite(plan(spec).estimate())
