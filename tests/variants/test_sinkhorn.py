"""Sinkhorn: a doubly normalised sorting of blocks, causal by sums that run forward."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import attnbench


def build(**options: object) -> attnbench.Variant:
    torch.manual_seed(0)
    common = {"heads": 2, "head_dim": 8, "block": 4}
    return attnbench.create_variant("sinkhorn", **(common | options)).double().eval()


def draw(n: int, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, 2, n, 8, dtype=torch.float64, generator=generator) for _ in range(3)]


def sorting(variant: attnbench.Variant, q: Tensor, k: Tensor) -> Tensor:
    q, k = (x.unflatten(2, (-1, variant.block)) for x in (q, k))
    return variant.sorting(q, k, None)


@settings(max_examples=20, deadline=None)
@given(blocks=st.integers(1, 8), block=st.integers(1, 5))
def test_equals_the_method_written_out(blocks: int, block: int) -> None:
    variant = build(block=block)
    q, k, v = draw(blocks * block)
    share = sorting(variant, q, k)
    folded = [x.unflatten(2, (blocks, block)) for x in (q, k, v)]
    out = torch.zeros_like(folded[2])
    for i in range(blocks):
        moved_k, moved_v = ((share[:, :, i, :, None, None] * x).sum(dim=2) for x in folded[1:])
        keys, values = torch.cat([folded[1][:, :, i], moved_k], dim=2), torch.cat([folded[2][:, :, i], moved_v], dim=2)
        out[:, :, i] = (folded[0][:, :, i] @ keys.mT * 8**-0.5).softmax(dim=-1) @ values
    torch.testing.assert_close(variant(q, k, v), out.flatten(2, 3))


def test_the_sorting_is_doubly_normalised() -> None:
    q, k, _ = draw(32)
    share = sorting(build(iterations=200), q, k)
    for dim in (-1, -2):
        torch.testing.assert_close(share.sum(dim=dim), torch.ones(2, 2, 8, dtype=torch.float64), atol=1e-6, rtol=0)
    rows = sorting(build(iterations=1), q, k).sum(dim=-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))


def test_a_low_temperature_gives_a_permutation_of_blocks() -> None:
    variant = build(temperature=0.002, iterations=500)
    keys = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    order = torch.randperm(8)
    q, k = (3 * x[None, None, :, None].expand(1, 2, 8, 4, 8).flatten(2, 3) for x in (keys[order], keys))
    share = sorting(variant, q, k)
    torch.testing.assert_close(share, torch.eye(8, dtype=torch.float64)[order].expand(1, 2, 8, 8), atol=1e-4, rtol=0)


def test_a_block_is_a_run_of_neighbours() -> None:
    variant = build(causal=True)
    q, k, _ = (x[:1] for x in draw(12))
    impulses = torch.eye(12, dtype=torch.float64)[:, None, :, None].expand(12, 2, 12, 8)
    visible = variant(q.expand(12, -1, -1, -1), k.expand(12, -1, -1, -1), impulses)[..., 0].permute(1, 2, 0) > 0
    assert visible[:, 3].nonzero()[:, 1].tolist() == 2 * [0, 1, 2, 3]
    assert visible[:, 5].nonzero()[:, 1].tolist() == 2 * [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize("n", [1, 7, 64, 65, 127])
@pytest.mark.parametrize("masked", [True, False])
def test_strictly_causal_even_where_later_tokens_are_huge(n: int, masked: bool, scale: int) -> None:
    variant = build(causal=True)
    inputs = draw(n)
    mask = torch.ones(2, n, dtype=torch.bool) if masked else None
    before = variant(*inputs, key_mask=mask)
    for t in {0, n // 3, n // 2, n - 2}:
        later = torch.arange(n)[:, None] > t
        for changed in range(3):
            other = [x.where(~later, scale * (1 - x)) if i == changed else x for i, x in enumerate(inputs)]
            after = variant(*other, key_mask=mask)
            torch.testing.assert_close(before[:, :, : t + 1], after[:, :, : t + 1], atol=1e-5, rtol=0)


def test_causal_sorting_uses_earlier_blocks_alone_and_does_use_them() -> None:
    q, k, _ = draw(32)
    share = sorting(build(causal=True), q, k)
    assert not share.triu().any()
    assert (share.tril(-1) > 0).sum() == 2 * 2 * 28
    torch.testing.assert_close(share.sum(dim=-1)[:, :, 1:], torch.ones(2, 2, 7, dtype=torch.float64))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("poison", [1e4, float("nan")])
def test_padding_reaches_neither_pooling_nor_sorting_nor_softmax(causal: bool, poison: float) -> None:
    variant, lengths = build(causal=causal), (50, 31, 1)
    q, k, v = draw(50, batch=3)
    mask = torch.arange(50) < torch.tensor(lengths)[:, None]
    dirty = [x.masked_fill(~mask[:, None, :, None], poison) for x in (q, k, v)]
    out = variant(*dirty, key_mask=mask)
    for i, n in enumerate(lengths):
        alone = variant(*(x[i : i + 1, :, :n] for x in (q, k, v)))
        torch.testing.assert_close(out[i, :, :n], alone[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fully_masked_samples_give_zeros_and_finite_gradients(causal: bool, dtype: torch.dtype) -> None:
    variant = build(causal=causal).to(dtype)
    q, k, v = (x.to(dtype).requires_grad_() for x in draw(21))
    mask = torch.tensor([[True] * 21, [False] * 21])
    out = variant(q, k, v, key_mask=mask)
    out.float().square().sum().backward()
    assert not out[1].any()
    assert all(x.grad.isfinite().all() for x in (q, k, v, variant.pairing))
    torch.testing.assert_close(out[:1], variant(q[:1], k[:1], v[:1]))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [5, 6])
def test_gradcheck_through_the_sorting(causal: bool, n: int) -> None:
    variant = build(causal=causal, heads=1, head_dim=4, block=2)
    inputs = [x[:1, :1, :, :4].requires_grad_() for x in draw(n)]
    pairing = variant.pairing.detach().clone().requires_grad_()

    def run(q: Tensor, k: Tensor, v: Tensor, pairing: Tensor) -> Tensor:
        return torch.func.functional_call(variant, {"pairing": pairing}, (q, k, v))

    assert torch.autograd.gradcheck(run, [*inputs, pairing])


def test_noise_only_in_training_and_only_if_asked_for() -> None:
    inputs = draw(24)
    quiet, noisy = build().train(), build(noise=True).train()
    assert torch.equal(quiet(*inputs), quiet(*inputs))
    assert not torch.equal(noisy(*inputs), noisy(*inputs))
    state = torch.random.get_rng_state()
    assert torch.equal(noisy.eval()(*inputs), quiet(*inputs))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("option", "value"), [("block", 0), ("iterations", 0), ("temperature", 0.0)])
def test_bad_options(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"sinkhorn: {option} must be .*, received {value}"):
        build(**{option: value})
