"""Precision and recall of the findings, by rule and by fault, over seeded runs of soft endpoints.

    .venv/bin/python benchmarks/findings.py 1000
    .venv/bin/python benchmarks/findings.py 1000 --write

For each kind of fault (tests/tools/fault_truth.py), that many programs, each made from its seed, run with and
without the fault. The endpoints' own record says what must be reported. ``--write`` puts the tables into
benchmarks/README.md. The same number gives the same tables.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "tools"))

from fault_truth import KINDS, outcomes  # noqa: E402

BEGIN, END = "<!-- findings: begin -->", "<!-- findings: end -->"
#: Seeds that a process works through at once.
PIECE = 50

Counts = Counter[tuple[str, str, str]]


def count(job: tuple[int, int, int]) -> Counts:
    """The results of some seeds of a kind: (result, kind, rule) to how often."""
    number, first, last = job
    kind = KINDS[number]
    counts: Counts = Counter()
    for outcome in outcomes(kind, range(first, last)):
        counts["runs", str(kind), ""] += 1
        for expected in outcome.expected:
            counts["found" if outcome.found(expected) else "missed", str(kind), expected.rule] += 1
        for rule, _ in outcome.strange:
            counts["strange", str(kind), rule] += 1
    return counts


def share(part: int, whole: int) -> str:
    """A ratio, rounded down: 1.000 means all."""
    return "–" if not whole else f"{part * 1000 // whole / 1000:.3f}"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """A Markdown table; all columns but the first are numbers."""
    names = list(head)
    lines = [names, ["---", *["--:"] * (len(names) - 1)], *([str(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def report(counts: Counts, seeds: int) -> str:
    """Both tables: by rule and by fault."""

    def total(what: str, *, kind: str | None = None, rule: str | None = None) -> int:
        return sum(
            n for (w, k, r), n in counts.items() if w == what and kind in (None, k) and rule in (None, r)
        )

    kinds = []
    for kind in map(str, KINDS):
        found, missed, strange = (total(what, kind=kind) for what in ("found", "missed", "strange"))
        kinds.append((kind, total("runs", kind=kind), found + missed, share(found, found + missed), strange))
    rules = []
    for rule in sorted({r for _, _, r in counts if r}):
        found, missed, strange = (total(what, rule=rule) for what in ("found", "missed", "strange"))
        rules.append(
            (f"`{rule}`", found + missed, share(found, found + strange), share(found, found + missed))
        )
    lines = [
        f"{seeds:,} seeds of each kind, {total('runs'):,} runs with a packet that the fault could hit.",
        "",
        *table(("rule", "to be reported", "precision", "recall"), rules),
        "",
        *table(("fault, captured as", "runs", "to be reported", "recall", "reported besides"), kinds),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seeds", type=int, nargs="?", default=1000)
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/README.md")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    jobs = [
        (number, first, min(first + PIECE, arguments.seeds))
        for number in range(len(KINDS))
        for first in range(0, arguments.seeds, PIECE)
    ]
    counts: Counts = Counter()
    with multiprocessing.Pool(arguments.processes) as pool:
        for part in pool.imap_unordered(count, jobs):
            counts.update(part)
    text = report(counts, arguments.seeds)
    print(text)
    if arguments.write:
        page = HERE / "README.md"
        before, _, rest = page.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
