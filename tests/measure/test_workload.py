"""Workloads are data: they survive JSON, and refuse what they cannot mean."""

from __future__ import annotations

import json

import pytest

from attnbench.capabilities import Supports
from attnbench.contract import Unsupported, Variant
from attnbench.errors import UserError
from attnbench.measure import Measurement, Workload, build, refusals
from attnbench.measure.workload import check_device
from attnbench.registry import register


@register("workload-none-of-it", supports=Supports(max_len=True))
class NoneOfIt(Variant):
    """Declares nothing beside its need for max_len."""


def test_a_workload_survives_json():
    workload = Workload("full", {"kv_heads": 2}, mode="train_step", length=64, causal=True)
    assert Workload.from_dict(json.loads(json.dumps(workload.as_dict()))) == workload


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("mode", "forwards", "unknown mode 'forwards' (did you mean 'forward'?); valid: forward, backward"),
        ("scope", "layer", "unknown scope 'layer'; valid: attention, model"),
        ("dtype", "float8", "unknown dtype 'float8'"),
        ("length", 0, "length must be a whole number of at least 1, received 0"),
        ("batch", True, "batch must be a whole number of at least 1, received True"),
        ("lenght", 8, "unknown key 'lenght' (did you mean 'length'?)"),
    ],
)
def test_what_a_workload_cannot_mean_is_one_clear_line(field, value, said):
    with pytest.raises(UserError) as caught:
        Workload.from_dict({"variant": "full", field: value})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refusals_give_every_reason_and_build_raises_them():
    workload = Workload("workload-none-of-it", {"dropout": 0.1}, mode="decode", causal=True, length=8)
    reasons = refusals(workload)
    assert [reason for reason in reasons if "causal form" in reason]
    assert [reason for reason in reasons if "decode" in reason]
    assert [reason for reason in reasons if "dropout" in reason]
    with pytest.raises(Unsupported) as caught:
        build(workload)
    assert caught.value.reasons == reasons


def test_decoding_needs_a_causal_workload():
    assert refusals(Workload("full", mode="decode", causal=True)) == []
    assert refusals(Workload("full", mode="decode")) == ["decoding is causal: measure it with causal = true"]


def test_a_device_that_is_not_here_is_refused():
    assert check_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="unknown device 'gpu'; valid: cpu, cuda, mps"):
        check_device("gpu")
    with pytest.raises(UserError, match=r"device 'meta' was asked for, and torch sees none here; available: cpu"):
        check_device("meta")


def test_a_measurement_is_the_median_of_its_samples():
    measured = Measurement.of([3.0, 1.0, 2.0, 10.0], "s", {"calls": 2})
    assert measured.value == 2.5
    assert json.loads(json.dumps(measured.as_dict())) == {
        "value": 2.5,
        "unit": "s",
        "samples": [3.0, 1.0, 2.0, 10.0],
        "details": {"calls": 2},
    }
