"""attnbench show: what a variant is, what it can do, and who sees whom."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.cli.output import console, print_table
from attnbench.cli.pairs import parse_pairs
from attnbench.errors import UserError


def show(
    name: Annotated[str, typer.Argument(help="A variant; or a pattern such as '*', with --picture.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the variant.")
    ] = None,
    length: Annotated[int, typer.Option(min=2, max=256, help="Length of the pattern.")] = 32,
    causal: Annotated[bool, typer.Option("--causal", help="The causal form.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Write the picture as a PNG or SVG file.")] = None,
) -> None:
    """Describe a variant: its docstring, its capabilities, and a picture of who sees whom."""
    from attnbench.registry import list_variants, variant_info
    from attnbench.sweep.patterns import structural

    if picture is not None and picture.suffix not in (".png", ".svg"):
        raise UserError(f"--picture takes a file that ends in .png or .svg, received {str(picture)!r}")
    if any(sign in name for sign in "*?["):
        if picture is None:
            raise UserError(f"a pattern such as {name!r} needs --picture FILE, where the gallery is drawn")
        _gallery(list_variants(name), length, picture)
        return
    given = parse_pairs(option, "--option")
    info = variant_info(name, **given)
    out = console()
    out.print(f"{name}: {inspect.getdoc(info.cls) or 'no docstring'}\n")
    print_table(["capability", "value"], _capabilities(info))
    typer.echo("")
    print_table(["option", "default"], [[key, repr(value)] for key, value in info.options.items()])
    for note in info.supports.notes:
        out.print(f"note: {note}")
    typer.echo("")
    shown = structural(info.supports, given)
    matrix = pattern(name, length, causal=causal, options=shown)
    if picture is None:
        _print_pattern(matrix, shown)
    else:
        _save({f"{name} causal" if causal else name: matrix}, picture)


def _gallery(names: list[str], length: int, picture: Path) -> None:
    from attnbench.registry import variant_info
    from attnbench.sweep.patterns import forms, structural

    patterns = {}
    for name in names:
        supports = variant_info(name).supports
        for suffix, causal in forms(supports):
            patterns[name + suffix] = pattern(name, length, causal=causal, options=structural(supports, {}))
    _save(patterns, picture)


def _save(patterns: dict[str, Any], picture: Path) -> None:
    from attnbench.report.canvas import save
    from attnbench.report.gallery import gallery_plot

    typer.echo(save(gallery_plot(patterns), picture))


def pattern(name: str, length: int, **arguments: Any) -> Any:
    """The pattern of a variant; imported late, since it needs torch."""
    from attnbench.measure.pattern import pattern as probe

    return probe(name, length, **arguments)


def _print_pattern(matrix: Any, options: dict[str, Any]) -> None:
    shown = ", ".join(f"{key}={value}" for key, value in options.items())
    typer.echo(f"who sees whom (rows: queries, columns: keys{'; ' + shown if shown else ''})")
    peak = float(matrix.max()) or 1.0
    for row in matrix[:78]:
        # The root brings out what is faint, and anything above zero leaves a mark.
        marks = (min(8, max(1, round(8 * (float(value) / peak) ** 0.5))) if value > 0 else 0 for value in row[:78])
        typer.echo("  " + "".join(" .:-=+*#@"[mark] for mark in marks))


def _capabilities(info: Any) -> list[list[str]]:
    supports = info.supports
    flags = [
        "causal",
        "bidirectional",
        "cross",
        "padding",
        "dropout",
        "decode",
        "condense",
        "grouped",
        "linear_in_v",
        "compiles",
    ]
    rows = [["can", ", ".join(flag for flag in flags if getattr(supports, flag))]]
    rows.append(["cannot", ", ".join(flag for flag in flags if not getattr(supports, flag)) or "-"])
    rows.append(["reads", ", ".join([*supports.reads, *(stream.name for stream in supports.streams)])])
    rows.append(["time, memory", f"{supports.time.formula}, {supports.memory.formula}"])
    rows.append(["sequential steps, path", f"{supports.sequential}, {supports.path}"])
    if supports.max_len:
        rows.append(["max_len", "needed, and binding"])
    return rows
