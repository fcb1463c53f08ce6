"""The commands, put together; and the one place where a user's error becomes a line on stderr and exit status 2."""

from __future__ import annotations

import os
import sys

import typer

from attnbench._version import __version__
from attnbench.cli.check import check
from attnbench.cli.compare import compare, import_
from attnbench.cli.list import list_
from attnbench.cli.new import new
from attnbench.cli.report import recommend, report
from attnbench.cli.run import run
from attnbench.cli.show import show
from attnbench.errors import UserError

app = typer.Typer(
    name="attnbench",
    help="Which attention, at my length, on my machine, for my task? Run sweeps, check variants, compare, report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


app.command("list")(list_)
app.command()(check)
app.command()(run)
app.command()(report)
app.command()(compare)
app.command()(recommend)
app.command()(show)
app.command()(new)
app.command("import")(import_)


def main() -> None:
    """The console script."""
    try:
        app()
    except UserError as error:
        print(f"attnbench: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nattnbench: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe went away (head, less): nothing to say, and nobody to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
