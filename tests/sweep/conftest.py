"""Variants of our own, registered for these tests alone, and an isolation that measures nothing and is quick."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench import registry

# What runs in a process of its own must be importable by name there; the fork server is handed this path.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="package", autouse=True)
def _misbehaving_variants() -> Iterator[None]:
    """The variants of faulty.py, which go with these tests."""
    registry.list_variants()
    before = dict(registry._variants)
    import faulty

    registry._variants.update({cls.name: cls for cls in faulty.ALL})
    yield
    registry._variants.clear()
    registry._variants.update(before)


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> type:
    """Jobs are answered at once, with numbers made from their payloads, and as the payload's options ask."""
    import pretence

    monkeypatch.setattr("attnbench.sweep.worker.Isolation", pretence.Instant)
    pretence.Instant.calls = []
    return pretence.Instant
