"""The attention implementations that attnbench ships: one idea per file, each registered under its name on import."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
