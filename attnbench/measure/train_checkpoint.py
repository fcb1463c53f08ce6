"""Checkpoints of a training: plain data and tensors, read with weights_only=True, replaced as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from attnbench.backbone import Transformer
from attnbench.errors import UserError
from attnbench.measure.train_model import at_lengths, build_model
from attnbench.tasks import Task, create_task

__all__ = ["FORMAT", "load", "random_state", "restore", "restore_random_state", "save"]

FORMAT = 1


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a checkpoint beside the old one and then over it, so that a kill at any moment leaves a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    with open(beside, "wb") as file:
        torch.save({"format": FORMAT, **content}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def load(path: Path, setup: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A checkpoint's content.

    Raises:
        UserError: it is of another format, or of a training with another set-up than the one given; what differs is named.
    """
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if content.get("format") != FORMAT:
        raise UserError(f"{path}: a checkpoint of format {content.get('format')!r}, expected {FORMAT}")
    if setup is not None and content["setup"] != setup:
        differing = sorted(name for name in setup if content["setup"].get(name) != setup[name])
        shown = "; ".join(f"{name}: {content['setup'].get(name)!r} there, {setup[name]!r} asked" for name in differing)
        raise UserError(f"{path}: holds another training: {shown}")
    return content


def restore(path: Path, device: str = "cpu") -> tuple[Transformer, Task]:
    """The model of a checkpoint with the weights that validation chose, in eval, and its task.

    Raises UserError where the checkpoint's data or vocabulary is not the one that the task has now.
    """
    content = load(path)
    setup = content["setup"]
    task = create_task(setup["task"], **setup["task_options"])
    for name, now in vocabulary(task).items():
        if content["vocabulary"][name] != now:
            raise UserError(
                f"{path}: trained with {name} {content['vocabulary'][name]}, task {task.name} now has {now}"
            )
    longer = at_lengths(setup["task"], setup["task_options"], setup["test_lengths"])
    model = build_model(task, setup["variant"], setup["options"], setup["model"], causal=setup["causal"], longer=longer)
    model.load_state_dict(content["best"]["state"] if content["best"] else content["model"])
    return model.to(device).eval(), task


def vocabulary(task: Task) -> dict[str, Any]:
    """What a task's numbers mean: a model is of use only where this is the same."""
    return {"vocab": task.vocab, "classes": task.classes, "start": task.start, "data": task.data_hash()}


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: Mapping[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
