"""What is measured, and what comes of it: plain data, ready for JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch

from attnbench.errors import UserError, nearest
from attnbench.registry import variant_info

__all__ = ["DTYPES", "MODES", "SCOPES", "Measurement", "Workload", "check_device", "refusals"]

SCOPES = ("attention", "model")
MODES = ("forward", "backward", "train_step", "decode")
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Workload:
    """One variant at one length, and the way it is used.

    variant: a registered name.  options: its own options, and kv_heads or dropout of the common ones.
    scope: "attention" is the variant alone on q, k, v and its streams, without any projection; "model" is the shared
        Transformer's body, `depth` layers of width `dim`.
    mode: what one call does.
        forward: the output, with no gradient recorded.
        backward: the gradients of everything that has one, through a graph that a forward pass outside the measurement left.
        train_step: forward, backward, and a step of AdamW on the parameters, where there are any.
        decode: one new token, after a prompt of `length` tokens.
    causal, device, dtype, batch, length (tokens), heads, head_dim (attention), dim and depth (model).

    Raises:
        UserError: a field is not one of its valid values, or not a whole number of at least 1.
    """

    variant: str
    options: Mapping[str, Any] = field(default_factory=dict)
    scope: str = "attention"
    mode: str = "forward"
    causal: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    batch: int = 1
    length: int = 1024
    heads: int = 8
    head_dim: int = 64
    dim: int = 512
    depth: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", dict(self.options))
        for name, valid in (("scope", SCOPES), ("mode", MODES), ("dtype", DTYPES)):
            value = getattr(self, name)
            if value not in valid:
                raise UserError(f"workload: unknown {name} {value!r}{nearest(value, valid)}; valid: {', '.join(valid)}")
        for name in ("batch", "length", "heads", "head_dim", "dim", "depth"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"workload: {name} must be a whole number of at least 1, received {value!r}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Workload:
        """A workload from JSON-ready data. Raises UserError for an unknown key."""
        valid = [item.name for item in fields(cls)]
        for name in values:
            if name not in valid:
                raise UserError(f"workload: unknown key {name!r}{nearest(name, valid)}; valid: {', '.join(valid)}")
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """The workload as JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True)
class Measurement:
    """A number with its unit, the raw samples that it is the median of (one where it is exact), and what else was seen."""

    value: float
    unit: str
    samples: Sequence[float] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, samples: Sequence[float], unit: str, details: Mapping[str, Any] | None = None) -> Measurement:
        """The median of samples."""
        return cls(statistics.median(samples), unit, list(samples), dict(details or {}))

    def as_dict(self) -> dict[str, Any]:
        """The measurement as JSON-ready data."""
        return {
            "value": self.value,
            "unit": self.unit,
            "samples": list(self.samples),
            "details": dict(self.details),
        }


def refusals(workload: Workload) -> list[str]:
    """Every reason why the workload is unsupported, read from the variant's capabilities alone; empty where it is not.

    Raises UserError where the variant or an option of it is unknown.
    """
    info = variant_info(workload.variant, **{**workload.options, "causal": workload.causal, "max_len": workload.length})
    decode = workload.mode == "decode"
    reasons = info.supports.refusals(
        workload.variant,
        causal=workload.causal or decode,
        decode=decode,
        dropout=workload.options.get("dropout", 0) > 0,
        max_len=workload.length,
    )
    if decode and not workload.causal and info.supports.causal:
        reasons.append("decoding is causal: measure it with causal = true")
    return reasons


def check_device(device: str) -> torch.device:
    """The device of a name such as "cpu", "cuda", "cuda:1" or "mps".

    Raises UserError where torch does not see it here.
    """
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device!r}; valid: cpu, cuda, mps") from None
    seen = ["cpu"]
    if (
        wanted.type != "cpu"
    ):  # a look at an accelerator starts its runtime, so that only those who ask for one pay for it
        seen += ["cuda"] if torch.cuda.is_available() else []
        seen += ["mps"] if torch.backends.mps.is_available() else []
    if wanted.type not in seen:
        raise UserError(f"device {device!r} was asked for, and torch sees none here; available: {', '.join(seen)}")
    if wanted.type == "cuda" and wanted.index is not None and wanted.index >= torch.cuda.device_count():
        raise UserError(
            f"device {device!r} was asked for, and torch sees {torch.cuda.device_count()} CUDA devices here"
        )
    return wanted
