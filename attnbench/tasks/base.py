"""What a task is, and the registry of tasks: a data set per split, a metric, and the baselines that need no attention.

A task is usable without the trainer: `task.dataset("train")` is a torch Dataset of Items, `task.collate(items)` a
Batch, and `task.score(logits, batch)` counts. `task.batch("train")` is the whole split as one Batch, which a trainer
can index without touching single items. Answers come in three shapes:

    label     one class for the whole sequence     targets (batch,)            logits (batch, classes)
    tokens    a class for every labelled token     targets (batch, n)          logits (batch, n, classes)
    sequence  a sequence of the model's own        targets (batch, n_out)      logits (batch, n_out, vocab)

Targets of IGNORE enter neither the loss nor the metric.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from attnbench.errors import UserError, nearest

__all__ = [
    "IGNORE",
    "PAD",
    "SPLITS",
    "Batch",
    "Item",
    "Rows",
    "Score",
    "Task",
    "create_task",
    "list_tasks",
    "register_task",
    "task_class",
]

IGNORE = -100
PAD = 0  # every vocabulary keeps 0 for padding
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Item:
    """One example. `inputs` (n,) int64; `targets` as the answer's shape says, less the batch axis.

    `slices` says what makes the item hard, by name: one number per item, or one per target.
    """

    inputs: Tensor
    targets: Tensor
    slices: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Padded examples: inputs (batch, n), key_mask (batch, n) True at real tokens, targets, and slices like the targets.

    For sequence answers `decoder_inputs` (batch, n_out) is the target shifted right, beginning with the task's start
    token.
    """

    inputs: Tensor
    key_mask: Tensor
    targets: Tensor
    decoder_inputs: Tensor | None = None
    slices: Mapping[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> Batch:
        moved = {name: value.to(device) for name, value in self.slices.items()}
        decoder_inputs = None if self.decoder_inputs is None else self.decoder_inputs.to(device)
        return Batch(self.inputs.to(device), self.key_mask.to(device), self.targets.to(device), decoder_inputs, moved)

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, index: Tensor) -> Batch:
        """The examples at `index` (int64 or bool, on the same device), padded as they are here."""
        decoder_inputs = None if self.decoder_inputs is None else self.decoder_inputs[index]
        slices = {name: value[index] for name, value in self.slices.items()}
        return Batch(self.inputs[index], self.key_mask[index], self.targets[index], decoder_inputs, slices)


