"""In the lab, for scripts/conformance: drills on rxe0, in a new process after one that crashed or hangs.

python scripts/conformance_inside.py RESULTS.json [DRILL…]
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from rocekit.conform import records  # noqa: E402
from rocekit.conform.drill import Drill  # noqa: E402
from rocekit.conform.known import KnownFailures  # noqa: E402
from rocekit.conform.suite import run, suite  # noqa: E402
from rocekit.conform.verbs_device import VerbsConformDevice  # noqa: E402
from rocekit.conform.verdict import FAIL, INCONCLUSIVE  # noqa: E402
from rocekit.conform.wire_bench import WireBench  # noqa: E402

LIMIT_S = 45.0


def play(drills: Sequence[Drill], folder: Path, answer: Connection) -> None:
    """Play drills, and send the result of each."""
    device = VerbsConformDevice("rxe0")
    bench = WireBench(device, "vb", "10.9.0.2")
    for result in run(drills, bench, KnownFailures(())):
        if result.outcome in (FAIL, INCONCLUSIVE):
            records.keep(result, device.name, folder)
        answer.send(result.to_dict())
    bench.close()
    device.shut()


def stopped(drill: Drill, how: str) -> dict[str, Any]:
    """The result of a drill that stopped the device's program."""
    row: dict[str, Any] = {"drill": drill.name, "claim": drill.claim, "clause": drill.clause}
    row |= dict.fromkeys(("line", "expected", "came", "known", "seconds"))
    row |= {"outcome": INCONCLUSIVE, "reason": f"the device's program {how}"}
    return row | {"changed": False, "unsure": drill.unsure or None}


def main() -> None:
    path = Path(sys.argv[1])
    folder = path.parent / f"{path.stem}-failures"
    context = multiprocessing.get_context("fork")
    rows: list[dict[str, Any]] = []
    drills = suite(sys.argv[2:])
    while len(rows) < len(drills):
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=play, args=(drills[len(rows) :], folder, theirs))
        child.start()
        theirs.close()
        while len(rows) < len(drills):
            row: dict[str, Any] | None = None
            try:
                row = ours.recv() if ours.poll(LIMIT_S) else None
                how = "hangs"
            except EOFError:
                child.join(10.0)
                how = f"ended with {child.exitcode}"
            rows.append(row if row is not None else stopped(drills[len(rows)], how))
            print(rows[-1]["drill"], rows[-1]["outcome"], "" if row else how, flush=True)
            path.write_text(json.dumps({"device": f"rxe0, Linux {platform.release()}", "results": rows}))
            if row is None:
                break
        child.join(5.0)
        if child.is_alive():
            child.kill()


if __name__ == "__main__":
    main()
