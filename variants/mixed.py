"""Different heads use different variants, each built by name through the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.registry import create_variant, register, variant_info

DEFAULT = {"local": 1, "strided": 1}


def supports(options: Mapping[str, Any]) -> Supports:
    """What all members can do; the cost is that of the costliest."""
    shares, own = shares_and_options(options["members"], options["member_options"])
    every = {name: variant_info(name, **own.get(name, {})).supports for name in shares}
    members = list(every.values())
    streams = {stream.name: stream for member in members for stream in member.streams}
    time, memory = (_costliest([getattr(member, which) for member in members]) for which in ("time", "memory"))
    return Supports(
        causal=all(member.causal for member in members),
        bidirectional=all(member.bidirectional for member in members),
        cross=all(member.cross for member in members),
        padding=all(member.padding for member in members),
        dropout=all(member.dropout for member in members),
        decode=all(member.decode for member in members),
        max_len=any(member.max_len for member in members),
        reads=tuple(name for name in ("q", "k", "v") if any(name in member.reads for member in members)),
        streams=tuple(streams.values()),
        linear_in_v=all(member.linear_in_v for member in members),
        time=time,
        memory=memory,
        sequential=" + ".join(dict.fromkeys(member.sequential for member in members)),
        path="the shortest of the members', over layers",
        small={
            "members": dict(shares),
            "member_options": {name: dict(s.small) | own.get(name, {}) for name, s in every.items()},
        },
        compiles=all(member.compiles for member in members),
        uses=tuple(every),
        notes=tuple(f"{name}: {note}" for name, member in every.items() for note in member.notes),
    )


def _costliest(costs: list[Growth]) -> Growth:
    return Growth(" + ".join(dict.fromkeys(cost.formula for cost in costs)), max(cost.exponent for cost in costs))


def shares_and_options(members: Any, options: Any) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
    """Validated shares and member options, whatever came in."""
    shares = DEFAULT if members is None else members
    if isinstance(shares, (list, tuple)):
        shares = {name: list(shares).count(name) for name in shares}
    valid = isinstance(shares, Mapping) and shares
    if not valid or any(not isinstance(share, int) or share < 1 for share in shares.values()):
        raise ValueError(f"mixed: members must map names of variants to shares of at least 1, received {members!r}")
    if "mixed" in shares:
        raise ValueError("mixed: a mixture is no member of a mixture")
    own = {} if options is None else options
    if not isinstance(own, Mapping) or not set(own) <= set(shares):
        raise ValueError(
            f"mixed: member_options must map members ({', '.join(shares)}) to options, received {options!r}"
        )
    return dict(shares), {name: dict(value) for name, value in own.items()}


@register("mixed", supports=supports)
class Mixed(Variant):
    """A mixture over heads: every member owns a run of heads and sees those alone.

    out = concatenation over heads of member_m (q, k, v of its heads)

    Heads are dealt in proportion to the shares, at least one to each member, in the members' order. Capabilities are those
    that all members have under their options.

    Args:
        members: name of a variant -> share of the heads, or a list of names, one share each time one is named; None means
            local and strided in equal parts.
        member_options: name of a member -> options of its own. The common options are the mixture's.

    Raises:
        ValueError: there are fewer heads than members, or a member asks for learned global tokens, which the backbone
            prepends for a whole layer and not for some of its heads.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", section 5.2, different patterns in
    different heads.
    """

    def __init__(
        self,
        *,
        members: Mapping[str, int] | list[str] | None = None,
        member_options: Mapping[str, Mapping[str, Any]] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        shares, own = shares_and_options(members, member_options)
        self.names, self.sizes = list(shares), deal(self.heads, shares)
        shared = {name: getattr(self, name) for name in ("head_dim", "max_len", "causal", "dropout", "cross")}
        built = [
            create_variant(name, heads=size, **shared, **own.get(name, {}))
            for name, size in zip(self.names, self.sizes, strict=True)
        ]
        for member in built:
            if member.supports.global_tokens is not None:
                raise ValueError(
                    f"mixed: {member.name} with learned global tokens cannot share a layer with other variants"
                )
        self.members = nn.ModuleList(built)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, **streams: Tensor) -> Tensor:
        parts = self._split(q, k, v, streams)
        return torch.cat([m(*tensors, key_mask=key_mask, **own) for m, tensors, own in parts], dim=1)

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, **streams: Tensor
    ) -> Tensor:
        q, k, v, key_mask, streams = self._prepared(q, k, v, key_mask, streams)
        parts = self._split(q, k, v, streams)
        return torch.cat([m.reference(*tensors, key_mask=key_mask, **own) for m, tensors, own in parts], dim=1)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None, **streams: Tensor) -> Tensor:
        parts = self._split(q, k, None, streams)
        return torch.cat([m.dense_weights(*tensors[:2], key_mask=key_mask, **own) for m, tensors, own in parts], dim=1)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, **streams: Tensor
    ) -> tuple[Tensor, list[Any]]:
        q, k, v, key_mask, streams = self._prepared(q, k, v, key_mask, streams)
        results = [m.prefill(*tensors, key_mask, **own) for m, tensors, own in self._split(q, k, v, streams)]
        return torch.cat([out for out, _ in results], dim=1), [state for _, state in results]

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: list[Any], **streams: Tensor) -> tuple[Tensor, list[Any]]:
        q, k, v, _, streams = self._prepared(q, k, v, None, streams)
        parts = zip(self._split(q, k, v, streams), state, strict=True)
        results = [m.step(*tensors, own_state, **own) for (m, tensors, own), own_state in parts]
        return torch.cat([out for out, _ in results], dim=1), [new for _, new in results]

    def _split(
        self, q: Tensor | None, k: Tensor | None, v: Tensor | None, streams: Mapping[str, Tensor]
    ) -> list[tuple[Any, list[Tensor | None], dict[str, Tensor]]]:
        """(member, its heads of q, k and v, its heads of the streams it reads), for every member."""
        parts, start = [], 0
        for member, size in zip(self.members, self.sizes, strict=True):
            heads = slice(start, start + size)
            own = {stream.name: streams[stream.name][:, heads] for stream in member.supports.streams}  # type: ignore[union-attr]
            parts.append((member, [None if x is None else x[:, heads] for x in (q, k, v)], own))
            start += size
        return parts


def deal(heads: int, shares: Mapping[str, int]) -> list[int]:
    """Heads in proportion to the shares, at least one each; what is left over goes to the largest remainders.

    Raises ValueError where there are fewer heads than members.
    """
    if heads < len(shares):
        raise ValueError(f"mixed: {len(shares)} members need at least as many heads, received heads {heads}")
    total = sum(shares.values())
    exact = [heads * share / total for share in shares.values()]
    sizes = [max(1, int(part)) for part in exact]
    while sum(sizes) != heads:
        step = 1 if sum(sizes) < heads else -1
        open_to = [i for i, size in enumerate(sizes) if size + step >= 1]
        sizes[max(open_to, key=lambda i: step * (exact[i] - sizes[i]))] += step
    return sizes
