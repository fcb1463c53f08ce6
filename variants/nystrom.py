"""Nystromformer: full attention approximated through landmarks, which are means over segments of the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, scaled_dot_product_attention

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.errors import UserError
from attnbench.kernels.inverses import inverse_times
from attnbench.kernels.tokens import whole_blocks
from attnbench.registry import register


def supports(options: Mapping[str, Any]) -> Supports:
    return Supports(
        padding=True,
        time=Growth("n landmarks d + landmarks^3", 1.0),
        memory=Growth("n d + landmarks^2", 1.0),
        small={"landmarks": 8},
        notes=(
            "no causal form: landmarks mix tokens of the whole length",
            "each head's pseudo-inverse starts from its own norms; the published code takes the batch's, which ties samples",
            "the depth-wise convolution that the published code adds to the output is an option, off by default",
        ),
    )


@register("nystrom", supports=supports)
class Nystrom(Variant):
    """Attention through landmarks.

    out = softmax(q K^T) pinv(softmax(Q K^T)) softmax(Q k^T) v,    scores over sqrt(head_dim)

    with landmarks Q and K (landmarks, head_dim), the means of q and of k over consecutive segments of ceil(m / landmarks) of a
    sample's m real tokens. The pseudo-inverse is iterated in float32 from Z = A^T / (|A|_1 |A|_inf):
    Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4.

    Args:
        landmarks: number of segments at most; an input of fewer tokens has one for each.
        iterations: of the pseudo-inverse.
        residual_kernel: width of a depth-wise convolution of v along the sequence, one filter a head, that is added to the
            output; an odd number, or None for none.

    Source: Xiong et al. 2021, "Nystromformer", equations 13 and 14 and section 3.3.
    """

    def __init__(
        self, *, landmarks: int = 64, iterations: int = 6, residual_kernel: int | None = None, **common: Any
    ) -> None:
        super().__init__(**common)
        for option, value in (("landmarks", landmarks), ("iterations", iterations)):
            if not isinstance(value, int) or value < 1:
                raise UserError(f"nystrom: {option} must be a whole number of at least 1, received {value!r}")
        if residual_kernel is not None and (not isinstance(residual_kernel, int) or residual_kernel % 2 != 1):
            raise UserError(f"nystrom: residual_kernel must be an odd number or None, received {residual_kernel!r}")
        self.landmarks, self.iterations, self.residual = landmarks, iterations, None
        if residual_kernel is not None:
            scale = residual_kernel**-0.5
            self.residual = nn.Parameter(torch.empty(self.heads, residual_kernel).uniform_(-scale, scale))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        queries, keys, slots = *(segment_means(x, self.landmarks, key_mask) for x in (q, k)), None
        if key_mask is not None:
            slots = filled_slots(key_mask, self.landmarks)
        seen, slots_seen = (None if mask is None else _some(mask)[:, None, None, :] for mask in (key_mask, slots))
        gathered = scaled_dot_product_attention(queries, k, v, attn_mask=seen)
        spread = self._inverted(queries, keys, slots, gathered).to(v)
        out = scaled_dot_product_attention(q, keys, spread, attn_mask=slots_seen)
        return out if self.residual is None else out + self._convolved(v)

    def _inverted(self, queries: Tensor, keys: Tensor, slots: Tensor | None, gathered: Tensor) -> Tensor:
        """pinv(softmax(Q K^T)) times what the landmarks gathered, in float32 at least; empty slots count for nothing."""
        wide = torch.promote_types(queries.dtype, torch.float32)
        with torch.autocast(queries.device.type, enabled=False):
            scores = queries.to(wide) @ keys.to(wide).mT * self.head_dim**-0.5
            if slots is None:
                weights = scores.softmax(dim=-1)
            else:
                rows, columns = slots[:, None, :, None], slots[:, None, None, :]
                weights = scores.masked_fill(rows & ~columns, -torch.inf).softmax(dim=-1) * (rows & columns)
            return pseudo_inverse(weights, self.iterations, gathered.to(wide))

    def _convolved(self, v: Tensor) -> Tensor:
        assert self.residual is not None
        filters = self.residual[:, None, :, None].to(v.dtype)
        return conv2d(v, filters, padding=(filters.shape[2] // 2, 0), groups=self.heads)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        batch, _, n, _ = k.shape
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), k.to(wide)
        real = torch.ones(batch, n, dtype=torch.bool, device=k.device) if key_mask is None else key_mask
        weights = []
        for sample, tokens in enumerate(real):
            places = tokens.nonzero()[:, 0].split(max(1, -(-int(tokens.sum()) // self.landmarks)))
            segments = [place for place in places if len(place)]
            if not segments:
                weights.append(q.new_zeros(self.heads, n, n))
                continue
            queries, keys = (torch.stack([x[sample, :, s].mean(dim=1) for s in segments], dim=1) for x in (q, k))
            near, core, far = (
                (a @ b.mT * self.head_dim**-0.5) for a, b in ((q[sample], keys), (queries, keys), (queries, k[sample]))
            )
            far = far.masked_fill(~tokens, -torch.inf)
            spread = pseudo_inverse(core.softmax(dim=-1)[None], self.iterations, far.softmax(dim=-1)[None])[0]
            weights.append(near.softmax(dim=-1) @ spread)
        dense = torch.stack(weights)
        if self.residual is not None:
            reach = self.residual.shape[1] // 2
            offset = torch.arange(n, device=k.device) - torch.arange(n, device=k.device)[:, None] + reach
            band = self.residual[:, offset.clamp(0, 2 * reach)] * ((offset >= 0) & (offset <= 2 * reach))
            dense = dense + band.to(wide) * real[:, None, None, :]
        return dense.to(q.dtype)


def pseudo_inverse(a: Tensor, iterations: int, right: Tensor) -> Tensor:
    """The iterated Moore-Penrose inverse, equation 14 of the source, times right (batch, heads, m, e).

    a: (batch, heads, m, m), weights at least 0 whose rows add up to 1 or, where empty, to 0; so |A|_inf is 1.
    """
    lead, norms = a.shape[:2], a.sum(dim=-2).amax(dim=-1).clamp(min=torch.finfo(a.dtype).tiny)
    a, norms, right = (x.flatten(0, 1) for x in (a, norms, right))
    return inverse_times(a, norms, right, iterations).unflatten(0, lead)


def segment_means(x: Tensor, landmarks: int, key_mask: Tensor | None) -> Tensor:
    """(batch, heads, slots, width): means of x (batch, heads, n, width) over each sample's segments of real tokens.

    x is zero at masked tokens; an empty slot's mean is zero.
    """
    batch, heads, n, width = x.shape
    if key_mask is None:
        size = -(-n // landmarks)
        counts = (n - torch.arange(0, n, size, device=x.device)).clamp(max=size)
        # Not the mean, whose gradient would be written out for every token before it is divided.
        return whole_blocks(x, size).unflatten(2, (-1, size)).sum(dim=3) * (1 / counts)[:, None].to(x.dtype)
    wide, slots = torch.promote_types(x.dtype, torch.float32), min(landmarks, n)
    slot = ((key_mask.cumsum(dim=1) - 1) // _sizes(key_mask, landmarks)).clamp(min=0)
    slot = slot + slots * torch.arange(batch, device=x.device)[:, None]
    tokens = x.transpose(1, 2).reshape(batch * n, heads * width).to(wide)
    sums = tokens.new_zeros(batch * slots, heads * width).index_add(0, slot.flatten(), tokens)
    counts = tokens.new_zeros(batch * slots).index_add(0, slot.flatten(), key_mask.flatten().to(wide))
    means = (sums / counts.clamp(min=1)[:, None]).view(batch, slots, heads, width).transpose(1, 2)
    return means.to(x.dtype)


def filled_slots(key_mask: Tensor, landmarks: int) -> Tensor:
    """(batch, slots) bool: which segments have a token."""
    slot = torch.arange(min(landmarks, key_mask.shape[1]), device=key_mask.device)
    return slot * _sizes(key_mask, landmarks) < key_mask.sum(dim=1, keepdim=True)


def _sizes(key_mask: Tensor, landmarks: int) -> Tensor:
    """(batch, 1): tokens in a segment of each sample."""
    return (-(-key_mask.sum(dim=1, keepdim=True) // landmarks)).clamp(min=1)


def _some(mask: Tensor) -> Tensor:
    """The mask, or all where it is empty: what is seen then has values of zero, and a softmax over nothing is undefined."""
    return mask | ~mask.any(dim=1, keepdim=True)
