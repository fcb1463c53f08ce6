import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnbench.errors import UserError
from attnbench.scaffold import new_plugin


def test_it_writes_a_package_of_five_files(tmp_path: Path) -> None:
    path = new_plugin("my-attention", tmp_path)
    assert path == tmp_path / "attnbench-my-attention"
    files = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    module = "attnbench_my_attention.py"
    assert files == ["README.md", module, "pyproject.toml", f"tests/test_{module}"]
    for file in files:
        assert "${" not in (path / file).read_text()
    project = tomllib.loads((path / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["attnbench.variants"] == {"my-attention": "attnbench_my_attention"}
    assert "class MyAttention(Variant)" in (path / module).read_text()


def test_the_written_code_is_well_formatted(tmp_path: Path) -> None:
    path = new_plugin("none", tmp_path)  # a name that alone would make a class called None
    assert "class NoneAttention(Variant)" in (path / "attnbench_none.py").read_text()
    for command in (["format", "--check"], ["check", "--select", "E,F,UP,B"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", str(path)]
        assert subprocess.run(ruff, capture_output=True).returncode == 0, command


@pytest.mark.parametrize(
    "name", ["", "My", "my_attention", "-my", "my-", "my--own", "2nd", "a b", "../up", "mÿ", "my.own"]
)
def test_a_bad_name_is_refused_and_writes_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lower-case letters and digits") as refusal:
        new_plugin(name, tmp_path)
    assert repr(name) in str(refusal.value)
    assert not list(tmp_path.iterdir())


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,8}){0,3}", fullmatch=True))
def test_any_good_name_gives_python_that_compiles(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = new_plugin(name, tmp_path_factory.mktemp("plugin"))
    for file in path.rglob("*.py"):
        compile(file.read_text(), file, "exec")
    tomllib.loads((path / "pyproject.toml").read_text())


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    path = new_plugin("mine", tmp_path)
    (path / "README.md").write_text("edited")
    with pytest.raises(UserError, match="exists already"):
        new_plugin("mine", tmp_path)
    assert (path / "README.md").read_text() == "edited"


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        new_plugin("mine", tmp_path / "nowhere")


@pytest.mark.slow
def test_installed_it_is_listed_passes_the_kit_and_its_own_tests(tmp_path: Path) -> None:
    path = new_plugin("fresh-idea", tmp_path)
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    _run([*pip, "--disable-pip-version-check", "--target", str(target), str(path)], tmp_path)
    python = {"PYTHONPATH": str(target)}
    assert "fresh-idea" in _run([sys.executable, "-m", "attnbench.cli", "list"], tmp_path, **python)
    assert "ok" in _run([sys.executable, "-m", "attnbench.cli", "check", "fresh-idea"], tmp_path, **python)
    few = ["-k", "reference or weights or slope"]  # the whole kit has just run
    # Its exit status says that nothing failed, and the line that something ran.
    assert " passed" in _run([sys.executable, "-m", "pytest", "-W", "error", *few, str(path / "tests")], path, **python)


def _run(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
