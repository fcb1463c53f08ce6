from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from attnbench.analysis import load, tables
from attnbench.errors import UserError
from attnbench.report import markdown_table, summary, write_report
from attnbench.report.present import present

from .synthetic import Synthetic


def test_everything_asked_for_is_written_and_named(written):
    home, paths = written
    assert all(path.is_file() and path.stat().st_size for path in paths)
    names = {path.relative_to(home).as_posix() for path in paths}
    assert {
        "report.html",
        "report.md",
        "tables/speed.csv",
        "tables/outcomes.csv",
        "plots/time-forward-bidirectional.svg",
    } <= names
    assert not any(name.endswith(".png") for name in names)


def test_a_report_needs_no_torch_and_no_display(tmp_path):
    path = Synthetic().speed({"full": (1e-9, 2.0), "local": (1e-6, 1.0)}, [64, 256]).write(tmp_path / "run")
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'einops', 'variants'): raise ImportError(f'no {name} here')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from attnbench.report import write_report\n"
        f"print(len(write_report({str(path)!r}, ('html', 'md', 'csv'))))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env={"PATH": ""}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 7


def test_an_unknown_format_suggests_the_nearest(tmp_path):
    with pytest.raises(
        UserError, match=r"unknown format 'htm' \(did you mean 'html'\?\); valid formats: html, md, csv, png, svg"
    ):
        write_report(tmp_path, ("htm",))


class Page(HTMLParser):
    """What the page links to and asks for, and its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.ids: list[str] = []
        self.anchors: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.scripts += tag == "script"
        if "id" in values and not values["id"].startswith(("DejaVu", "m", "p", "C")):
            self.ids.append(values["id"])
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            value = values.get(name)
            if value and value.startswith("#"):
                self.anchors.append(value[1:])
            elif value and not value.startswith("data:"):
                self.asked.append(value)


def test_the_page_is_self_contained_and_escapes_what_it_is_given(written):
    home, _ = written
    text = (home / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.asked == []
    assert page.scripts == 1
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert not re.search(r"@import|url\((?!#)", text)
    sections = [name for name in page.anchors if not name.startswith(("DejaVu", "m", "p", "C"))]
    assert set(sections) - {"published"} <= set(page.ids) | {"plots-1"}
    assert all(f'id="{name}"' in text for name in set(page.anchors))  # also every glyph and marker a plot refers to


def test_every_link_of_a_page_without_times_leads_somewhere(tmp_path):
    run = Synthetic().trained("mqar", {"full": [1.0] * 3, "local": [0.2] * 3}, {"seen": 0.25}).write(tmp_path / "run")
    write_report(run, ("html",))
    text, page = (run / "report.html").read_text(encoding="utf-8"), Page()
    page.feed(text)
    assert "table-accuracy" in page.anchors
    assert [name for name in set(page.anchors) if f'id="{name}"' not in text] == []


def test_the_page_tells_everything(written):
    home, _ = written
    text = html.unescape((home / "report.html").read_text(encoding="utf-8"))
    for wanted in (
        "never has no causal form; and | another",
        "oom at 4096: limit 8 GB",
        "synthetic",
        "baseline = ",
        "attnbench run spec.toml",
    ):
        assert wanted in text, wanted
    for sentence in summary(load(home), tables(load(home))):
        assert sentence in text


def test_markdown_holds_its_rows_whatever_labels_and_reasons_hold(written, found):
    home, _ = written
    text = (home / "report.md").read_text(encoding="utf-8")
    assert "<script>" not in text
    table = markdown_table("outcomes", found["outcomes"]).split("\n\n")[0].splitlines()
    assert len(table) == 2 + len(found["outcomes"])
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in table}
    assert len(bars) == 1
    for image in re.findall(r"\]\((plots/[^)]+)\)", text):
        assert (home / image).is_file()


def test_what_all_rows_share_is_said_once(found):
    shown = present("speed", found["speed"])
    assert "dtype float32" in shown.shared
    assert "dtype" not in shown.columns
    assert {len(row) for row in shown.rows} == {len(shown.columns)}
    row = dict(zip(shown.columns, shown.rows[0], strict=True))
    assert re.fullmatch(r"[\d.]+ (µs|ms)", row["time"].text)
    assert re.fullmatch(r"[\d.]+ (µs|ms) – [\d.]+ (µs|ms)", row["95 % interval"].text)


def test_the_summary_ranks_by_the_ratio_and_says_who_is_as_fast(tmp_path):
    laws = {"full": (1e-9, 2.0), "local": (1e-6, 1.0), "linear": (1.01e-6, 1.0), "strided": (2e-6, 1.0)}
    made = load(Synthetic().speed(laws, [256, 4096]).write(tmp_path / "run"))
    found = dict(tables(made))
    slow_phase = found["decisions"]["label"].eq("local")
    found["decisions"] = found["decisions"].assign(seconds=found["decisions"]["seconds"].mask(slow_phase, 100.0))
    text = " ".join(summary(made, found))
    assert re.search(r"local is fastest: [\d.]+× the speed of full \([^)]+\); not told apart from it: linear\.", text)


def test_the_summary_answers_the_question(tmp_path):
    laws = {"full": (1e-9, 2.0), "local": (1e-6, 1.0)}
    run = Synthetic().speed(laws, [256, 1024, 4096]).counted("memory", {"full": (1, 2.0), "local": (100, 1.0)}, [4096])
    run.trained("mqar", {"full": [1.0] * 3, "local": [0.2] * 3}, {"seen": 0.25})
    made = load(run.write(tmp_path / "run"))
    text = " ".join(summary(made, tables(made)))
    assert (
        "At length 4096 (forward, attention alone, cpu, float32, batch 1, bidirectional) local is fastest: 4.0" in text
        or "4.1" in text
    )
    assert re.search(r"Against full, overtaking it: local at (9\d\d|10\d\d)\.", text)
    assert (
        "On mqar full scores best, 1.000 over 3 seeds; without any attention (seen) one gets 0.250; not above that: local."
        in text
    )
    assert "local needs the least memory, 400 KiB where full needs 16 MiB" in text
    assert "Every cell ended well." in text


def test_the_summary_says_who_is_good_on_every_task(tmp_path):
    made = Synthetic()
    for pairs, linear in ((4, 0.95), (8, 0.5)):
        scores = {"full": [1.0] * 3, "linear": [linear] * 3, "none": [0.1] * 3}
        made.trained("mqar", scores, {"seen": 0.25}, task_options={"pairs": pairs})
    run = load(made.write(tmp_path / "run"))
    assert "At least 0.9 on each of the 2 tasks: full." in summary(run, tables(run))


def test_the_summary_of_nothing(tmp_path):
    made = load(Synthetic().write(tmp_path / "run"))
    assert summary(made, tables(made)) == ["The run holds no measurement yet."]
    write_report(tmp_path / "run", ("html", "md", "csv"))


def test_every_json_is_strict(written):
    home, _ = written
    for line in (home / "records.jsonl").read_text().splitlines()[:50]:
        json.loads(line, parse_constant=lambda token: pytest.fail(token))
