"""The one Transformer that every variant is measured in: encoder, decoder or both, with a head per shape of answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.backbone.generation import Generation
from attnbench.backbone.heads import Embedding, check_pooling, pool
from attnbench.backbone.layers import Layer, Use
from attnbench.backbone.stack import Stack, refusals
from attnbench.contract import Unsupported
from attnbench.errors import UserError, nearest

__all__ = ["ANSWERS", "ARCHITECTURES", "Transformer"]

ARCHITECTURES = ("encoder", "decoder", "encoder-decoder")
ANSWERS = ("label", "tokens", "sequence")


class Transformer(Generation, nn.Module):
    """Tokens in, logits out. Defaults are those of Vaswani et al. 2017 (base model), as a decoder or an encoder alone too.

        label     (batch, n) -> (batch, classes)               pooled over the sequence
        tokens    (batch, n) -> (batch, n, classes)
        sequence  (batch, n), (batch, n_out) -> (batch, n_out, vocab)   the answer shifted right is the second input

    An encoder sees both ways, a decoder is causal; in an encoder-decoder the decoder also attends to the encoder's output.
    A decoder alone answers with a sequence by going on where the input's real tokens end.

    Args:
        vocab: number of tokens, input and output alike.
        depth, decoder_depth: layers of each stack (None: as the other).
        architecture: encoder | decoder | encoder-decoder (None: by `causal` and `answer`).
        answer: label | tokens | sequence. classes: how many (None: the vocabulary).
        variant, options: attention of the encoder, or of the decoder alone.
        decoder_variant, decoder_options: those of the self-attention in an encoder-decoder's decoder (None: as the encoder).
        cross_variant, cross_options: those of its cross-attention (None: as the encoder).
        max_len: the longest input or answer.
        causal: only a check, since the architecture decides it.
        positions: sinusoidal | learned | rotary (for variants that read q and k) | none.
        pooling: mean | last | cls, for labels. tie: output weights are the embedding's (None: where `classes` is None).
        layer: the fields of `Layer`: dim, heads, kv_heads, head_dim, hidden, activation, norm, order, dropout, ...

    Raises:
        Unsupported: a variant does not declare its use here; all reasons are given.
        ValueError: an option is unknown, out of range, or contradicts another.
    """

    def __init__(
        self,
        *,
        vocab: int,
        depth: int = 6,
        decoder_depth: int | None = None,
        architecture: str | None = None,
        answer: str = "tokens",
        classes: int | None = None,
        variant: str = "full",
        options: Mapping[str, Any] | None = None,
        decoder_variant: str | None = None,
        decoder_options: Mapping[str, Any] | None = None,
        cross_variant: str | None = None,
        cross_options: Mapping[str, Any] | None = None,
        max_len: int | None = None,
        causal: bool | None = None,
        positions: str = "sinusoidal",
        pooling: str = "mean",
        tie: bool | None = None,
        **layer: Any,
    ) -> None:
        super().__init__()
        shape = Layer.of(layer)
        self.architecture = _architecture(architecture, answer, causal)
        self.answer, self.pooling, self.max_len = answer, pooling, max_len
        self.causal = self.architecture == "decoder"
        self.both = self.architecture == "encoder-decoder"
        check_pooling(pooling, self.causal)
        self._check(decoder_depth, decoder_variant, decoder_options, cross_variant, cross_options)

        self.embedding = Embedding(vocab, shape.dim, positions=positions, max_len=max_len, dropout=shape.dropout)
        has_cls = answer == "label" and pooling == "cls"
        self.cls = nn.Parameter(torch.randn(shape.dim) * shape.dim**-0.5) if has_cls else None
        inner_len = None if max_len is None else max_len + has_cls
        own = Use(variant, options or {}, inner_len, self.causal)
        decoder = _inherit(decoder_variant, decoder_options, own)._replace(causal=True)
        cross = _inherit(cross_variant, cross_options, own)._replace(cross=True)
        if reasons := refusals(shape, [own, decoder, cross] if self.both else [own]):
            raise Unsupported(reasons)

        common = vars(shape) | {"positions": "rotary" if positions == "rotary" else None}
        self.body = Stack(
            depth=depth, variant=variant, options=own.options, max_len=inner_len, causal=self.causal, **common
        )
        self.decoder = None
        if self.both:
            self.decoder = Stack(
                depth=decoder_depth or depth,
                variant=decoder.variant,
                options=decoder.options,
                max_len=max_len,
                causal=True,
                cross_variant=cross.variant,
                cross_options=cross.options,
                **common,
            )
        self.head = self._make_head(shape.dim, vocab, classes, tie)

    def _check(self, *of_decoder: Any) -> None:
        if not self.both and any(value is not None for value in of_decoder):
            raise UserError(
                "decoder_depth, decoder_variant, decoder_options, cross_variant and cross_options belong to architecture "
                f"'encoder-decoder', received architecture {self.architecture!r}"
            )

    def _make_head(self, dim: int, vocab: int, classes: int | None, tie: bool | None) -> nn.Linear:
        if self.answer == "sequence" and classes not in (None, vocab):
            raise UserError(
                f"a sequence is answered in the vocabulary: classes must be {vocab} or None, received {classes}"
            )
        tie = classes is None if tie is None else tie
        if tie and classes not in (None, vocab):
            raise UserError(f"tied output weights need classes equal to vocab, received {classes} and {vocab}")
        head = nn.Linear(dim, vocab if classes is None else classes, bias=not tie)
        if tie:
            head.weight = self.embedding.tokens.weight
        else:
            nn.init.xavier_uniform_(head.weight)
            nn.init.zeros_(head.bias)
        return head

    def forward(
        self,
        inputs: Tensor,
        *,
        key_mask: Tensor | None = None,
        decoder_inputs: Tensor | None = None,
        decoder_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits for inputs (batch, n) int64; masks are bool with True at real tokens.

        Raises ValueError where a sequence is asked for without `decoder_inputs` (batch, n_out), or the other way round.
        """
        if (self.answer == "sequence") != (decoder_inputs is not None):
            raise UserError(
                "decoder_inputs go with answer 'sequence' and with no other, "
                f"received {'none' if decoder_inputs is None else 'some'} for answer {self.answer!r}"
            )
        if decoder_inputs is None:
            return self._answer(inputs, key_mask)
        if self.both:
            return self._decode(self.encode(inputs, key_mask), key_mask, decoder_inputs, decoder_mask)
        return self._continue(inputs, key_mask, decoder_inputs, decoder_mask)

    def encode(self, inputs: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The body's output (batch, n, dim)."""
        return self.body(self.embedding(inputs), key_mask=key_mask)

    def _answer(self, inputs: Tensor, key_mask: Tensor | None) -> Tensor:
        x = self.embedding(inputs)
        if self.cls is not None:
            x = torch.cat([self.cls.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
            if key_mask is not None:
                key_mask = torch.cat([key_mask.new_ones(len(x), 1), key_mask], dim=1)
        x = self.body(x, key_mask=key_mask)
        return self.head(pool(x, key_mask, self.pooling) if self.answer == "label" else x)

    def _decode(self, context: Tensor, context_mask: Tensor | None, tokens: Tensor, mask: Tensor | None) -> Tensor:
        assert self.decoder is not None
        x = self.decoder(self.embedding(tokens), key_mask=mask, context=context, context_mask=context_mask)
        return self.head(x)

    def _continue(self, inputs: Tensor, key_mask: Tensor | None, answer: Tensor, answer_mask: Tensor | None) -> Tensor:
        """A decoder alone reads input and answer as one sequence; padding between them is moved behind both."""
        tokens = torch.cat([inputs, answer], dim=1)
        start = inputs.shape[1]
        if key_mask is None and answer_mask is None:
            return self.head(self.body(self.embedding(tokens))[:, start:])
        key_mask = torch.ones_like(inputs, dtype=torch.bool) if key_mask is None else key_mask
        answer_mask = torch.ones_like(answer, dtype=torch.bool) if answer_mask is None else answer_mask
        mask = torch.cat([key_mask, answer_mask], dim=1)
        order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
        x = self.body(self.embedding(tokens.gather(1, order)), key_mask=mask.gather(1, order))
        places = order.argsort(dim=1)[:, start:, None].expand(-1, -1, x.shape[-1])
        return self.head(x.gather(1, places))


def _architecture(architecture: str | None, answer: str, causal: bool | None) -> str:
    for name, value, valid in (("answer", answer, ANSWERS), ("architecture", architecture, ARCHITECTURES)):
        if value not in valid and value is not None:
            raise UserError(f"unknown {name} {value!r}{nearest(value, valid)}; valid: {', '.join(valid)}")
    if architecture is None:
        architecture = "encoder-decoder" if answer == "sequence" else "decoder" if causal else "encoder"
    if architecture == "encoder-decoder" and answer != "sequence":
        raise UserError(f"an encoder-decoder answers with a sequence, received answer {answer!r}")
    if architecture == "encoder" and answer == "sequence":
        raise UserError("an encoder cannot answer with a sequence; use architecture 'encoder-decoder' or 'decoder'")
    if causal is not None and architecture != "encoder-decoder" and causal != (architecture == "decoder"):
        raise UserError(
            f"architecture {architecture!r} {'is' if architecture == 'decoder' else 'is not'} causal, received {causal=}"
        )
    return architecture


def _inherit(variant: str | None, options: Mapping[str, Any] | None, of: Use) -> Use:
    if variant is None:
        return of if options is None else of._replace(options=options)
    return of._replace(variant=variant, options=options or {})
