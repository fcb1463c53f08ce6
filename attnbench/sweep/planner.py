"""From a spec to a plan: every cell with its id, its comparison group, and the reasons why it is unsupported, if it is.

Everything is read from capabilities: no variant is constructed, and nothing is measured.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

from attnbench.errors import UserError
from attnbench.measure.workload import Workload, check_device, refusals
from attnbench.registry import VariantInfo, variant_info
from attnbench.sweep.cells import Cell, Group, Plan
from attnbench.sweep.estimates import estimate
from attnbench.sweep.spec import Entry, Spec
from attnbench.sweep.training_plan import training_groups

__all__ = ["plan"]

EXACT = ("operations", "memory", "resident", "state", "compile")  # one round tells all


def plan(spec: Spec, *, here: bool = True) -> Plan:
    """The plan of a spec: exact quantities first, then timed ones, then trainings; lengths ascend within each.

    here: whether it is measured on this machine, whose devices are then checked.

    Raises UserError where a variant, a task or an option is unknown, a device is not there, or a length exceeds a max_len.
    """
    entries = [_Subject(spec, entry) for entry in spec.variants]
    if here:
        _check_devices(spec)
    groups: list[Group] = []
    if spec.over_lengths:
        groups += [Group([_rate(device, dtype)], 1, True) for device, dtype in _rates(spec)]
        for length in spec.lengths:
            for quantity in EXACT:
                if quantity in spec.quantities:
                    groups += _groups(spec, entries, quantity, length)
        if "speed" in spec.quantities:
            groups += _groups(spec, entries, "floor", None)
            for length in spec.lengths:
                groups += _groups(spec, entries, "speed", length)
    if spec.accuracy is not None and "accuracy" in spec.quantities:
        groups += training_groups(spec, [(subject.entry, subject.info) for subject in entries])
    return Plan(spec, groups, {subject.entry.label: subject.info.supports.as_dict() for subject in entries})


class _Subject:
    """An entry of the spec with what the registry knows of it; the refusals of a mode are the same everywhere, and kept."""

    def __init__(self, spec: Spec, entry: Entry) -> None:
        self.spec, self.entry = spec, entry
        self.info = _described(spec, entry)
        self._by_mode: dict[str, list[str]] = {}

    def refusals(self, definition: dict[str, Any]) -> tuple[str, ...]:
        mode = definition["mode"]
        if mode not in self._by_mode:
            self._by_mode[mode] = refusals(workload_of(definition))
        return (*self._by_mode[mode], *_refused_quantity(self.info, definition))


def _described(spec: Spec, entry: Entry) -> VariantInfo:
    where = f"{spec.source}: variants: {entry.label}"
    try:
        info = variant_info(entry.name, **entry.options, causal=spec.causal)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except Exception as error:  # noqa: BLE001 - capabilities may be a function of options, and a wrong one may raise anything
        raise UserError(f"{where}: {type(error).__name__}: {' '.join(str(error).split())}") from None
    missing = [option for option, value in info.options.items() if value is inspect.Parameter.empty]
    if missing:
        raise UserError(f"{where}: option {missing[0]!r} has no default and must be given")
    if info.cls.__module__ == "__main__":
        raise UserError(f"{where}: defined in __main__, which a cell's own process cannot import; put it into a module")
    longest = info.options["max_len"]
    if longest is not None and not isinstance(longest, int):
        raise UserError(f"{where}.max_len: received {longest!r}; valid: a whole number")
    if longest is not None and spec.lengths and spec.lengths[-1] > longest:
        raise UserError(
            f"{where}.max_len: received {longest}, shorter than the length {spec.lengths[-1]} in lengths; valid: at least that"
        )
    return info


def _check_devices(spec: Spec) -> None:
    wanted = [("devices", device) for device in spec.devices]
    if spec.accuracy is not None and spec.accuracy.device is not None:
        wanted.append(("accuracy.device", spec.accuracy.device))
    for key, device in wanted:
        try:
            check_device(device)
        except UserError as error:
            raise UserError(f"{spec.source}: {key}: {error}") from None


def _refused_quantity(info: VariantInfo, definition: dict[str, Any]) -> Iterator[str]:
    quantity = definition["quantity"]
    if quantity == "compile" and not info.supports.compiles:
        yield f"{info.name} does not compile" + "".join(f": {note}" for note in info.supports.notes)
    if quantity == "memory" and definition["device"] == "mps":
        yield "peak memory is measured on cpu and cuda, not on mps"


def _groups(spec: Spec, subjects: list[_Subject], quantity: str, length: int | None) -> Iterator[Group]:
    """The comparison groups of one quantity at one length: over modes, devices, dtypes, and the model's grid."""
    modes: list[str] = [mode for mode in spec.modes if quantity != "compile" or mode != "decode"]
    if quantity == "state":
        modes = ["decode"]
    for device, dtype, mode, shape in itertools.product(spec.devices, spec.dtypes, modes, _shapes(spec)):
        common = {
            "quantity": quantity,
            "scope": spec.scope,
            "mode": mode,
            "causal": spec.causal,
            "device": device,
            "dtype": dtype,
            "batch": spec.batch,
            "length": length,
            **shape,
        }
        cells = [_cell(spec, subject, common) for subject in subjects]
        yield Group(cells, spec.rounds if quantity == "speed" else 1, True)


def _cell(spec: Spec, subject: _Subject, common: dict[str, Any]) -> Cell:
    entry, info = subject.entry, subject.info
    definition = common | {"variant": entry.name, "label": entry.label, "options": entry.options}
    reasons = subject.refusals(definition)
    seconds = estimate(definition, info.supports, spec.sample_seconds)
    return Cell(definition, info.code, info.cls.__module__, reasons, 0.0 if reasons else seconds)


def workload_of(definition: dict[str, Any]) -> Workload:
    """What a cell measures, as the measuring functions take it; a floor is measured at a length of its own."""
    given = {key: definition[key] for key in Workload.__dataclass_fields__ if definition.get(key) is not None}
    return Workload.from_dict(given)


def _shapes(spec: Spec) -> list[dict[str, int | None]]:
    """The model's grid; attention alone has neither width nor depth beyond its heads."""
    shapes = []
    for dim, heads, depth in itertools.product(spec.model.dim, spec.model.heads, spec.model.depth):
        whole = spec.scope == "model"
        shape = {
            "heads": heads,
            "head_dim": dim // heads,
            "dim": dim if whole else None,
            "depth": depth if whole else None,
        }
        if shape not in shapes:
            shapes.append(shape)
    return shapes


def _rates(spec: Spec) -> Iterator[tuple[str, str]]:
    """The machine's matmul rate is what achieved operations are held against."""
    if {"speed", "operations"} <= set(spec.quantities):
        yield from itertools.product(spec.devices, spec.dtypes)


def _rate(device: str, dtype: str) -> Cell:
    return Cell({"quantity": "rate", "device": device, "dtype": dtype})
