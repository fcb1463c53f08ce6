"""Attention over a block layout: one algorithm, shared by every variant whose queries see blocks of keys.

    sparse_attention(q, k, v, *, before, after, shift=0, band_mask=None, extra=None, extra_mask=None) -> (out, lse)
        Query i sees a band of keys round i + shift, read in place, and further keys listed for its tile. q, k, v
        (batch, heads, n, d).
    full_rows(q, k, v, key_mask=None) -> out
        Full attention, for the few queries of a sparse pattern that see everything.
    masked_attention(q, k, v, mask, *, dropout=0.0, grouped=False) -> out
        Fused attention under a mask, in which rows may be empty.
    dense_softmax(q, k, visible, key_mask=None) -> weights
        The explicit matrix, for dense definitions.

`out` has the dtype of v. `lse` (..., n_q) is the natural log of the sum of exponentials, in float32 (float64 for double
inputs), and differentiable. A query that sees nothing gets zeros, an lse of -inf and zero gradients. Under autocast the
inputs are cast to its dtype, as torch's own attention does. Sums and softmax statistics are in float32 at least. What a mask
hides must be finite, since its weight of zero multiplies it.

On CUDA a band goes to FlexAttention with a block mask; `backend(device, dtype, head_dim, listed=...)` says whether a call does.
Elsewhere, and for all else, the work goes through in cache-sized pieces. Only q, k, v, out and lse are saved, and backward
computes the pieces again. Each function is a custom operator with shapes for tracing, autograd and a flop formula of its own,
so that `torch.compile(fullgraph=True)`, `torch.export` and `torch.utils.flop_counter` see it.
"""

from attnbench.kernels.dense import dense_softmax, full_rows, masked_attention
from attnbench.kernels.sparse import backend, sparse_attention

__all__ = ["backend", "dense_softmax", "full_rows", "masked_attention", "sparse_attention"]
