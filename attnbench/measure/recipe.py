"""How a model is trained, as plain data: the budget, the optimiser's settings, and the rate at each point of the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from attnbench.errors import UserError, nearest

__all__ = ["BUDGETS", "SCHEDULES", "Recipe"]

BUDGETS = ("steps", "tokens", "seconds", "operations")
SCHEDULES = ("cosine", "inverse-sqrt", "constant")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training recipe. Of the budgets at least one is given, and the first that is spent ends the training.

    steps, tokens (real ones read), seconds (of training, without evaluation), operations (counted by shape): the budget.
    batch: examples a step. accumulate: pieces that a batch is cut into to save memory; changes no gradient.
    learning_rate: the highest. schedule: cosine | inverse-sqrt | constant, after a linear warm-up over `warmup`, a share of
        the budget.
    weight_decay: AdamW's, on matrices alone. beta1, beta2: AdamW's. clip: largest gradient norm (0: any).
    label_smoothing: share of the target spread over all classes.
    curriculum: whether the task's easier stages come first, where it has some.
    evaluate_every: steps between looks at the validation split; changes nothing else.
    """

    steps: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    operations: float | None = None
    batch: int = 64
    accumulate: int = 1
    learning_rate: float = 1e-3
    schedule: str = "cosine"
    warmup: float = 0.1
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.98
    clip: float = 1.0
    label_smoothing: float = 0.0
    curriculum: bool = True
    evaluate_every: int = 100

    def __post_init__(self) -> None:
        if not self.budgets:
            raise UserError(f"a recipe needs a budget, received none; valid: one or more of {', '.join(BUDGETS)}")
        if self.schedule not in SCHEDULES:
            raise UserError(
                f"unknown schedule {self.schedule!r}{nearest(self.schedule, SCHEDULES)}; valid: {', '.join(SCHEDULES)}"
            )
        for name, limit in self.budgets.items():
            _require(limit > 0, name, "above 0", limit)
        for name in ("batch", "accumulate", "evaluate_every"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _require(self.learning_rate > 0, "learning_rate", "above 0", self.learning_rate)
        for name in ("warmup", "beta1", "beta2", "label_smoothing"):
            _require(0 <= getattr(self, name) < 1, name, "in [0, 1)", getattr(self, name))
        for name in ("weight_decay", "clip"):
            _require(getattr(self, name) >= 0, name, "0 or more", getattr(self, name))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Recipe:
        """A recipe from options. Raises ValueError for an unknown one, naming the valid ones."""
        valid = [field.name for field in fields(cls)]
        for option in options:
            if option not in valid:
                raise UserError(
                    f"unknown option {option!r} of a recipe{nearest(option, valid)}; valid: {', '.join(valid)}"
                )
        return cls(**options)

    @property
    def budgets(self) -> dict[str, float]:
        """The budgets that were given."""
        return {name: value for name in BUDGETS if (value := getattr(self, name)) is not None}

    def progress(self, spent: Mapping[str, float]) -> float:
        """How much of the budget is spent: 0 at the start, 1 or more at the end."""
        return max(spent[name] / limit for name, limit in self.budgets.items())

    def rate(self, progress: float) -> float:
        """The learning rate at a share of the budget."""
        if progress < self.warmup:
            return self.learning_rate * progress / self.warmup
        if self.schedule == "cosine":
            way = (progress - self.warmup) / (1 - self.warmup)
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(way, 1.0)))
        if self.schedule == "inverse-sqrt" and progress > 0:
            return self.learning_rate * math.sqrt(self.warmup / progress) if self.warmup else self.learning_rate
        return self.learning_rate

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _require(holds: bool, name: str, valid: str, received: object) -> None:
    if not holds:
        raise UserError(f"a recipe's {name} must be {valid}, received {received!r}")
