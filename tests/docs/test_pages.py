"""What the pages say is what the code does: the README's code, and the links between pages."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.usefixtures("own_registry")
def test_the_code_in_the_readme_runs_and_its_variant_passes_the_kit(tmp_path, monkeypatch):
    from attnbench.conformance import check

    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    (tmp_path / "readme_code.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("readme_code")
    report = check("mean-pool")
    assert report.ok, report.failures


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
