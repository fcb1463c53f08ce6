"""Linear attention by running sums: causal or not, one pass over the sequence in chunks, in linear time and memory.

With weights phi(q_i) . phi(k_j) 2^(s_j) the keys and values enter an output only through the sums

    S = sum_j phi(k_j) 2^(s_j - top) [v_j, 1]      (features, e + 1)

where the last column, held apart, is the normaliser and `top` the largest scale so far. Every pass is a list of steps, each
with a chunk of keys to take into the sums, a chunk of queries to read them, or, where causal, both: then the queries read the
sums as they were before, and the keys of their own chunk through an explicit triangle. For backward, features of the inputs'
own size and type are saved in their stead; larger ones are computed again, chunk by chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels.features import FeatureMap, feature_map
from attnbench.kernels.operators import operator
from attnbench.kernels.sums import Gradient, Keys, Queries, Sums, absorb_, absorb_backward, read, read_backward
from attnbench.kernels.tokens import empty_tokens, flat_rows

__all__ = ["Sums", "explicit_weights", "extend", "linear_attention"]

CHUNK_ELEMENTS = {"cpu": 2**18}  # of a chunk of q: fewer and larger cost more in caches than they save in steps
DEVICE_ELEMENTS = 2**22
ALIGNED = 64  # chunks are a multiple of it
TRIANGLE = 128  # rows of a causal chunk: work inside it grows with their square
Step = tuple[slice | None, slice | None]  # keys to take in, queries that read


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature: str = "elu",
    projection: Tensor | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Sums]:
    """Attention whose weights are products of features.

    out_i = sum_j w_ij v_j / sum_j w_ij,    w_ij = phi(q_i) . phi(k_j), j real and, where causal, not later than i

    Args:
        q: (batch, heads, n_q, d).
        k: (batch, heads, n_k, d).
        v: (batch, heads, n_k, e).
        feature: name of the map phi: "elu", "relu" or "random".
        projection: (features, d), for "random".
        key_mask: (batch, n_k) bool, True = a real key. What it hides must still be finite.
        causal: with n_q != n_k the last query sees every key.

    Returns:
        out (batch, heads, n_q, e) in v's dtype, zero where no weight is above zero, and the sums over all keys, from which
        `extend` goes on. Sums are in float32, or float64 for double inputs. Gradients flow through out alone.
    """
    keep = feature != "random" and q.dtype == _accumulator(q)
    keep = keep and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    with torch.autocast(q.device.type, enabled=False):
        out, _, total, norm, top, _, _ = _forward(q, k, v, key_mask, projection, feature, causal, keep)
    return out, Sums(total, norm, top)


@torch.no_grad()
def extend(
    sums: Sums, q: Tensor, k: Tensor, v: Tensor, *, feature: str = "elu", projection: Tensor | None = None
) -> tuple[Tensor, Sums]:
    """The output of one more token (n_q = n_k = 1) that sees itself and all before it, and the sums with it; no gradients."""
    phi = feature_map(feature, projection, sums.total.dtype, together=False)
    with torch.autocast(q.device.type, enabled=False):
        sums = absorb_(sums.flat().copied(), Keys.load(phi, k, v, None))
        out = torch.empty_like(v)
        _normalise(*read(sums, Queries.load(phi, q), None, None), out, placed=False)
    return out, sums.unflat(*q.shape[:2])


def explicit_weights(queries: Tensor, keys: Tensor, *, key_mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """The same weights in full, (batch, heads, n_q, n_k), from features (batch, heads, n, features): the slow statement."""
    weights = queries @ keys.mT
    if causal:
        weights = weights.tril(keys.shape[2] - queries.shape[2])
    if key_mask is not None:
        weights = weights * key_mask[:, None, None, :]
    divisor = weights.sum(dim=-1, keepdim=True)
    return weights / divisor.masked_fill(divisor == 0, torch.inf)


def _steps(q: torch.Size, n_k: int, causal: bool, device: str, parts: tuple[int, int]) -> list[Step]:
    """Steps of at most 1 / parts of the sequence each, so that a few temporaries of that size are small beside the inputs.

    parts: of keys, or of queries and keys together, and of queries alone.
    """
    batch, heads, n_q, d = q
    most = CHUNK_ELEMENTS.get(device, DEVICE_ELEMENTS) // (batch * heads * d)
    sizes = (min(most, -(-max(n_q, n_k) // part)) for part in parts)
    # So that rows of features by tokens begin well in memory.
    size, alone = (max(1, rows // ALIGNED) * ALIGNED for rows in sizes)
    if not causal:
        reads: list[Step] = [(None, chunk) for chunk in _chunks(0, n_q, alone)]
        return [(chunk, None) for chunk in _chunks(0, n_k, size)] + reads
    earlier = max(0, n_k - n_q)  # keys before the first query's own; queries before the first key have no step
    own = _chunks(earlier, n_k, min(size, TRIANGLE))
    pairs: list[Step] = [(keys, slice(keys.start + n_q - n_k, keys.stop + n_q - n_k)) for keys in own]
    return [(chunk, None) for chunk in _chunks(0, earlier, size)] + pairs


def _parts(projection: Any, *, backward: bool = False) -> tuple[int, int]:
    """Into how many steps a pass is cut at least: backward holds more at once, and so do random features, which are wider.

    Elementwise features of queries alone go backwards in memory that waits for the keys' gradient.
    """
    random = projection is not None
    keys = 1 + backward + random
    return keys, keys if random else 1


def _chunks(start: int, stop: int, size: int) -> list[slice]:
    return [slice(at, min(at + size, stop)) for at in range(start, stop, size)]


def _normalise(summed: Tensor, norm: Tensor, out: Tensor, *, placed: bool) -> Tensor:
    """Writes outputs and returns the rows' divisors: infinite where no weight is above zero, which makes both passes zero.

    placed: whether `summed` lies where `out` does.
    """
    divisor = norm.masked_fill_(norm == 0, torch.inf)
    if placed:
        summed.div_(divisor)
    else:
        torch.div(summed.unflatten(0, out.shape[:2]), divisor.unflatten(0, out.shape[:2]), out=out)
    return divisor


def _unnormalised(
    grad: Tensor, out: Tensor, divisor: Tensor, room: Tensor | None, scratch: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Backward of `_normalise`: the gradients of the numerators, in `room` if there is one, and of the divisors."""
    grad, out = (x.flatten(0, 1).to(divisor.dtype) for x in (grad, out))
    scaled = torch.div(grad, divisor, out=room)
    return scaled, torch.mul(scaled, out, out=scratch).sum(dim=-1, keepdim=True).neg_()


