"""With weights copied, the backbone equals torch's own encoder and decoder."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from attnbench.backbone import Block, Layer, MultiHeadAttention, Stack, Use

Ragged = Callable[..., torch.Tensor]
DIM, HEADS, HIDDEN, BATCH, N, N_K = 16, 4, 24, 3, 9, 7
LAYER = {"d_model": DIM, "nhead": HEADS, "dim_feedforward": HIDDEN, "dropout": 0.0, "batch_first": True}


def copied_block(theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, heads: int, causal: bool) -> Block:
    """A block with the weights of a torch layer."""
    dim, hidden = theirs.linear1.in_features, theirs.linear1.out_features
    order = "pre" if theirs.norm_first else "post"
    layer = Layer(dim=dim, heads=heads, hidden=hidden, order=order, dropout=0.0)
    crosses = hasattr(theirs, "multihead_attn")
    block = Block(layer, Use("full", {}, causal=causal), cross=Use("full", {}, cross=True) if crosses else None)
    copy_block(block, theirs)
    return block


def copied_stack(theirs: nn.TransformerEncoder | nn.TransformerDecoder, heads: int, causal: bool) -> Stack:
    first = theirs.layers[0]
    stack = Stack(
        first.linear1.in_features,
        heads,
        len(theirs.layers),
        causal=causal,
        hidden=first.linear1.out_features,
        order="pre" if first.norm_first else "post",
        cross_variant="full" if hasattr(first, "multihead_attn") else None,
    )
    for block, layer in zip(stack.blocks, theirs.layers, strict=True):
        copy_block(block, layer)
    if stack.norm is not None:
        stack.norm.load_state_dict(theirs.norm.state_dict())
    return stack


def copy_block(block: Block, theirs: nn.Module) -> None:
    pairs = [(block.attention, theirs.self_attn)]
    norms = [(block.mixing, theirs.norm1)]
    if block.cross is not None:
        pairs.append((block.cross, theirs.multihead_attn))
        norms.append((block.crossing, theirs.norm2))
    norms.append((block.feeding, theirs.norm2 if block.cross is None else theirs.norm3))
    for ours, attention in pairs:
        ours.load_state_dict(MultiHeadAttention.from_torch(attention, dropout=0.0).state_dict())
    for residual, norm in norms:
        residual.norm.load_state_dict(norm.state_dict())
    block.feed_forward[0].load_state_dict(theirs.linear1.state_dict())
    block.feed_forward[2].load_state_dict(theirs.linear2.state_dict())


def close(ours: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    where = torch.ones(ours.shape[:2], dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(ours[where], theirs[where], atol=1e-5, rtol=1e-5)


def shaken(module: nn.Module) -> nn.Module:
    """Biases and norms away from 0 and 1, so that one left out is noticed."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_encoder_layer_and_its_gradients(ragged: Ragged, norm_first: bool, causal: bool, padded: bool) -> None:
    theirs = shaken(nn.TransformerEncoderLayer(**LAYER, norm_first=norm_first))
    ours = copied_block(theirs, HEADS, causal)
    x = torch.randn(BATCH, N, DIM, requires_grad=True)
    mask = ragged(BATCH, N) if padded else None
    above = torch.ones(N, N, dtype=torch.bool).triu(1) if causal else None
    expected = theirs(x, src_mask=above, src_key_padding_mask=None if mask is None else ~mask)
    actual = ours(x, key_mask=mask)
    close(actual, expected, mask)
    real = torch.ones(BATCH, N, dtype=torch.bool) if mask is None else mask
    gradients = [torch.autograd.grad(out[real].square().sum(), x)[0] for out in (actual, expected)]
    close(*gradients, mask)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_decoder_layer(ragged: Ragged, norm_first: bool, padded: bool) -> None:
    theirs = shaken(nn.TransformerDecoderLayer(**LAYER, norm_first=norm_first))
    ours = copied_block(theirs, HEADS, causal=True)
    x, memory = torch.randn(BATCH, N, DIM), torch.randn(BATCH, N_K, DIM)
    mask, memory_mask = (ragged(BATCH, N), ragged(BATCH, N_K, seed=2)) if padded else (None, None)
    expected = theirs(
        x,
        memory,
        tgt_mask=torch.ones(N, N, dtype=torch.bool).triu(1),
        tgt_key_padding_mask=None if mask is None else ~mask,
        memory_key_padding_mask=None if memory_mask is None else ~memory_mask,
    )
    close(ours(x, key_mask=mask, context=memory, context_mask=memory_mask), expected, mask)


@pytest.mark.parametrize("norm_first", [False, True])
def test_stacks(ragged: Ragged, norm_first: bool) -> None:
    norm = nn.LayerNorm(DIM) if norm_first else None
    layer = nn.TransformerEncoderLayer(**LAYER, norm_first=norm_first)
    encoder = shaken(nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False))
    x, mask = torch.randn(BATCH, N, DIM), ragged(BATCH, N)
    memory = encoder(x, src_key_padding_mask=~mask)
    close(copied_stack(encoder, HEADS, causal=False)(x, key_mask=mask), memory, mask)

    decoder = shaken(nn.TransformerDecoder(nn.TransformerDecoderLayer(**LAYER, norm_first=norm_first), 2, norm))
    y = torch.randn(BATCH, 5, DIM)
    above = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = decoder(y, memory, tgt_mask=above, memory_key_padding_mask=~mask)
    close(copied_stack(decoder, HEADS, causal=True)(y, context=memory, context_mask=mask), expected)
