"""Every claim of an analysis against the truth: faults between two rxe devices, captured at both ends.

    .venv/bin/python benchmarks/truth.py                    # makes the experiments, and scores them
    .venv/bin/python benchmarks/truth.py make FOLDER        # makes them (--only NAME …)
    .venv/bin/python benchmarks/truth.py make FOLDER --drawn 1-20   # makes what chance draws from seeds
    .venv/bin/python benchmarks/truth.py make FOLDER --ipv6 --drawn 1-20   # the same over IPv6
    .venv/bin/python benchmarks/truth.py make FOLDER --only storage-1 peers-1   # with programs of others
    .venv/bin/python benchmarks/truth.py score FOLDER       # scores them (--json, --write)
    .venv/bin/python benchmarks/truth.py score FOLDER --as no-naks   # of captures that hold less
    .venv/bin/python benchmarks/truth.py score FOLDER --neighbours   # of every kind of them (--write)

The experiments (tests/tools/truth_bench/experiments.py) run in the lab: perftest, rping, rdma-core's
ping-pong and rocekit's scenarios, with packets lost, overtaken, doubled, corrupted or delayed before, between
or behind two captures. tc's counters, rxe's hw_counters and the exact difference of the captures are the
truth. Scored is each claim of ``rocekit analyze``, from one capture, the other, and both, without and with
journals. Every wrong claim is named in one line. ``--write`` puts the table into benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "tests" / "tools"), str(ROOT)]

from truth_bench.drawn import PREFIX, RECORDED, experiment_of  # noqa: E402
from truth_bench.experiments import EXPERIMENTS  # noqa: E402
from truth_bench.neighbours import NEIGHBOURS, known  # noqa: E402
from truth_bench.over_ipv6 import PREFIX as OVER_IPV6  # noqa: E402
from truth_bench.scene import UNDECIDED  # noqa: E402
from truth_bench.score import Scored, folders, neighbours_table, score, table, unfit, wrong_lines  # noqa: E402
from truth_bench.unusual import UNUSUAL  # noqa: E402

from rocekit import lab  # noqa: E402

INSIDE = ROOT / "tests" / "inside" / "truth_inside.py"
BEGIN, END = "<!-- truth: begin -->", "<!-- truth: end -->"
NEIGHBOURS_BEGIN, NEIGHBOURS_END = "<!-- neighbours: begin -->", "<!-- neighbours: end -->"
BATCH = 40
BOOT_S, EXPERIMENT_S = 300, 90


def make(folder: Path, names: list[str], batch: int) -> bool:
    """Run experiments, so many in each boot; whether all of them were made."""
    folder.mkdir(parents=True, exist_ok=True)
    well = True
    for start in range(0, len(names), batch):
        some = names[start : start + batch]
        result = lab.run(
            [sys.executable, str(INSIDE), *some],
            out=folder,
            timeout_s=BOOT_S + EXPERIMENT_S * len(some),
            devices=3,
        )
        well = well and result.returncode == 0
    return well


def report(scored: list[Scored], faults: list[str], experiments: int) -> str:
    """The table, what of the truth does not fit, and the wrong claims."""
    undecided = sum(each.claim.times for each in scored if each.claim.verdict == UNDECIDED)
    lines = [f"{experiments} experiments", "", *table(scored), ""]
    if undecided:
        lines.append(f"{undecided:,} claims have no verdict: the truth itself is open.")
    lines += [f"The truth does not fit: {fault}" for fault in faults]
    return "\n".join([*lines, "", *wrong_lines(scored)]).rstrip()


def put(begin: str, end: str, lines: list[str]) -> None:
    """Put lines between two marks of benchmarks/README.md."""
    path = HERE / "README.md"
    head, _, rest = path.read_text().partition(begin)
    tail = rest.partition(end)[2]
    path.write_text("\n".join([f"{head}{begin}", *lines, f"{end}{tail}"]))


def _names(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[str]:
    """The experiments to make where none is named."""
    if not given.drawn:
        return list(UNUSUAL if given.unusual else EXPERIMENTS)
    first, dash, last = given.drawn.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        parser.error(f"--drawn {given.drawn}: give seeds, such as 7 or 1-20")
    return [f"{RECORDED if given.recorded else PREFIX}{seed}" for seed in range(int(first), int(last) + 1)]


def _is_known(name: str) -> bool:
    try:
        experiment_of(name)
    except KeyError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", nargs="?", choices=["make", "score"], help="default: both")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these experiments")
    parser.add_argument("--unusual", action="store_true", help="make what is seldom met instead")
    parser.add_argument("--recorded", action="store_true", help="and record their programs' verbs calls")
    parser.add_argument("--drawn", metavar="SEEDS", help="make what chance draws from them instead: 1-20")
    parser.add_argument("--ipv6", action="store_true", help="make them between IPv6 GIDs")
    parser.add_argument("--as", dest="neighbour", help="score less good captures; A,B: va and vb are unlike")
    parser.add_argument("--neighbours", action="store_true", help="score every kind of them, in one table")
    parser.add_argument("--batch", type=int, default=BATCH, help="how many in each boot")
    parser.add_argument("--json", action="store_true", help="every claim as JSON")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    given = parser.parse_args()
    if given.action and given.folder is None:
        parser.error("name a folder")
    if given.neighbour:
        try:
            known(given.neighbour)
        except ValueError as error:
            parser.error(str(error))
    names = given.only or _names(parser, given)
    if given.ipv6:
        names = [OVER_IPV6 + name for name in names]
    unknown = [name for name in names if not _is_known(name)]
    if unknown:
        parser.error(f"no experiment {', '.join(sorted(unknown))}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="rocekit-truth-"))
    well = True
    if given.action != "score":
        well = make(folder, names, given.batch)
        print(f"made in {folder}", file=sys.stderr)
    if given.action == "make":
        return 0 if well else 1
    chosen = [f for f in folders(folder) if not given.only or f.name in given.only]
    if not chosen:
        parser.error(f"{folder} has no experiments: benchmarks/truth.py make {folder} makes them")
    if given.neighbour and given.write:
        parser.error("--write is of the captures as they are, and of --neighbours, not of --as")
    if given.neighbours:
        lines = neighbours_table(
            {kind: [each for e in chosen for each in score(e, kind)] for kind in NEIGHBOURS}
        )
        print("\n".join(lines))
        if given.write:
            put(NEIGHBOURS_BEGIN, NEIGHBOURS_END, lines)
        return 0 if well else 1
    scored = [each for experiment in chosen for each in score(experiment, given.neighbour or "")]
    if given.json:
        print(json.dumps([each.to_dict() for each in scored], indent=1))
    else:
        print(report(scored, [fault for experiment in chosen for fault in unfit(experiment)], len(chosen)))
    if given.write:
        put(BEGIN, END, [f"{len(chosen)} experiments.", "", *table(scored)])
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
