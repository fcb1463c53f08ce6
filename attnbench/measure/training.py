"""Training one variant on one task from one seed, and choosing the learning rate that it is trained with.

Validation chooses the weights; the test split is read once, at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attnbench.errors import UserError
from attnbench.measure.recipe import Recipe
from attnbench.measure.train_data import Split
from attnbench.measure.train_loop import Loop, Setup, Watcher
from attnbench.measure.train_model import evaluate, evaluate_generated, parameter_counts
from attnbench.tasks import Score, Task

__all__ = ["RateChoice", "Setup", "Training", "choose_rate", "train"]

GENERATED = 512  # answers written side by side: a step of decoding costs as much for a few as for many


@dataclass(frozen=True)
class Training:
    """What came of a training; all of it is JSON-ready.

    value: the metric on the test split, of the weights that validation chose; None where the loss left the numbers before the
        first look at validation.
    test: value, correct, total and by_slice (name -> slice -> [correct, total]).
    validation: the best value that was seen there, at step `best_step`.
    curve: one point per look: step, train_loss (mean since the last), validation, learning_rate, seconds, tokens, operations.
    losses: of every step.
    parameters: learned numbers in all. diverged_at: the step whose loss was no number, or None.
    details: spent, parameters by kind, splits, data hash, recipe, and for sequences what was written freely.
    """

    metric: str
    unit: str
    value: float | None
    test: dict[str, Any] | None
    validation: float | None
    best_step: int | None
    curve: list[dict[str, Any]]
    losses: list[float]
    parameters: int
    diverged_at: int | None
    details: dict[str, Any]


@dataclass(frozen=True)
class RateChoice:
    """The learning rate that validation chose, and the grid it was chosen from: rate, validation, best_step, diverged_at."""

    rate: float
    grid: list[dict[str, Any]]


def train(
    task: str,
    task_options: Mapping[str, Any],
    variant: str,
    options: Mapping[str, Any],
    model: Mapping[str, Any],
    recipe: Recipe,
    seed: int,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    causal: bool,
    test_lengths: Sequence[int] = (),
    checkpoint: Path | None = None,
    on_progress: Watcher | None = None,
) -> Training:
    """Trains a variant on a task and tests it once.

    task, task_options, variant, options: registry names and own options. model: further arguments of the backbone.
    seed: decides weights, order of examples and dropout; the caller's random state is left alone.
    dtype: float32, or bfloat16 / float16 for mixed precision.
    test_lengths: further lengths to test the same weights at (the slice "test length"); the model has room for the longest.
    checkpoint: a file to go on from if it exists, written at every look at validation; on a CPU the outcome is bit for bit that
        of a training that was never interrupted. A finished one hands back its outcome.
    on_progress: called after every step with the share of the budget that is spent and the loss.

    Raises:
        Unsupported: a variant does not declare its use here.
        UserError: a name or an option is unknown, or the checkpoint is of another training.
    """
    setup = Setup(
        task=task,
        task_options=dict(task_options),
        variant=variant,
        options=dict(options),
        model=dict(model),
        recipe=recipe,
        seed=seed,
        device=device,
        dtype=dtype,
        causal=causal,
        test_lengths=list(test_lengths),
    )
    return _train(setup, checkpoint, on_progress, tested=True)


def choose_rate(rates: Sequence[float], setup: Setup, on_progress: Watcher | None = None) -> RateChoice:
    """The learning rate of a grid with the best validation value, trained from the set-up's seed, which is not to be scored.

    The test split is never read. Among equals the rate that got there first wins, and then the smaller one.

    Raises:
        UserError: no rates are given, or all of them diverged.
    """
    grid: list[dict[str, Any]] = []
    ranks = []
    for rate in sorted(rates):
        tried = _train(
            replace(setup, recipe=replace(setup.recipe, learning_rate=rate)), None, on_progress, tested=False
        )
        seen = {name: getattr(tried, name) for name in ("validation", "best_step", "diverged_at")}
        grid.append({"rate": rate, **seen})
        if tried.validation is not None:
            loss = -tried.validation if tried.details["higher_is_better"] else tried.validation
            ranks.append((loss, tried.best_step, rate))
    if not ranks:
        tried_rates = ", ".join(str(rate) for rate in sorted(rates)) or "none"
        raise UserError(f"no learning rate got as far as a look at validation; received rates: {tried_rates}")
    return RateChoice(min(ranks)[2], grid)


def _train(setup: Setup, checkpoint: Path | None, watcher: Watcher | None, *, tested: bool) -> Training:
    devices = [torch.cuda.current_device()] if setup.device.startswith("cuda") else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(setup.seed)
        loop = Loop(setup, checkpoint, watcher)
        loop.run()
        if tested and loop.test is None and loop.best is not None:
            loop.test = _test(loop)
            loop.save()
        return _training(loop)


def _test(loop: Loop) -> dict[str, Any]:
    """The one look at the test split, with the weights that validation chose; the loop's own weights are left as they are."""
    assert loop.best is not None
    last = {name: value.clone() for name, value in loop.model.state_dict().items()}
    loop.model.load_state_dict(loop.best["state"])
    rows = Split(loop.task, "test")
    batch = loop.recipe.batch

    def scored(task: Task, rows: Split) -> Score:
        return evaluate(loop.model, task, rows, batch=batch, device=loop.device, precision=loop.precision)

    score = scored(loop.task, rows)
    by_slice = {name: {key: list(counts) for key, counts in by.items()} for name, by in score.by_slice.items()}
    if loop.elsewhere:
        at = {loop.task.length: score} | {task.length: scored(task, Split(task, "test")) for task in loop.elsewhere}
        by_slice["test length"] = {str(n): [at[n].correct, at[n].total] for n in sorted(at)}
    test: dict[str, Any] = {"value": score.value, "correct": score.correct, "total": score.total}
    test |= {"by_slice": by_slice, "examples": rows.count}
    if loop.task.answer == "sequence":
        batch = max(batch, GENERATED)
        test["generated"] = evaluate_generated(loop.model, loop.task, rows, batch=batch, device=loop.device)
    loop.model.load_state_dict(last)
    return test


def _training(loop: Loop) -> Training:
    best = loop.best or {"value": None, "step": None}
    counts = parameter_counts(loop.model)
    return Training(
        metric=loop.task.metric,
        unit=loop.task.unit,
        value=None if loop.test is None else loop.test["value"],
        test=loop.test,
        validation=best["value"],
        best_step=best["step"],
        curve=loop.curve,
        losses=loop.losses,
        parameters=counts["total"],
        diverged_at=loop.diverged_at,
        details={
            "spent": loop.spent,
            "parameters": counts,
            "examples": {
                "train": loop.rows.count,
                "validation": loop.validation.count,
                **({} if loop.test is None else {"test": loop.test["examples"]}),
            },
            "data": loop.task.data_hash(),
            "higher_is_better": loop.task.higher_is_better,
            "recipe": loop.recipe.as_dict(),
        },
    )
