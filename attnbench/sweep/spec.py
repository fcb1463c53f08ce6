"""What a sweep measures: a spec in TOML, validated. Imports no torch; what needs the registries is checked in planning.

Everything but `variants` and `lengths` (or `[accuracy]`) has a default. Whatever is wrong with a spec ends in one line that
names the file, the key, what was received, and what is valid.
"""

# ruff: noqa: RUF012 - pydantic copies the default of a field
from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, PrivateAttr, ValidationError, model_validator

from attnbench.errors import UserError, nearest
from attnbench.sweep.complaints import complaint
from attnbench.sweep.experiments import experiment_path, list_experiments, read_toml
from attnbench.sweep.fields import (
    Device,
    Dtype,
    FileName,
    Listed,
    Mode,
    Positive,
    Quantity,
    Seconds,
    Section,
    Seed,
    check_distinct,
)
from attnbench.sweep.grid import Complaint, labelled, one_line
from attnbench.sweep.overrides import apply_overrides
from attnbench.sweep.training_spec import Accuracy, flat, resolved_accuracy

__all__ = ["Entry", "Limits", "Model", "Spec", "experiment_path", "list_experiments", "load_spec", "parse_spec"]

SET_ELSEWHERE = {  # options of every variant that a sweep sets itself -> where
    "causal": "causal",
    "heads": "model.heads",
    "head_dim": "model.dim and model.heads",
    "cross": "nothing: a sweep measures self-attention",
}


class Entry(Section):
    """One variant with its own options, under the label by which tables and plots call it."""

    name: str
    label: str
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _own_options(self) -> Entry:
        for option, where in SET_ELSEWHERE.items():
            if option in self.options:
                raise Complaint(option, f"no option of a single variant; it is set by {where}")
        return self


class Model(Listed):
    """The shared backbone. A list is a grid: everything is then measured at each of its values."""

    dim: Annotated[list[Positive], Field(min_length=1)] = [256]
    heads: Annotated[list[Positive], Field(min_length=1)] = [4]
    depth: Annotated[list[Positive], Field(min_length=1)] = [2]

    @model_validator(mode="after")
    def _fits(self) -> Model:
        for key in ("dim", "heads", "depth"):
            check_distinct(key, getattr(self, key))
        for dim in self.dim:
            for heads in self.heads:
                if dim % heads:
                    raise Complaint("dim", f"must be a multiple of heads, received dim {dim} and heads {heads}")
        return self


class Limits(Section):
    """What one cell may take: `seconds` of time, and `memory_gb` of memory above what its process held at the start."""

    seconds: Seconds = 60.0
    memory_gb: Annotated[float, Field(gt=0, le=1e6)] = 8.0