class Rows(Dataset[Item]):
    """The examples of a Batch one by one, without their padding."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, index: int) -> Item:
        batch = self.batch
        if not -len(batch) <= index < len(batch):  # what ends a for loop over a sequence
            raise IndexError(f"example {index} of {len(batch)}")
        real = batch.key_mask[index]
        targets = batch.targets[index]
        kept = None  # which positions of a target are the example's own
        if batch.decoder_inputs is not None:
            kept = targets != IGNORE
        elif targets.ndim == 1:
            kept = real
        slices = {name: value[index] for name, value in batch.slices.items()}
        if kept is not None:
            targets = targets[kept]
            slices = {name: value[kept] if value.ndim == 1 else value for name, value in slices.items()}
        return Item(batch.inputs[index][real], targets, slices)


@dataclass(frozen=True)
class Score:
    """Counts that add up over batches, so that no batch size changes a metric: value = correct / total.

    `by_slice` maps a slice's name and value to (correct, total).
    """

    correct: float
    total: int
    by_slice: Mapping[str, Mapping[str, tuple[float, int]]] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return self.correct / self.total if self.total else 0.0

    def __add__(self, other: Score) -> Score:
        merged: dict[str, dict[str, tuple[float, int]]] = {name: dict(rows) for name, rows in self.by_slice.items()}
        for name, rows in other.by_slice.items():
            into = merged.setdefault(name, {})
            for key, (correct, total) in rows.items():
                before = into.get(key, (0.0, 0))
                into[key] = (before[0] + correct, before[1] + total)
        return Score(self.correct + other.correct, self.total + other.total, merged)


class Task:
    """The base class of every task; a subclass takes its own keyword options and builds its splits.

    Class attributes: `name`; `answer` (label | tokens | sequence); `causal`, which patterns it allows, in order of
    preference; `metric` and `unit` ("accuracy", "fraction"), `higher_is_better`; `slice_names`, what the
    numbers of a slice stand for, where they are kinds and no quantity. Instance attributes, set in
    __init__: `length` (longest input), `output_length` (longest answer of a sequence task), `vocab` (input tokens, 0
    is padding), `classes`, `start` (the first decoder token of a sequence task).
    """

    name: ClassVar[str] = "unregistered"
    answer: ClassVar[str] = "label"
    causal: ClassVar[tuple[bool, ...]] = (False,)
    metric: ClassVar[str] = "accuracy"
    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool] = True
    slice_names: ClassVar[Mapping[str, Sequence[str]]] = {}

    length: int
    vocab: int
    classes: int
    output_length: int = 0
    start: int = 1
    options: dict[str, Any]

    def dataset(self, split: str, seed: int = 0) -> Dataset[Item]:
        """The examples of a split. Train may depend on the seed; validation and test never do."""
        raise NotImplementedError

    def batch(self, split: str, seed: int = 0) -> Batch:
        """All examples of a split at once, on the CPU."""
        examples: Any = self.dataset(split, seed)
        return self.collate([examples[index] for index in range(len(examples))])

    def stages(self) -> Sequence[Mapping[str, Any]]:
        """The curriculum: options of the easier tasks to train on first, with the share of the budget that each takes
        ({"share": 0.25, "options": {"pairs": 2}}). Empty where the task defines none; the task itself comes last."""
        return ()

    def baselines(self) -> dict[str, float]:
        """What needs no attention, by name, on the test split, in the metric's unit; `constant` is always among them."""
        raise NotImplementedError

    def data_hash(self) -> str:
        """A short hash of all that defines the data, for the records."""
        raise NotImplementedError

    def collate(self, items: Sequence[Item]) -> Batch:
        """Right-pads items into a batch."""
        inputs, key_mask = _pad([item.inputs for item in items], PAD)
        if self.answer == "label":
            targets = torch.stack([item.targets for item in items])
        else:
            targets, _ = _pad([item.targets for item in items], IGNORE)
        decoder_inputs = self.shifted(targets) if self.answer == "sequence" else None
        slices = {}
        for name in items[0].slices if items else ():
            values = [torch.as_tensor(item.slices[name]) for item in items]
            slices[name] = torch.stack(values) if values[0].ndim == 0 else _pad(values, IGNORE)[0]
        return Batch(inputs, key_mask, targets, decoder_inputs, slices)

    def shifted(self, targets: Tensor) -> Tensor:
        """Sequence targets (batch, n_out) as a decoder reads them: one to the right, behind the start token."""
        start = targets.new_full((len(targets), 1), self.start)
        decoder_inputs = torch.cat([start, targets[:, :-1]], dim=1)
        return decoder_inputs.masked_fill(decoder_inputs == IGNORE, PAD)

    def loss(self, logits: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy over the targets that count."""
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, -2).float(),
            batch.targets.flatten(),
            ignore_index=IGNORE,
            label_smoothing=label_smoothing,
        )

    def score(self, logits: Tensor, batch: Batch) -> Score:
        """Correct answers among those that count, in total and by slice."""
        counted = batch.targets != IGNORE
        hit = (logits.argmax(dim=-1) == batch.targets) & counted
        by_slice = {}
        for name, values in batch.slices.items():
            shaped = values if values.shape == hit.shape else values.unsqueeze(-1).expand_as(hit)
            rows, names = {}, self.slice_names.get(name)
            for value in shaped[counted].unique().tolist():
                here = counted & (shaped == value)
                rows[names[value] if names else str(value)] = (float(hit[here].sum()), int(here.sum()))
            by_slice[name] = rows
        return Score(float(hit.sum()), int(counted.sum()), by_slice)


def _pad(rows: Sequence[Tensor], fill: int) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=fill)
    return padded, torch.arange(padded.shape[1])[None] < lengths[:, None]


_tasks: dict[str, type[Task]] = {}
T = TypeVar("T", bound=type[Task])


def register_task(name: str) -> Callable[[T], T]:
    """Class decorator: makes a Task known under `name`. Raises ValueError where another object holds the name."""

    def decorate(cls: T) -> T:
        taken = _tasks.get(name)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"task {name!r} is registered twice: by {taken.__module__} and by {cls.__module__}")
        cls.name = name
        _tasks[name] = cls
        return cls

    return decorate


def list_tasks() -> list[str]:
    """Names of the registered tasks, sorted."""
    return sorted(_tasks)


def task_class(name: str) -> type[Task]:
    """The class of a task. Raises ValueError for an unknown name, suggesting the nearest."""
    if name not in _tasks:
        raise UserError(f"unknown task {name!r}{nearest(name, _tasks)}; valid tasks: {', '.join(list_tasks())}")
    return _tasks[name]


def create_task(name: str, **options: Any) -> Task:
    """Builds a task by name. Raises ValueError for an unknown name or option, naming the valid ones."""
    cls = task_class(name)
    valid = [parameter for parameter in inspect.signature(cls.__init__).parameters if parameter != "self"]
    for option in options:
        if option not in valid:
            raise UserError(
                f"task {name}: unknown option {option!r}{nearest(option, valid)}; valid options: {', '.join(valid)}"
            )
    task = cls(**options)
    task.options = dict(options)
    return task
