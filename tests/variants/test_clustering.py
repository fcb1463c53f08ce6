"""Clustering: exact attention inside clusters, and centroids that move once per backward pass, on every rank alike."""

import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import attnbench


def build(**options: object) -> attnbench.Variant:
    torch.manual_seed(0)
    common = {"heads": 2, "head_dim": 8, "clusters": 4}
    return attnbench.create_variant("clustering", **(common | options)).double().eval()


def draw(n: int, keys: int | None = None, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = (n, keys or n, keys or n)
    return [torch.randn(batch, 2, length, 8, dtype=torch.float64, generator=generator) for length in lengths]


def cluster(x: Tensor, centroids: Tensor) -> Tensor:
    return (normalize(x, dim=-1) @ centroids.mT).argmax(dim=-1)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 40), clusters=st.integers(1, 8), causal=st.booleans())
def test_the_visible_set_is_the_own_cluster(n: int, clusters: int, causal: bool) -> None:
    variant = build(clusters=clusters, causal=causal)
    q, k, _ = draw(n, batch=1)
    impulses = torch.eye(n, dtype=torch.float64)[:, None, :, None].expand(n, 2, n, 8)
    weights = variant(q.expand(n, -1, -1, -1), k.expand(n, -1, -1, -1), impulses)[..., 0].permute(1, 2, 0)
    same = cluster(q, variant.centroids)[0, :, :, None] == cluster(k, variant.centroids)[0, :, None, :]
    expected = same & torch.ones(n, n, dtype=torch.bool).tril() if causal else same
    assert torch.equal(weights > 0, expected)
    torch.testing.assert_close(weights.sum(dim=-1), expected.any(dim=-1).double())


@pytest.mark.parametrize("causal", [True, False])
def test_one_cluster_is_full_attention_also_where_scores_are_cut_into_pieces(causal: bool) -> None:
    variant = build(clusters=1, causal=causal)
    q, k, v = draw(700, batch=1)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(variant(q, k, v), expected)


@pytest.mark.parametrize("n", [1, 7, 64, 65, 127])
@pytest.mark.parametrize("masked", [True, False])
def test_strictly_causal_even_where_later_tokens_are_huge(n: int, masked: bool) -> None:
    variant = build(causal=True)
    inputs = draw(n)
    mask = torch.ones(2, n, dtype=torch.bool) if masked else None
    before, t = variant(*inputs, key_mask=mask), n // 2
    later = torch.arange(n)[:, None] > t
    for changed in range(3):
        other = [x.where(~later, 100 - 50 * x) if i == changed else x for i, x in enumerate(inputs)]
        after = variant(*other, key_mask=mask)
        torch.testing.assert_close(before[:, :, : t + 1], after[:, :, : t + 1], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("n_q", "n_k"), [(1, 8), (3, 8), (5, 2)])
def test_the_last_query_sees_every_key_of_its_cluster(n_q: int, n_k: int) -> None:
    variant = build(causal=True, cross=True)
    q, k, v = draw(8)
    whole = variant(q, k, v)
    if n_q <= n_k:
        torch.testing.assert_close(variant(q[:, :, -n_q:], k, v), whole[:, :, -n_q:])
    else:
        out = variant(q[:, :, :n_q], k[:, :, :n_k], v[:, :, :n_k])
        assert not out[:, :, : n_q - n_k].any()


@pytest.mark.parametrize("poison", [1e4, float("nan")])
def test_padding_leaves_real_tokens_alone(poison: float) -> None:
    variant, lengths = build(), (50, 31, 1)
    q, k, v = draw(50, batch=3)
    mask = torch.arange(50) < torch.tensor(lengths)[:, None]
    dirty = [x.masked_fill(~mask[:, None, :, None], poison) for x in (k, v)]
    out = variant(q, *dirty, key_mask=mask)
    for i, n in enumerate(lengths):
        alone = variant(*(x[i : i + 1, :, :n] for x in (q, k, v)))
        torch.testing.assert_close(out[i, :, :n], alone[0], atol=1e-4, rtol=0)


