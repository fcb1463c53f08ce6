"""Specs: what is valid becomes one resolved spec, what is not becomes one clear line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from attnbench.errors import UserError
from attnbench.measure import workload
from attnbench.sweep import fields
from attnbench.sweep.experiments import read_toml
from attnbench.sweep.records import QUANTITIES
from attnbench.sweep.spec import Spec, load_spec, parse_spec

SMALL: dict[str, Any] = {"variants": ["full", "local"], "lengths": [1024, 256]}
WHOLE = """
name = "whole"
baseline = "full"
variants = ["full", "local", { name = "linformer", rank = 256 }, { name = "local", label = "local-32", window = 32 }]
lengths = [256, 1024, 4096]
quantities = ["speed", "memory", "operations", "accuracy"]
modes = ["forward", "train_step"]
scope = "attention"
causal = false
devices = ["cpu"]
dtypes = ["float32"]
batch = 1
rounds = 7

[model]
dim = 256
heads = 4
depth = 2

[accuracy]
tasks = [{ name = "mqar", length = 64, pairs = 4 }]
seeds = [0, 1, 2]
steps = 600
causal = true
model = { dim = 64, heads = 2 }

[limits]
seconds = 60
memory_gb = 8
"""


def complaint(**changes: Any) -> str:
    """The one line that a spec with these keys (dotted: __) ends in."""
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    with pytest.raises(UserError) as caught:
        parse_spec(SMALL, source="my.toml", overrides=overrides)
    line = str(caught.value)
    assert line.startswith("my.toml: ")
    assert "\n" not in line
    return line.removeprefix("my.toml: ")


def test_a_whole_spec():
    spec = parse_spec(tomllib.loads(WHOLE))
    assert [entry.label for entry in spec.variants] == ["full", "local", "linformer", "local-32"]
    assert spec.variants[3].name == "local"
    assert spec.variants[3].options == {"window": 32}
    assert spec.model.dim == [256]
    assert spec.accuracy is not None
    assert spec.accuracy.tasks[0].options == {"length": 64, "pairs": 4}
    assert spec.accuracy.recipe["steps"] == 600
    assert spec.accuracy.model.given() == {"dim": 64, "heads": 2}


def test_everything_but_variants_and_lengths_has_a_default():
    spec = parse_spec(SMALL)
    assert spec.lengths == [256, 1024]
    assert spec.quantities == ["speed", "memory", "operations"]
    assert spec.rounds == 7
    assert spec.baseline == "full"
    assert parse_spec({"variants": ["local", "linformer"], "lengths": [1]}).baseline == "local"


def test_a_spec_of_trainings_alone_needs_no_lengths():
    spec = parse_spec({"variants": ["full"], "accuracy": {"tasks": ["mqar"], "steps": 10}})
    assert spec.quantities == ["accuracy"]
    assert spec.over_lengths == []


@pytest.mark.parametrize(
    "text", [WHOLE, 'variants = ["full", { name = "x", parts = [["a", "b"]], w = [1, 2] }]\nlengths=[1]']
)
def test_a_resolved_spec_is_itself_again(text):
    spec = parse_spec(tomllib.loads(text))
    again = parse_spec(tomllib.loads(spec.toml()))
    assert again.model_dump() == spec.model_dump()
    assert again.toml() == spec.toml()


def test_a_list_is_a_grid_with_a_label_for_each_point():
    entry = {"name": "local", "window": [32, 128], "kind": ["a", "b"], "rank": 3, "parts": [["x", "y"]]}
    spec = parse_spec({"variants": ["full", entry], "lengths": [8]})
    assert [entry.label for entry in spec.variants[1:3]] == ["local(window=32, kind=a)", "local(window=32, kind=b)"]
    assert len(spec.variants) == 5
    assert spec.variants[1].options == {"window": 32, "kind": "a", "rank": 3, "parts": ["x", "y"]}


def test_a_grid_of_task_options_is_one_task_at_several_settings():
    section = {"tasks": [{"name": "mqar", "length": [64, 128], "pairs": 4}], "steps": 1}
    tasks = parse_spec({"variants": ["full"], "accuracy": section}).accuracy.tasks  # type: ignore[union-attr]
    assert [(task.label, task.options["length"]) for task in tasks] == [("mqar", 64), ("mqar", 128)]


def test_overrides_reach_into_sections_and_pick_variants():
    spec = parse_spec(SMALL | {"model": {"depth": 3}}, overrides={"model.dim": 128, "limits.seconds": 5, "rounds": 2})
    assert (spec.model.dim, spec.model.depth, spec.limits.seconds, spec.rounds) == ([128], [3], 5.0, 2)
    entries = ["full", {"name": "local", "label": "near", "window": 4}]
    spec = parse_spec({"variants": entries, "lengths": [8]}, overrides={"variants": ["near", "linformer"]})
    assert [(entry.name, entry.label, entry.options) for entry in spec.variants] == [
        ("local", "near", {"window": 4}),
        ("linformer", "linformer", {}),
    ]


def test_overrides_leave_the_given_spec_alone():
    data = {"variants": ["full"], "lengths": [8], "model": {"dim": 64}}
    parse_spec(data, overrides={"model.dim": 128})
    assert data["model"] == {"dim": 64}


def test_a_baseline_that_was_picked_away_is_an_error():
    with pytest.raises(UserError, match="baseline: unknown label 'full'"):
        parse_spec(SMALL | {"baseline": "full"}, overrides={"variants": ["local"]})


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"lenghts": [1]}, ["unknown key 'lenghts'", "did you mean 'lengths'?", "valid keys: name, variants"]),
        ({"model__dims": 4}, ["unknown key 'model.dims'", "'dim'", "dim, heads, depth"]),
        ({"limits__second": 4}, ["unknown key 'limits.second'", "'seconds'"]),
        ({"modes": ["fwd"]}, ["modes[0]", "'fwd'", "valid: forward, backward, train_step, decode"]),
        ({"dtypes": ["float31"]}, ["dtypes[0]", "'float31'", "did you mean 'float32'?"]),
        ({"devices": ["gpu"]}, ["devices[0]", "'gpu'", "valid: cpu, cuda"]),
        ({"quantities": ["sped"]}, ["quantities[0]", "did you mean 'speed'?"]),
        ({"scope": "all"}, ["scope", "'all'", "attention, model"]),
        ({"rounds": "7"}, ["rounds: received '7'; valid: a whole number"]),
        ({"rounds": True}, ["rounds: received True"]),
        ({"rounds": 0}, ["rounds: received 0", "1"]),
        ({"causal": 1}, ["causal: received 1; valid: true or false"]),
        ({"lengths": 256}, ["lengths: received 256; valid: a list"]),
        ({"lengths": [0]}, ["lengths[0]: received 0"]),
        ({"lengths": [8, 8]}, ["lengths: 8 is there twice"]),
        ({"lengths": []}, ["lengths: at least one is needed to measure speed"]),
        ({"model": 3}, ["model: received 3; valid: a table"]),
        ({"model__heads": 3}, ["model.dim: must be a multiple of heads, received dim 256 and heads 3"]),
        ({"limits__seconds": float("inf")}, ["limits.seconds: received inf"]),
        ({"name": "a/b"}, ["name: received 'a/b'"]),
        ({"baseline": "ful"}, ["baseline: unknown label 'ful'", "'full'", "labels: full, local"]),
        ({"variants": []}, ["variants: a list of names or tables"]),
        ({"variants": [3]}, ["variants[0]", "received 3"]),
        ({"variants": ["full", "full"]}, ["variants: label 'full' is used twice"]),
        ({"variants": [{"label": "x"}]}, ["variants[0].name: a name is needed"]),
        ({"variants": [{"name": "full", "label": "a\nb"}]}, ["variants[0].label"]),
        ({"variants": [{"name": "full", "w": []}]}, ["variants[0].w: an empty list"]),
        ({"variants": [{"name": "full", "w": float("nan")}]}, ["variants[0].w", "received nan"]),
        ({"variants": [{"name": "x", "a": [0] * 101, "b": [0] * 100}]}, ["variants[0]: a grid of 10100 entries"]),
        ({"variants": [{"name": "full", "heads": 3}]}, ["variants[0].heads", "model.heads"]),
        ({"quantities": ["accuracy"]}, ["quantities: accuracy needs a section [accuracy]"]),
        ({"accuracy": 3}, ["accuracy: a section is needed, received 3"]),
        ({"accuracy": {"steps": 3}}, ["accuracy.tasks: needed"]),
        ({"accuracy__tasks": ["mqar"]}, ["accuracy: a recipe needs a budget"]),
        ({"accuracy": {"tasks": ["mqar"], "stesp": 3}}, ["accuracy: unknown key 'stesp' (did you mean 'steps'?)"]),
        ({"accuracy": {"tasks": ["mqar"], "steps": "3"}}, ["accuracy: steps: received '3'; valid: a whole number"]),
        (
            {"accuracy": {"tasks": ["mqar"], "steps": 3, "batch": 0}},
            ["accuracy: ", "batch must be at least 1, received 0"],
        ),
        ({"accuracy": {"tasks": ["mqar"], "steps": 3, "model": {"norm": "lyer"}}}, ["accuracy.model.norm", "'layer'"]),
        ({"accuracy": {"tasks": ["mqar", "mqar"], "steps": 3}}, ["accuracy.tasks: ('mqar', {}) is there twice"]),
        (
            {"accuracy": {"tasks": [{"name": "mqar", "recipe": {"stps": 1}}], "steps": 3}},
            ["accuracy.tasks[0].recipe", "'steps'"],
        ),
        ({"lengths__x": 1}, ["lengths.x: lengths is not a table but [1024, 256]"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(changes, parts):
    line = complaint(**changes)
    for part in parts:
        assert part in line


def test_variants_are_needed():
    with pytest.raises(UserError, match="spec: variants: needed"):
        parse_spec({})


# -- files


def test_a_file_that_is_not_there_names_the_experiments(tmp_path):
    with pytest.raises(UserError, match="no such file or experiment"):
        load_spec(tmp_path / "none.toml")
    with pytest.raises(UserError, match=r"quik: no such file or experiment .did you mean 'quick'"):
        load_spec("quik")


@pytest.mark.parametrize("content", [b"a = [1,\n", b"\xff\xfe\x00", b"= 3", b"[a]\n[a]\n", b'x = "\n"'])
def test_a_file_that_is_not_toml(tmp_path, content):
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.toml: not TOML: ") as caught:
        load_spec(tmp_path / "bad.toml")
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_spec(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_toml(tmp_path)


def test_a_spec_is_named_after_its_file(tmp_path):
    (tmp_path / "my first sweep.toml").write_text('variants = ["full"]\nlengths = [8]')
    assert load_spec(tmp_path / "my first sweep.toml").name == "my-first-sweep"


# -- the whole


def test_reading_a_spec_imports_no_torch():
    code = "import sys; from attnbench.sweep import load_spec; load_spec('quick'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_names_in_a_spec_are_those_of_the_rooms_that_measure():
    assert get_args(fields.Mode) == workload.MODES
    assert get_args(fields.Dtype) == workload.DTYPES
    assert get_args(Spec.model_fields["scope"].annotation) == workload.SCOPES
    assert set(get_args(fields.Quantity)) < set(QUANTITIES)


# Values as TOML can hold them, and keys as a hand that slips would write them.
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5000),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["full", "local", "speed", "memory", "forward", "cpu", "float32", "mqar", "model", ""]),
    st.dates(),
)
keys = st.one_of(
    st.sampled_from(
        [*Spec.model_fields, "label", "window", "dim", "heads", "depth", "seconds", "memory_gb", "tasks", "seeds"]
    ),
    st.sampled_from(["steps", "batch", "learning_rate", "recipe", "options", "schedule"]),
    st.text(max_size=6),
)
some = st.lists(leaves, max_size=3)
values = (
    leaves
    | some
    | st.dictionaries(keys, leaves | some, max_size=3)
    | st.lists(st.dictionaries(keys, leaves | some, max_size=2))
)
sound = {"variants": ["full", "local"], "lengths": [8], "accuracy": {"tasks": ["mqar"], "steps": 3}}
dotted = keys | st.tuples(keys, keys).map(".".join)
seen = {"malformed": 0}


@settings(max_examples=1300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    base=st.one_of(st.just(sound), st.dictionaries(keys, values, max_size=4)),
    changes=st.dictionaries(dotted, values, max_size=2),
)
@example(base={"variants": [{"name": "a", "x": {"y": [None]}}], "lengths": [1]}, changes={})
@example(base={"variants": ["full"], "lengths": [10**400]}, changes={})
def test_any_spec_is_valid_or_ends_in_one_line(base, changes):
    try:
        spec = parse_spec(base, source="fuzz.toml", overrides=changes)
    except UserError as error:
        seen["malformed"] += 1
        line = str(error)
        assert line.startswith("fuzz.toml: ")
        assert line.isprintable()
        assert 12 < len(line) < 2000
    else:
        assert parse_spec(tomllib.loads(spec.toml())).model_dump() == spec.model_dump()


def test_over_a_thousand_malformed_specs_were_met():
    assert seen["malformed"] >= 1000


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.text(max_size=200), st.binary(max_size=100)))
def test_any_file_is_a_spec_or_ends_in_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("fuzz") / "fuzz.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError) as caught:
        load_spec(path)
    assert str(caught.value).isprintable()
