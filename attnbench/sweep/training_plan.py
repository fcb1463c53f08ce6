"""The part of a plan that trains: for every task its baselines, and a group of all variants for every seed."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from attnbench.errors import UserError, nearest
from attnbench.registry import VariantInfo
from attnbench.sweep.cells import Cell, Group
from attnbench.sweep.estimates import estimate_training
from attnbench.sweep.spec import Entry, Spec
from attnbench.sweep.training_spec import Accuracy, TaskEntry
from attnbench.tasks import Task, task_class

__all__ = ["training_groups"]

TYPICAL_LENGTH = 128  # for the estimate, where a task's options do not tell


def training_groups(spec: Spec, subjects: Sequence[tuple[Entry, VariantInfo]]) -> Iterator[Group]:
    """Baselines and trainings of every task. Raises UserError where a task, an option or a pattern is not valid."""
    section = spec.accuracy
    assert section is not None
    device = section.device or spec.devices[0]
    chosen: dict[int, list[str]] = {}  # by the place of a shape: the cells that choose a rate for each variant
    for task in section.tasks:
        cls = _checked_class(spec, task)
        causal = _causal(spec, section, task, cls)
        common = {
            "scope": "model",
            "causal": causal,
            "task": task.label,
            "task_name": task.name,
            "task_options": task.options,
        }
        yield Group([Cell({"quantity": "baseline", "label": "constant", **common})], 1, False)
        recipe = section.recipe | task.recipe
        for place, shape in enumerate(_shapes(spec, section, task)):
            trained = {
                **common,
                "metric": cls.metric,
                "device": device,
                "dtype": section.dtype,
                "batch": recipe["batch"],
                "recipe": recipe,
                **shape,
            }
            if section.test_lengths:
                trained["test_lengths"] = _test_lengths(spec, section, task, cls)
            if section.learning_rates:
                trained["learning_rates"] = section.learning_rates
                if section.tune_on == "each" or place not in chosen:
                    tuning = {"quantity": "tuning", "seed": section.tuning_seed, **trained}
                    cells = [_cell(tuning, entry, info, cls) for entry, info in subjects]
                    chosen[place] = [cell.id for cell in cells]
                    yield Group(cells, 1, False)
                else:
                    first = section.tasks[0]
                    trained["tuned_on"] = {"task": first.label, "options": first.options}
            yield from _trainings(section, trained, subjects, cls, chosen.get(place))


def _trainings(
    section: Accuracy,
    trained: dict[str, Any],
    subjects: Sequence[tuple[Entry, VariantInfo]],
    cls: type[Task],
    chosen: Sequence[str] | None,
) -> Iterator[Group]:
    """A group for every seed, whose cells wait for those that choose their rate, where there is a choice."""
    for seed in section.seeds:
        scored = {"quantity": "accuracy", "seed": seed, **trained}
        waiting: Sequence[str | None] = chosen or [None] * len(subjects)
        pairs = zip(subjects, waiting, strict=True)
        yield Group([_cell(scored, entry, info, cls, after) for (entry, info), after in pairs], 1, False)


def _checked_class(spec: Spec, task: TaskEntry) -> type[Task]:
    try:
        cls = task_class(task.name)
    except UserError as error:
        raise UserError(f"{spec.source}: accuracy.tasks: {error}") from None
    valid = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
    for option in task.options:
        if option not in valid:
            raise UserError(
                f"{spec.source}: accuracy.tasks: {task.label}: unknown option {option!r}{nearest(option, valid)}; "
                f"valid options: {', '.join(valid)}"
            )
    return cls


def _test_lengths(spec: Spec, section: Accuracy, task: TaskEntry, cls: type[Task]) -> list[int]:
    if "length" not in inspect.signature(cls.__init__).parameters:
        raise UserError(
            f"{spec.source}: accuracy.test_lengths: received {section.test_lengths}, but task {task.label} has no option length"
        )
    return section.test_lengths


def _causal(spec: Spec, section: Accuracy, task: TaskEntry, cls: type[Task]) -> bool:
    """The task's own pattern, or else the section's where the task allows it, or else what the task prefers."""
    if task.causal is not None and task.causal not in cls.causal:
        allowed = " or ".join(str(value).lower() for value in cls.causal)
        raise UserError(
            f"{spec.source}: accuracy.tasks: {task.label}.causal: received {str(task.causal).lower()}; valid: {allowed}"
        )
    wanted = section.causal if task.causal is None else task.causal
    return wanted if wanted in cls.causal else cls.causal[0]


def _shapes(spec: Spec, section: Accuracy, task: TaskEntry) -> list[dict[str, Any]]:
    """The models to train: the grid of [model], with what the section and the task say over it."""
    own = section.model.given() | task.model.given()
    shapes = []
    for dim, heads, depth in itertools.product(spec.model.dim, spec.model.heads, spec.model.depth):
        model = {"dim": dim, "heads": heads, "depth": depth} | own
        if model["dim"] % model["heads"]:
            raise UserError(
                f"{spec.source}: accuracy.model: dim must be a multiple of heads, received dim {model['dim']} and heads "
                f"{model['heads']}"
            )
        sizes = {key: model[key] for key in ("dim", "heads", "depth")}
        shape = {"head_dim": model["dim"] // model["heads"], **sizes, "model": model}
        if shape not in shapes:
            shapes.append(shape)
    return shapes


def _cell(common: dict[str, Any], entry: Entry, info: VariantInfo, cls: type[Task], after: str | None = None) -> Cell:
    definition = common | {"variant": entry.name, "label": entry.label, "options": entry.options}
    length = common["task_options"].get("length")
    seconds = estimate_training(
        common["model"], common["recipe"], length if isinstance(length, int) else TYPICAL_LENGTH, common["device"]
    )
    trainings = len(common["learning_rates"]) if common["quantity"] == "tuning" else 1
    refusals = _refusals(definition, info, cls)
    return Cell(definition, info.code, info.cls.__module__, refusals, 0.0 if refusals else trainings * seconds, after)


def _refusals(definition: dict[str, Any], info: VariantInfo, cls: type[Task]) -> tuple[str, ...]:
    """Reasons from capabilities alone; what only the built model can tell becomes the outcome of the training."""
    model = definition["model"]
    uses = [{"causal": definition["causal"]}]
    if cls.answer == "sequence" and model.get("architecture") != "decoder":
        uses = [{"causal": False}]
        uses += [{"causal": True}] if "decoder_variant" not in model else []
        uses += [{"cross": True}] if "cross_variant" not in model else []
    dropout = model.get("attention_dropout", 0.0) > 0
    reasons = [info.supports.refusals(info.name, dropout=dropout, max_len=1, **use) for use in uses]
    return tuple(dict.fromkeys(itertools.chain(*reasons)))
