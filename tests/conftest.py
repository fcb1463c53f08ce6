"""Runs the command line in this process, as the console script would."""

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from attnbench import registry
from attnbench.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["attnbench", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def own_registry() -> Iterator[None]:
    """What a test registers is gone after it."""
    registry.list_variants()  # the plugins are loaded once in a process: before the copy, or they would be lost with it
    before = dict(registry._variants)
    yield
    registry._variants.clear()
    registry._variants.update(before)
