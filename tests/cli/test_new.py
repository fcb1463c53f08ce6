"""attnbench new, as far as no package is installed: the slow tests of the scaffold do that."""

from __future__ import annotations


def test_a_name_that_is_taken_is_refused_and_nothing_is_written(cli, tmp_path):
    run = cli("new", "full", "--in", tmp_path)
    assert run.code == 2
    assert "'full' is registered already, by variants.full" in run.err
    assert not list(tmp_path.iterdir())


def test_a_new_name_says_what_to_do_next(cli, tmp_path):
    run = cli("new", "mine", "--in", tmp_path)
    assert run.code == 0
    assert "attnbench check mine" in run.out
