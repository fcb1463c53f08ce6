"""The reference page of the variants, written from what they declare: docs/variants.md is this, and a test holds it to it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from attnbench.contract import COMMON_OPTIONS
from attnbench.registry import VariantInfo, variant_info

HEAD = """# The family

Written by `attnbench list --markdown` from what the variants declare; `attnbench show NAME` tells more and draws who sees whom.

**can**: causal, bidirectional, cross-attention, padding (a key mask), dropout (on the weights), decode (token by token),
grouped (key/value heads natively; all others repeat them), compile (`torch.compile(fullgraph=True)`, `torch.export`).
Where the options decide, the defaults are shown. **time, memory**: growth with the length n at head width d; **steps**:
sequential steps; **path**: longest path between two positions in one layer.
"""


def family_page(names: Sequence[str]) -> str:
    """The page, in Markdown: a table of costs, then a section for each variant."""
    infos = [variant_info(name) for name in names]
    lines = [HEAD, "| variant | what it is | can | time | memory | steps | path |", "|---|---|---|---|---|---|---|"]
    lines += [_row(info) for info in infos]
    for info in infos:
        lines += ["", _section(info)]
    return "\n".join(lines) + "\n"


def _row(info: VariantInfo) -> str:
    supports = info.supports
    flags = {"cross": "cross", "padding": "padding", "dropout": "dropout", "decode": "decode", "grouped": "grouped"}
    flags = {"causal": "causal", "bidirectional": "bidirectional"} | flags | {"compiles": "compile"}
    can = ", ".join(word for name, word in flags.items() if getattr(supports, name))
    cells = [f"[`{info.name}`](#{info.name})", info.summary, can, supports.time.formula, supports.memory.formula]
    return "| " + " | ".join([*cells, supports.sequential, supports.path]).replace("\n", " ") + " |"


def _section(info: VariantInfo) -> str:
    doc = inspect.getdoc(info.cls) or ""
    source = re.search(r"^Sources?: (.*?)(?:\n\n|\Z)", doc, flags=re.MULTILINE | re.DOTALL)
    own = {name: value for name, value in info.options.items() if name not in COMMON_OPTIONS}
    lines = [f"## {info.name}", "", f"Source: {' '.join(source[1].split())}" if source else info.summary, ""]
    if own:
        lines.append("- options: " + ", ".join(f"`{name}={value!r}`" for name, value in own.items()))
    reads = [*info.supports.reads, *(f"stream {stream.name}" for stream in info.supports.streams)]
    lines.append("- reads: " + ", ".join(reads) + ("; needs `max_len`" if info.supports.max_len else ""))
    if info.supports.exact_when is not None:
        settings = ", ".join(f"{name} = {value}" for name, value in info.supports.exact_when.items())
        lines.append(f"- equals full attention {f'when {settings}' if settings else 'always'}")
    lines += [f"- {note}" for note in info.supports.notes]
    return "\n".join(lines)
