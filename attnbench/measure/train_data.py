"""A split as whole tensors, and the order in which training reads it: no Python per example on the way to the model."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.errors import UserError
from attnbench.tasks import IGNORE, Batch, Task

__all__ = ["Shuffle", "Split"]

WIDTH_STEP = 16  # batches are cut to a multiple of this, so that their shapes, whose operations are counted, stay few


class Split:
    """All examples of a split in the smallest integer types that hold them; batches are cut out by row.

    Raises UserError where the split is empty.
    """

    def __init__(self, task: Task, split: str, seed: int = 0) -> None:
        whole = task.batch(split, seed)
        self.count = len(whole)
        if self.count == 0:
            raise UserError(f"task {task.name}: its {split} split is empty")
        self.inputs, self.key_mask, self.targets = _narrow(whole.inputs), whole.key_mask, _narrow(whole.targets)
        self.decoder_inputs = None if whole.decoder_inputs is None else _narrow(whole.decoder_inputs)
        self.slices = {name: _narrow(values) for name, values in whole.slices.items()}
        self.padded = not bool(self.key_mask.all())
        self.widths = _reach(self.key_mask)
        self.answer_widths = self.widths if task.answer == "tokens" else None
        if task.answer == "sequence":
            self.answer_widths = _reach(whole.targets != IGNORE)

    def batch(self, rows: Tensor) -> Batch:
        """The examples of these rows, cut to the longest of them."""
        width = self._width(self.widths[rows], self.inputs)
        out_width = None if self.answer_widths is None else self._width(self.answer_widths[rows], self.targets)

        def cut(tensor: Tensor) -> Tensor:
            tensor = tensor[rows] if tensor.ndim == 1 or out_width is None else tensor[rows, :out_width]
            return tensor if tensor.is_floating_point() else tensor.long()

        return Batch(
            inputs=self.inputs[rows, :width].long(),
            key_mask=self.key_mask[rows, :width],
            targets=cut(self.targets),
            decoder_inputs=None if self.decoder_inputs is None else cut(self.decoder_inputs),
            slices={name: cut(values) for name, values in self.slices.items()},
        )

    @staticmethod
    def _width(widths: Tensor, tensor: Tensor) -> int:
        longest = max(int(widths.max()), 1)
        return min(-(-longest // WIDTH_STEP) * WIDTH_STEP, tensor.shape[1])


class Shuffle:
    """Endless batches of row numbers: each row once in every pass, in an order that the seed alone decides."""

    def __init__(self, count: int, batch: int, seed: int) -> None:
        self.count, self.batch = count, batch
        self.generator = torch.Generator().manual_seed(seed)
        self.order = torch.empty(0, dtype=torch.int64)

    def next(self) -> Tensor:
        while len(self.order) < self.batch:
            self.order = torch.cat([self.order, torch.randperm(self.count, generator=self.generator)])
        rows, self.order = self.order[: self.batch], self.order[self.batch :]
        return rows

    def state_dict(self) -> dict[str, Tensor]:
        return {"order": self.order.clone(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.order = state["order"]
        self.generator.set_state(state["generator"])


def _narrow(values: Tensor) -> Tensor:
    """Whole numbers in the smallest type that holds them all; a long data set is read far more often than it is made."""
    if values.dtype != torch.int64 or not values.numel():
        return values
    low, high = int(values.min()), int(values.max())
    for kind in (torch.int8, torch.int16, torch.int32):
        if torch.iinfo(kind).min <= low and high <= torch.iinfo(kind).max:
            return values.to(kind)
    return values


def _reach(mask: Tensor) -> Tensor:
    """(rows,) how far each row's last True stands from the start."""
    return (mask * torch.arange(1, mask.shape[1] + 1)).amax(dim=1)
