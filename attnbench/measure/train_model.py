"""The model that a task needs, and its score on a split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.backbone import MultiHeadAttention, Transformer
from attnbench.errors import UserError
from attnbench.measure.train_data import Split
from attnbench.tasks import Batch, Score, Task, create_task

__all__ = [
    "at_lengths",
    "build_model",
    "evaluate",
    "evaluate_generated",
    "logits_of",
    "optimizer_groups",
    "parameter_counts",
]


def at_lengths(task: str, options: Mapping[str, Any], lengths: Sequence[int]) -> list[Task]:
    """The same task at other lengths. Raises UserError where it has no option `length`."""
    return [create_task(task, **{**options, "length": length}) for length in lengths]


def build_model(
    task: Task,
    variant: str,
    options: Mapping[str, Any],
    model: Mapping[str, Any],
    *,
    causal: bool,
    longer: Sequence[Task] = (),
) -> Transformer:
    """The shared backbone, sized for a task: its vocabulary, classes, answer and longest length, or that of `longer` ones.

    `model` holds any further argument of Transformer. What it says of a decoder and its cross-attention counts where the task
    needs an encoder-decoder, since one model is described for all tasks of a sweep.

    Raises:
        Unsupported: a variant does not declare its use here.
        UserError: the task does not allow this causality, or an option is unknown.
    """
    if causal not in task.causal:
        allowed = " or ".join(f"causal={value}" for value in task.causal)
        raise UserError(f"task {task.name} allows {allowed}, received causal={causal}")
    sequence = task.answer == "sequence"
    architecture = model.get("architecture") or ("encoder-decoder" if sequence else "decoder" if causal else "encoder")
    joined = architecture == "decoder"  # input and answer are one sequence
    ends = [(each.length, each.output_length) for each in (task, *longer)]
    longest = max(sum(end) if joined else max(end) for end in ends)
    settings = {
        "vocab": task.vocab,
        "answer": task.answer,
        "classes": None if sequence else task.classes,
        "architecture": architecture,
        "variant": variant,
        "options": options,
        "max_len": longest,
    }
    taken = sorted(set(model) & (set(settings) - {"architecture"}))
    if taken:
        raise UserError(
            f"{', '.join(taken)} of a model follow from the task and the variant, and are not options of it"
        )
    if architecture != "encoder-decoder":
        model = {name: value for name, value in model.items() if not name.startswith(("decoder_", "cross_"))}
    return Transformer(**{**settings, **model, "architecture": architecture})


def logits_of(model: nn.Module, batch: Batch, padded: bool) -> Tensor:
    """The model's answer to a batch. Without padding no mask is passed, so that variants without masks can be trained."""
    key_mask = batch.key_mask if padded else None
    return model(batch.inputs, key_mask=key_mask, **_second(batch))


def _second(batch: Batch) -> dict[str, Tensor]:
    return {} if batch.decoder_inputs is None else {"decoder_inputs": batch.decoder_inputs}


@torch.no_grad()
def evaluate(
    model: nn.Module, task: Task, rows: Split, *, batch: int, device: torch.device, precision: torch.dtype | None = None
) -> Score:
    """The score on a split, in eval and with the random state as it was. No batch size changes it beyond rounding."""
    total = Score(0.0, 0)
    with _evaluating(model, device), torch.autocast(device.type, precision, enabled=precision is not None):
        for begin in range(0, rows.count, batch):
            part = rows.batch(torch.arange(begin, min(begin + batch, rows.count))).to(device)
            total = total + task.score(logits_of(model, part, rows.padded).float(), part)
    return total


@torch.no_grad()
def evaluate_generated(
    model: Transformer, task: Task, rows: Split, *, batch: int, device: torch.device
) -> dict[str, float]:
    """What a sequence model writes by itself, greedily, from the start token on, against the right answer.

    token: share of tokens that are right. exact: share of whole answers that are.
    """
    right, tokens, exact = 0, 0, 0
    with _evaluating(model, device):
        for begin in range(0, rows.count, batch):
            part = rows.batch(torch.arange(begin, min(begin + batch, rows.count))).to(device)
            key_mask = part.key_mask if rows.padded else None
            width = part.targets.shape[1]
            written = model.generate(part.inputs, key_mask=key_mask, max_new=width, start=task.start)
            counted = part.targets >= 0
            hit = (written == part.targets) & counted
            right, tokens = right + int(hit.sum()), tokens + int(counted.sum())
            exact += int((hit == counted).all(dim=1).sum())
    return {"token": right / max(tokens, 1), "exact": exact / rows.count}


@contextmanager
def _evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode and the random state set aside, both put back at the end."""
    training = model.training
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        model.eval()
        try:
            yield
        finally:
            model.train(training)


def optimizer_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Decay pulls on matrices alone; norms, biases and single vectors are left free."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]


def parameter_counts(model: Transformer) -> dict[str, int]:
    """Learned numbers: all of them, and those of the variants alone, their projections included."""
    attention = {
        id(parameter): parameter.numel()
        for module in model.modules()
        if isinstance(module, MultiHeadAttention)
        for parameter in module.parameters()
    }
    return {"total": sum(parameter.numel() for parameter in model.parameters()), "attention": sum(attention.values())}
