from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from attnbench import Unsupported
from attnbench.backbone import Block, Layer, MultiHeadAttention, Use
from attnbench.backbone.positions import rotate
from attnbench.errors import UserError

Ragged = Callable[..., Tensor]


def test_only_what_the_variant_reads_is_projected_and_streams_are() -> None:
    attention = MultiHeadAttention(12, 3, variant="test-gated-values")
    assert attention.query is None
    assert attention.key is None
    shapes = {name: tuple(linear.weight.shape) for name, linear in attention.streams.items()}
    assert shapes == {"x": (9, 12), "gate": (12, 12)}
    x = torch.randn(2, 5, 12)
    heads = {name: linear(x).view(2, 5, 3, -1) for name, linear in attention.streams.items()}
    mixed = attention.value(x).view(2, 5, 3, 4) * heads["gate"].sigmoid() + heads["x"].sum(-1, keepdim=True)
    torch.testing.assert_close(attention(x), attention.out(mixed.flatten(2)))


def test_grouped_heads_equal_repeated_ones() -> None:
    grouped = MultiHeadAttention(16, 4, kv_heads=2)
    whole = MultiHeadAttention(16, 4)
    assert grouped.key.out_features == 8
    state = grouped.state_dict()
    for name in ("key", "value"):
        weight = state[f"{name}.weight"].view(2, 4, 16).repeat_interleave(2, dim=0)
        state[f"{name}.weight"], state[f"{name}.bias"] = weight.reshape(16, 16), torch.zeros(16)
    whole.load_state_dict(state)
    x = torch.randn(2, 7, 16)
    torch.testing.assert_close(grouped(x), whole(x))


@pytest.mark.parametrize("projection", ["learned", "convolution", "pooling"])
@pytest.mark.parametrize("share", ["heads", "keys-values"])
@pytest.mark.parametrize("cross", [False, True])
def test_condensing_before_projecting_changes_nothing(projection: str, share: str, cross: bool, ragged: Ragged) -> None:
    options = {
        "variant": "linformer",
        "max_len": 12,
        "rank": 4,
        "projection": projection,
        "share": share,
        "cross": cross,
    }
    attention = MultiHeadAttention(8, 2, **options).double()
    with torch.no_grad():
        for linear in (attention.key, attention.value):
            linear.bias.normal_()
    plain = copy.deepcopy(attention)
    assert attention.condenses
    plain.condenses = False
    mask = ragged(3, 11)
    tokens = torch.randn(3, 11, 8, dtype=torch.float64)
    tokens = tokens.masked_fill(~mask[..., None], torch.nan)
    for key_mask, given in ((None, tokens.nan_to_num()), (mask, tokens)):
        found = []
        for module in (attention, plain):
            x = given.clone().requires_grad_()
            inputs = (torch.ones(3, 5, 8, dtype=torch.float64), x) if cross else (x,)
            out = module(*inputs, key_mask=key_mask)
            out = out if cross or key_mask is None else out[mask]
            found.append([out, *torch.autograd.grad(out.square().sum(), [x, *module.parameters()])])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


def test_condensing_needs_tokens_no_wider_than_keys_one_mixture_for_all_heads_and_no_rotation() -> None:
    def condenses(**options: object) -> bool:
        return MultiHeadAttention(16, 4, max_len=8, **({"variant": "linformer"} | options)).condenses

    assert condenses()
    assert not condenses(kv_heads=2)
    assert not condenses(share="none")
    assert not condenses(positions="rotary")
    assert not condenses(variant="full")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_condensed_tokens_have_the_dtype_of_queries(dtype: torch.dtype) -> None:
    attention = MultiHeadAttention(8, 2, variant="linformer", max_len=8, rank=4)
    x = torch.randn(2, 7, 8)
    expected = attention(x)
    with torch.autocast("cpu", dtype):
        out = attention(x)
    torch.testing.assert_close(out.float(), expected, atol=0.1, rtol=0.1)
    out.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())
    assert attention.to(dtype)(x.to(dtype)).dtype == dtype


