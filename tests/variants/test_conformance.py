"""Every registered variant keeps every promise of the contract: one test for each variant and family of checks."""

from pathlib import Path

import pytest

from attnbench import list_variants, variant_info
from attnbench.conformance import check, families
from attnbench.conformance.nursery import verify_in_new_process
from attnbench.conformance.runner import directions, make_subject
from attnbench.conformance.state import save_trained

APART = ("state-dict-new-process", "compile-dynamic")
FAMILIES = {family: [name for name in names if name not in APART] for family, names in families().items()}
# Other tests register variants of their own as they are imported: the family is what the package `variants` defines.
VARIANTS = [name for name in list_variants() if variant_info(name).cls.__module__.startswith("variants.")]


def test_the_family_is_whole() -> None:
    named = (
        "full full-naive local strided global-token longformer bigbird mixed clustering routing lsh sinkhorn linformer "
    )
    named += "compressed synthesizer linear performer nystrom recurrent convolution none uniform"
    assert set(named.split()) <= set(VARIANTS)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_promises(variant: str, family: str) -> None:
    report = check(variant, only=FAMILIES[family])
    assert report.ok, "\n".join(map(str, report.failures))


@pytest.mark.timeout(900)  # the compiler alone takes minutes for some, and others may be at work
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_compiled_graph_serves_every_length(variant: str) -> None:
    report = check(variant, only=["compile-dynamic"])
    assert report.ok, "\n".join(map(str, report.failures))


@pytest.fixture(scope="module")
def loaded_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[Path, str | None]]:
    """What one new process, under another seed, found on loading the state of every variant."""
    folder = tmp_path_factory.mktemp("states")
    saved = {
        variant: [
            path
            for causal in directions(variant)
            for path in save_trained(make_subject(variant, None, causal=causal), folder)
        ]
        for variant in VARIANTS
    }
    found = verify_in_new_process([path for paths in saved.values() for path in paths])
    return {variant: {path: found[path] for path in paths} for variant, paths in saved.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_loads_in_a_new_process(variant: str, loaded_elsewhere: dict[str, dict[Path, str | None]]) -> None:
    found = loaded_elsewhere[variant]
    assert found
    assert {path.stem: message for path, message in found.items() if message} == {}
