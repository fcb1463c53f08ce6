"""Bytes that decoding carries from token to token."""

from __future__ import annotations

from dataclasses import replace

from attnbench.contract import state_bytes
from attnbench.measure.bench import build
from attnbench.measure.workload import Measurement, Workload

__all__ = ["measure_state"]


def measure_state(workload: Workload) -> Measurement:
    """Bytes of the decoding state after a prompt of `length` tokens, over the whole batch (and all layers, in scope "model").

    Raises:
        Unsupported: the variant does not decode, or is not causal here.
        UserError: the variant, an option or the device does not exist.
    """
    size = float(state_bytes(build(replace(workload, mode="decode")).state))
    return Measurement(size, "bytes", [size], {"per_token": size / (workload.batch * workload.length)})
