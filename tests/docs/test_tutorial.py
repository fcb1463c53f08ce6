"""The tutorial is run block by block, in order, in a folder of its own: what it says works."""

import re
import shlex
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.mark.usefixtures("own_registry")
def test_every_block_of_the_tutorial_runs(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file rewritten within a second must be read anew
    blocks = re.findall(r"^```(\w+) ?(.*)\n((?s:.*?))^```", TUTORIAL.read_text(), flags=re.MULTILINE)
    assert {kind for kind, _, _ in blocks} == {"python", "shell"}
    names: dict[str, object] = {"__name__": "tutorial"}
    for number, (kind, file, code) in enumerate(blocks, start=1):
        if file:
            Path(file).write_text(code)
        elif kind == "python":
            exec(compile(code, f"tutorial.md, block {number}", "exec"), names)
        else:
            program, *arguments = shlex.split(code)
            assert program == "attnbench"
            assert cli(*arguments).code == 0
