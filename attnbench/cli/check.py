"""attnbench check: the conformance kit over one variant or many."""

from __future__ import annotations

from typing import Annotated

import typer

from attnbench.cli.output import console, print_json
from attnbench.cli.pairs import parse_pairs
from attnbench.errors import UserError


def check(
    names: Annotated[list[str], typer.Argument(help="Variants, or patterns such as '*'.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the variant.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Check these properties alone, comma-separated.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that variants keep every promise of the contract; exit status 1 names the property that fails."""
    from attnbench.conformance import check as check_variant

    out = console()
    options, properties = parse_pairs(option, "--option"), only.split(",") if only else None
    reports = []
    for name in _matching(names):
        report = check_variant(name, options, device=device, only=properties)
        reports.append(report)
        if as_json:
            continue
        failed = [result for result in report.results if result.status == "failed"]
        counts = {status: sum(r.status == status for r in report.results) for status in ("passed", "skipped", "failed")}
        summary = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        out.print(f"{name:14s} {'FAILED' if failed else 'ok':6s} {summary}", style="red" if failed else None)
        for result in failed:
            out.print(f"    {result.property}: {result.reason}")
            if result.settings:
                out.print(f"        with {result.settings}", style="dim")
    if as_json:
        print_json([report.as_dict() for report in reports])
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def _matching(names: list[str]) -> list[str]:
    from attnbench.registry import list_variants, variant_info

    found: list[str] = []
    for name in names:
        wild = any(sign in name for sign in "*?[")
        matches = list_variants(name) if wild else [variant_info(name).name]
        if not matches:
            raise UserError(f"no variant matches {name!r}; valid variants: {', '.join(list_variants())}")
        found += [match for match in matches if match not in found]
    return found
