"""Every test of tasks gets an empty cache of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
