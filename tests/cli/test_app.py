import subprocess
import sys

import attnbench


def test_version(cli):
    assert cli("--version").out.strip() == f"attnbench {attnbench.__version__}"


def test_help_and_report_import_no_torch():
    code = """
import sys
from attnbench.cli import main
sys.modules["torch"] = None
sys.argv = ["attnbench", {0!r}, "--help"]
main()
"""
    for command in ("run", "report", "compare", "recommend", "import", "list", "check", "show", "new"):
        done = subprocess.run([sys.executable, "-c", code.format(command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Usage: attnbench" in done.stdout


def test_help_names_every_command_and_fits_80_columns(cli):
    lines = cli("--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    commands = ["list", "check", "run", "report", "compare", "recommend", "show", "new", "import"]
    assert all(any(line.split()[:1] == [command] for line in lines) for command in commands)


def test_an_unknown_variant_is_one_line_with_the_nearest_name(cli):
    outcome = cli("show", "ful")
    assert outcome.code == 2
    assert outcome.err.startswith("attnbench: unknown variant 'ful' (did you mean 'full'?)")
    assert outcome.err.count("\n") == 1
