"""attnbench: efficient attentions under one Transformer, measured, and usable as modules.

Names load lazily (PEP 562), so that a report can be made on a machine without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench._lazy import lazy
from attnbench._version import __version__

if TYPE_CHECKING:
    from attnbench.backbone import MultiHeadAttention, Transformer
    from attnbench.capabilities import Growth, Stream, Supports
    from attnbench.contract import Condensed, Unsupported, Variant
    from attnbench.registry import VariantInfo, create_variant, list_variants, plugin_failures, register, variant_info
    from attnbench.tasks import create_task, list_tasks, register_task

_HOMES = {
    "attnbench.capabilities": ("Growth", "Stream", "Supports"),
    "attnbench.contract": ("Condensed", "Unsupported", "Variant"),
    "attnbench.registry": (
        "VariantInfo",
        "create_variant",
        "list_variants",
        "plugin_failures",
        "register",
        "variant_info",
    ),
    "attnbench.backbone": ("MultiHeadAttention", "Transformer"),
    "attnbench.tasks": ("create_task", "list_tasks", "register_task"),
}

__all__ = [
    "Condensed",
    "Growth",
    "MultiHeadAttention",
    "Stream",
    "Supports",
    "Transformer",
    "Unsupported",
    "Variant",
    "VariantInfo",
    "__version__",
    "create_task",
    "create_variant",
    "list_tasks",
    "list_variants",
    "plugin_failures",
    "register",
    "register_task",
    "variant_info",
]

__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
