"""The types that the sections of a spec share. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from attnbench.sweep.grid import Complaint, shown

__all__ = [
    "Device",
    "Dtype",
    "FileName",
    "Listed",
    "Mode",
    "Positive",
    "Quantity",
    "Seconds",
    "Section",
    "Seed",
    "check_distinct",
]

Positive = Annotated[int, Field(ge=1, le=2**40)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]


def _known_device(name: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?|mps", name):
        raise ValueError(f"unknown value {shown(name)}; valid: cpu, cuda, cuda:1, mps")
    return name


def _file_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(f"received {shown(name)}; valid: up to 100 letters, digits, dots, dashes and underscores")
    return name


Device = Annotated[str, AfterValidator(_known_device)]
FileName = Annotated[str, AfterValidator(_file_name)]
Dtype = Literal["float32", "bfloat16", "float16", "float64"]
Mode = Literal["forward", "backward", "train_step", "decode"]
Quantity = Literal["speed", "memory", "resident", "operations", "state", "compile", "accuracy"]


class Section(BaseModel):
    """A table of the spec: unknown keys are errors, and nothing is converted in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Listed(Section):
    """A table in which a list stands for a grid, and a single value for a list of one."""

    @model_validator(mode="before")
    @classmethod
    def _list(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        return {key: value if isinstance(value, list) else [value] for key, value in raw.items()}


def check_distinct(key: str, values: Sequence[Any]) -> None:
    """Raises Complaint where a value is there twice."""
    repeated = next((value for index, value in enumerate(values) if value in values[:index]), None)
    if repeated is not None:
        raise Complaint(key, f"{shown(repeated)} is there twice")