def _accumulator(q: Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)


@operator("attnbench::linear_attention")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    projection: Tensor | None,
    feature: str,
    causal: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    (batch, heads, n_q, d), n_k, e, acc = q.shape, k.shape[2], v.shape[3], _accumulator(q)
    phi = feature_map(feature, projection, acc, together=causal)
    sums = Sums.empty(q.new_empty(0, dtype=acc), batch * heads, phi.width(d), e)
    divisors, kept_q, kept_k = q.new_empty(batch * heads, n_q, 1, dtype=acc), *_kept(q, k, keep)
    # Random features are larger than outputs, which therefore wait until those of the keys have left.
    out = empty_tokens(v, n_q, e) if projection is None else None
    spare = out if out is not None and (e, out.dtype) == (d, acc) else None  # what is not written yet
    for key_rows, query_rows in _steps(q.shape, n_k, causal, q.device.type, _parts(projection)):
        keys = None
        if key_rows is not None:
            place = slice(key_rows.stop - key_rows.start) if query_rows is None else query_rows
            room = None if spare is None or n_q < key_rows.stop - key_rows.start else spare[:, :, place]
            keys = _load(phi, k, v, key_mask, key_rows, kept_k[:, :, key_rows] if keep else None, room)
        if query_rows is not None:
            room = None if spare is None else spare[:, :, query_rows]
            queries = Queries.load(phi, q[:, :, query_rows], kept_q[:, :, query_rows] if keep else None, room)
            out = empty_tokens(v, n_q, e) if out is None else out
            own = out[:, :, query_rows]
            room = flat_rows(own, e, acc)
            summed, norm = read(sums, queries, keys, room)
            del queries
            divisors[:, query_rows] = _normalise(summed, norm, own, placed=room is not None)
            del summed
        if keys is not None:
            sums = absorb_(sums, keys)
            del keys
    out = empty_tokens(v, n_q, e) if out is None else out
    if causal and n_q > n_k:
        early = slice(0, n_q - n_k)
        out[:, :, early] = 0
        divisors[:, early] = torch.inf
        if keep:
            kept_q[:, :, early] = 0
    return out, divisors, *sums.unflat(batch, heads), kept_q, kept_k


def _kept(q: Tensor, k: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """Room for the features of queries and keys."""
    return (empty_tokens(q, *q.shape[2:]), empty_tokens(k, *k.shape[2:])) if keep else (q.new_empty(0), k.new_empty(0))


def _load(
    phi: FeatureMap,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    rows: slice,
    kept: Tensor | None = None,
    spare: Tensor | None = None,
) -> Keys:
    return Keys.load(phi, k[:, :, rows], v[:, :, rows], None if key_mask is None else key_mask[:, rows], kept, spare)


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Any, projection: Any, feature: str, causal: bool, keep: bool
) -> tuple[Tensor, ...]:
    (batch, heads, n_q, d), e, acc = q.shape, v.shape[3], _accumulator(q)
    features = d if projection is None else projection.shape[0]
    out, divisors = empty_tokens(v, n_q, e), q.new_empty(batch * heads, n_q, 1, dtype=acc)
    total, norm = (q.new_empty(batch, heads, features, size, dtype=acc) for size in (e, 1))
    return out, divisors, total, norm, q.new_empty(batch, heads, dtype=acc), *_kept(q, k, keep)


