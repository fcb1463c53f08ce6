"""The section [accuracy] of a spec: what is trained, on which tasks, and how. Imports no torch."""

# ruff: noqa: RUF012 - pydantic copies the default of a field
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, ValidationError, create_model, model_validator

from attnbench.errors import UserError, nearest
from attnbench.measure.recipe import Recipe
from attnbench.sweep.complaints import complaint
from attnbench.sweep.fields import Device, Dtype, Positive, Seconds, Section, Seed, check_distinct
from attnbench.sweep.grid import Complaint, entries, shown

__all__ = ["Accuracy", "TaskEntry", "TrainedModel", "resolved_accuracy"]

Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class TrainedModel(Section):
    """The Transformer that is trained: what is not given is as in [model], or else the Transformer's own default."""

    dim: Positive | None = None
    heads: Positive | None = None
    depth: Positive | None = None
    architecture: Literal["encoder", "decoder", "encoder-decoder"] | None = None
    decoder_depth: Positive | None = None
    decoder_variant: str | None = None
    cross_variant: str | None = None
    hidden: Positive | None = None
    kv_heads: Positive | None = None
    activation: Literal["relu", "gelu"] | None = None
    norm: Literal["layer", "rms", "batch"] | None = None
    order: Literal["pre", "post"] | None = None
    positions: Literal["sinusoidal", "learned", "rotary", "none"] | None = None
    pooling: Literal["mean", "last", "cls"] | None = None
    tie: bool | None = None
    bias: bool | None = None
    dropout: Share | None = None
    attention_dropout: Share | None = None

    def given(self) -> dict[str, Any]:
        """What was given, as keywords of a Transformer."""
        return self.model_dump(exclude_none=True)


# The recipe's own fields, with the strictness of a spec.
RecipeSection = create_model(  # type: ignore[call-overload]
    "RecipeSection",
    __base__=Section,
    **{field.name: (get_type_hints(Recipe)[field.name], field.default) for field in fields(Recipe)},
)


class TaskEntry(Section):
    """One task with its options; `causal`, `recipe` and `model` go before those of the whole section."""

    name: str
    label: str
    options: dict[str, Any] = {}
    causal: bool | None = None
    recipe: dict[str, Any] = {}
    model: TrainedModel = TrainedModel()


class Accuracy(Section):
    """What is trained: every variant on every task with every seed.

    tasks: names, or tables with options (a list as a value is a grid).
    seeds: one training each.
    learning_rates: a grid, from which validation chooses one for every variant and task, on `tuning_seed`, which is not scored;
        empty: the recipe's rate is taken as it is.
    tune_on: "each" task chooses rates of its own, or the "first" chooses for all: a grid for the price of one task.
    test_lengths: further lengths that the trained weights are tested at, for tasks with an option `length`: train short, test
        long. Positions must be of a kind that means something beyond the lengths of training, or none.
    causal: the pattern; None takes what each task prefers.
    device, dtype: of training; the device is by default the first of the sweep's.
    limit_seconds: time limit of one training.
    recipe: steps, batch, lr, schedule and the like, written flat in the section.
    model: the Transformer to train, over [model].
    """

    tasks: Annotated[list[TaskEntry], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0, 1, 2]
    learning_rates: list[Rate] = []
    tuning_seed: Seed = 1000
    tune_on: Literal["each", "first"] = "each"
    test_lengths: list[Positive] = []
    causal: bool | None = None
    device: Device | None = None
    dtype: Dtype = "float32"
    limit_seconds: Seconds = 3600.0
    recipe: dict[str, Any] = {}
    model: TrainedModel = TrainedModel()

    @model_validator(mode="after")
    def _consistent(self) -> Accuracy:
        check_distinct("seeds", self.seeds)
        check_distinct("learning_rates", self.learning_rates)
        check_distinct("test_lengths", self.test_lengths)
        if self.learning_rates and self.tuning_seed in self.seeds:
            raise Complaint("tuning_seed", f"must not be among the seeds that are scored, received {self.tuning_seed}")
        check_distinct("tasks", [(task.label, task.options) for task in self.tasks])
        return self

    def toml(self) -> dict[str, Any]:
        """The section as it is written: the recipe flat."""
        section = self.model_dump(exclude_none=True)
        tasks = [flat(task) for task in section.pop("tasks")]
        return {"tasks": tasks, **section.pop("recipe"), **section}


def resolved_accuracy(raw: Any) -> dict[str, Any]:
    """The section with grids expanded, and the recipe gathered and completed with its defaults."""
    if not isinstance(raw, Mapping):
        raise Complaint("accuracy", f"a section is needed, received {shown(raw)}")
    own = [key for key in Accuracy.model_fields if key != "recipe"]
    _check_known("accuracy", raw, [*own, *RecipeSection.model_fields])
    section = {key: value for key, value in raw.items() if key in own}
    section["recipe"] = _complete("accuracy", {key: value for key, value in raw.items() if key not in own})
    if "tasks" not in section:
        raise Complaint("accuracy.tasks", 'needed: a list of names, such as tasks = ["mqar"]')
    section["tasks"] = entries("accuracy.tasks", section["tasks"], reserved=("causal", "recipe", "model"))
    for index, task in enumerate(section["tasks"]):
        del task["varied"]
        own_recipe = task.get("recipe", {})
        if not isinstance(own_recipe, Mapping):
            raise Complaint(f"accuracy.tasks[{index}].recipe", f"a table is needed, received {shown(own_recipe)}")
        _complete(f"accuracy.tasks[{index}].recipe", {**section["recipe"], **own_recipe})
    return section


def _check_known(key: str, given: Any, known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise Complaint(key, f"unknown key {shown(name)}{nearest(name, known)}; valid keys: {', '.join(known)}")


def _complete(key: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with its defaults written out. Raises Complaint where a key is unknown or a value not valid."""
    _check_known(key, given, list(RecipeSection.model_fields))
    try:
        recipe = Recipe(**RecipeSection.model_validate(dict(given)).model_dump())
    except ValidationError as error:
        raise Complaint(key, complaint(error, RecipeSection)) from None
    except UserError as error:
        raise Complaint(key, str(error)) from None
    return {name: value for name, value in recipe.as_dict().items() if value is not None}


def flat(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as it is written: its options beside its name, a list-valued one as a grid of one."""
    options = {key: [value] if isinstance(value, list) else value for key, value in entry.pop("options").items()}
    return {**{key: value for key, value in entry.items() if value != {}}, **options}
