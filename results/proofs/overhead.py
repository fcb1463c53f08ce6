"""What the harness itself costs: isolation, planning, resuming, reading, reporting, starting.

    python results/proofs/overhead.py > results/cpu-2core/overhead.md

From a checkout: synthetic records come from the tests.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attnbench.analysis import load, tables
from attnbench.report import write_report
from attnbench.sweep import parse_spec, plan, run
from attnbench.sweep.ledger import Ledger

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from analysis.synthetic import NAMES, Synthetic  # type: ignore[import-not-found]

LENGTHS = [2**power for power in range(7, 16)]


def row(what: str, found: str, asked: str) -> None:
    print(f"| {what} | {found} | {asked} |", flush=True)


def cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


@contextmanager
def taking() -> Iterator[Callable[[], str]]:
    wall, own = time.perf_counter(), cpu(resource.RUSAGE_SELF)
    ended: list[float] = []
    yield lambda: f"{ended[0]:.1f} s ({ended[1]:.1f} s of CPU)"
    ended += [time.perf_counter() - wall, cpu(resource.RUSAGE_SELF) - own]


def isolation(cells: int) -> None:
    spec = {
        "name": "trivial",
        "variants": ["none"],
        "baseline": "none",
        "quantities": ["operations"],
        "scope": "attention",
    }
    spec |= {"lengths": list(range(1, cells + 1)), "modes": ["forward"], "model": {"dim": 8, "heads": 1}}
    with tempfile.TemporaryDirectory() as folder:
        wall, own = time.perf_counter(), cpu(resource.RUSAGE_SELF)
        done = run(parse_spec(spec), Path(folder) / "run")
        wall, own = time.perf_counter() - wall, cpu(resource.RUSAGE_SELF) - own
    assert done.outcomes == {"ok": cells}, done.outcomes
    row(
        f"{cells:,} trivial cells, each in a process of its own",
        f"{wall:.0f} s, {wall / cells:.3f} s a cell",
        "0.25 s a cell",
    )
    row("of which the sweep's own process computes", f"{100 * own / wall:.1f} %", "10 %")


def planning() -> None:
    spec = parse_spec(
        {"name": "large", "variants": ["full", "local"], "lengths": list(range(1, 2501)), "rounds": 1}
        | {"quantities": ["speed", "memory"]}
    )
    with taking() as took:
        planned = plan(spec)
    row(f"planning {len(planned.cells):,} cells", took(), "2 s for 10,000")
    records = [cell.columns | {"session": "one", "round": 1, "status": "ok", "value": 1.0} for cell in planned.cells]
    with taking() as took:
        ledger = Ledger(planned, records)
        left = sum(len(ledger.left(turn)) for turn in ledger.turns())
    assert left == 0
    row(f"finding what is left of a run of {len(records):,} records", took(), "3 s for 10,000")


def reading(folder: Path) -> None:
    laws = {f"variant-{i}": (1e-6 * (i + 1), 1 + i / 40) for i in range(39)} | {"full": (1e-9, 2.0)}
    made = Synthetic()
    for mode in ("forward", "backward", "train_step"):
        for dtype in ("float32", "bfloat16"):
            made.speed(laws, LENGTHS, rounds=46, mode=mode, dtype=dtype)
    made.write(folder)
    with taking() as took:
        tables(load(folder))
    row(f"reading and tabulating {len(made.records):,} records", took(), "10 s for 100,000")


def reporting(folder: Path) -> None:
    laws = {name: (1e-6 * (i + 1), 1 + i / 20) for i, name in enumerate(NAMES)} | {"full": (1e-9, 2.0)}
    made = Synthetic()
    for mode in ("forward", "train_step"):
        made.speed(laws, LENGTHS, rounds=27, mode=mode)
        made.counted("memory", laws, LENGTHS, mode=mode)
    made.trained("mqar", {name: [0.9, 0.91, 0.92] for name in NAMES}, {"constant": 0.1})
    made.write(folder)
    for formats in (("html",), ("csv", "md", "png", "svg", "html")):
        with taking() as took:
            write_report(folder, formats)
        size = (folder / "report.html").stat().st_size / 1e6
        row(f"report of {len(made.records):,} records ({', '.join(formats)}; page {size:.1f} MB)", took(), "15 s, 5 MB")


def starting() -> None:
    before = cpu(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "attnbench.cli", "--help"], check=True, capture_output=True)
    row("`attnbench --help`, CPU time", f"{cpu(resource.RUSAGE_CHILDREN) - before:.2f} s", "0.5 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=1000)
    cells = parser.parse_args().cells
    print("# What the harness costs\n")
    print("Made by `python results/proofs/overhead.py > results/cpu-2core/overhead.md`.\n")
    print("| what | measured | at most |")
    print("|---|---|---|")
    starting()
    planning()
    with tempfile.TemporaryDirectory() as folder:
        reading(Path(folder) / "read")
        reporting(Path(folder) / "report")
    isolation(cells)


if __name__ == "__main__":
    main()
