import json

import pytest
from torch import Tensor

import attnbench
from attnbench import registry


@pytest.fixture
def deaf():
    """A variant that takes a key mask and ignores it."""

    @attnbench.register("deaf", supports=attnbench.Supports(padding=True, time=attnbench.Growth("n d", 1.0)))
    class Deaf(attnbench.Variant):
        """Averages what it should not see."""

        def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
            return v.mean(dim=2, keepdim=True).expand_as(v)

    yield "deaf"
    registry._variants.pop("deaf")


def test_a_variant_that_keeps_its_promises_passes(cli):
    outcome = cli("check", "none")
    assert outcome.code == 0, outcome.out
    assert outcome.out.split()[:2] == ["none", "ok"]


def test_a_broken_variant_fails_by_the_name_of_the_property(cli, deaf):
    outcome = cli("check", deaf)
    assert outcome.code == 1
    assert "FAILED" in outcome.out
    assert "padding" in outcome.out


def test_json_reports_every_result(cli, deaf):
    outcome = cli("check", deaf, "--json")
    assert outcome.code == 1
    (report,) = json.loads(outcome.out)
    assert {result["status"] for result in report["results"]} >= {"passed", "failed"}


def test_a_pattern_without_a_match_is_an_error(cli):
    outcome = cli("check", "zzz*")
    assert outcome.code == 2
    assert "no variant matches 'zzz*'" in outcome.err


@pytest.mark.parametrize("pair", ["window", "=3"])
def test_an_option_without_a_value_is_an_error(cli, pair):
    assert cli("check", "full", "-o", pair).code == 2
