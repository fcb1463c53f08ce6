"""The kit is proved by what it finds: each broken variant fails the check of the promise that it breaks."""

import pytest

from attnbench.conformance import CHECKS, check

BREAKS = {
    "leaks-with-mask": ["strict-causality-masked"],
    "ignores-causal": ["strict-causality", "reference-forward"],
    "selection-leaks": ["strict-causality", "strict-causality-masked"],
    "ignores-key-mask": ["padding-content", "padding-length", "empty-rows"],
    "averages-over-padding": ["padding-length"],
    "nan-on-empty": ["empty-rows"],
    "minus-ten-thousand": ["large-logits"],
    "misaligned": ["alignment"],
    "batch-statistics": ["batch-independence"],
    "remembers": ["history-independence"],
    "noise-in-eval": ["deterministic-eval"],
    "counts-in-eval": ["eval-keeps-state"],
    "works-in-place": ["inputs-untouched"],
    "lazy-buffer": ["state-dict", "eval-keeps-state"],
    "seed-of-the-process": ["state-dict-new-process"],
    "shares-memory": ["copies"],
    "even-lengths-only": ["any-length"],
    "no-empty-batch": ["empty-batch"],
    "bad-default": ["defaults"],
    "window-off-by-one": ["exact-when"],
    "wrong-scale": ["reference-forward"],
    "wrong-gradient": ["reference-gradient"],
    "wrong-picture": ["dense-weights"],
    "unwritten-memory": ["fresh-memory"],
    "needs-contiguous": ["non-contiguous"],
    "tiles-heads": ["grouped-heads"],
    "forgets-the-share": ["condensing"],
    "float32-out": ["dtypes"],
    "autocast-out": ["autocast"],
    "half-sums": ["long-sums"],
    "dropout-in-eval": ["dropout"],
    "updates-twice": ["checkpointing"],
    "another-path-for-gradients": ["gradient-modes"],
    "forgets-first-token": ["decoding-steps"],
    "decodes-padding": ["decoding-padded"],
    "spends-its-state": ["decoding-state"],
    "breaks-the-graph": ["compile", "compile-dynamic", "export"],
    "swallows-options": ["refuses-unknown-option"],
    "takes-any-mask": ["refuses-other-masks"],
    "takes-undeclared-mask": ["refuses-undeclared"],
    "takes-anything": ["refuses-misfits", "refuses-other-masks"],
    "cuts-to-max-len": ["max-len"],
    "simulates-sparsity": ["no-dense-tensor", "growth-memory", "growth-operations"],
    "understates-memory": ["growth-memory"],
    "understates-work": ["growth-operations"],
}
COSTLY = ("simulates-sparsity", "understates-memory", "understates-work")
# What a variant breaks in one place it must not be blamed for in another.
KEEPS = {
    "leaks-with-mask": ["strict-causality", "padding-content"],
    "ignores-key-mask": ["strict-causality"],
    "seed-of-the-process": ["state-dict", "deterministic-eval"],
    "forgets-first-token": ["reference-forward"],
    "simulates-sparsity": ["reference-forward", "strict-causality"],
    "wrong-picture": ["reference-forward", "reference-gradient"],
    "decodes-padding": ["decoding-steps", "decoding-state"],
}


@pytest.mark.usefixtures("broken")
def test_a_correct_variant_passes_every_check() -> None:
    report = check("correct", only=[name for name in CHECKS if name != "compile-dynamic"])
    assert report.ok, "\n".join(map(str, report.failures))
    assert {result.property for result in report.results if result.status == "skipped"} <= {
        "strict-causality",  # in the direction that is not causal
        "strict-causality-masked",
        "decoding-steps",
        "decoding-padded",
        "decoding-state",
        "max-len",
        "no-dense-tensor",
        "condensing",
    }


@pytest.mark.usefixtures("broken")
def test_a_variant_that_condenses_keeps_its_promise() -> None:
    (result,) = check("condenses", only=["condensing"]).results
    assert result.status == "passed", result


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_variant_fails_the_check_of_what_it_breaks(name: str) -> None:
    report = check(name, only=BREAKS[name], causal=False if name in COSTLY else None)
    failed = {failure.property for failure in report.failures}
    assert failed == set(BREAKS[name])
    for failure in report.failures:
        assert failure.reason
        assert failure.settings["options"]


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", KEEPS)
def test_a_broken_variant_passes_the_checks_of_what_it_keeps(name: str) -> None:
    report = check(name, only=KEEPS[name])
    assert report.ok, "\n".join(map(str, report.failures))


def test_every_check_has_a_variant_that_breaks_it() -> None:
    assert set(CHECKS) == {prop for props in BREAKS.values() for prop in props}
