"""Where specs come from: the experiments that ship with attnbench, and files. Imports no torch."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import attnbench
from attnbench.errors import UserError, nearest

__all__ = ["experiment_path", "list_experiments", "read_toml"]


def list_experiments() -> list[str]:
    """Names of the packaged experiments, sorted."""
    return sorted(path.stem for path in _home().glob("*.toml"))


def experiment_path(name: str) -> Path:
    """The file of a packaged experiment. Raises UserError for an unknown name, suggesting the nearest."""
    known = list_experiments()
    if name not in known:
        raise UserError(f"unknown experiment {name!r}{nearest(name, known)}; packaged experiments: {', '.join(known)}")
    return _home() / f"{name}.toml"


def read_toml(source: str | Path) -> tuple[str, dict[str, Any]]:
    """The shown name and the content of a spec: a packaged experiment's name, or a path.

    Raises UserError where there is no such file, or it is not TOML.
    """
    path = experiment_path(source) if isinstance(source, str) and source in list_experiments() else Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = list_experiments()
        hint = nearest(str(source), known)
        raise UserError(f"{source}: no such file or experiment{hint}; experiments: {', '.join(known)}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not TOML: {error.reason} at byte {error.start}; TOML is UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return str(path), tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path}: not TOML: {' '.join(str(error).split())}") from None


def _home() -> Path:
    """The folder of experiments: inside the package where a wheel put them, beside it in a checkout."""
    package = Path(attnbench.__file__).parent
    packaged = package / "experiments"
    return packaged if packaged.is_dir() else package.parent / "experiments"
