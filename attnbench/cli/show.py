"""attnbench show: what a variant is, what it can do, and who sees whom."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.cli.check import _options as parse_options
from attnbench.cli.output import console, print_table


def show(
    name: Annotated[str, typer.Argument(help="A variant.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the variant.")
    ] = None,
    length: Annotated[int, typer.Option(min=2, max=256, help="Length of the pattern.")] = 32,
    causal: Annotated[bool, typer.Option("--causal", help="The causal form.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Write the pattern as a PNG or SVG file.")] = None,
) -> None:
    """Describe a variant: its docstring, its capabilities, and a picture of its pattern."""
    from attnbench.registry import variant_info

    given = parse_options(option or [])
    info = variant_info(name, **given)
    out = console()
    out.print(f"{name}: {inspect.getdoc(info.cls) or 'no docstring'}\n")
    print_table(["capability", "value"], _capabilities(info), title="capabilities")
    typer.echo("")
    print_table(["option", "default"], [[key, repr(value)] for key, value in info.options.items()], title="options")
    for note in info.supports.notes:
        out.print(f"note: {note}")
    typer.echo("")
    # At a few dozen positions a default window or block would cover everything: the small options show the structure.
    shown = dict(info.supports.small) | given
    _pattern(name, shown, length, causal, picture)


def _capabilities(info: Any) -> list[list[str]]:
    supports = info.supports
    flags = ["causal", "bidirectional", "cross", "padding", "dropout", "decode", "grouped", "linear_in_v", "compiles"]
    rows = [["can", ", ".join(flag for flag in flags if getattr(supports, flag))]]
    rows.append(["cannot", ", ".join(flag for flag in flags if not getattr(supports, flag)) or "-"])
    rows.append(["reads", ", ".join([*supports.reads, *(stream.name for stream in supports.streams)])])
    rows.append(["time, memory", f"{supports.time.formula}, {supports.memory.formula}"])
    rows.append(["sequential steps, path", f"{supports.sequential}, {supports.path}"])
    if supports.max_len:
        rows.append(["max_len", "needed, and binding"])
    return rows


def _pattern(name: str, options: dict[str, Any], length: int, causal: bool, picture: Path | None) -> None:
    from attnbench.measure.pattern import pattern

    matrix = pattern(name, length, causal=causal, options=options)
    if picture is not None:
        from attnbench.report.plots.gallery import pattern_gallery
        from attnbench.report.plots.style import save

        for path in save(pattern_gallery({name: matrix}), picture):
            typer.echo(path)
        return
    shown = ", ".join(f"{key}={value}" for key, value in options.items())
    typer.echo(f"who sees whom (rows: queries, columns: keys{', ' + shown if shown else ''})")
    peak = float(matrix.max()) or 1.0
    for row in matrix[:64]:
        typer.echo("  " + "".join(" .:-=+*#@"[min(8, round(8 * (float(value) / peak) ** 0.5))] for value in row[:78]))
