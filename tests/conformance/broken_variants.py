"""A correct variant, and one for each promise that breaks it: what the kit must tell apart."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad

import attnbench
from attnbench.capabilities import Growth, Supports
from attnbench.contract import Condensed, Variant

EVERYTHING = Supports(causal=True, cross=True, padding=True, dropout=True, decode=True, exact_when={})
LINEAR = Growth("n d", 1.0)
SELF_ONLY = Supports(causal=True, padding=True)


@attnbench.register("correct", EVERYTHING)
class Correct(Variant):
    """Full attention, plainly."""

    def visible(self, n_q: int, n_k: int, key_mask: Tensor | None) -> Tensor:
        visible = torch.ones(n_q, n_k, dtype=torch.bool)
        if self.causal:
            visible = visible.tril(n_k - n_q)
        return visible[None, None] if key_mask is None else visible & key_mask[:, None, None, :]

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        return q.to(wide) @ k.to(wide).transpose(-1, -2) * self.head_dim**-0.5

    def weights(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        visible = self.visible(q.shape[2], k.shape[2], key_mask)
        scores = self.scores(q, k).masked_fill(~visible & visible.any(-1, keepdim=True), -torch.inf)
        return scores.softmax(-1).masked_fill(~visible, 0)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return dropout(self.weights(q, k, key_mask), self.dropout, self.training).to(v.dtype) @ v

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        visible = Correct.visible(self, q.shape[2], k.shape[2], key_mask)
        weights = torch.where(visible, Correct.scores(self, q, k), -torch.inf).softmax(-1)
        return torch.where(visible.any(-1, keepdim=True), weights, 0).to(q.dtype)

    def prefill(self, q: Any, k: Any, v: Any, key_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        real = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
        return self(q, k, v, key_mask=key_mask), (k, v, real)

    def step(self, q: Any, k: Any, v: Any, state: Any) -> tuple[Tensor, Any]:
        new = torch.ones(k.shape[0], 1, dtype=torch.bool)
        k, v = torch.cat([state[0], k], dim=2), torch.cat([state[1], v], dim=2)
        real = torch.cat([state[2], new], dim=1)
        return self(q, k, v, key_mask=real), (k, v, real)


# -- causality and padding ---------------------------------------------------------------------------------------------------


@attnbench.register("leaks-with-mask", EVERYTHING)
class LeaksWithMask(Correct):
    def visible(self, n_q: int, n_k: int, key_mask: Tensor | None) -> Tensor:
        return (
            super().visible(n_q, n_k, None) if key_mask is None else key_mask[:, None, None, :].expand(-1, 1, n_q, -1)
        )


@attnbench.register("ignores-causal", EVERYTHING)
class IgnoresCausal(Correct):
    def visible(self, n_q: int, n_k: int, key_mask: Tensor | None) -> Tensor:
        visible = torch.ones(1, 1, n_q, n_k, dtype=torch.bool)
        return visible if key_mask is None else visible & key_mask[:, None, None, :]


@attnbench.register("selection-leaks", replace(EVERYTHING, exact_when=None))
class SelectionLeaks(Correct):
    """Keeps the keys of largest norm in the whole sequence, among which later ones push out earlier."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        best = k.norm(dim=-1).topk(max(1, k.shape[2] // 2), dim=-1).indices
        kept = torch.zeros(k.shape[:3], dtype=torch.bool).scatter(-1, best, True)
        return super().scores(q, k) - 50.0 * ~kept[:, :, None, :]


@attnbench.register("ignores-key-mask", EVERYTHING)
class IgnoresKeyMask(Correct):
    def forward(self, q: Any, k: Any, v: Any, *, key_mask: Tensor | None = None) -> Tensor:
        return super().forward(q, k, v)


