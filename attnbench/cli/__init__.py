"""The command line: parse, call, print. A command is a file, and imports what is slow only when it is called."""

from attnbench.cli.app import main

__all__ = ["main"]
