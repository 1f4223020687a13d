"""How often an analysis reports another cause of a repeat than the endpoints had, by faults.

    .venv/bin/python benchmarks/causes.py 2000
    .venv/bin/python benchmarks/causes.py 2000 --first 750000

The program of each seed runs once under each set of faults, every third time without a journal. The analysis
of its capture is compared with the endpoints' own record (``rocekit.soft.testbed.replay.compare``). A run
that differs is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rocekit.analysis import analyze
from rocekit.soft.testbed.replay import compare, random_run
from rocekit.soft.wires.faults import at_random

FAULTS: tuple[dict[str, float], ...] = (
    {"drop": 0.02},
    {"drop": 0.1},
    {"drop": 0.25},
    {"bit-error": 0.05},
    {"duplicate": 0.1, "drop": 0.05},
    {"ecn": 0.1, "drop": 0.05},
    {"delay": 0.1},
    {"delay": 0.05, "drop": 0.05},
    {"reorder": 0.1},
    {"reorder": 0.1, "drop": 0.05},
    {"drop": 0.05, "reorder": 0.05, "duplicate": 0.05, "delay": 0.05, "bit-error": 0.02},
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", type=int)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    print("| faults | runs | differ | repeats | of these in doubt |")
    print("| --- | --: | --: | --: | --: |")
    with tempfile.TemporaryDirectory() as place:
        for rates in FAULTS:
            words = ", ".join(f"{kind} {rate:.0%}" for kind, rate in rates.items())
            counts = under_faults(rates, range(given.first, given.first + given.seeds), Path(place))
            print(f"| {words} | {' | '.join(f'{n:,}' for n in counts)} |", flush=True)


def under_faults(rates: dict[str, float], seeds: range, place: Path) -> tuple[int, int, int, int]:
    """The number of runs, of those that differ, of repeats, and of repeats whose cause is in doubt."""
    differ = sure = doubtful = 0
    for seed in seeds:
        journal = seed % 3 != 2
        result, capture = random_run(seed, place, faults=at_random(rates), journal=journal)
        compared = compare(result, analyze(capture).transfers, timers_known=journal)
        differ += bool(compared.differences)
        sure, doubtful = sure + compared.sure, doubtful + compared.doubtful
        if compared.differences:
            faults = " ".join(f"--fault {kind}={rate}" for kind, rate in rates.items())
            print(
                f"python -m rocekit.soft.testbed.replay {seed} {faults}",
                *compared.differences[:1],
                sep="\n    ",
            )
        for file in place.iterdir():
            file.unlink()
    return len(seeds), differ, sure + doubtful, doubtful


if __name__ == "__main__":
    main()
