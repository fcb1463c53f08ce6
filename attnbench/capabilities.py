"""What a variant can do, as plain data: readable without constructing anything and without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["Growth", "Stream", "Supports"]


@dataclass(frozen=True)
class Growth:
    """How a cost grows with the length.

    `formula` is for readers, in terms of n (length), d (width of a head) and the variant's own options; `exponent` is the
    power of n in it with all options at their defaults, which the conformance kit checks against counted costs.
    """

    formula: str
    exponent: float


@dataclass(frozen=True)
class Stream:
    """One more input of a variant beside q, k and v: projected by the backbone from the same tokens as q.

    It reaches `mix` by keyword as a tensor (batch, heads, n_q, width); a `width` of None means head_dim.
    """

    name: str
    width: int | None = None


QUADRATIC = Growth("n^2 d", 2.0)
LINEAR_MEMORY = Growth("n d", 1.0)


@dataclass(frozen=True)
class Supports:
    """The capabilities of a variant. What is not declared is refused, with all the reasons.

    causal: may be built with causal=True, and is then strictly causal.
    bidirectional: may be built with causal=False.
    cross: takes queries and keys of different lengths, or from different sequences.
    padding: takes a key mask.
    dropout: applies dropout to its weights in training.
    decode: a causal instance offers `prefill` and `step`.
    max_len: `max_len` is needed at construction and longer inputs are an error.
    condense: keys and values are mixed along the length before queries look at them, by a map that is linear and the same for
        every channel: `condense` applies it to tokens that are not yet projected, and the call takes the outcome.
    grouped: uses kv_heads < heads natively; where False the base class repeats the heads.
    reads: which of q, k, v the method reads; the backbone projects no others, and passes None for them.
    streams: further inputs, by name and width per head.
    linear_in_v: the output is linear in v, so that `dense_weights` exists and the weights can be drawn.
    global_tokens: name of the option that counts learned tokens, which the backbone prepends once and carries through all
        layers; None where the variant asks for none.
    time, memory: declared growth of the work and of the peak memory of one forward pass.
    sequential: sequential steps of one forward pass, as a formula (the classic table's second column).
    path: longest path between two positions in one layer, as a formula (its third column).
    exact_when: options under which the variant must equal full attention; the string "n" stands for the length. None: never.
    small: options that show the variant's structure at lengths of a few dozen, which the conformance kit uses.
    compiles: `torch.compile(fullgraph=True)` works; else `notes` says why.
    uses: names of other variants that it composes; their source counts as its own.
    notes: one line each, for readers: deviations and limits.
    """

    causal: bool = False
    bidirectional: bool = True
    cross: bool = False
    padding: bool = False
    dropout: bool = False
    decode: bool = False
    max_len: bool = False
    condense: bool = False
    grouped: bool = False
    reads: tuple[str, ...] = ("q", "k", "v")
    streams: tuple[Stream, ...] = ()
    linear_in_v: bool = True
    global_tokens: str | None = None
    time: Growth = QUADRATIC
    memory: Growth = QUADRATIC
    sequential: str = "1"
    path: str = "1"
    exact_when: Mapping[str, Any] | None = None
    small: Mapping[str, Any] = field(default_factory=dict)
    compiles: bool = True
    uses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A frozen value must not share a mutable one with its author.
        for name in ("exact_when", "small"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, MappingProxyType(dict(value)))

    def __reduce__(self) -> tuple[Any, ...]:  # a mappingproxy cannot be pickled or deep-copied
        return _rebuild, (self._fields(),)

    def _fields(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: dict(value) if isinstance(value, MappingProxyType) else value for name, value in values.items()}

    def as_dict(self) -> dict[str, Any]:
        """The capabilities as JSON-ready data."""
        values = self._fields()
        values["streams"] = [asdict(stream) for stream in self.streams]
        values["time"], values["memory"] = asdict(self.time), asdict(self.memory)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def refusals(
        self,
        name: str,
        *,
        causal: bool = False,
        cross: bool = False,
        padding: bool = False,
        dropout: bool = False,
        decode: bool = False,
        max_len: int | None = None,
    ) -> list[str]:
        """Every reason why a use of `name` is refused; an empty list where it is supported."""
        asked = [
            (causal and not self.causal, f"{name} has no causal form"),
            (not causal and not self.bidirectional, f"{name} is causal only; build it with causal=True"),
            (cross and not self.cross, f"{name} takes self-attention alone, not cross-attention"),
            (padding and not self.padding, f"{name} takes no key_mask"),
            (dropout and not self.dropout, f"{name} has no dropout on its weights; build it with dropout=0"),
            (decode and not self.decode, f"{name} does not decode token by token"),
            (self.max_len and max_len is None, f"{name} needs max_len, the longest length it will meet"),
        ]
        return [reason for refused, reason in asked if refused]


def _rebuild(fields: dict[str, Any]) -> Supports:
    return Supports(**fields)