@attnbench.register("averages-over-padding", replace(SELF_ONLY, causal=False))
class AveragesOverPadding(Variant):
    """Divides by the padded length, not by the number of real tokens."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return v.mean(dim=2, keepdim=True).expand_as(v)


@attnbench.register("nan-on-empty", EVERYTHING)
class NanOnEmpty(Correct):
    def weights(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        visible = self.visible(q.shape[2], k.shape[2], key_mask)
        return self.scores(q, k).masked_fill(~visible, -torch.inf).softmax(-1)


@attnbench.register("minus-ten-thousand", EVERYTHING)
class MinusTenThousand(Correct):
    """Hides by a large negative number, which is not larger than every logit."""

    def weights(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        visible = self.visible(q.shape[2], k.shape[2], key_mask)
        weights = (self.scores(q, k) - 1e4 * ~visible).softmax(-1)
        return weights * visible.any(-1, keepdim=True)


@attnbench.register("misaligned", EVERYTHING)
class Misaligned(Correct):
    """Aligns the first query with the first key, whatever the lengths."""

    def visible(self, n_q: int, n_k: int, key_mask: Tensor | None) -> Tensor:
        visible = torch.ones(n_q, n_k, dtype=torch.bool)
        visible = (visible.tril() if self.causal else visible)[None, None]
        return visible if key_mask is None else visible & key_mask[:, None, None, :]


# -- a function of its own sample and its state ------------------------------------------------------------------------------


@attnbench.register("batch-statistics", EVERYTHING)
class BatchStatistics(Correct):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().mix(q - q.mean(dim=0) * 0.1, k, v, key_mask)


@attnbench.register("remembers", EVERYTHING)
class Remembers(Correct):
    """Reuses what the last call left behind."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        last, self.__dict__["last"] = self.__dict__.get("last", 0.0), v.detach().mean()
        return super().mix(q, k, v, key_mask) + 0.1 * last


@attnbench.register("noise-in-eval", EVERYTHING)
class NoiseInEval(Correct):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().scores(q, k)
        return scores + 0.1 * torch.randn_like(scores)


@attnbench.register("counts-in-eval", EVERYTHING)
class CountsInEval(Correct):
    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.register_buffer("calls", torch.zeros(()))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        self.calls += 1
        return super().mix(q, k, v, key_mask)


@attnbench.register("works-in-place", EVERYTHING)
class WorksInPlace(Correct):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        if not torch.is_grad_enabled():
            q *= self.head_dim**-0.5
            return super().mix(q * self.head_dim**0.5, k, v, key_mask)
        return super().mix(q, k, v, key_mask)


