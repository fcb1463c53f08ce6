"""The published configurations, ready for a GPU: their first 20 steps on a CPU, so that nothing is found wrong on the day.

    python results/proofs/first_steps.py > results/cpu-2core/first_steps.md

All is as in the specs but for one seed, no search for a rate, smaller batches, and few examples to validate and test on.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from attnbench.analysis import load, tables
from attnbench.sweep import load_spec, run

STEPS = 20
FEW = {"validation": 16, "test": 16}
CHANGES: dict[str, dict[str, object]] = {
    "recall-256": {
        "accuracy.batch": 16,
        "accuracy.tasks": [{"name": "mqar", "length": 256, "pairs": 16, "vocab": 8192, "curriculum": False, **FEW}],
    },
    "lra-listops": {
        "accuracy.batch": 2,
        "accuracy.tasks": [{"name": "listops", "preset": "full", "train": 2000, **FEW}],
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("specs", nargs="*", default=list(CHANGES))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    print(f"# The first {STEPS} steps of the published configurations\n")
    print("Made by `python results/proofs/first_steps.py > results/cpu-2core/first_steps.md`.\n")
    print("| spec | variant | outcome | mean loss | parameters |")
    print("|---|---|---|---|---|")
    short: dict[str, object] = {"accuracy.steps": STEPS, "accuracy.evaluate_every": STEPS, "accuracy.seeds": [0]}
    short["accuracy.learning_rates"] = []
    for name in arguments.specs:
        with tempfile.TemporaryDirectory() as folder:
            run(load_spec(name, overrides=short | CHANGES[name]), folder, jobs=arguments.jobs)
            found = tables(load(Path(folder)))
            losses = found["curves"].set_index("label")["train_loss"].to_dict()
            for _, row in found["scores"].iterrows():
                ended = row["status"] if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
                told = f"{losses[row['label']]:.3f} | {row['parameters']:,.0f}" if row["label"] in losses else " | "
                print(f"| {name} | {row['label']} | {ended} | {told} |", flush=True)


if __name__ == "__main__":
    main()
