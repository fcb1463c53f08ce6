"""attnbench new: the skeleton of a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnbench.errors import UserError


def new(
    name: Annotated[str, typer.Argument(help="Name of the variant, such as my-attention.")],
    folder: Annotated[Path, typer.Option("--in", help="Where to put the package.")] = Path(),
) -> None:
    """Write an installable plugin package: a variant, its dense definition, and a test that runs the kit."""
    from attnbench.registry import list_variants, variant_info
    from attnbench.scaffold import new_plugin

    if name in list_variants():
        origin = variant_info(name).origin
        raise UserError(f"{name!r} is registered already, by {origin}; a new variant needs a name of its own")
    path = new_plugin(name, folder)
    typer.echo(f"{path} is ready. Next:\n  pip install -e {path}\n  attnbench check {name}\n  attnbench show {name}")
