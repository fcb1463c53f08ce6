"""attnbench new: the skeleton of a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    name: Annotated[str, typer.Argument(help="Name of the variant, such as my-attention.")],
    folder: Annotated[Path, typer.Option("--in", help="Where to put the package.")] = Path(),
) -> None:
    """Write an installable plugin package: a variant, its dense definition, and a test that runs the kit."""
    from attnbench.scaffold import new_plugin

    path = new_plugin(name, folder)
    typer.echo(f"{path} is ready. Next:\n  pip install -e {path}\n  attnbench check {name}\n  attnbench show {name}")