class Spec(Section):
    """A whole sweep.

    name: names the run directory.
    variants: names, or tables with options (a list as a value is a grid); labels are unique.
    baseline: the label that ratios are taken against; "full" where there is one, else the first.
    lengths: in tokens, ascending.
    quantities: what is measured. Speed brings its floor along, speed with operations the machine's matmul rate, accuracy its
        curves and baselines.
    modes: what one call does.
    scope: "attention" is the mixing alone, "model" the whole backbone.
    causal: whether position t sees positions up to t alone.
    devices, dtypes, batch: as they say.
    rounds: how often every timed cell is measured, in shuffled order; fewer than seven give no 95 % interval by ranks.
    sample_seconds: time spent on the samples of one cell in one round.
    threads: CPU threads of a cell; by default the usable cores.
    seed: of the order within the rounds.
    model, accuracy, limits: sections of their own.
    """

    name: FileName = "sweep"
    variants: list[Entry]
    baseline: str
    lengths: list[Positive] = []
    quantities: Annotated[list[Quantity], Field(min_length=1)]
    modes: Annotated[list[Mode], Field(min_length=1)] = ["forward"]
    scope: Literal["attention", "model"] = "attention"
    causal: bool = False
    devices: Annotated[list[Device], Field(min_length=1)] = ["cpu"]
    dtypes: Annotated[list[Dtype], Field(min_length=1)] = ["float32"]
    batch: Positive = 1
    rounds: Annotated[int, Field(ge=1, le=1000)] = 7
    sample_seconds: Seconds = 0.2
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    seed: Seed = 0
    model: Model = Model()
    accuracy: Accuracy | None = None
    limits: Limits = Limits()

    _source: str = PrivateAttr("spec")

    @property
    def source(self) -> str:
        """The file that the spec came from, for error messages."""
        return self._source

    @property
    def over_lengths(self) -> list[str]:
        """The quantities that are measured across lengths."""
        return [quantity for quantity in self.quantities if quantity != "accuracy"]

    @model_validator(mode="after")
    def _consistent(self) -> Spec:
        for key in ("lengths", "quantities", "modes", "devices", "dtypes"):
            check_distinct(key, getattr(self, key))
        labels = [entry.label for entry in self.variants]
        if self.baseline not in labels:
            known = f"labels: {', '.join(labels)}"
            raise Complaint("baseline", f"unknown label {self.baseline!r}{nearest(self.baseline, labels)}; {known}")
        if "accuracy" in self.quantities and self.accuracy is None:
            raise Complaint("quantities", "accuracy needs a section [accuracy] with tasks")
        if self.over_lengths and not self.lengths:
            raise Complaint("lengths", f"at least one is needed to measure {', '.join(self.over_lengths)}")
        return self

    def toml(self) -> str:
        """The resolved spec, every default written out; `parse_spec` of it is this spec again."""
        data = self.model_dump(exclude_none=True)
        data["variants"] = [flat(entry) for entry in data["variants"]]
        if self.accuracy is not None:
            data["accuracy"] = self.accuracy.toml()
        return tomli_w.dumps(data)


def load_spec(source: str | Path, *, overrides: Mapping[str, Any] | None = None) -> Spec:
    """The spec of a file, or of a packaged experiment by its name.

    overrides: values by dotted key, such as {"model.dim": 128, "rounds": 3}; "variants" picks labels of the spec, or names.

    Raises UserError, in one line, for whatever is wrong with it.
    """
    name, data = read_toml(source)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).stem).strip("._-") or "sweep"
    return parse_spec({"name": stem, **data}, source=name, overrides=overrides)


def parse_spec(data: Mapping[str, Any], *, source: str = "spec", overrides: Mapping[str, Any] | None = None) -> Spec:
    """The spec of parsed TOML. Raises UserError, in one line, for whatever is wrong with it."""
    try:
        spec = Spec.model_validate(_resolved(apply_overrides(data, overrides or {})))
    except ValidationError as error:
        raise UserError(f"{source}: {one_line(complaint(error, Spec))}") from None
    except Complaint as error:
        raise UserError(f"{source}: {one_line(str(error))}") from None
    spec._source = source
    return spec


def _resolved(data: dict[str, Any]) -> dict[str, Any]:
    """Grids expanded, and the defaults that depend on other keys filled in."""
    if "variants" not in data:
        raise Complaint("variants", 'needed: a list of names, such as variants = ["full", "local"]')
    data["variants"] = labelled("variants", data["variants"])
    labels = [entry["label"] for entry in data["variants"]]
    data.setdefault("baseline", "full" if "full" in labels else labels[0])
    if "accuracy" in data:
        data["accuracy"] = resolved_accuracy(data["accuracy"])
    timed = ["speed", "memory", "operations"] if "lengths" in data or "accuracy" not in data else []
    data.setdefault("quantities", timed + (["accuracy"] if "accuracy" in data else []))
    lengths = data.get("lengths")
    if isinstance(lengths, list) and all(type(length) is int for length in lengths):
        data["lengths"] = sorted(lengths)
    return data