def test_a_condensing_attention_compiles_whole_and_is_exported() -> None:
    attention = MultiHeadAttention(8, 2, variant="linformer", max_len=8, rank=4)
    x = torch.randn(2, 7, 8)
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), attention(x))
    torch.testing.assert_close(torch.export.export(attention, (x,)).module()(x), attention(x))


def test_fewer_tokens_are_projected_where_they_are_condensed() -> None:
    def operations(share: str) -> int:
        attention = MultiHeadAttention(16, 4, variant="linformer", max_len=64, rank=8, share=share)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            attention(torch.randn(1, 64, 16))
        return counter.get_total_flops()

    spared = 2 * 2 * (64 - 8) * 16 * 16  # projections of k and v; what a bias comes to in each slot is a plain sum
    assert operations("none") - operations("heads") == spared


@pytest.mark.parametrize("variant", ["full", "test-gated-values"])
def test_what_stands_at_pads_reaches_no_output_and_no_gradient(variant: str, ragged: Ragged) -> None:
    attention = MultiHeadAttention(8, 2, variant=variant)
    mask = ragged(3, 6)
    clean = torch.randn(3, 6, 8)
    poisoned = clean.masked_fill(~mask[..., None], torch.nan)
    outs, gradients = [], []
    for x in (clean, poisoned):
        attention.zero_grad()
        out = attention(x, key_mask=mask)[mask]
        out.square().sum().backward()
        outs.append(out)
        gradients.append([parameter.grad.clone() for parameter in attention.parameters()])
    assert torch.equal(outs[0], outs[1])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_cross_attention_hides_the_context_s_padding(ragged: Ragged) -> None:
    attention = MultiHeadAttention(8, 2, cross=True)
    x, context, mask = torch.randn(3, 4, 8), torch.randn(3, 6, 8), ragged(3, 6)
    out = attention(x, context, key_mask=mask)
    poisoned = context.masked_fill(~mask[..., None], torch.nan)
    assert torch.equal(attention(x, poisoned, key_mask=mask), out)
    length = int(mask[1].sum())
    torch.testing.assert_close(attention(x[1:2], context[1:2, :length]), out[1:2])


def test_rotary_depends_on_distance_alone_and_only_where_it_can() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(i: int, j: int) -> Tensor:
        return (rotate(q, i) * rotate(k, j)).sum()

    torch.testing.assert_close(score(9, 4), score(105, 100))
    assert not torch.allclose(score(9, 4), score(9, 5))
    assert MultiHeadAttention(8, 2, positions="rotary").rotary
    assert not MultiHeadAttention(8, 2, positions="rotary", cross=True).rotary
    assert not MultiHeadAttention(8, 2, positions="rotary", variant="test-gated-values").rotary
    plain, rotary = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2, positions="rotary")
    rotary.load_state_dict(plain.state_dict())
    x = torch.randn(1, 6, 8)
    assert not torch.allclose(plain(x), rotary(x))
    with pytest.raises(UserError, match="even head_dim, received 3"):
        MultiHeadAttention(6, 2, positions="rotary")


@pytest.mark.parametrize("positions", [None, "rotary"])
@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("padded", [False, True])
def test_decoding_equals_the_full_forward(positions: str | None, kv_heads: int, padded: bool, ragged: Ragged) -> None:
    attention = MultiHeadAttention(16, 4, kv_heads=kv_heads, causal=True, positions=positions).eval()
    x = torch.randn(3, 9, 16)
    mask = torch.cat([ragged(3, 5), torch.ones(3, 4, dtype=torch.bool)], dim=1) if padded else None
    whole = attention(x, key_mask=mask)
    out, state = attention.prefill(x[:, :5], key_mask=None if mask is None else mask[:, :5])
    steps = [out]
    for place in range(5, 9):
        out, state = attention.step(x[:, place : place + 1], state)
        steps.append(out)
    real = slice(None) if mask is None else mask
    torch.testing.assert_close(torch.cat(steps, dim=1)[real], whole[real], atol=1e-5, rtol=1e-5)


def test_what_does_not_decode_says_so() -> None:
    with pytest.raises(Unsupported, match="test-gated-values does not decode"):
        MultiHeadAttention(8, 2, variant="test-gated-values").prefill(torch.randn(1, 3, 8))
    with pytest.raises(Unsupported, match="full does not decode"):
        MultiHeadAttention(8, 2).prefill(torch.randn(1, 3, 8))


