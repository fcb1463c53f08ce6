from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnbench import Unsupported
from attnbench.backbone import Stack
from attnbench.errors import UserError

Ragged = Callable[..., Tensor]


@pytest.mark.parametrize("variant", ["full", "test-first-tokens", "test-gated-values"])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
@pytest.mark.parametrize("order", ["post", "pre"])
def test_padding_changes_no_real_token(variant: str, norm: str, order: str, ragged: Ragged) -> None:
    stack = Stack(8, 2, 2, variant=variant, max_len=9, norm=norm, order=order).eval()
    mask = ragged(3, 9)
    x = torch.randn(3, 9, 8).masked_fill(~mask[..., None], torch.nan)
    together = stack(x, key_mask=mask)
    for sample, length in enumerate(mask.sum(dim=1).tolist()):
        alone = stack(x[sample : sample + 1, :length])
        torch.testing.assert_close(together[sample, :length], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_nan_at_pads_poisons_no_gradient(norm: str, ragged: Ragged) -> None:
    stack = Stack(8, 2, 2, norm=norm)
    mask = ragged(3, 9)
    x = torch.randn(3, 9, 8).masked_fill(~mask[..., None], torch.nan)
    stack(x, key_mask=mask)[mask].square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in stack.parameters())


def test_global_tokens_are_prepended_once_and_carried_through() -> None:
    stack = Stack(8, 2, 3, variant="test-first-tokens", options={"tokens": 4}, max_len=6)
    assert stack.global_tokens.shape == (4, 8)
    assert [block.attention.mixer.max_len for block in stack.blocks] == [10, 10, 10]
    x = torch.randn(2, 6, 8)
    seen = torch.cat([stack.global_tokens.expand(2, -1, -1), x], dim=1)
    for block in stack.blocks:
        seen = block(seen)
    assert torch.equal(stack(x), seen[:, 4:])
    stack(x).sum().backward()
    assert stack.global_tokens.grad.abs().sum() > 0
    assert Stack(8, 2, 1, variant="full").global_tokens is None
    assert Stack(8, 2, 1, variant="test-first-tokens", options={"tokens": 0}, max_len=6).global_tokens is None


@pytest.mark.parametrize("order", ["post", "pre"])
def test_decoding_equals_the_full_forward(order: str) -> None:
    stack = Stack(8, 2, 2, causal=True, order=order, cross_variant="full", positions="rotary").eval()
    x, context = torch.randn(2, 7, 8), torch.randn(2, 5, 8)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    whole = stack(x, context=context, context_mask=mask)
    out, state = stack.prefill(x[:, :3], context=context, context_mask=mask)
    outs = [out]
    for place in range(3, 7):
        out, state = stack.step(x[:, place : place + 1], state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, dim=1), whole, atol=1e-5, rtol=1e-5)


def test_causal_is_causal() -> None:
    stack = Stack(8, 2, 2, causal=True, positions="rotary").eval()
    x = torch.randn(1, 8, 8)
    later = x.clone()
    later[:, 5:] = 9
    torch.testing.assert_close(stack(later)[:, :5], stack(x)[:, :5])


def test_refusals_come_before_anything_is_built() -> None:
    with pytest.raises(Unsupported) as caught:
        Stack(
            8, 2, 1, variant="test-first-tokens", causal=True, attention_dropout=0.1, cross_variant="test-gated-values"
        )
    assert len(caught.value.reasons) == 5
    with pytest.raises(UserError, match="batch norm is refused where causal"):
        Stack(8, 2, 1, norm="batch", causal=True)
    with pytest.raises(UserError, match="causal is set by the model"):
        Stack(8, 2, 1, options={"causal": True})
    with pytest.raises(UserError, match=r"unknown model option 'nrm' \(did you mean 'norm'\?\)"):
        Stack(8, 2, 1, nrm="layer")
    with pytest.raises(UserError, match="depth must be at least 1, received 0"):
        Stack(8, 2, 0)
    with pytest.raises(UserError, match="attends to a context"):
        Stack(8, 2, 1, cross_variant="full")(torch.randn(1, 3, 8))


def test_dropout_acts_in_training_alone() -> None:
    stack = Stack(8, 2, 1, dropout=0.5, attention_dropout=0.5)
    x = torch.randn(2, 5, 8)
    assert not torch.equal(stack(x), stack(x))
    stack.eval()
    assert torch.equal(stack(x), stack(x))
    assert stack(x[:0]).shape == (0, 5, 8)