def test_an_empty_cluster_gives_zeros_and_finite_gradients() -> None:
    variant = build(clusters=2)
    variant.centroids.copy_(torch.stack([torch.eye(8)[0], -torch.eye(8)[0]]).expand(2, 2, 8))
    q, k, v = (x.requires_grad_() for x in draw(12))
    out = variant(q.abs(), -k.abs(), v)
    assert not out.any()
    out.sum().backward()
    assert all(x.grad is None or not x.grad.any() for x in (q, k, v))


def test_number_of_centroids() -> None:
    assert build(clusters="sqrt", max_len=4096).clusters == 64
    assert build(clusters="sqrt").clusters == 32
    with pytest.raises(ValueError, match="clusters must be a whole number of at least 1 or 'sqrt', received 'root'"):
        build(clusters="root")


# -- centroids ---------------------------------------------------------------------------------------------------------


def step(variant: attnbench.Variant, how: str, inputs: list[Tensor], mask: Tensor | None = None) -> Tensor:
    leaves = [x.clone().requires_grad_() for x in inputs]
    if how == "plain":
        out = variant(*leaves, key_mask=mask)
    else:
        out = checkpoint(
            lambda q, k, v: variant(q, k, v, key_mask=mask), *leaves, use_reentrant=how == "checkpoint-reentrant"
        )
    out.square().sum().backward()
    return torch.cat([leaf.grad for leaf in leaves])


@pytest.mark.parametrize("how", ["checkpoint", "checkpoint-reentrant"])
def test_recomputation_neither_moves_them_twice_nor_sees_them_moved(how: str) -> None:
    plain, again = build(decay=0.2).train(), build(decay=0.2).train()
    for _ in range(3):
        expected, found = step(plain, "plain", draw(40)), step(again, how, draw(40))
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(again.centroids, plain.centroids)
    assert not torch.equal(plain.centroids, build().centroids)


def test_a_layer_used_twice_recomputes_with_the_centroids_of_its_own_forward_pass() -> None:
    def twice(variant: attnbench.Variant, recompute: bool) -> tuple[Tensor, Tensor]:
        q, k, v = (x.clone().requires_grad_() for x in draw(40))
        for _ in range(2):
            v = checkpoint(variant, q, k, v, use_reentrant=False) if recompute else variant(q, k, v)
        v.square().sum().backward()
        return q.grad, variant.centroids

    for found, expected in zip(*(twice(build(decay=0.2).train(), way) for way in (True, False)), strict=True):
        torch.testing.assert_close(found, expected)


def test_they_move_once_per_backward_pass_and_never_in_eval_or_without_grad() -> None:
    variant, inputs = build(decay=0.5), draw(30)
    start = variant.centroids.clone()
    step(variant, "plain", inputs)
    variant.train()
    with torch.no_grad():
        in_training = variant(*inputs)
    assert torch.equal(variant.centroids, start)

    leaves = [x.requires_grad_() for x in draw(30)]
    out = variant(*leaves)
    assert torch.equal(variant.centroids, start)
    torch.testing.assert_close(out, in_training)  # as they were before the update
    out.sum().backward(retain_graph=True)
    moved = variant.centroids.clone()
    assert not torch.equal(moved, start)
    torch.testing.assert_close(moved.norm(dim=-1), torch.ones(2, 4, dtype=torch.float64))
    out.sum().backward()
    assert torch.equal(variant.centroids, moved)


def test_padding_does_not_move_them() -> None:
    padded, alone = build(decay=0.5).train(), build(decay=0.5).train()
    q, k, v = draw(30)
    mask = (torch.arange(30) < 17).expand(2, -1)
    dirty = [x.masked_fill(~mask[:, None, :, None], float("nan")) for x in (q, k, v)]
    step(padded, "plain", dirty, mask)
    step(alone, "plain", [x[:, :, :17] for x in (q, k, v)])
    torch.testing.assert_close(padded.centroids, alone.centroids)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = attnbench.MultiHeadAttention(16, 2, variant="clustering", clusters=4, decay=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


def centroids(model: nn.Module) -> Tensor:
    return next(buffer for name, buffer in model.named_buffers() if name.endswith("centroids"))


def train_rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = DistributedDataParallel(Model(), broadcast_buffers=False)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        model(torch.randn(2, 20, 16, generator=generator)).square().sum().backward()
    torch.save(centroids(model), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_ranks_keep_equal_centroids(tmp_path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(train_rank, args=(port, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, centroids(Model()))
