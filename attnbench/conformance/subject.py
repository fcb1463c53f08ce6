"""What is checked: one variant under one set of options and one direction, and the record of what is being tried on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnbench.contract import Variant
from attnbench.registry import create_variant, variant_info

__all__ = ["DTYPES", "MAX_LEN", "Inputs", "Subject", "length_mask"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_LEN = 160  # where a variant needs one: above every length that the checks use
LENGTHS = (1, 2, 3, 7, 8, 16, 33, 64, 65)
CAUSAL_LENGTHS = (1, 7, 64, 65, 127)
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Inputs:
    """One call's inputs; what the variant does not read is None."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor
    key_mask: Tensor | None = None
    streams: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(self, variant: Callable[..., Tensor]) -> Tensor:
        """The variant's output."""
        return variant(self.q, self.k, self.v, key_mask=self.key_mask, **self.streams)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """q, k, v and the streams, as far as they are read."""
        named = {"q": self.q, "k": self.k, "v": self.v, **self.streams}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def map(self, change: Callable[[Tensor], Tensor], names: Sequence[str] | None = None) -> Inputs:
        """The same inputs with `change` applied to the tensors named, or to all."""
        new = {
            name: change(tensor) if names is None or name in names else tensor for name, tensor in self.tensors.items()
        }
        streams = {name: new[name] for name in self.streams}
        return replace(self, q=new.get("q"), k=new.get("k"), v=new["v"], streams=streams)

    def masked(self, key_mask: Tensor | None) -> Inputs:
        return replace(self, key_mask=key_mask)

    def take(self, samples: slice, tokens: slice = slice(None)) -> Inputs:
        """Some samples of the batch, and some positions of them."""
        mask = None if self.key_mask is None else self.key_mask[samples, tokens]
        return self.map(lambda tensor: tensor[samples, :, tokens]).masked(mask)

    def leaves(self) -> Inputs:
        """Copies that gather gradients."""
        return self.map(lambda tensor: tensor.detach().clone().requires_grad_())


def length_mask(lengths: Sequence[int], padded: int, device: str = "cpu") -> Tensor:
    """(batch, padded) bool, True at the first `length` positions of each sample."""
    return torch.arange(padded, device=device) < torch.tensor(lengths, device=device)[:, None]


class Subject:
    """A variant under check. `build` and `inputs` note what they make, so that a failure can name its input.

    Args:
        name: the registry's name of the variant.
        options: its own options.
        causal: the direction under check.
        max_len: the longest length the checks may use, where the variant needs one.
        lengths: the lengths for the checks over lengths; by default round and odd ones, and those next to the multiples
            of every whole-numbered option, where blocks and windows end.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        causal: bool,
        heads: int = 2,
        head_dim: int = 8,
        device: str = "cpu",
        dtypes: Sequence[torch.dtype] = DTYPES,
        max_len: int | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self.name, self.options, self.causal = name, dict(options), causal
        self.heads, self.head_dim, self.device, self.dtypes = heads, head_dim, device, tuple(dtypes)
        self.supports = variant_info(name, **self.options, causal=causal).supports
        self.max_len = (max_len or MAX_LEN) if self.supports.max_len else None
        self.lengths = tuple(lengths) if lengths else _lengths(self.options)
        self.causal_lengths = tuple(lengths) if lengths else CAUSAL_LENGTHS
        self.oracle_lengths = tuple(lengths) if lengths else (1, 9, 34, max(self.lengths))
        # Double precision tells a mistake from rounding; devices beside the CPU have kernels that lack it.
        self.exact = torch.float64 if device == "cpu" else torch.float32
        self.settings: dict[str, Any] = {}

    def note(self, **settings: Any) -> None:
        self.settings |= settings

    def build(
        self, *, seed: int = 0, dtype: torch.dtype = torch.float32, train: bool = False, **changes: Any
    ) -> Variant:
        """A new instance, with its random parameters and buffers drawn from `seed`; `changes` override the options."""
        common = {"heads": self.heads, "head_dim": self.head_dim, "max_len": self.max_len, "causal": self.causal}
        options = common | self.options | changes
        self.note(options=options, train=train, construction_seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            variant = create_variant(self.name, **options)
        return variant.to(self.device, dtype).train(train)

    def inputs(
        self,
        length: int,
        *,
        keys: int | None = None,
        batch: int = 2,
        dtype: torch.dtype = torch.float32,
        seed: int = 1,
        scale: float = 1.0,
        heads: int | None = None,
        kv_heads: int | None = None,
    ) -> Inputs:
        """Normal inputs of standard deviation `scale`, of what the variant reads, without a mask."""
        self.note(batch=batch, n_q=length, n_k=keys or length, dtype=str(dtype).removeprefix("torch."), input_seed=seed)
        generator = torch.Generator().manual_seed(seed)
        heads = heads or self.heads

        def draw(n_heads: int, n: int, width: int) -> Tensor:
            drawn = torch.randn(batch, n_heads, n, width, generator=generator, dtype=torch.float64) * scale
            return drawn.to(self.device, dtype)

        q = draw(heads, length, self.head_dim)
        k, v = (draw(kv_heads or heads, keys or length, self.head_dim) for _ in range(2))
        streams = {s.name: draw(heads, length, s.width or self.head_dim) for s in self.supports.streams}
        reads = self.supports.reads
        return Inputs(q if "q" in reads else None, k if "k" in reads else None, v, None, streams)

    def masks(self, batch: int, length: int) -> Iterator[Tensor | None]:
        """No mask; and where the variant takes one, right-padding of every sample but the first, and a mask with holes."""
        self.note(mask="none")
        yield None
        if self.supports.padding and length > 1:
            self.note(mask="right-padded")
            yield self.padding(batch, length)
            self.note(mask="holes")
            holes = torch.arange(length, device=self.device) % 3 != 1
            yield holes.repeat(batch, 1)

    def padding(self, batch: int, length: int) -> Tensor:
        """A mask whose first sample is all real, the others ever shorter, none empty."""
        lengths = [max(1, length * (batch - sample) // batch) for sample in range(batch)]
        self.note(mask=f"real lengths {lengths}")
        return length_mask(lengths, length, self.device)

    def tolerance(self, dtype: torch.dtype) -> float:
        return TOLERANCES[dtype] if self.device == "cpu" else max(1e-3, TOLERANCES[dtype])


def _lengths(options: Mapping[str, Any]) -> tuple[int, ...]:
    sizes = {value for value in options.values() if isinstance(value, int) and 2 <= value <= 16}
    edges = {size * blocks + shift for size in sizes for blocks in (1, 3) for shift in (-1, 0, 1)}
    return tuple(sorted({*LENGTHS, *edges}))
