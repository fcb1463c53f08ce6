import json

import pytest

import attnbench


def test_every_variant_is_listed_with_what_it_can_do(cli):
    outcome = cli("list")
    assert outcome.code == 0
    for name in attnbench.list_variants():
        assert name in outcome.out


def test_json_holds_capabilities_and_options(cli):
    rows = {row["name"]: row for row in json.loads(cli("list", "--json").out)}
    assert rows["full"]["supports"]["causal"] is True
    assert rows["full"]["options"]["dropout"] == 0.0
    assert sorted(rows) == attnbench.list_variants()


def test_match_narrows_the_list(cli):
    assert [row["name"] for row in json.loads(cli("list", "--match", "ful*", "--json").out)] == attnbench.list_variants(
        "ful*"
    )


@pytest.mark.parametrize("kind", ["tasks", "experiments"])
def test_tasks_and_experiments_are_listed_with_a_line_each(cli, kind):
    rows = json.loads(cli("list", kind, "--json").out)
    assert rows
    assert all(row["summary"] for row in rows)
    assert all(row["name"] in cli("list", kind).out for row in rows)


def test_an_unknown_kind_says_what_is_valid(cli):
    outcome = cli("list", "variant")
    assert outcome.code == 2
    assert "'variants', 'tasks', 'experiments'" in outcome.err
