import copy
import dataclasses
import json
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.capabilities import Growth, Stream, Supports

FLAGS = ("causal", "cross", "padding", "dropout", "decode")


def test_nothing_is_declared_by_default_but_the_plain_direction() -> None:
    plain = Supports()
    assert not any(getattr(plain, flag) for flag in (*FLAGS, "max_len", "grouped"))
    assert plain.bidirectional
    assert plain.refusals("x") == []


@pytest.mark.parametrize("flag", FLAGS)
def test_what_is_not_declared_is_refused_by_name(flag: str) -> None:
    (reason,) = Supports().refusals("mine", **{flag: True})
    assert reason.startswith("mine ")
    assert Supports(**{flag: True}).refusals("mine", **{flag: True}) == []


def test_all_reasons_are_given() -> None:
    reasons = Supports(max_len=True).refusals("mine", causal=True, cross=True, padding=True, dropout=True, decode=True)
    assert len(reasons) == 6
    assert len(set(reasons)) == 6


@given(
    st.fixed_dictionaries({flag: st.booleans() for flag in FLAGS}),
    st.fixed_dictionaries({flag: st.booleans() for flag in FLAGS}),
)
def test_one_reason_for_each_thing_asked_and_not_declared(declared: dict[str, bool], asked: dict[str, bool]) -> None:
    reasons = Supports(**declared).refusals("mine", **asked)
    assert len(reasons) == sum(asked[flag] and not declared[flag] for flag in FLAGS)


def test_causal_only_refuses_the_other_direction() -> None:
    one_way = Supports(causal=True, bidirectional=False)
    assert one_way.refusals("mine", causal=True) == []
    assert one_way.refusals("mine") == ["mine is causal only; build it with causal=True"]


def test_max_len_that_binds_must_be_given() -> None:
    assert Supports(max_len=True).refusals("mine", max_len=1) == []
    assert "needs max_len" in Supports(max_len=True).refusals("mine")[0]


def test_it_is_frozen_and_shares_nothing_with_its_author() -> None:
    small = {"window": 4}
    supports = Supports(small=small, exact_when=small)
    small["window"] = 5
    assert supports.small["window"] == 4
    assert supports.exact_when == {"window": 4}
    with pytest.raises(TypeError):
        supports.small["window"] = 6  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        supports.causal = True  # type: ignore[misc]


def test_copies_and_pickles_are_equal() -> None:
    supports = Supports(small={"window": 4}, exact_when={"window": "n"}, streams=(Stream("x"), Stream("gate", 1)))
    for twin in (copy.deepcopy(supports), copy.copy(supports), pickle.loads(pickle.dumps(supports))):
        assert twin == supports


def test_as_dict_is_strict_json_and_whole() -> None:
    supports = Supports(streams=(Stream("gate", 1),), small={"window": 4}, time=Growth("n w d", 1.0), notes=("one",))
    read = json.loads(json.dumps(supports.as_dict(), allow_nan=False))
    assert set(read) == {field.name for field in dataclasses.fields(Supports)}
    assert read["streams"] == [{"name": "gate", "width": 1}]
    assert read["time"] == {"formula": "n w d", "exponent": 1.0}
    assert read["small"] == {"window": 4}
    assert read["exact_when"] is None


def test_capabilities_are_read_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from attnbench.capabilities import Supports; Supports().as_dict()"
    subprocess.run([sys.executable, "-c", code], check=True)
