"""The training loop: one step, one look at validation, and the state between them, which a checkpoint holds whole."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.errors import UserError, nearest
from attnbench.measure import train_checkpoint as checkpoints
from attnbench.measure.operations import count_operations
from attnbench.measure.recipe import Recipe
from attnbench.measure.train_data import Shuffle, Split
from attnbench.measure.train_model import at_lengths, build_model, evaluate, logits_of, optimizer_groups
from attnbench.tasks import IGNORE, Batch, Task, create_task

__all__ = ["Loop", "Setup"]

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
Watcher = Callable[[float, float], None]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """All that decides a training's outcome."""

    task: str
    task_options: Mapping[str, Any]
    variant: str
    options: Mapping[str, Any]
    model: Mapping[str, Any]
    recipe: Recipe
    seed: int
    device: str
    dtype: str
    causal: bool
    test_lengths: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.dtype not in PRECISIONS:
            raise UserError(
                f"unknown dtype {self.dtype!r}{nearest(self.dtype, PRECISIONS)}; valid: {', '.join(PRECISIONS)}"
            )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Loop:
    """A training in progress. Weights stay in float32; a narrower dtype means autocast, with loss scaling for float16."""

    def __init__(self, setup: Setup, checkpoint: Path | None = None, watcher: Watcher | None = None) -> None:
        self.setup, self.recipe, self.path, self.watcher = setup, setup.recipe, checkpoint, watcher
        self.device = torch.device(setup.device)
        self.precision = PRECISIONS[setup.dtype]
        self.task: Task = create_task(setup.task, **setup.task_options)
        self.stages = self._stages()
        self.elsewhere = at_lengths(setup.task, setup.task_options, setup.test_lengths)
        model = build_model(
            self.task, setup.variant, setup.options, setup.model, causal=setup.causal, longer=self.elsewhere
        )
        self.model = model.to(self.device)
        fused = self.device.type in ("cpu", "cuda")
        betas = (self.recipe.beta1, self.recipe.beta2)
        self.optimizer = torch.optim.AdamW(optimizer_groups(model, self.recipe.weight_decay), betas=betas, fused=fused)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=setup.dtype == "float16")
        self.validation = Split(self.task, "validation")
        self.spent: dict[str, Any] = {"steps": 0, "tokens": 0, "seconds": 0.0, "operations": 0}
        self.losses: list[float] = []
        self.curve: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.diverged_at: int | None = None
        self.test: dict[str, Any] | None = None
        self.costs: dict[str, int] = {}
        self.stage = -1
        self._enter_stage(0)

    # -- the way ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Trains until the budget is spent or the loss is no longer a number, going on from the checkpoint if there is one."""
        if self.path is not None and self.path.exists():
            self._resume(checkpoints.load(self.path, self.setup.as_dict()))
        while self.diverged_at is None and (progress := self.recipe.progress(self.spent)) < 1:
            self._enter_stage(next(place for place, (end, _) in enumerate(self.stages) if progress < end))
            loss = self._step(self.rows.batch(self.order.next()), self.recipe.rate(progress))
            if not math.isfinite(loss):
                self.diverged_at = self.spent["steps"]
            else:
                self.losses.append(loss)
            if self._is_due():
                self._look()
            if self.watcher is not None:
                self.watcher(min(self.recipe.progress(self.spent), 1.0), loss)

    def _is_due(self) -> bool:
        if self.diverged_at is not None:
            return False
        return self.spent["steps"] % self.recipe.evaluate_every == 0 or self.recipe.progress(self.spent) >= 1

    def _stages(self) -> list[tuple[float, Task]]:
        """The curriculum: (share of the budget where it ends, task), the task itself last."""
        stages: list[tuple[float, Task]] = []
        end = 0.0
        for stage in self.task.stages() if self.recipe.curriculum else ():
            end += stage["share"]
            easier = create_task(self.setup.task, **{**self.setup.task_options, **stage["options"]})
            stages.append((end, easier))
        return [*stages, (math.inf, self.task)]

    def _enter_stage(self, stage: int) -> None:
        if stage == self.stage:
            return
        self.stage = stage
        self.rows = Split(self.stages[stage][1], "train", self.setup.seed)
        self.order = Shuffle(self.rows.count, self.recipe.batch, seed=1_000_003 * self.setup.seed + stage)

    # -- one step --------------------------------------------------------------------------------------------------------

    def _step(self, batch: Batch, rate: float) -> float:
        batch = batch.to(self.device)
        tokens = int(batch.key_mask.sum())
        started = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, operations = self._counted(batch)
        self.scaler.unscale_(self.optimizer)
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.spent["seconds"] += time.perf_counter() - started
        self.spent["steps"] += 1
        self.spent["tokens"] += tokens
        self.spent["operations"] += operations
        return loss

    def _counted(self, batch: Batch) -> tuple[float, int]:
        """The loss, with gradients left behind, and the operations: counted the first time that a shape is met."""
        shapes = [tuple(batch.inputs.shape), tuple(batch.targets.shape)]
        key = f"{self.stage} {shapes}"
        if key in self.costs:
            return self._gradients(batch), self.costs[key]
        losses: list[float] = []
        by_operator, _ = count_operations(lambda: losses.append(self._gradients(batch)))
        self.costs[key] = sum(by_operator.values())
        return losses[0], self.costs[key]

    def _gradients(self, batch: Batch) -> float:
        """Adds the gradient of the batch's mean loss, piece by piece where it is cut."""
        task, total = self.stages[self.stage][1], 0.0
        counted = (batch.targets != IGNORE).sum()
        for piece in _pieces(batch, self.recipe.accumulate):
            with torch.autocast(self.device.type, self.precision, enabled=self.precision is not None):
                logits = logits_of(self.model, piece, self.rows.padded)
            loss = task.loss(logits, piece, self.recipe.label_smoothing)
            if piece is not batch:
                loss = loss * ((piece.targets != IGNORE).sum() / counted)
            self.scaler.scale(loss).backward()
            total += loss.item()
        return total

    # -- validation and checkpoints --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Measures validation, keeps the weights if they are the best so far, and saves where it stands."""
        score = self.score(self.validation)
        since = self.curve[-1]["step"] if self.curve else 0
        recent = self.losses[since:]
        point = {
            "step": self.spent["steps"],
            "train_loss": sum(recent) / len(recent),
            "validation": score,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            **{name: self.spent[name] for name in ("seconds", "tokens", "operations")},
        }
        self.curve.append(point)
        if self.best is None or self._is_better(score, self.best["value"]):
            state = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
            self.best = {"value": score, "step": point["step"], "state": state}
        self.save()

    def _is_better(self, score: float, best: float) -> bool:
        return score > best if self.task.higher_is_better else score < best

    def score(self, rows: Split) -> float:
        return evaluate(
            self.model, self.task, rows, batch=self.recipe.batch, device=self.device, precision=self.precision
        ).value

    def save(self) -> None:
        """Writes the checkpoint, where one is kept."""
        if self.path is None:
            return
        checkpoints.save(
            self.path,
            {
                "setup": self.setup.as_dict(),
                "vocabulary": checkpoints.vocabulary(self.task),
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "random": checkpoints.random_state(self.device),
                "order": self.order.state_dict(),
                "losses": torch.tensor(self.losses, dtype=torch.float64),
                **{name: getattr(self, name) for name in PLAIN_STATE},
            },
        )

    def _resume(self, content: dict[str, Any]) -> None:
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.scaler.load_state_dict(content["scaler"])
        checkpoints.restore_random_state(content["random"], self.device)
        self._enter_stage(content["stage"])
        self.order.load_state_dict(content["order"])
        self.losses = content["losses"].tolist()
        for name in PLAIN_STATE:
            setattr(self, name, content[name])


PLAIN_STATE = ("spent", "curve", "best", "diverged_at", "test", "costs", "stage")


def _pieces(batch: Batch, count: int) -> Iterator[Batch]:
    if count == 1:
        yield batch
        return
    size = -(-len(batch.inputs) // count)
    for begin in range(0, len(batch.inputs), size):
        rows = slice(begin, begin + size)
        second: Tensor | None = None if batch.decoder_inputs is None else batch.decoder_inputs[rows]
        yield replace(
            batch,
            inputs=batch.inputs[rows],
            key_mask=batch.key_mask[rows],
            targets=batch.targets[rows],
            decoder_inputs=second,
            slices={},
        )
