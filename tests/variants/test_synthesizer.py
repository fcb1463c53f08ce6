"""Synthesizer: each kind against its equation written out, its capabilities, causality, padding and lengths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbench

KINDS = ("dense", "random", "fixed-random", "factorised-dense", "factorised-random")
MIXTURES = ("random+dot", "dense+fixed-random+dot", "factorised-dense+factorised-random")
MAX_LEN = 11  # three fine times four coarse columns, with one to spare


def build(kind="dense", **options):
    torch.manual_seed(0)
    common = {"heads": 2, "head_dim": 4, "max_len": MAX_LEN, "kind": kind, "rank": 3}
    variant = attnbench.create_variant("synthesizer", **(common | options)).double()
    if hasattr(variant, "shares"):
        torch.nn.init.normal_(variant.shares)
    return variant


def draw(variant, n, batch=2, seed=1):
    torch.manual_seed(seed)
    q, k, v, x = torch.randn(4, batch, 2, n, 4, dtype=torch.float64).requires_grad_()
    return (q, k, v), ({"x": x} if variant.supports.streams else {})


def logits(variant, kind, q, k, x, i, j):
    """B_ij (batch, heads), straight from the equations of the paper."""
    if kind == "dense":
        return (x[:, :, i].relu() * variant.dense[:, :, j]).sum(-1) + variant.dense_bias[:, 0, j]
    if kind == "factorised-dense":
        coarse, fine = divmod(j, 4)
        first, second = (x[:, :, i].relu()[..., None] * factor for factor in variant.factors.unbind())
        return first[..., coarse].sum(2) * second[..., fine].sum(2)
    if kind == "random":
        return variant.random[None, :, i, j]
    if kind == "fixed-random":
        return variant.fixed_random[None, :, i, j]
    if kind == "factorised-random":
        return (variant.row_factors[:, i] * variant.column_factors[:, j]).sum(-1)[None]
    return (q[:, :, i] * k[:, :, j]).sum(-1) / 2


def by_hand(variant, q, k, v, x, key_mask=None):
    batch, heads, n, _ = v.shape
    shares = variant.shares.softmax(0)[..., 0, 0] if len(variant.kinds) > 1 else torch.ones(1, 2).double()
    out = torch.zeros_like(v)
    for i in range(n):
        columns = range(i + 1) if variant.causal else range(n)
        scores = torch.zeros(batch, heads, n, dtype=v.dtype)
        for j in columns:
            for share, kind in zip(shares, variant.kinds, strict=True):
                scores[..., j] += share * logits(variant, kind, q, k, x, i, j)
        seen = torch.zeros(batch, n, dtype=torch.bool)
        seen[:, list(columns)] = True if key_mask is None else key_mask[:, list(columns)]
        weights = torch.where(seen[:, None], scores.exp(), 0)
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
        out[:, :, i] = (weights[..., None] * v).sum(2)
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, *MIXTURES])
def test_every_kind_is_its_equation(kind, causal):
    variant = build(kind, causal=causal)
    for n in (1, 6, MAX_LEN):
        (q, k, v), streams = draw(variant, n)
        for mask in (None, torch.arange(n) % 3 != 0):
            key_mask = None if mask is None else mask.expand(2, n)
            expected = by_hand(variant, q, k, v, streams.get("x"), key_mask)
            rows = slice(None) if mask is None else mask  # what a padded query gives is its own affair
            out = variant(q, k, v, key_mask=key_mask, **streams)
            torch.testing.assert_close(out[:, :, rows], expected[:, :, rows])


@given(
    kind=st.sampled_from([*KINDS, *MIXTURES]), n=st.integers(1, MAX_LEN), causal=st.booleans(), seed=st.integers(0, 9)
)
@settings(max_examples=40, deadline=None)
def test_output_and_gradients_equal_the_reference(kind, n, causal, seed):
    variant = build(kind, causal=causal)
    qkv, streams = draw(variant, n, seed=seed)
    key_mask = torch.rand(2, n) < 0.5
    fast = variant(*qkv, key_mask=key_mask, **streams)
    slow = variant.reference(*qkv, key_mask=key_mask, **streams)
    torch.testing.assert_close(fast, slow)
    inputs = [qkv[2], *streams.values(), *variant.parameters()]
    weights = torch.randn_like(fast)
    fast, slow = (torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True) for out in (fast, slow))
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", [*KINDS, *MIXTURES])
def test_capabilities_follow_the_kind(kind):
    supports = attnbench.variant_info("synthesizer", kind=kind).supports
    assert supports.reads == (("q", "k", "v") if "dot" in kind else ("v",))
    assert [stream.name for stream in supports.streams] == (["x"] if "dense" in kind else [])
    assert supports.max_len
    assert not supports.cross


def test_fixed_random_is_a_buffer_and_random_a_parameter():
    fixed, learned = build("fixed-random"), build("random")
    assert list(fixed.state_dict()) == ["fixed_random"]
    assert not list(fixed.parameters())
    assert [name for name, _ in learned.named_parameters()] == ["random"]
    assert not torch.equal(fixed.fixed_random, attnbench.create_variant("synthesizer", **fixed.options).fixed_random)


@pytest.mark.parametrize("kind", [*KINDS, *MIXTURES])
@pytest.mark.parametrize("masked", [False, True])
def test_causal_is_strict(kind, masked):
    variant = build(kind, causal=True)
    (q, k, v), streams = draw(variant, MAX_LEN)
    key_mask = torch.ones(2, MAX_LEN, dtype=torch.bool) if masked else None
    before = variant(q, k, v, key_mask=key_mask, **streams)
    for t in range(MAX_LEN - 1):
        late = torch.arange(MAX_LEN)[:, None] > t
        changed = [torch.where(late, 100 * torch.randn_like(tensor), tensor) for tensor in (q, k, v)]
        xs = {name: torch.where(late, 100 * torch.randn_like(x), x) for name, x in streams.items()}
        after = variant(*changed, key_mask=key_mask, **xs)
        torch.testing.assert_close(after[:, :, : t + 1], before[:, :, : t + 1])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, *MIXTURES])
def test_padding_changes_nothing_and_an_empty_sample_gives_zeros(kind, causal):
    variant = build(kind, causal=causal)
    (q, k, v), streams = draw(variant, MAX_LEN, batch=3)
    mask = torch.arange(MAX_LEN) < torch.tensor([MAX_LEN, 4, 0])[:, None]
    poisoned = [x.detach().masked_fill(~mask[:, None, :, None], torch.nan).requires_grad_() for x in (q, k, v)]
    xs = {name: x.detach().masked_fill(~mask[:, None, :, None], torch.nan) for name, x in streams.items()}
    out = variant(*poisoned, key_mask=mask, **xs)
    short = [x[1:2, :, :4] for x in (q, k, v)]
    alone = variant(*short, **{name: x[1:2, :, :4] for name, x in streams.items()})
    torch.testing.assert_close(out[1:2, :, :4], alone)
    assert torch.equal(out[2], torch.zeros_like(out[2]))
    out.sum().backward()
    for tensor in (*poisoned, *variant.parameters()):
        assert tensor.grad is None or tensor.grad.isfinite().all()


def test_dropout_acts_in_training_alone_and_differs_between_samples():
    variant = build("random", dropout=0.5)
    v = torch.randn(1, 2, 9, 4, dtype=torch.float64).expand(2, -1, -1, -1)
    first, second = variant(None, None, v)
    assert not torch.equal(first, second)
    variant.eval()
    assert torch.equal(variant(None, None, v), variant(None, None, v))


def test_longer_than_max_len_is_refused_and_the_next_call_works():
    variant = build("random")
    with pytest.raises(ValueError, match="12 exceeds max_len 11"):
        variant(None, None, torch.zeros(1, 2, 12, 4).double())
    assert variant(None, None, torch.zeros(1, 2, 5, 4).double()).shape == (1, 2, 5, 4)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("danse", "kind must be one of .* received 'danse' .did you mean 'dense'"),
        ("dot", "kind 'dot' alone is full attention"),
        ("random+random", "names a part twice"),
        ("", "kind must be one of"),
    ],
)
def test_a_wrong_kind_is_one_clear_line(kind, message):
    with pytest.raises(ValueError, match=message):
        build(kind)
