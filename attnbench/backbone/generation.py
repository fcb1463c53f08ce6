"""Greedy generation: through prefill and step where the variant decodes, by full forward passes where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnbench.contract import Unsupported
from attnbench.errors import UserError

if TYPE_CHECKING:
    from attnbench.backbone.heads import Embedding
    from attnbench.backbone.stack import Stack

__all__ = ["Generation"]

PAD = 0


class Generation:
    """The part of a Transformer that writes: a mixin, which uses its embedding, stacks and head."""

    if TYPE_CHECKING:
        architecture: str
        answer: str
        training: bool
        embedding: Embedding
        body: Stack
        decoder: Stack | None
        head: torch.nn.Linear

        def encode(self, inputs: Tensor, key_mask: Tensor | None = None) -> Tensor: ...
        def train(self, mode: bool = True) -> Any: ...

    @property
    def decodes(self) -> bool:
        """Whether `generate` can go token by token with a state."""
        return (self.body if self.decoder is None else self.decoder).decodes

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor,
        *,
        max_new: int,
        key_mask: Tensor | None = None,
        start: int = 1,
        end: int | None = None,
        stepwise: bool | None = None,
    ) -> Tensor:
        """The likeliest next token, max_new times over, in eval: (batch, n) -> (batch, max_new) int64.

        An encoder-decoder begins with the token `start` and reads the inputs through cross-attention. A decoder alone goes on
        after the inputs' real tokens, and `start` is read between the two where the answer is a sequence. After `end` stands 0.
        Inputs of different lengths never share a prompt with padding in it, so that each sample's answer is its own.

        stepwise: True insists on prefill and step, False on full forwards; None takes the first where the variant decodes.

        Raises:
            Unsupported: stepwise=True and the variant does not decode.
            ValueError: the model is no decoder.
        """
        if self.architecture == "encoder" or self.answer == "label":
            raise UserError(
                f"generate needs a decoder, received architecture {self.architecture!r}, answer {self.answer!r}"
            )
        if stepwise and not self.decodes:
            raise Unsupported([f"{self.architecture}: its variant does not decode token by token"])
        write = self._write_stepwise if (self.decodes if stepwise is None else stepwise) else self._write_by_forwards
        was_training = self.training
        self.train(False)
        try:
            if self.decoder is None:
                return self._continue_prompts(inputs, key_mask, max_new, start, end, write)
            context = self.encode(inputs, key_mask)
            begin = inputs.new_full((len(inputs), 1), start)
            return write(self.decoder, begin, max_new, end, {"context": context, "context_mask": key_mask})
        finally:
            self.train(was_training)

    def _continue_prompts(
        self, inputs: Tensor, key_mask: Tensor | None, max_new: int, start: int, end: int | None, write: Any
    ) -> Tensor:
        """Prompts of one length at a time, without their padding."""
        key_mask = torch.ones_like(inputs, dtype=torch.bool) if key_mask is None else key_mask
        lengths = key_mask.sum(dim=1)
        out = inputs.new_full((len(inputs), max_new), PAD)
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero().flatten()
            prompts = inputs[rows][key_mask[rows]].view(len(rows), length)
            if self.answer == "sequence":
                prompts = torch.cat([prompts, prompts.new_full((len(rows), 1), start)], dim=1)
            out[rows] = write(self.body, prompts, max_new, end, {})
        return out

    def _write_stepwise(
        self, stack: Stack, prompt: Tensor, max_new: int, end: int | None, context: dict[str, Tensor | None]
    ) -> Tensor:
        written = prompt.new_full((len(prompt), max_new), PAD)
        done = prompt.new_zeros(len(prompt), dtype=torch.bool)
        x, state = stack.prefill(self.embedding(prompt), **context)
        for place in range(max_new):
            token, done = self._next(x, done, end)
            written[:, place] = token
            if place + 1 == max_new or done.all():
                break
            x, state = stack.step(self.embedding(token[:, None], prompt.shape[1] + place), state)
        return written

    def _write_by_forwards(
        self, stack: Stack, prompt: Tensor, max_new: int, end: int | None, context: dict[str, Tensor | None]
    ) -> Tensor:
        written = prompt.new_full((len(prompt), max_new), PAD)
        done = prompt.new_zeros(len(prompt), dtype=torch.bool)
        for place in range(max_new):
            x = stack(self.embedding(torch.cat([prompt, written[:, :place]], dim=1)), **context)
            token, done = self._next(x, done, end)
            written[:, place] = token
            if done.all():
                break
        return written

    def _next(self, x: Tensor, done: Tensor, end: int | None) -> tuple[Tensor, Tensor]:
        token = self.head(x[:, -1]).argmax(dim=-1).masked_fill(done, PAD)
        return token, done if end is None else done | (token == end)
