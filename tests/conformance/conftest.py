import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench import registry

FOLDER = str(Path(__file__).parent)


@pytest.fixture(scope="package")
def broken() -> Iterator[None]:
    """The broken variants are registered while these tests run, and not when others list what there is."""
    registry.list_variants()
    before = dict(registry._variants)
    sys.path.insert(0, FOLDER)  # which new processes inherit
    try:
        importlib.import_module("broken_variants")
        yield
    finally:
        sys.path.remove(FOLDER)
        sys.modules.pop("broken_variants", None)
        registry._variants.clear()
        registry._variants.update(before)
