"""The published configurations, ready for a GPU: their first 20 steps on a CPU, so that nothing is found wrong on the day.

    python results/proofs/first_steps.py > results/cpu-2core/first_steps.md

All is as in the specs but for one seed, no search for a rate, smaller batches, and few examples to validate and test on.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from attnbench.analysis import load, tables
from attnbench.sweep import Spec, load_spec, run

STEPS = 20
FEW = {"validation": 8, "test": 8}
BATCHES = {"recall-256": 4, "lra-listops": 2}


def first_steps(name: str) -> Spec:
    """The spec of that name, made short."""
    accuracy = load_spec(name).accuracy
    assert accuracy is not None
    overrides: dict[str, object] = {
        "tasks": [{"name": task.name, **task.options, **FEW} for task in accuracy.tasks],
        "batch": BATCHES[name],
        "steps": STEPS,
        "evaluate_every": STEPS,
        "seeds": [0],
        "learning_rates": [],
    }
    return load_spec(name, overrides={f"accuracy.{key}": value for key, value in overrides.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("specs", nargs="*", default=list(BATCHES))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    print(f"# The first {STEPS} steps of the published configurations\n")
    print("Made by `python results/proofs/first_steps.py > results/cpu-2core/first_steps.md`.\n")
    print("| spec | variant | outcome | mean loss | parameters |")
    print("|---|---|---|---|---|")
    for name in arguments.specs:
        with tempfile.TemporaryDirectory() as folder:
            run(first_steps(name), folder, jobs=arguments.jobs)
            found = tables(load(Path(folder)))
            losses = found["curves"].set_index("label")["train_loss"].to_dict()
            for _, row in found["scores"].iterrows():
                ended = row["status"] if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
                told = f"{losses[row['label']]:.3f} | {row['parameters']:,.0f}" if row["label"] in losses else " | "
                print(f"| {name} | {row['label']} | {ended} | {told} |", flush=True)


if __name__ == "__main__":
    main()
