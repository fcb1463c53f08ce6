"""Routing: balanced membership, one softmax over what a token's centroids offer, centroids that follow the tokens."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import attnbench
from attnbench.contract import Unsupported


def build(**options: object) -> attnbench.Variant:
    torch.manual_seed(0)
    common = {"heads": 2, "head_dim": 8, "clusters": 3}
    return attnbench.create_variant("routing", **(common | options)).double().eval()


def draw(n: int, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, 2, n, 8, dtype=torch.float64, generator=generator) for _ in range(3)]


def by_hand(variant: attnbench.Variant, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Token by token: the keys of every centroid that takes the query, under one softmax."""
    out, (batch, heads, n, d) = torch.zeros_like(v), q.shape
    width = math.ceil(n / variant.clusters)
    for b in range(batch):
        for h in range(heads):
            asked: list[list[int]] = [[] for _ in range(n)]
            for centroid in variant.centroids[h]:
                queries, keys = (
                    (normalize(x[b, h], dim=-1) @ centroid).argsort(descending=True)[:width].tolist() for x in (q, k)
                )
                for i in queries:
                    asked[i] += keys
            for i, keys in enumerate(asked):
                if keys:
                    out[b, h, i] = (k[b, h, keys] @ q[b, h, i] / math.sqrt(d)).softmax(dim=0) @ v[b, h, keys]
    return out


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 30), clusters=st.integers(1, 6))
def test_equals_the_method_followed_token_by_token(n: int, clusters: int) -> None:
    variant = build(clusters=clusters)
    q, k, v = draw(n)
    torch.testing.assert_close(variant(q, k, v), by_hand(variant, q, k, v))


def test_every_centroid_takes_equally_many() -> None:
    variant = build(clusters=4)
    q, _, _ = draw(30)
    taken = variant.taken(q, None)
    assert taken.shape == (2, 2, 4, 8)
    assert all(len(set(row)) == 8 for row in taken.flatten(0, 2).tolist())


def test_a_query_that_no_centroid_takes_gets_zeros() -> None:
    variant = build(clusters=5)
    q, k, v = draw(40)
    taken = torch.zeros(2, 2, 40, dtype=torch.bool).scatter_(2, variant.taken(q, None).flatten(2), True)
    assert not taken.all()
    assert torch.equal(variant(q, k, v).any(dim=-1), taken)


@pytest.mark.parametrize("scale", [1, 300])
def test_selection_counts_real_tokens_alone(scale: int) -> None:
    variant, lengths = build(), (50, 31, 1)
    q, k, v = (scale * x for x in draw(50, batch=3))
    mask = torch.arange(50) < torch.tensor(lengths)[:, None]
    dirty = [x.masked_fill(~mask[:, None, :, None], float("nan")) for x in (q, k, v)]
    out = variant(*dirty, key_mask=mask)
    for i, n in enumerate(lengths):
        alone = variant(*(x[i : i + 1, :, :n] for x in (q, k, v)))
        torch.testing.assert_close(out[i, :, :n], alone[0])


def test_number_of_centroids() -> None:
    assert build(clusters=None, window=128, max_len=4096).clusters == 32
    assert build(clusters=None, window=100, max_len=250).clusters == 3
    assert build(clusters=None, window=64).clusters == 16
    assert build(clusters=None, max_len=4096).clusters == 64


def test_no_causal_form_since_later_tokens_decide_who_is_taken() -> None:
    with pytest.raises(Unsupported, match="routing has no causal form"):
        build(causal=True)
    variant = build()
    q, k, v = draw(30)
    changed = k.clone()
    changed[:, :, -1] *= -100  # the reason: the last key displaces others
    earlier = (variant(q, k, v) - variant(q, changed, v))[:, :, :20]
    assert earlier.abs().max() > 1e-3


def test_gradcheck() -> None:
    variant = build(heads=1, head_dim=4)
    inputs = [x[:1, :1, :, :4].requires_grad_() for x in draw(7)]
    assert torch.autograd.gradcheck(variant, inputs)


def test_training_moves_the_centroids_towards_the_tokens_that_are_nearest_to_them() -> None:
    variant = build(decay=0.5).train()
    q, k, v = draw(40)
    before = variant.centroids.clone()
    variant(q, k, v)
    unit = normalize(torch.cat([q, k], dim=2), dim=-1)
    chosen = (unit @ before.mT).argmax(dim=-1)
    for h in range(2):
        for c in range(3):
            mean = unit[:, h][chosen[:, h] == c].mean(dim=0)
            expected = normalize(0.5 * before[h, c] + 0.5 * mean, dim=-1)
            torch.testing.assert_close(variant.centroids[h, c], expected)


@pytest.mark.parametrize(("option", "value"), [("window", 0), ("clusters", 0), ("decay", 1.0)])
def test_bad_options(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"routing: {option} must .*, received {value}"):
        build(**{option: value})
