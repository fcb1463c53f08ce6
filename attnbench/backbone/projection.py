"""The linear layer of the backbone: torch's, by the quicker of the two libraries that torch brings along."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

__all__ = ["Projection"]

ROWS = 128  # below it there is nothing to win


class Projection(nn.Linear):
    """x W^T + b for x (..., in_features), with the parameters, the state and the result of `torch.nn.Linear`.

    On a CPU in float32 torch's linear layer goes to MKL, which on x86 processors of other makers than its own keeps to older
    instructions; its convolution goes to oneDNN, which asks the processor what it can do. On such processors rows are taken
    as the pixels of an image one pixel wide whose channels lie side by side: the same numbers in the same memory, and a
    convolution of width 1 is the same sum.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self._as_convolution(x):
            return super().forward(x)
        image = x.reshape(1, -1, 1, self.in_features).permute(0, 3, 1, 2)
        out = conv2d(image, self.weight[:, :, None, None], self.bias)
        return out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], self.out_features)

    def _as_convolution(self, x: Tensor) -> bool:
        # Who counts or traces operators sees a linear layer.
        if torch.compiler.is_compiling() or not _slighted_by_mkl() or is_in_torch_dispatch_mode():
            return False
        plain = x.device.type == "cpu" and x.dtype == self.weight.dtype == torch.float32
        onednn = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
        return plain and onednn and x.numel() >= ROWS * self.in_features and not torch.is_autocast_enabled("cpu")


@functools.cache
def _slighted_by_mkl(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this is an x86 processor that MKL does not run at its full width."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    maker = cpuinfo.read_text() if cpuinfo.exists() else platform.processor()
    return "AuthenticAMD" in maker or "HygonGenuine" in maker
