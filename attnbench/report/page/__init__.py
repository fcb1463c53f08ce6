"""The page: one self-contained HTML file that opens from disk and asks the network for nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from attnbench.analysis.loading import Run
from attnbench.analysis.reference import CAVEATS, SOURCE, reference_tables
from attnbench.report.figures import Plot
from attnbench.report.present import TITLES, Presented, present

__all__ = ["render_page"]

MOST_ROWS = 4000  # of one table; the CSV files hold the rest


def render_page(
    run: Run, tables: Mapping[str, pd.DataFrame], sentences: Sequence[str], drawn: Iterable[tuple[Plot, str]]
) -> str:
    """The HTML of a run's report; `drawn` are its plots with their SVG."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    home = files(__name__)
    groups: dict[str, list[dict[str, str]]] = {}
    glyphs: set[str] = set()
    for plot, svg in drawn:
        groups.setdefault(plot.group, []).append({"name": plot.name, "words": plot.words, "svg": _inline(svg, glyphs)})
    shown = [present(name, tables[name].head(MOST_ROWS)) for name in TITLES if len(tables.get(name, ()))]
    for table in (*shown, *_references()):
        if len(tables.get(table.name, ())) > MOST_ROWS:
            sentences = [
                *sentences,
                f"{table.title}: the first {MOST_ROWS} of {len(tables[table.name])} rows are shown here.",
            ]
    return environment.from_string((home / "page.html.j2").read_text(encoding="utf-8")).render(
        name=run.name,
        baseline=run.baseline,
        sentences=sentences,
        groups=groups,
        tables=shown,
        filters={table.name: _choices(table) for table in shown},
        references=_references(),
        reference_source=SOURCE,
        caveats=CAVEATS,
        environment=_flat(
            {key: value for key, value in run.environment.items() if key not in ("variants", "patterns")}
        ),
        spec=_spec_text(run),
        records=len(run.frame),
        css=Markup((home / "page.css").read_text(encoding="utf-8")),
        js=Markup((home / "page.js").read_text(encoding="utf-8")),
    )


def _inline(svg: str, seen: set[str]) -> Markup:
    """An SVG to stand within the page: sized by it, and without the glyphs that an earlier one has defined.

    It is markup of our own making: matplotlib has escaped every text in it.
    """

    def once(match: re.Match[str]) -> str:
        new = match[1] not in seen
        seen.add(match[1])
        return match[0] if new else ""

    svg = re.sub(r'<path id="([^"]+)" [^>]*/>', once, svg)
    svg = re.sub(r'^<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', svg, count=1)
    return Markup(svg)


def _references() -> list[Presented]:
    return [present(name, frame) for name, frame in reference_tables().items()]


def _choices(table: Presented) -> list[list[str]]:
    """For every column the values to choose from, where they are few words; else none, and the filter is a field to type in."""
    found = []
    for place, numeric in enumerate(table.numeric):
        values = {row[place].text for row in table.rows}
        few = 1 < len(values) <= 24 and (not numeric or table.columns[place] == "length")
        found.append(sorted(values, key=_natural) if few else [])
    return found


def _natural(text: str) -> tuple[float, str]:
    return (float(text), "") if re.fullmatch(r"\d+(\.\d+)?", text) else (float("inf"), text)


def _flat(value: Any, lead: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in _flat(item, f"{lead}{key} ")]
    if isinstance(value, list):
        value = ", ".join(str(item) for item in value)
    return [(lead.strip().replace("_", " "), "" if value is None else str(value))]


def _spec_text(run: Run) -> str:
    file = run.path / "spec.toml"
    return file.read_text(encoding="utf-8") if file.is_file() else ""
