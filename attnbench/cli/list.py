"""attnbench list: what there is."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from attnbench.capabilities import Supports
from attnbench.cli.output import print_json, print_table
from attnbench.errors import UserError


class Kind(StrEnum):
    variants = "variants"
    tasks = "tasks"
    experiments = "experiments"


def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")] = Kind.variants,
    pattern: Annotated[str, typer.Option("--match", help="Only names that match, such as '*former*'.")] = "*",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page of the variants.")] = False,
) -> None:
    """List the variants, the tasks or the experiments."""
    if markdown:
        from attnbench.cli.family import family_page
        from attnbench.registry import list_variants

        if kind is not Kind.variants:
            raise UserError(f"--markdown lists variants, received {kind}")
        print(family_page(list_variants(pattern)), end="")
        return
    {Kind.variants: _variants, Kind.tasks: _tasks, Kind.experiments: _experiments}[kind](pattern, as_json)


def _variants(pattern: str, as_json: bool) -> None:
    from attnbench.registry import list_variants, plugin_failures, variant_info

    infos = [variant_info(name) for name in list_variants(pattern)]
    if as_json:
        print_json(
            [
                {
                    "name": info.name,
                    "summary": info.summary,
                    "origin": info.origin.partition(" ")[0],
                    "options": dict(info.options),
                    "supports": info.supports.as_dict(),
                }
                for info in infos
            ]
        )
    else:
        rows = [[info.name, _flags(info.supports), _power(info.supports.time.exponent), info.summary] for info in infos]
        print_table(["variant", "can", "time", "what it is"], rows)
        print("\ncan: c causal, x cross-attention, p padding, d decoding.  time: growth with the length n.")
    for plugin, reason in plugin_failures().items():
        print(f"attnbench: plugin {plugin} could not be imported: {reason}", file=sys.stderr)


def _flags(supports: Supports) -> str:
    letters = {"causal": "c", "cross": "x", "padding": "p", "decode": "d"}
    return "".join(letter if getattr(supports, name) else "-" for name, letter in letters.items())


def _power(exponent: float) -> str:
    return "n" if exponent == 1 else f"n^{exponent:g}"


def _tasks(pattern: str, as_json: bool) -> None:
    import fnmatch
    import inspect

    from attnbench.tasks import list_tasks, task_class

    rows = []
    for name in fnmatch.filter(list_tasks(), pattern):
        cls = task_class(name)
        options = {
            parameter.name: parameter.default
            for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]
            if parameter.default is not parameter.empty
        }
        summary = (inspect.getdoc(cls) or "").partition("\n")[0]
        rows.append({"name": name, "answer": cls.answer, "metric": cls.metric, "options": options, "summary": summary})
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["task", "answer", "metric", "what it asks"],
            [[r["name"], r["answer"], r["metric"], r["summary"]] for r in rows],
        )


def _experiments(pattern: str, as_json: bool) -> None:
    import fnmatch

    from attnbench.sweep.spec import experiment_path, list_experiments

    rows = []
    for name in fnmatch.filter(list_experiments(), pattern):
        lines = experiment_path(name).read_text().splitlines()
        comment = next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
        rows.append({"name": name, "summary": comment})
    if as_json:
        print_json(rows)
    else:
        print_table(["experiment", "what it measures"], [[row["name"], row["summary"]] for row in rows])