@pytest.mark.parametrize(("bias", "batch_first"), [(True, True), (False, False)])
def test_from_torch_is_an_independent_equal_copy(bias: bool, batch_first: bool, ragged: Ragged) -> None:
    theirs = nn.MultiheadAttention(12, 3, bias=bias, batch_first=batch_first, dtype=torch.float64).eval()
    nn.init.normal_(theirs.out_proj.weight)
    before = copy.deepcopy(theirs.state_dict())
    ours = MultiHeadAttention.from_torch(theirs)
    assert not ours.training
    x, mask = torch.randn(3, 5, 12, dtype=torch.float64), ragged(3, 5)
    seen = x if batch_first else x.transpose(0, 1)
    expected = theirs(seen, seen, seen, key_padding_mask=~mask, need_weights=False)[0]
    expected = expected if batch_first else expected.transpose(0, 1)
    torch.testing.assert_close(ours(x, key_mask=mask)[mask], expected[mask], atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())


def test_from_torch_refuses_what_it_cannot_take_over() -> None:
    with pytest.raises(UserError, match="kdim or vdim"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, kdim=4))
    with pytest.raises(UserError, match="add_bias_kv, add_zero_attn"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True))
    with pytest.raises(UserError, match="do not fit"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2), kv_heads=1)
    with pytest.raises(Unsupported, match="no dropout"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, dropout=0.1), variant="test-gated-values")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MultiHeadAttention(10, 3), "multiple of heads.*10 and 3"),
        (lambda: MultiHeadAttention(8, 2, positions="learned"), "received 'learned'"),
        (lambda: MultiHeadAttention(8, 2, variant="ful"), "did you mean 'full'"),
        (lambda: MultiHeadAttention(8, 2, windw=3), "unknown option 'windw'"),
        (lambda: MultiHeadAttention(8, 2, cross=True)(torch.randn(1, 3, 8)), "needs a context"),
        (lambda: MultiHeadAttention(8, 2)(torch.randn(1, 3, 8), torch.randn(1, 3, 8)), "takes no context"),
        (
            lambda: MultiHeadAttention(8, 2)(torch.randn(1, 3, 8), key_mask=torch.ones(1, 3)),
            r"bool tensor.*float32 \(1, 3\)",
        ),
    ],
)
def test_misuse_is_one_clear_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_round_trips_and_empty_batches() -> None:
    attention = MultiHeadAttention(8, 2, kv_heads=1)
    x = torch.randn(2, 5, 8)
    twin = copy.deepcopy(attention)
    torch.testing.assert_close(twin(x), attention(x))
    other = MultiHeadAttention(8, 2, kv_heads=1)
    assert not torch.allclose(other(x), attention(x))
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other(x), attention(x))
    assert attention(x[:0]).shape == (0, 5, 8)
    assert MultiHeadAttention(8, 2, cross=True)(x[:0], x[:0, :3]).shape == (0, 5, 8)


def test_a_block_compiles_whole(ragged: Ragged) -> None:
    block = Block(Layer(dim=8, heads=2, dropout=0.0), Use("full", {}), positions="rotary")
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    x, mask = torch.randn(2, 6, 8), ragged(2, 6)
    torch.testing.assert_close(compiled(x, key_mask=mask)[mask], block(x, key_mask=mask)[mask])
    assert set(compiled.state_dict()) == {f"_orig_mod.{name}" for name in block.state_dict()}


def test_checkpointing_changes_no_gradient() -> None:
    block = Block(Layer(dim=8, heads=2, dropout=0.3), Use("full", {}))
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(3)
        x = torch.ones(2, 5, 8, requires_grad=True)
        out = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        gradients.append(torch.autograd.grad(out.square().sum(), [x, *block.parameters()]))
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_all_inputs_of_the_variant_in_one_dtype(dtype: torch.dtype) -> None:
    block = Block(Layer(dim=8, heads=2), Use("full", {}), positions="rotary")
    with torch.autocast("cpu", dtype):
        out = block(torch.randn(2, 5, 8))
    out.float().sum().backward()
    assert out.isfinite().all()
