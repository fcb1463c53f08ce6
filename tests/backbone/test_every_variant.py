"""Every registered variant in the shared backbone: built, trained under recomputation, copied, saved, and decoded."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from attnbench import Transformer, list_variants, variant_info
from attnbench.backbone import Stack

N = 24


VARIANTS = [name for name in list_variants() if variant_info(name).cls.__module__.startswith("variants.")]


def uses() -> list[Any]:
    """Each variant both ways, as far as it goes, under options that show its structure at this length."""
    found = []
    for name in VARIANTS:
        for causal in (False, True):
            supports = variant_info(name, causal=causal, **variant_info(name).supports.small).supports
            if supports.causal if causal else supports.bidirectional:
                found.append(pytest.param(name, causal, id=f"{name}-{'causal' if causal else 'both ways'}"))
    return found


def stack(name: str, causal: bool, **changes: Any) -> Stack:
    torch.manual_seed(1)
    small = dict(variant_info(name).supports.small)
    return Stack(16, 2, 2, variant=name, options=small, causal=causal, max_len=N, **changes)


@pytest.mark.parametrize(("name", "causal"), uses())
def test_recomputation_changes_no_gradient_and_no_state(name: str, causal: bool) -> None:
    results = []
    for recompute in (False, True):
        made = stack(name, causal, dropout=0.2)
        torch.manual_seed(2)
        x = torch.randn(2, N, 16, requires_grad=True)
        out = checkpoint(made, x, use_reentrant=False) if recompute else made(x)
        parameters = [parameter for parameter in made.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(out.square().sum(), [x, *parameters], allow_unused=True)
        results.append((gradients, dict(made.named_buffers())))
    for plain, recomputed in zip(results[0][0], results[1][0], strict=True):
        torch.testing.assert_close(plain, recomputed, atol=1e-5, rtol=1e-5)
    assert results[0][1].keys() == results[1][1].keys()
    for buffer, value in results[0][1].items():
        torch.testing.assert_close(value, results[1][1][buffer], atol=1e-6, rtol=0, msg=buffer)


@pytest.mark.parametrize(("name", "causal"), uses())
def test_copies_and_saved_states_answer_alike(name: str, causal: bool) -> None:
    made = stack(name, causal, kv_heads=1, positions="rotary")
    x = torch.randn(2, N - 5, 16)
    made(x)  # in training, so that what is learned from batches differs from its beginning
    made.eval()
    torch.manual_seed(9)
    other = Stack(
        16, 2, 2, variant=name, options=dict(variant_info(name).supports.small), causal=causal, max_len=N, kv_heads=1,
        positions="rotary",
    )  # fmt: skip
    other.load_state_dict(made.state_dict())
    expected = made(x)
    assert torch.equal(other.eval()(x), expected)
    assert torch.equal(copy.deepcopy(made)(x), expected)
    assert made(x[:0]).shape == (0, N - 5, 16)


@pytest.mark.parametrize("name", [name for name in VARIANTS if variant_info(name).supports.decode])
def test_writing_step_by_step_agrees_with_full_forwards(name: str) -> None:
    small = dict(variant_info(name).supports.small)
    torch.manual_seed(3)
    model = Transformer(
        vocab=9, dim=16, heads=2, depth=2, architecture="decoder", variant=name, options=small, max_len=N,
        positions="rotary", kv_heads=1,
    )  # fmt: skip
    prompt = torch.randint(1, 9, (3, 7))
    mask = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    assert model.decodes
    written = model.generate(prompt, key_mask=mask, max_new=N - 7)
    assert torch.equal(written, model.generate(prompt, key_mask=mask, max_new=N - 7, stepwise=False))


@pytest.mark.parametrize("name", [name for name in VARIANTS if variant_info(name).supports.cross])
def test_cross_attention_in_a_decoder_lets_no_later_query_through(name: str) -> None:
    made = stack("full", causal=True, cross_variant=name, cross_options=dict(variant_info(name).supports.small)).eval()
    x, context = torch.randn(2, N, 16), torch.randn(2, N - 3, 16)
    later = x.clone()
    later[:, 10:] = torch.randn(2, N - 10, 16) * 5
    before, after = made(x, context=context)[:, :10], made(later, context=context)[:, :10]
    torch.testing.assert_close(before, after, atol=1e-5, rtol=1e-5)
