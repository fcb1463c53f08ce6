"""The page of the public names is what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="signatures print otherwise on other versions of Python")
def test_the_api_page_is_what_its_script_makes():
    made = subprocess.run([sys.executable, str(DOCS / "make_api.py")], capture_output=True, text=True, check=True)
    hint = "make it anew: python docs/make_api.py > docs/api.md"
    assert made.stdout == (DOCS / "api.md").read_text(encoding="utf-8"), hint
