"""State: the state dict is all there is to a variant, from its first moment on, in any process."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from attnbench.conformance.core import Failure, expect, expect_same, promise, require
from attnbench.conformance.nursery import verify_in_new_process
from attnbench.conformance.subject import Inputs, Subject
from attnbench.conformance.training import train_steps
from attnbench.contract import Variant

STEPS = (0, 3)


@promise("state-dict")
def state_dict(subject: Subject) -> None:
    """A state dict, taken before any use or after training, loads strictly into another instance and gives its output."""
    inputs = subject.inputs(21)
    for steps in STEPS:
        subject.note(training_steps=steps)
        variant = subject.build()
        train_steps(variant, inputs, steps)
        saved = {name: tensor.clone() for name, tensor in variant.state_dict().items()}
        with torch.no_grad():
            expected = inputs(variant)
        other = subject.build(seed=99)
        other.load_state_dict(saved, strict=True)
        with torch.no_grad():
            expect_same(inputs(other), expected, "output after loading into an instance made under another seed")
        after = set(variant.state_dict()) ^ set(saved)
        expect(not after, f"the state dict changes its names with use: {sorted(after)}")


@promise("state-dict-new-process")
def state_dict_new_process(subject: Subject) -> None:
    """A saved state dict loads strictly in a new process, under another seed, and gives the same output to the bit."""
    module = sys.modules[type(subject.build()).__module__]
    require(
        module.__name__ != "__main__" and hasattr(module, "__file__"), "defined where a new process cannot import it"
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = save_trained(subject, Path(folder))
        for path, message in verify_in_new_process(paths).items():
            subject.note(training_steps=int(path.stem.rpartition("-")[2]))
            if message is not None:
                raise Failure(message)


def save_trained(subject: Subject, folder: Path) -> list[Path]:
    """Saves what a new process needs to prove itself equal: one file before any use, one after a few training steps."""
    paths = []
    for steps in STEPS:
        variant = subject.build()
        inputs = subject.inputs(21)
        train_steps(variant, inputs, steps)
        path = folder / f"{subject.name}-{'causal' if subject.causal else 'bidirectional'}-{steps}.pt"
        torch.save(_saved(variant, inputs), path)
        paths.append(path)
    return paths


def _saved(variant: Variant, inputs: Inputs) -> dict[str, Any]:
    state = {name: tensor.clone() for name, tensor in variant.state_dict().items()}
    with torch.no_grad():
        expected = inputs(variant)
    return {
        "module": type(variant).__module__,
        "name": variant.name,
        "options": dict(variant.options),
        "device": str(inputs.v.device),
        "threads": torch.get_num_threads(),
        "state": state,
        "inputs": inputs,
        "expected": expected,
    }
