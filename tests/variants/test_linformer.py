"""Linformer: its slots against explicit mixing matrices, what it refuses, and how padding and lengths reach the slots."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

import attnbench
from attnbench.contract import Unsupported

MAX_LEN = 24
COMMON = {"heads": 2, "head_dim": 4, "max_len": MAX_LEN}
PROJECTIONS = ("learned", "convolution", "pooling")


def build(**options):
    torch.manual_seed(0)
    return attnbench.create_variant("linformer", **(COMMON | {"rank": 5} | options)).double()


def draw(n, batch=2, keys=None, seed=1):
    torch.manual_seed(seed)
    q = torch.randn(batch, 2, n, 4, dtype=torch.float64)
    k, v = torch.randn(2, batch, 2, keys or n, 4, dtype=torch.float64)
    return q, k, v


@given(
    projection=st.sampled_from(PROJECTIONS),
    share=st.sampled_from(("none", "heads", "keys-values")),
    rank=st.integers(1, 30),
    queries=st.integers(1, MAX_LEN),
    keys=st.integers(1, MAX_LEN),
)
@settings(max_examples=40, deadline=None)
def test_output_and_gradients_equal_the_reference_for_any_shape(projection, share, rank, queries, keys):
    variant = build(projection=projection, share=share, rank=rank)
    q, k, v = (x.requires_grad_() for x in draw(queries, keys=keys))
    mask = torch.rand(2, keys) < 0.6
    for key_mask in (None, mask):
        inputs = [q, k, v, *variant.parameters()]
        fast, slow = variant(q, k, v, key_mask=key_mask), variant.reference(q, k, v, key_mask=key_mask)
        torch.testing.assert_close(fast, slow)
        weights = torch.randn_like(fast)
        for a, b in zip(
            torch.autograd.grad((fast * weights).sum(), inputs),
            torch.autograd.grad((slow * weights).sum(), inputs),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


def test_learned_projection_is_the_published_equation():
    variant = build(share="none")
    q, k, v = draw(7)
    keys = torch.einsum("hrn,bhnd->bhrd", variant.mix_keys[:, :, :7], k)
    values = torch.einsum("hrn,bhnd->bhrd", variant.mix_values[:, :, :7], v)
    expected = (q @ keys.transpose(-1, -2) / 2).softmax(-1) @ values
    torch.testing.assert_close(variant(q, k, v), expected)


def test_pooling_averages_the_real_tokens_of_a_slot():
    variant = build(projection="pooling", rank=6)  # slots of 4 tokens
    q, k, v = draw(10, batch=1)
    mask = torch.tensor([[True, False, True, True, False, False, False, False, True, True]])
    slots = [[0, 2, 3], [8, 9]]  # the middle slot has no real token, so it is not attended to
    keys, values = (torch.stack([x[:, :, slot].mean(dim=2) for slot in slots], dim=2) for x in (k, v))
    torch.testing.assert_close(variant(q, k, v, key_mask=mask), scaled_dot_product_attention(q, keys, values))


def test_pooling_with_a_slot_for_every_token_is_full_attention():
    q, k, v = draw(MAX_LEN)
    exact = build(projection="pooling", rank=MAX_LEN)
    torch.testing.assert_close(exact(q, k, v), scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize(("share", "shapes"), [("none", [2, 2]), ("heads", [1, 1]), ("keys-values", [1])])
def test_sharing_decides_the_number_of_mixtures(share, shapes):
    for projection, rest in (("learned", (5, MAX_LEN)), ("convolution", (5,)), ("pooling", None)):
        variant = build(projection=projection, share=share)
        expected = [] if rest is None else [(groups, *rest) for groups in shapes]
        assert [tuple(parameter.shape) for parameter in variant.parameters()] == expected


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_padding_changes_nothing_and_an_empty_sample_gives_zeros(projection):
    variant = build(projection=projection)
    q, k, v = draw(20, batch=3)
    mask = torch.arange(20) < torch.tensor([20, 7, 0])[:, None]
    poisoned_k, poisoned_v = (x.masked_fill(~mask[:, None, :, None], torch.nan).requires_grad_() for x in (k, v))
    out = variant(q, poisoned_k, poisoned_v, key_mask=mask)
    for sample, length in enumerate((20, 7)):
        alone = variant(*(x[sample : sample + 1, :, :length] for x in (q, k, v)))
        torch.testing.assert_close(out[sample : sample + 1, :, :length], alone)
    assert torch.equal(out[2], torch.zeros_like(out[2]))
    out.sum().backward()
    assert poisoned_k.grad.isfinite().all()
    assert poisoned_v.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in variant.parameters())


def test_causal_is_refused_at_construction():
    with pytest.raises(Unsupported, match="linformer has no causal form"):
        build(causal=True)


def test_longer_than_max_len_is_refused_and_the_next_call_works():
    variant = build(max_len=512)
    with pytest.raises(ValueError, match="513 exceeds max_len 512"):
        variant(*draw(513))
    assert variant(*draw(100)).shape == (2, 2, 100, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank must be a whole number of at least 1, received 0"),
        ({"projection": "learnt"}, "projection must be one of .* received 'learnt' .did you mean 'learned'"),
        ({"share": "layers"}, "share must be one of none, heads, keys-values, received 'layers'"),
        ({"max_len": None}, "linformer needs max_len"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_dropout_acts_in_training_alone():
    variant = build(dropout=0.5)
    q, k, v = draw(9)
    assert not torch.equal(variant(q, k, v), variant(q, k, v))
    variant.eval()
    assert torch.equal(variant(q, k, v), variant(q, k, v))
    torch.testing.assert_close(variant(q, k, v), variant.reference(q, k, v))


def test_no_tensor_of_queries_by_keys_is_made():
    variant = build(max_len=600, rank=5)
    q, k, v = draw(600, batch=1)

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made = [t for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor)]
            self.elements = max([self.elements, *(t.untyped_storage().nbytes() // 8 for t in made)])
            return out

    with Largest() as seen:
        variant(q, k, v)
    assert seen.elements < 600 * 600
