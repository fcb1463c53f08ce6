"""What a variant is: a module that mixes tokens, and nothing else.

    forward(q, k, v, *, key_mask=None, **streams) -> out
    q (batch, heads, n_q, head_dim)   k, v (batch, kv_heads, n_k, head_dim)   out like q
    key_mask (batch, n_k), bool, True = a real token

The base class holds the manners (validation, refusals, grouped heads, masked content), a variant's own file the method.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from attnbench.capabilities import Supports
from attnbench.errors import UserError, nearest

__all__ = ["COMMON_OPTIONS", "Condensed", "Unsupported", "Variant", "resolve_options", "state_bytes"]

COMMON_OPTIONS = ("heads", "head_dim", "kv_heads", "max_len", "causal", "dropout", "cross")


class Unsupported(UserError):
    """A use of a variant that its capabilities do not declare. `reasons` holds every reason."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = list(reasons)
        super().__init__("; ".join(self.reasons))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reasons,)


def _own_options(cls: type) -> dict[str, Any]:
    """The keyword options that a variant adds to the common ones, with their defaults, over its class hierarchy."""
    options: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        init = base.__dict__.get("__init__")
        if init is None or base is Variant or not issubclass(base, Variant):
            continue
        for parameter in list(inspect.signature(init).parameters.values())[1:]:
            if parameter.kind is parameter.KEYWORD_ONLY:
                options[parameter.name] = parameter.default
    return options