@operator("attnbench::linear_attention_backward")
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    projection: Tensor | None,
    feature: str,
    causal: bool,
    given: bool,
    out: Tensor,
    divisors: Tensor,
    total: Tensor,
    norm: Tensor,
    top: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; where `given`, q and k are features already."""
    phi = feature_map(feature, projection, divisors.dtype, together=causal, given=given)
    key_mask = None if given else key_mask
    steps = _steps(q.shape, k.shape[2], causal, q.device.type, _parts(projection, backward=True))
    states = [Sums(total, norm, top).flat()] * (len(steps) + 1)
    if causal:  # every step has read sums of its own
        states[0] = Sums.empty(divisors, *states[-1].total.shape)
        for at, (key_rows, _) in enumerate(steps[:-1]):
            assert key_rows is not None
            states[at + 1] = absorb_(states[at].copied(), _load(phi, k, v, key_mask, key_rows))
    dq, dk, dv = (empty_tokens(x, *x.shape[2:]) for x in (q, k, v))
    if causal:
        dq[:, :, : max(0, q.shape[2] - k.shape[2])] = 0
    dsums = Gradient(*(torch.zeros_like(x) for x in states[-1][:2]))
    width = v.shape[3]

    def go_back(step: Step, before: Sums, after: Sums, dsums: Gradient) -> Gradient:
        key_rows, query_rows = step
        keys, dkeys, dvalues = None, total, total  # without keys, nothing is added to their gradients
        if key_rows is not None:
            keys, own_k, own_v = _load(phi, k, v, key_mask, key_rows), dk[:, :, key_rows], dv[:, :, key_rows]
            rooms = phi.gradient_room("keys", own_k, total.dtype), flat_rows(own_v, width, total.dtype)
            dkeys, dvalues, dsums = absorb_backward(dsums, keys, before, after, rooms)
        if query_rows is not None:
            own_q = dq[:, :, query_rows]
            scratch, room_q = flat_rows(own_q, width, total.dtype), phi.gradient_room("queries", own_q, total.dtype)
            # Where queries and keys are not met together, nothing has been written to the keys' gradient yet.
            waiting = not causal and query_rows.stop <= k.shape[2]
            free = flat_rows(dk[:, :, query_rows], width, total.dtype) if waiting else None
            own_out, own_grad = out[:, :, query_rows], grad[:, :, query_rows]
            own = _unnormalised(own_grad, own_out, divisors[:, query_rows], free, scratch)
            queries = Queries.load(phi, q[:, :, query_rows])
            dqueries, dsums = read_backward(*own, before, queries, keys, dkeys, dvalues, dsums, room_q)
            del own
            phi.queries_backward(queries.x, queries.phi, dqueries, own_q, free)
        if keys is not None and key_rows is not None:
            if rooms[1] is None:
                own_v.copy_(dvalues.unflatten(0, dv.shape[:2]))
            phi.keys_backward(keys.x, keys.phi, dkeys, own_k)
        return dsums

    for at in reversed(range(len(steps))):
        dsums = go_back(steps[at], states[at], states[at + 1], dsums)
    return dq, dk, dv


@_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return empty_tokens(q, *q.shape[2:]), empty_tokens(k, *k.shape[2:]), empty_tokens(v, *v.shape[2:])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, key_mask, projection, ctx.feature, ctx.causal, ctx.keep = inputs
    *results, kept_q, kept_k = output
    q, k = (kept_q, kept_k) if ctx.keep else (q, k)
    ctx.save_for_backward(q, k, v, key_mask, projection, *results)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 8
    *inputs, out, divisors, total, norm, top = ctx.saved_tensors
    with torch.autocast(grad.device.type, enabled=False):
        gradients = _backward(*inputs, ctx.feature, ctx.causal, ctx.keep, out, divisors, total, norm, top, grad)
    return *gradients, None, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def _products(q: Any, k: Any, v: Any, projection: Any, causal: bool, *, backward: bool = False) -> tuple[int, int, int]:
    """Multiply-adds of the features, of sums taken in and read, and of the triangles inside chunks."""
    (batch, heads, n_q, d), n_k, width = q, k[2], v[3] + 1
    features = d if projection is None else projection[0]
    mapped = 0 if projection is None else (n_q + n_k) * features * d
    steps = _steps(q, n_k, causal, "cpu", _parts(projection, backward=backward))
    inside = sum((keys.stop - keys.start) ** 2 for keys, queries in steps if keys and queries)
    lead = batch * heads
    return lead * mapped, lead * (n_q + n_k) * features * width, lead * inside * (features + width)


@register_flop_formula(torch.ops.attnbench.linear_attention)
def _flops(
    q: Any, k: Any, v: Any, key_mask: Any, projection: Any, feature: str, causal: bool, *rest: Any, **kwargs: Any
) -> int:
    return 2 * sum(_products(q, k, v, projection, causal))


@register_flop_formula(torch.ops.attnbench.linear_attention_backward)
def _backward_flops(
    q: Any, k: Any, v: Any, key_mask: Any, projection: Any, feature: str, causal: bool, *rest: Any, **kwargs: Any
) -> int:
    mapped, summed, inside = _products(q, k, v, projection, causal, backward=True)
    return 2 * (2 * mapped + 2 * summed + 3 * inside)
