"""The command line: parse, call, print. Each command is a file; what is slow to import is imported by the command that needs it."""

from attnbench.cli.app import main

__all__ = ["main"]
