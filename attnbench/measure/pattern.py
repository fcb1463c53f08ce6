"""Who sees whom: the mixing matrix of a variant, found by probing it and not by trusting its own mask code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from einops import rearrange, repeat
from numpy.typing import NDArray
from torch import Tensor

from attnbench.measure.bench import attention_inputs
from attnbench.measure.workload import Workload

__all__ = ["pattern"]

Matrix = NDArray[np.float64]


def pattern(
    variant: str,
    n: int,
    *,
    causal: bool = False,
    options: Mapping[str, Any] | None = None,
    heads: int = 4,
    head_dim: int = 16,
    seed: int = 0,
) -> Matrix:
    """The (n, n) matrix of how much query i takes from position j, averaged over heads, for inputs drawn from N(0, 1).

    Where the output is linear in v these are the weights themselves, found by letting one position at a time speak;
    elsewhere the Frobenius norm of the Jacobian d out_i / d v_j. Global tokens that a variant asks for stand in
    front, so that the matrix is larger by their number.

    Raises:
        Unsupported: the variant does not declare what is asked.
        UserError: the variant or an option does not exist.
    """
    workload = Workload(
        variant, options or {}, causal=causal, length=n, heads=heads, head_dim=head_dim, dtype="float32"
    )
    module, (q, k, v), streams = attention_inputs(workload, seed=seed)
    module.eval()
    probe = _weights if module.supports.linear_in_v else _jacobian
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return probe(module, q, k, v, streams).double().numpy()


@torch.no_grad()
def _weights(module: Any, q: Tensor | None, k: Tensor | None, v: Tensor, streams: dict[str, Tensor]) -> Tensor:
    """Each of a head's channels carries the voice of one position; a batch holds as many samples as that takes."""
    n, width = v.shape[2], v.shape[3]
    samples = -(-n // width)
    voices = torch.eye(samples * width)[:n]
    voices = repeat(voices, "n (samples width) -> samples heads n width", width=width, heads=v.shape[1])

    def same(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.expand(samples, -1, -1, -1)

    out = module(same(q), same(k), voices, **{name: same(stream) for name, stream in streams.items()})
    return rearrange(out.mean(dim=1), "samples n width -> n (samples width)")[:, :n]


def _jacobian(module: Any, q: Tensor | None, k: Tensor | None, v: Tensor, streams: dict[str, Tensor]) -> Tensor:
    v = v.clone().requires_grad_()
    out = module(q, k, v, **streams)
    rows = []
    for position in range(out.shape[2]):
        # Heads are summed before the gradient is taken, since each head's gradient lands in its own share of v.
        channels = [
            torch.autograd.grad(out[0, :, position, channel].sum(), v, retain_graph=True)[0][0]
            for channel in range(out.shape[3])
        ]
        norms = torch.stack(channels).square().sum(dim=(0, 3)).sqrt()  # (kv_heads, n)
        rows.append(norms.mean(dim=0))
    return torch.stack(rows)
