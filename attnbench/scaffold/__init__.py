"""The skeleton of a plugin: an installable package with one variant, its dense definition and a test that runs the kit."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from attnbench.errors import UserError

__all__ = ["new_plugin"]

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
SUFFIX = ".in"  # keeps tools from taking the templates for what they become


def new_plugin(name: str, folder: Path | str = ".") -> Path:
    """Writes the package `attnbench-NAME` into `folder` and returns its path.

    Raises:
        UserError: the name is not made of lower-case words joined by hyphens, `folder` is no folder, or the package's
            folder exists already.
    """
    if not NAME.fullmatch(name):
        raise UserError(
            f"a variant's name is made of lower-case letters and digits, in words joined by single hyphens and beginning "
            f"with a letter, such as my-attention; received {name!r}"
        )
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"no folder {str(folder)!r} to put the package in")
    path = folder / f"attnbench-{name}"
    try:
        path.mkdir()
    except FileExistsError:
        raise UserError(f"{str(path)!r} exists already; choose another name or another folder") from None
    _write(files(__name__) / "template", path, _words(name))
    return path


def _words(name: str) -> dict[str, str]:
    """What stands for what in the templates."""
    title = "".join(word.capitalize() for word in name.split("-"))
    return {
        "name": name,
        "package": f"attnbench-{name}",
        "module": "attnbench_" + name.replace("-", "_"),
        "class_name": title if title.endswith("Attention") else f"{title}Attention",
    }


def _write(template: Traversable, path: Path, words: dict[str, str]) -> None:
    for entry in template.iterdir():
        target = path / entry.name.replace("MODULE", words["module"]).removesuffix(SUFFIX)
        if entry.is_dir():
            target.mkdir()
            _write(entry, target, words)
        elif entry.name.endswith(SUFFIX):
            target.write_text(Template(entry.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
