"""Register, look up and list variants; plugins arrive through the entry-point group `attnbench.variants`."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import importlib
import importlib.metadata
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from attnbench.capabilities import Supports
from attnbench.contract import Variant, resolve_options
from attnbench.errors import UserError, nearest

__all__ = [
    "GROUP",
    "VariantInfo",
    "create_variant",
    "list_variants",
    "plugin_failures",
    "register",
    "variant_info",
]

GROUP = "attnbench.variants"
V = TypeVar("V", bound=type[Variant])


@dataclass(frozen=True)
class VariantInfo:
    """A registered variant, described without constructing it.

    name, summary (first line of its docstring), origin (module and line), supports (under the options asked for),
    options (its own and the common ones, with defaults), code (a hash of the source that defines it).
    """

    name: str
    summary: str
    origin: str
    supports: Supports
    options: Mapping[str, Any]
    code: str
    cls: type[Variant]


_variants: dict[str, type[Variant]] = {}
_failures: dict[str, str] = {}
_loaded = False
_lock = threading.RLock()


def register(name: str, supports: Supports | Callable[[Mapping[str, Any]], Supports] | None = None) -> Callable[[V], V]:
    """Class decorator: makes a Variant known under `name`, with its capabilities.

    `supports` is the capabilities, or a function from the full set of options to them where they depend on options.

    Raises:
        ValueError: the name is taken by another object (both origins are named).
        TypeError: what is decorated is not a subclass of Variant.
    """

    def decorate(cls: V) -> V:
        if not (isinstance(cls, type) and issubclass(cls, Variant)):
            raise TypeError(f"register({name!r}) decorates a subclass of attnbench.Variant, received {cls!r}")
        with _lock:
            taken = _variants.get(name)
            if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ValueError(f"variant {name!r} is registered twice: by {_origin(taken)} and by {_origin(cls)}")
            cls.name = name
            if supports is not None:
                cls.declared = staticmethod(supports) if callable(supports) else supports
            _variants[name] = cls
        return cls

    return decorate


def list_variants(pattern: str = "*") -> list[str]:
    """Names of the registered variants that match a shell-style pattern, sorted."""
    _load_plugins()
    return sorted(fnmatch.filter(_variants, pattern))


def variant_info(name: str, **options: Any) -> VariantInfo:
    """What a variant is and can do under the given options, without constructing it.

    Raises:
        ValueError: the name is unknown (the nearest is suggested), or an option is.
    """
    cls = _find(name)
    resolved = resolve_options(cls, options)
    supports = cls.supports_for(resolved)
    return VariantInfo(
        name=name,
        summary=(inspect.getdoc(cls) or "").partition("\n")[0],
        origin=_origin(cls),
        supports=supports,
        options=resolved,
        code=source_hash(cls, *(_find(used) for used in supports.uses)),
        cls=cls,
    )


def create_variant(name: str, **options: Any) -> Variant:
    """Builds a variant by name: a module (q, k, v) -> out.

    Raises:
        ValueError: the name or an option is unknown, or a value is out of range.
        Unsupported: the options ask for what the capabilities do not declare.
    """
    return _find(name)(**options)


def plugin_failures() -> dict[str, str]:
    """Plugins that could not be imported: entry point -> reason."""
    _load_plugins()
    return dict(_failures)


def source_hash(cls: type, *used: type) -> str:
    """A short hash of the source that defines a class, of the attnbench kernels behind it, and of the classes that it uses."""
    digest = hashlib.sha256()
    for name in sorted(set().union(*(_modules_behind(each.__module__) for each in (cls, *used)))):
        try:
            digest.update(inspect.getsource(sys.modules[name]).encode())
        except (OSError, TypeError, KeyError):  # defined interactively: the class itself is all there is
            digest.update(f"{name}.{cls.__qualname__}".encode())
    return digest.hexdigest()[:12]


def _modules_behind(name: str) -> set[str]:
    """A module, and those of attnbench.kernels that it uses, directly or through one another."""
    found: set[str] = set()
    pending = [name]
    while pending:
        name = pending.pop()
        found.add(name)
        for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
            origin = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
            if isinstance(origin, str) and origin.startswith("attnbench.kernels") and origin not in found:
                pending.append(origin)
    return found


def _find(name: str) -> type[Variant]:
    _load_plugins()
    if name in _variants:
        return _variants[name]
    message = f"unknown variant {name!r}{nearest(name, _variants)}; valid variants: {', '.join(sorted(_variants))}"
    if _failures:
        message += "; plugins that failed to import: " + ", ".join(f"{key} ({why})" for key, why in _failures.items())
    raise UserError(message)


@functools.cache  # finding the line means parsing the file
def _origin(cls: type) -> str:
    try:
        return f"{cls.__module__}.{cls.__qualname__} ({inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]})"
    except (OSError, TypeError):
        return f"{cls.__module__}.{cls.__qualname__}"


def _load_plugins() -> None:
    global _loaded
    with _lock:
        if _loaded:
            return
        _loaded = True  # first, since a plugin that composes others may look them up while it is imported
        for point in importlib.metadata.entry_points(group=GROUP):
            try:
                point.load()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's module may raise anything, and costs only itself
                _failures[point.name] = _why(point, error)
            else:
                _check_shadowing(point)


def _why(point: importlib.metadata.EntryPoint, error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{point.value}: {type(error).__name__}: {error} [{frame.filename}:{frame.lineno}]"


def _check_shadowing(point: importlib.metadata.EntryPoint) -> None:
    """A module that came from elsewhere than its distribution is reported: another package may carry the same name."""
    if point.dist is None or any(
        cls.__module__.partition(".")[0] == point.module.partition(".")[0] for cls in _variants.values()
    ):
        return
    module = importlib.import_module(point.module)
    _failures[point.name] = (
        f"{point.value}: imported {getattr(module, '__file__', module)!s}, which registers no variant; another package of "
        f"that name shadows the one that {point.dist.name} {point.dist.version} ships"
    )
