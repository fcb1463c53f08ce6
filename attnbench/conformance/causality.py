"""Causality: no later token reaches an output, neither by its content nor by its being there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attnbench.conformance.core import expect_close, promise, require
from attnbench.conformance.subject import Inputs, Subject


@promise("strict-causality")
def strict_causality(subject: Subject) -> None:
    """Causal: changing the tokens after t, by large norms or large values, changes nothing at or before t."""
    require(subject.causal, "not causal")
    variant = subject.build()
    for length in subject.causal_lengths:
        _later_tokens_change_nothing(subject, variant, subject.inputs(length))


@promise("strict-causality-masked")
def strict_causality_masked(subject: Subject) -> None:
    """Causality holds with a key mask too, and whether the later tokens are real changes nothing either."""
    require(subject.causal, "not causal")
    require(subject.supports.padding, "takes no key_mask")
    variant = subject.build()
    for length in subject.causal_lengths:
        inputs = subject.inputs(length)
        inputs = inputs.masked(subject.padding(2, length))
        _later_tokens_change_nothing(subject, variant, inputs)
        for t in _cuts(length):
            subject.note(t=t, change="later tokens masked")
            assert inputs.key_mask is not None
            early = inputs.key_mask & (torch.arange(length, device=subject.device) <= t)
            with torch.no_grad():
                _same_until(t, inputs.key_mask, inputs.masked(early)(variant), inputs(variant))


def _later_tokens_change_nothing(subject: Subject, variant: Callable[..., Tensor], inputs: Inputs) -> None:
    length = inputs.v.shape[2]
    with torch.no_grad():
        before = inputs(variant)
        for t in _cuts(length):
            for change, changed in _changed_after(inputs, t):
                subject.note(t=t, change=change)
                _same_until(t, inputs.key_mask, changed(variant), before)


def _cuts(length: int) -> list[int]:
    """Positions to cut at: the first, the middle and the last that has a later one."""
    return sorted({t for t in (0, length // 2, length - 2) if 0 <= t < length - 1})


def _changed_after(inputs: Inputs, t: int) -> Iterator[tuple[str, Inputs]]:
    generator = torch.Generator().manual_seed(3)
    later = torch.arange(inputs.v.shape[2], device=inputs.v.device)[:, None] > t

    def large_norms(tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
        return torch.where(later, 100 * noise, tensor)

    yield "later tokens of large norm", inputs.map(large_norms)
    yield "later tokens all 1e4", inputs.map(lambda tensor: tensor.masked_fill(later, 1e4))
    yield "later tokens all -1e4", inputs.map(lambda tensor: tensor.masked_fill(later, -1e4))


def _same_until(t: int, mask: Tensor | None, changed: Tensor, before: Tensor) -> None:
    changed, before = changed[:, :, : t + 1], before[:, :, : t + 1]
    if mask is not None:
        real = mask[:, None, : t + 1, None]
        changed, before = changed.masked_fill(~real, 0), before.masked_fill(~real, 0)
    expect_close(changed, before, f"output at or before token {t}", 1e-5)
