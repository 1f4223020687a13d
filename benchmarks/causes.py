"""How often an analysis names another cause for sending again than the endpoints had, by what packets suffer.

    .venv/bin/python benchmarks/causes.py 2000
    .venv/bin/python benchmarks/causes.py 2000 --first 750000

Each seed's program runs once in every weather, every third time without a journal, and the analysis of its
capture is held against the endpoints' own record (``rocekit.soft.testbed.replay.compare``). A run that
differs is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rocekit.analysis import analyze
from rocekit.soft.testbed.replay import compare, random_run
from rocekit.soft.wires.faults import at_random

WEATHER: tuple[dict[str, float], ...] = (
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
    print("| packets suffer | runs | differ | times gone back | of these in doubt |")
    print("| --- | --: | --: | --: | --: |")
    with tempfile.TemporaryDirectory() as place:
        for rates in WEATHER:
            words = ", ".join(f"{kind} {rate:.0%}" for kind, rate in rates.items())
            told = of_weather(rates, range(given.first, given.first + given.seeds), Path(place))
            print(f"| {words} | {' | '.join(f'{n:,}' for n in told)} |", flush=True)


def of_weather(rates: dict[str, float], seeds: range, place: Path) -> tuple[int, int, int, int]:
    """Runs; how many differ; how often a requester went back; how often the cause is in doubt."""
    differ = sure = doubtful = 0
    for seed in seeds:
        journal = seed % 3 != 2
        result, capture = random_run(seed, place, faults=at_random(rates), journal=journal)
        told = compare(result, analyze(capture).transfers, timers_known=journal)
        differ += bool(told.differences)
        sure, doubtful = sure + told.sure, doubtful + told.doubtful
        if told.differences:
            faults = " ".join(f"--fault {kind}={rate}" for kind, rate in rates.items())
            print(
                f"python -m rocekit.soft.testbed.replay {seed} {faults}", *told.differences[:1], sep="\n    "
            )
        for file in place.iterdir():
            file.unlink()
    return len(seeds), differ, sure + doubtful, doubtful


if __name__ == "__main__":
    main()
