"""The page in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from attnbench.report import write_report

from .conftest import make

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    path = make(tmp_path_factory.mktemp("browser") / "run")
    write_report(path, ("html",))
    return path / "report.html"


@pytest.fixture(params=[1280, 390], ids=["desktop", "phone"])
def page(browser, report, request):
    context = browser.new_context(viewport={"width": request.param, "height": 860})
    opened = context.new_page()
    troubles: list[str] = []
    opened.on("console", lambda message: troubles.append(message.text))
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on("request", lambda asked: troubles.append(asked.url) if asked.url != report.as_uri() else None)
    opened.goto(report.as_uri())
    yield opened
    assert troubles == []
    context.close()


def column(page, table: str, name: str) -> list[str]:
    return page.evaluate(
        """([table, name]) => {
          const element = document.querySelector(`[data-table="${table}"] table`);
          const place = [...element.tHead.rows[0].cells].findIndex((head) => head.textContent.trim() === name);
          return [...element.tBodies[0].rows].filter((row) => !row.hidden)
            .map((row) => row.cells[place].dataset.v ?? row.cells[place].textContent);
        }""",
        [table, name],
    )


def test_it_opens_without_a_complaint_or_a_request_and_fits(page):
    assert page.title().endswith("attnbench")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("figure svg").count() > 10


def test_sorting_by_mouse_and_by_keyboard(page):
    head = page.locator('[data-table="speed"] th', has_text="time").first
    head.locator("button").click()
    values = [float(value) for value in column(page, "speed", "time") if value]
    assert values == sorted(values)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").focus()
    page.keyboard.press("Enter")
    found = column(page, "speed", "time")
    values = [float(value) for value in found if value]
    assert values == sorted(values, reverse=True)
    assert found[: len(values)] == [value for value in found if value]  # what has no value stays last
    assert head.get_attribute("aria-sort") == "descending"
    other = page.locator('[data-table="speed"] th', has_text="label").first
    other.locator("button").click()
    assert head.get_attribute("aria-sort") == "none"
    labels = column(page, "speed", "label")
    assert labels == sorted(labels, key=str.lower) or labels[0].startswith("<script>")


def test_filters_combine_and_understand_units(page):
    decisions = page.locator('[data-table="decisions"]')
    decisions.get_by_label("Filter by length").select_option("=1024")
    decisions.get_by_label("Filter by mode").select_option("=forward")
    assert set(column(page, "decisions", "length")) == {"1024.0"}
    decisions.get_by_label("Filter by memory").fill("<= 3 MiB")
    sizes = [float(value) for value in column(page, "decisions", "memory")]
    assert sizes
    assert max(sizes) <= 3 * 2**20
    decisions.get_by_label("Filter by accuracy", exact=True).fill("0.5")
    assert all(float(value) >= 0.5 for value in column(page, "decisions", "accuracy"))
    assert " of " in decisions.get_by_role("status").inner_text()
    decisions.get_by_label("Filter by accuracy", exact=True).fill("")
    decisions.get_by_label("Filter by memory").fill("")
    decisions.get_by_label("Filter by label").select_option("=<script>alert(1)</script>")
    assert column(page, "decisions", "label") == ["<script>alert(1)</script>"]


def test_a_filter_that_cannot_be_read_is_marked_and_hides_nothing(page):
    field = page.locator('[data-table="speed"]').get_by_label("Filter by time")
    before = len(column(page, "speed", "time"))
    field.fill("soon")
    assert "wrong" in field.get_attribute("class")
    assert len(column(page, "speed", "time")) == before
    field.fill("> 1 ms")
    assert "wrong" not in (field.get_attribute("class") or "")
    assert len(column(page, "speed", "time")) < before


def test_every_failed_cell_is_listed_with_its_reason(page):
    reasons = column(page, "outcomes", "reason")
    assert any("oom at 4096" in reason for reason in reasons)
    assert any("no causal form" in reason for reason in reasons)


def test_it_can_be_printed(page, tmp_path):
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert page.pdf(path=str(tmp_path / "page.pdf"))