def resolve_options(cls: type[Variant], options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a variant with its defaults filled in.

    Raises ValueError where an option is unknown, naming the valid ones.
    """
    valid = {"kv_heads": None, "max_len": None, "causal": False, "dropout": 0.0, "cross": False} | _own_options(cls)
    known = [*COMMON_OPTIONS, *(name for name in valid if name not in COMMON_OPTIONS)]
    for option in options:
        if option not in known:
            raise UserError(
                f"{cls.name}: unknown option {option!r}{nearest(option, known)}; valid options: {', '.join(known)}"
            )
    return valid | dict(options)


class _Checked(type):
    """Refuses, before construction and however a variant is built, what its capabilities do not declare."""

    def __call__(cls, **options: Any) -> Any:
        resolved = resolve_options(cls, options)  # type: ignore[arg-type]
        supports = cls.supports_for(resolved)  # type: ignore[attr-defined]
        reasons = supports.refusals(
            cls.name,  # type: ignore[attr-defined]
            causal=resolved["causal"],
            cross=resolved["cross"],
            dropout=resolved["dropout"] > 0,
            max_len=resolved["max_len"],
        )
        if reasons:
            raise Unsupported(reasons)
        module = super().__call__(**options)
        module.supports, module.options = supports, resolved
        return module


class Condensed(NamedTuple):
    """Tokens (batch, heads or 1, slots, width), each mixed from many, and what a constant 1 in their place would come to, share
    (batch or 1, heads or 1, slots, 1): a bias that is added to tokens after they were mixed counts as often."""

    tokens: Tensor
    share: Tensor


class Variant(nn.Module, metaclass=_Checked):
    """The base class of every attention variant.

    A subclass takes its own options as keyword-only arguments, hands the rest to this class, and writes `mix`; beside it
    `reference`, and `dense_weights` where the output is linear in v.

    Args:
        heads: number of query heads.
        head_dim: width of a head.
        kv_heads: number of key/value heads, a divisor of `heads`; None means `heads`.
        max_len: the longest length it will meet; binding where the capabilities say so.
        causal: position t sees positions up to t alone. With n_q != n_k the last query sees every key.
        dropout: probability of dropping an attention weight in training.
        cross: keys come from another sequence than queries, so that a key mask says nothing about queries.

    Raises:
        Unsupported: what is asked is not declared in the capabilities; all reasons are given.
        ValueError: an option is unknown or out of range.
    """

    name: ClassVar[str] = "unregistered"
    declared: ClassVar[Supports | Callable[[Mapping[str, Any]], Supports]] = Supports()
    supports: Supports
    options: dict[str, Any]

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        kv_heads: int | None = None,
        max_len: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        cross: bool = False,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        for option, value in (("heads", heads), ("head_dim", head_dim), ("kv_heads", kv_heads), ("max_len", max_len)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{self.name}: {option} must be a whole number of at least 1, received {value!r}")
        if heads % kv_heads:
            raise ValueError(f"{self.name}: kv_heads must divide heads, received kv_heads {kv_heads} and heads {heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"{self.name}: dropout must lie in [0, 1), received {dropout!r}")
        self.heads, self.head_dim, self.kv_heads = heads, head_dim, kv_heads
        self.max_len, self.causal, self.dropout, self.cross = max_len, causal, dropout, cross

    @classmethod
    def supports_for(cls, options: Mapping[str, Any]) -> Supports:
        """The capabilities under the given options (a full set, as `resolve_options` returns it)."""
        return cls.declared(options) if callable(cls.declared) else cls.declared

    # -- what a variant writes -------------------------------------------------------------------------------------------

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, **streams: Tensor) -> Tensor:
        """The method. Inputs are validated, k and v are zero at masked keys, and heads are equal unless `grouped`."""
        raise NotImplementedError(f"{type(self).__name__} must define mix(q, k, v, key_mask)")

    def mix_length(self, tokens: Tensor, key_mask: Tensor | None) -> tuple[Condensed, Condensed]:
        """What keys and what values come from, where `condense` is declared; tokens are valid and zero at masked keys."""
        raise NotImplementedError(f"{type(self).__name__} must define mix_length(tokens, key_mask)")

    def mix_slots(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, **streams: Tensor) -> Tensor:
        """The rest of `mix` after `mix_length`: k and v have a row for each slot, and heads are equal unless `grouped`."""
        raise NotImplementedError(f"{type(self).__name__} must define mix_slots(q, k, v, key_mask)")

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, **streams: Tensor
    ) -> Tensor:
        """The same output, computed plainly and explicitly. By default `dense_weights` times v."""
        q, k, v, key_mask, streams = self._prepared(q, k, v, key_mask, streams)
        return self.dense_weights(q, v if k is None else k, key_mask=key_mask, **streams) @ v

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None, **streams: Tensor) -> Tensor:
        """The (batch, heads, n_q, n_k) matrix that maps v to the output, where the output is linear in v.

        A method that reads no k gets v in its place, as what shows batch, length, dtype and device.
        """
        raise NotImplementedError(f"{self.name} states no dense_weights")

    # -- what a caller calls ---------------------------------------------------------------------------------------------

    def forward(
        self,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        condensed: bool = False,
        **streams: Tensor,
    ) -> Tensor:
        """Mixes the tokens: (batch, heads, n_q, head_dim) out of q, k, v, as the module's head says.

        condensed: k and v (batch, kv_heads, slots, head_dim) are projections of what `condense` gave for the same key_mask.

        Raises:
            ValueError: a shape, a type or a length does not fit.
            Unsupported: the call needs what the capabilities do not declare.
        """
        q, k, v, key_mask, streams = self._prepared(q, k, v, key_mask, streams, condensed)
        if v.shape[0] == 0:  # nothing to mix, and no variant needs a branch of its own for it
            return (v if q is None else q).clone()
        out = (self.mix_slots if condensed else self.mix)(q, k, v, key_mask, **streams)
        return out.to(v.dtype)

    def condense(self, tokens: Tensor, *, key_mask: Tensor | None = None) -> tuple[Condensed, Condensed]:
        """Mixes tokens (batch, heads or 1, n_k, width), not projected yet, into what keys and what values are projections of.

        Projecting the mixtures and calling with condensed=True gives what mixing the projections gives: both maps are linear,
        one along the length and one along the channels, and fewer tokens are left to project.

        Raises:
            ValueError: a shape or a length does not fit.
            Unsupported: the capabilities do not declare it.
        """
        if not self.supports.condense:
            raise Unsupported(
                [f"{self.name} does not mix keys and values before it looks at them, so it condenses nothing"]
            )
        if tokens.ndim != 4 or tokens.shape[1] not in (1, self.kv_heads) or tokens.shape[2] == 0:
            raise ValueError(
                f"{self.name}: tokens must have shape (batch, kv_heads {self.kv_heads} or 1, n >= 1, width), "
                f"received {tuple(tokens.shape)}"
            )
        self._validate_length(tokens.shape[2])
        if key_mask is not None:
            self._validate_mask(key_mask, tokens, tokens.shape[2])
            tokens = tokens.masked_fill(~key_mask[:, None, :, None], 0)
        return self.mix_length(tokens, key_mask)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, **streams: Tensor
    ) -> tuple[Tensor, Any]:
        """The forward pass over a prompt, and the state from which `step` goes on."""
        raise Unsupported([f"{self.name} does not decode token by token"])

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Any]:
        """The output for one new token (n_q = n_k = 1, real in every sample), and the next state."""
        raise Unsupported([f"{self.name} does not decode token by token"])

    # -- manners ---------------------------------------------------------------------------------------------------------

    def _prepared(
        self, q: Any, k: Any, v: Any, key_mask: Tensor | None, streams: dict[str, Tensor], condensed: bool = False
    ) -> tuple[Any, ...]:
        """Validated inputs: grouped heads repeated, content at masked keys zero, what the method does not read None."""
        if condensed and not self.supports.condense:
            raise Unsupported(
                [f"{self.name} does not mix keys and values before it looks at them: condensed must be False"]
            )
        self._validate(q, k, v, key_mask, streams, condensed)
        reads = self.supports.reads
        q, k = q if "q" in reads else None, k if "k" in reads else None
        if self.kv_heads != self.heads and not self.supports.grouped:
            repeats = self.heads // self.kv_heads
            k = None if k is None else k.repeat_interleave(repeats, dim=1)
            v = v.repeat_interleave(repeats, dim=1)
        if key_mask is not None:
            hidden = ~key_mask[:, None, :, None]
            if not condensed:
                k = None if k is None else k.masked_fill(hidden, 0)
                v = v.masked_fill(hidden, 0)
            if not self.supports.cross:  # self-attention: masked keys are masked queries too
                q = None if q is None else q.masked_fill(hidden, 0)
                streams = {name: stream.masked_fill(hidden, 0) for name, stream in streams.items()}
        return q, k, v, key_mask, streams

    def _validate(
        self, q: Any, k: Any, v: Any, key_mask: Any, streams: dict[str, Tensor], condensed: bool = False
    ) -> None:
        reads = self.supports.reads
        tensors = {
            "v": (v, self.kv_heads),
            "q": (q, self.heads),
            "k": (k, self.kv_heads),
        }  # the others are held against v
        for label, (tensor, heads) in tensors.items():
            if tensor is None and label not in reads and label != "v":
                continue
            if not isinstance(tensor, Tensor) or tensor.ndim != 4:
                got = f"shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ValueError(f"{self.name}: {label} must be a tensor (batch, heads, n, head_dim), received {got}")
            expected = (v.shape[0], heads, tensor.shape[2], self.head_dim)
            if tuple(tensor.shape) != expected or tensor.shape[2] == 0:
                raise ValueError(
                    f"{self.name}: {label} must have shape (batch {expected[0]}, {'heads' if label == 'q' else 'kv_heads'} "
                    f"{heads}, n >= 1, head_dim {self.head_dim}), received {tuple(tensor.shape)}"
                )
            if not tensor.is_floating_point() or tensor.dtype != v.dtype or tensor.device != v.device:
                raise ValueError(
                    f"{self.name}: q, k and v must share one floating dtype and device; "
                    f"{label} is {tensor.dtype} on {tensor.device}, v is {v.dtype} on {v.device}"
                )
        n_k = v.shape[2]
        n_q = n_k if q is None else q.shape[2]
        if k is not None and k.shape[2] != n_k:
            raise ValueError(f"{self.name}: k and v must have one length, received {k.shape[2]} and {n_k}")
        if condensed:  # how many keys there were is not known here
            n_k = n_q
        if key_mask is not None:
            self._validate_mask(key_mask, v, None if condensed else n_k)
        if n_q != n_k and not self.supports.cross:
            raise Unsupported([f"{self.name} takes self-attention alone, received {n_q} queries and {n_k} keys"])
        self._validate_length(max(n_q, n_k))
        self._validate_streams(streams, v.shape[0], n_q)

    def _validate_length(self, n: int) -> None:
        if self.supports.max_len and self.max_len is not None and n > self.max_len:
            raise ValueError(f"{self.name}: length {n} exceeds max_len {self.max_len}")

    def _validate_mask(self, key_mask: Any, v: Tensor, n_k: int | None) -> None:
        """n_k None: any length will do."""
        if not self.supports.padding:
            raise Unsupported([f"{self.name} takes no key_mask"])
        if n_k is None and isinstance(key_mask, Tensor) and key_mask.ndim == 2:
            n_k = key_mask.shape[1]
        wanted = (v.shape[0], n_k)
        if not isinstance(key_mask, Tensor) or key_mask.dtype != torch.bool or tuple(key_mask.shape) != wanted:
            got = (
                f"{key_mask.dtype} {tuple(key_mask.shape)}" if isinstance(key_mask, Tensor) else type(key_mask).__name__
            )
            raise ValueError(
                f"{self.name}: key_mask must be a bool tensor (batch, n_k) = {wanted} with True at real tokens, received {got}"
            )

    def _validate_streams(self, streams: dict[str, Tensor], batch: int, n_q: int) -> None:
        declared = {stream.name: stream.width or self.head_dim for stream in self.supports.streams}
        if set(streams) != set(declared):
            raise ValueError(
                f"{self.name}: streams needed: {sorted(declared) or 'none'}, received: {sorted(streams) or 'none'}"
            )
        for label, width in declared.items():
            expected = (batch, self.heads, n_q, width)
            if tuple(streams[label].shape) != expected:
                raise ValueError(
                    f"{self.name}: stream {label} must have shape (batch, heads, n_q, width) = {expected}, "
                    f"received {tuple(streams[label].shape)}"
                )

    def extra_repr(self) -> str:
        shown = {name: value for name, value in self.options.items() if value is not None}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


def state_bytes(state: Any) -> int:
    """Bytes held by the tensors of a decoding state, wherever they are nested; storage shared by views counts once."""
    storages: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, Mapping):
            for item in value.values():
                visit(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)
        elif hasattr(value, "__dict__"):
            visit(vars(value))

    visit(state)
    return sum(storages.values())