@attnbench.register("lazy-buffer", EVERYTHING)
class LazyBuffer(Correct):
    """Its random map is made at first use, when a loaded state dict has come and gone."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        if not hasattr(self, "rotation"):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(id(self) % 1000)
                self.register_buffer("rotation", torch.randn(self.head_dim, self.head_dim).to(q))
        return super().scores(q @ self.rotation, k)


@attnbench.register("seed-of-the-process", EVERYTHING)
class SeedOfTheProcess(Correct):
    """Its random map is the same for all instances of a process, and saved with none."""

    MAP = torch.randn(8, 8, generator=torch.Generator().manual_seed(__import__("os").getpid()))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q @ self.MAP.to(q), k)


@attnbench.register("shares-memory", EVERYTHING)
class SharesMemory(Correct):
    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.scale = nn.Parameter(torch.ones(()))

    def __deepcopy__(self, memo: Any) -> Variant:
        return copy.copy(self)


# -- the method itself -------------------------------------------------------------------------------------------------------


@attnbench.register("even-lengths-only", EVERYTHING)
class EvenLengthsOnly(Correct):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        if v.shape[2] > 1:
            v = v.unflatten(2, (-1, 2)).flatten(2, 3)
        return super().mix(q, k, v, key_mask)


@attnbench.register("no-empty-batch", EVERYTHING)
class NoEmptyBatch(Correct):
    def forward(self, q: Any, k: Any, v: Any, *, key_mask: Tensor | None = None) -> Tensor:
        assert v.abs().max() < 1e9
        return super().forward(q, k, v, key_mask=key_mask)


@attnbench.register("bad-default", replace(EVERYTHING, small={"window": 4}, exact_when={"window": "n"}))
class BadDefault(Correct):
    def __init__(self, *, window: int = 0, **common: Any) -> None:
        super().__init__(**common)
        self.window = window

    def visible(self, n_q: int, n_k: int, key_mask: Tensor | None) -> Tensor:
        assert self.window > 0
        return super().visible(n_q, n_k, key_mask)


@attnbench.register("window-off-by-one", replace(SELF_ONLY, small={"window": 4}, exact_when={"window": "n"}))
class WindowOffByOne(Correct):
    """Sees one key too few, so that a window as long as the input misses the farthest; its statement agrees with it."""

    def __init__(self, *, window: int = 4, **common: Any) -> None:
        super().__init__(**common)
        self.window = window

    def visible(self, n_q: int, n_k: int, key_mask: Tensor | None) -> Tensor:
        distance = torch.arange(n_q)[:, None] - torch.arange(n_k)
        return super().visible(n_q, n_k, key_mask) & (distance.abs() < self.window - 1)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        return self.weights(q, k, key_mask).to(q.dtype)


@attnbench.register("wrong-scale", EVERYTHING)
class WrongScale(Correct):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * 1.01


@attnbench.register("wrong-gradient", EVERYTHING)
class WrongGradient(Correct):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k.detach())


@attnbench.register("wrong-picture", EVERYTHING)
class WrongPicture(Correct):
    """States small weights on keys that the output does not see; `reference` is right."""

    def reference(self, q: Any, k: Any, v: Any, *, key_mask: Tensor | None = None, **streams: Tensor) -> Tensor:
        q, k, v, key_mask, _ = self._prepared(q, k, v, key_mask, {})
        return super().dense_weights(q, k, key_mask=key_mask) @ v

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        return super().dense_weights(q, k, key_mask=key_mask) + 1e-6


@attnbench.register("unwritten-memory", EVERYTHING)
class UnwrittenMemory(Correct):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        padded = torch.empty(*v.shape[:2], v.shape[2] + 1, v.shape[3], dtype=v.dtype)
        padded[:, :, :-1] = v
        weights = torch.nn.functional.pad(self.weights(q, k, key_mask), (0, 1))
        return weights.to(v.dtype) @ padded.nan_to_num(nan=7.0, posinf=7.0, neginf=7.0) + 0 * padded[:, :, -1:]


# -- layout and precision ----------------------------------------------------------------------------------------------------


@attnbench.register("needs-contiguous", EVERYTHING)
class NeedsContiguous(Correct):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().mix(q.view(-1).view_as(q), k, v, key_mask)


@attnbench.register("tiles-heads", replace(EVERYTHING, grouped=True))
class TilesHeads(Correct):
    """Repeats the groups one after the other (0 1 0 1), not each in its place (0 0 1 1)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        repeats = self.heads // self.kv_heads
        return super().mix(q, k.repeat(1, repeats, 1, 1), v.repeat(1, repeats, 1, 1), key_mask)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        return super().dense_weights(q, k.repeat_interleave(self.heads // self.kv_heads, dim=1), key_mask=key_mask)


class Pairs(Correct):
    """Attention to the sums of pairs of tokens, which may be taken before tokens are projected."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return self.mix_slots(q, self.paired(k), self.paired(v), key_mask)

    def mix_slots(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return self.scores(q, k).softmax(-1).to(v.dtype) @ v

    def paired(self, x: Tensor) -> Tensor:
        return pad(x, (0, 0, 0, x.shape[2] % 2)).unflatten(2, (-1, 2)).sum(3)

    def share(self, tokens: Tensor) -> Tensor:
        return self.paired(tokens.new_ones(1, 1, tokens.shape[2], 1))

    def mix_length(self, tokens: Tensor, key_mask: Tensor | None) -> tuple[Condensed, Condensed]:
        return (Condensed(self.paired(tokens), self.share(tokens)),) * 2

    def reference(self, q: Any, k: Any, v: Any, *, key_mask: Tensor | None = None) -> Tensor:
        return self.mix(q, k, v, key_mask)


attnbench.register("condenses", Supports(cross=True, condense=True))(Pairs)


@attnbench.register("forgets-the-share", Supports(cross=True, condense=True))
class ForgetsTheShare(Pairs):
    """A bias counts once for each slot, as if a slot were one token."""

    def share(self, tokens: Tensor) -> Tensor:
        return torch.ones_like(super().share(tokens))


@attnbench.register("float32-out", EVERYTHING)
class Float32Out(Correct):
    def forward(self, q: Any, k: Any, v: Any, *, key_mask: Tensor | None = None) -> Tensor:
        out = super().forward(q, k, v, key_mask=key_mask)
        return out.float() if out.dtype == torch.bfloat16 else out


@attnbench.register("autocast-out", EVERYTHING)
class AutocastOut(Correct):
    def forward(self, q: Any, k: Any, v: Any, *, key_mask: Tensor | None = None) -> Tensor:
        q, k, v, key_mask, _ = self._prepared(q, k, v, key_mask, {})
        return self.mix(q, k, v, key_mask)


@attnbench.register("half-sums", replace(EVERYTHING, exact_when=None, causal=False, decode=False, dropout=False))
class HalfSums(Variant):
    """Its normaliser is a running sum in the input's own type."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        real = torch.ones(v.shape[0], v.shape[2]) if key_mask is None else key_mask
        count = torch.zeros((), dtype=v.dtype)
        for token in real.to(v.dtype).unbind(1):
            count = count + token
        return (v.float().sum(2) / count[:, None, None].float().clamp(min=1))[:, :, None].expand_as(q)


# -- training, decoding, compiling -------------------------------------------------------------------------------------------


@attnbench.register("dropout-in-eval", EVERYTHING)
class DropoutInEval(Correct):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return dropout(self.weights(q, k, key_mask), self.dropout, True).to(v.dtype) @ v


@attnbench.register("updates-twice", EVERYTHING)
class UpdatesTwice(Correct):
    """Moves its centroid in every training pass, recomputation included."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.register_buffer("centroid", torch.zeros(self.head_dim))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.training:
            self.centroid = 0.9 * self.centroid + 0.1 * k.detach().mean(dim=(0, 1, 2))
        return super().mix(q, k, v, key_mask)


@attnbench.register("another-path-for-gradients", EVERYTHING)
class AnotherPathForGradients(Correct):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().mix(q if q.requires_grad else q.round(decimals=1), k, v, key_mask)


@attnbench.register("forgets-first-token", EVERYTHING)
class ForgetsFirstToken(Correct):
    def step(self, q: Any, k: Any, v: Any, state: Any) -> tuple[Tensor, Any]:
        out, _ = super().step(q, k, v, tuple(part[:, 1:] if part.ndim == 2 else part[:, :, 1:] for part in state))
        return out, super().step(q, k, v, state)[1]


@attnbench.register("decodes-padding", EVERYTHING)
class DecodesPadding(Correct):
    def prefill(self, q: Any, k: Any, v: Any, key_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        out, (k, v, real) = super().prefill(q, k, v, key_mask)
        return out, (k, v, torch.ones_like(real))


@attnbench.register("spends-its-state", EVERYTHING)
class SpendsItsState(Correct):
    def prefill(self, q: Any, k: Any, v: Any, key_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        out, state = super().prefill(q, k, v, key_mask)
        return out, list(state)

    def step(self, q: Any, k: Any, v: Any, state: Any) -> tuple[Tensor, Any]:
        out, state[:] = super().step(q, k, v, state)
        return out, state


@attnbench.register("breaks-the-graph", EVERYTHING)
class BreaksTheGraph(Correct):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().mix(q, k, v * (1.0 if float(v.detach().sum()) < 1e9 else 0.0), key_mask)


# -- refusals ----------------------------------------------------------------------------------------------------------------


class Lenient(type(Variant)):  # type: ignore[misc]
    def __call__(cls, **options: Any) -> Any:
        return super().__call__(**{name: value for name, value in options.items() if name != "windoww"})


@attnbench.register("swallows-options", EVERYTHING)
class SwallowsOptions(Correct, metaclass=Lenient):
    pass


@attnbench.register("takes-any-mask", EVERYTHING)
class TakesAnyMask(Correct):
    def forward(self, q: Any, k: Any, v: Any, *, key_mask: Any = None) -> Tensor:
        if isinstance(key_mask, Tensor) and key_mask.shape == (v.shape[0], v.shape[2]):
            key_mask = key_mask.bool()
        return super().forward(q, k, v, key_mask=key_mask)


@attnbench.register("takes-undeclared-mask", replace(EVERYTHING, padding=False))
class TakesUndeclaredMask(Correct):
    def forward(self, q: Any, k: Any, v: Any, *, key_mask: Any = None) -> Tensor:
        return super().forward(q, k, v)


@attnbench.register("takes-anything", EVERYTHING)
class TakesAnything(Correct):
    def _validate(self, *anything: Any) -> None:
        pass


@attnbench.register("cuts-to-max-len", replace(EVERYTHING, max_len=True))
class CutsToMaxLen(Correct):
    def forward(self, q: Any, k: Any, v: Any, *, key_mask: Tensor | None = None) -> Tensor:
        q, k, v = (tensor[:, :, : self.max_len] for tensor in (q, k, v))
        return super().forward(q, k, v, key_mask=key_mask)


# -- cost --------------------------------------------------------------------------------------------------------------------


@attnbench.register("simulates-sparsity", replace(SELF_ONLY, time=LINEAR, memory=LINEAR))
class SimulatesSparsity(Correct):
    """A window drawn by a mask over all pairs."""

    def visible(self, n_q: int, n_k: int, key_mask: Tensor | None) -> Tensor:
        distance = torch.arange(n_q)[:, None] - torch.arange(n_k)
        return super().visible(n_q, n_k, key_mask) & (distance.abs() < 16)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        return self.weights(q, k, key_mask).to(q.dtype)


@attnbench.register("understates-memory", replace(EVERYTHING, memory=LINEAR))
class UnderstatesMemory(Correct):
    pass


@attnbench.register("understates-work", replace(EVERYTHING, time=Growth("n log n", 1.1)))
class UnderstatesWork(Correct):
    pass
