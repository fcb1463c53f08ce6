"""The tasks that accuracy is measured on: one per file, each registered under its name on import."""

from __future__ import annotations

import importlib
import pkgutil

from attnbench.tasks.base import (
    IGNORE,
    PAD,
    SPLITS,
    Batch,
    Item,
    Score,
    Task,
    create_task,
    list_tasks,
    register_task,
    task_class,
)

__all__ = [
    "IGNORE",
    "PAD",
    "SPLITS",
    "Batch",
    "Item",
    "Score",
    "Task",
    "create_task",
    "list_tasks",
    "register_task",
    "task_class",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
