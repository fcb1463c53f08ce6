"""Hashed attention: who finds whom, in several rounds, with gradients that pass through the selection as it stands."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import attnbench
from attnbench.contract import Unsupported


def build(**options: object) -> attnbench.Variant:
    torch.manual_seed(0)
    common = {"heads": 2, "head_dim": 8, "bucket": 4, "hashes": 2}
    return attnbench.create_variant("lsh", **(common | options)).double().eval()


def draw(n: int, batch: int = 2, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, v = (torch.randn(batch, 2, n, 8, dtype=torch.float64, generator=generator) for _ in range(2))
    return q, v


def by_hand(variant: attnbench.Variant, q: Tensor, v: Tensor) -> Tensor:
    """Token by token: every round's chunk and the one before, one softmax over what all rounds found."""
    out, (batch, heads, n, d) = torch.zeros_like(v), q.shape
    orders = variant.order(q, None).unflatten(2, (variant.hashes, n)).tolist()
    for b in range(batch):
        for h in range(heads):
            for i in range(n):
                found = []
                for order in orders[b][h]:
                    chunk = order.index(i) // variant.bucket
                    seen = order[max(chunk - 1, 0) * variant.bucket : (chunk + 1) * variant.bucket]
                    found += [j for j in seen if j != i]
                keys = q[b, h, found] / q[b, h, found].norm(dim=-1, keepdim=True)
                weights = (keys @ q[b, h, i] / math.sqrt(d)).softmax(dim=0)
                out[b, h, i] = weights @ v[b, h, found] if found else v[b, h, i]
    return out


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 30), bucket=st.integers(1, 7), hashes=st.sampled_from([1, 2, 4]))
def test_equals_the_method_followed_token_by_token(n: int, bucket: int, hashes: int) -> None:
    variant = build(bucket=bucket, hashes=hashes)
    q, v = draw(n)
    torch.testing.assert_close(variant(q, None, v), by_hand(variant, q, v))


def test_the_order_is_a_permutation_by_hash_then_position() -> None:
    variant = build()
    q, _ = draw(50)
    orders = variant.order(q, None).unflatten(2, (2, 50))
    assert (orders.sort(dim=-1).values == torch.arange(50)).all()
    same = q[:, :, :1].expand(-1, -1, 50, -1)  # one hash for all: positions decide
    assert (variant.order(same, None).unflatten(2, (2, 50)) == torch.arange(50)).all()


def test_hashes_are_the_directions_of_the_stated_rotations() -> None:
    variant = build()
    q, _ = draw(50)
    for number, rotations in enumerate(variant.rotations):
        digits = [torch.cat([q @ r, -(q @ r)], dim=-1).argmax(dim=-1) for r in rotations]
        hashed = ((digits[0] * 8 + digits[1]) * 8 + digits[2]) * 8 + digits[3]
        expected = hashed.sort(dim=-1, stable=True).indices
        assert torch.equal(variant.order(q, None).unflatten(2, (2, 50))[:, :, number], expected)


def test_equal_tokens_meet_and_opposite_ones_do_not() -> None:
    variant = build(bucket=8, hashes=1)
    direction = torch.randn(8, dtype=torch.float64)
    q = torch.cat([direction.expand(16, 8), -direction.expand(16, 8)])[torch.randperm(32)].expand(1, 2, 32, 8)
    weights = variant.dense_weights(q, q)
    agree = (q @ q.mT) > 0
    # The order holds one kind and then the other: a chunk looks back, so that one chunk of 16 sees 8 of the other kind.
    assert (weights * agree).sum() / weights.sum() > 0.8


def test_a_token_sees_itself_only_where_it_sees_nobody_else() -> None:
    variant = build()
    q, v = draw(1)
    torch.testing.assert_close(variant(q, None, v), v)
    diagonal = variant.dense_weights(*draw(20)).diagonal(dim1=-2, dim2=-1)
    assert not diagonal.any()


@pytest.mark.parametrize("hashes", [1, 2, 4])
def test_gradcheck_with_fixed_rotations(hashes: int) -> None:
    variant = build(hashes=hashes, heads=1, bucket=2, head_dim=4)
    q, v = (x[:1, :1, :, :4].requires_grad_() for x in draw(7))
    assert torch.autograd.gradcheck(lambda q, v: variant(q, None, v), (q, v))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("hashes", [1, 2, 4])
def test_checkpointing_changes_no_gradient(hashes: int, reentrant: bool) -> None:
    variant = build(hashes=hashes).train()
    plain, again = ([x.clone().requires_grad_() for x in draw(33)] for _ in range(2))
    variant(plain[0], None, plain[1]).square().sum().backward()
    out = checkpoint(lambda q, v: variant(q, None, v), *again, use_reentrant=reentrant)
    out.square().sum().backward()
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=0)


@pytest.mark.parametrize("poison", [1e4, float("nan")])
def test_padding_leaves_real_tokens_alone(poison: float) -> None:
    variant = build().float()
    lengths = (50, 31, 1)
    q, v = (x.float() for x in draw(50, batch=3))
    alone = [variant(q[i : i + 1, :, :n], None, v[i : i + 1, :, :n]) for i, n in enumerate(lengths)]
    mask = torch.arange(50) < torch.tensor(lengths)[:, None]
    dirty = [x.masked_fill(~mask[:, None, :, None], poison) for x in (q, v)]
    out = variant(dirty[0], None, dirty[1], key_mask=mask)
    assert out.isfinite().all()
    for i, n in enumerate(lengths):
        torch.testing.assert_close(out[i, :, :n], alone[i][0], atol=1e-4, rtol=0)


def test_large_norms_take_the_path_with_maxima() -> None:
    variant = build(hashes=4)
    q, v = draw(40)
    torch.testing.assert_close(variant(300 * q, None, v), variant.reference(300 * q, None, v))


def test_no_causal_form_and_bad_options() -> None:
    with pytest.raises(Unsupported, match="lsh has no causal form"):
        build(causal=True)
    with pytest.raises(ValueError, match="bucket must be a whole number of at least 1, received 0"):
        build(bucket=0)


def test_rotations_are_saved() -> None:
    torch.manual_seed(1)
    first, second = (attnbench.create_variant("lsh", heads=2, head_dim=8) for _ in range(2))
    assert not torch.equal(first.rotations, second.rotations)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.rotations, second.rotations)
