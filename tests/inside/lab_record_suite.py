"""rdma-core's own Python tests on one device: plain and recorded in turn, with what each posts counted below.

    lab_record_suite.py DEVICE

Leaves in the output folder, for each run, RUN.results.json (each test and how it ended, seconds of processor
time), RUN.counts.json (verbs_counter.c's counts, summed over its processes) and for recorded runs
RUN.journal.jsonl.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PACKAGED = Path("/usr/share/doc/rdma-core/tests")
COUNTER = Path(__file__).with_name("verbs_counter.c")
RUNS = ("plain1", "recorded1", "plain2", "recorded2")
COUNTS = ("sent", "received", "polled", "refused")
#: A test that takes longer than all others hangs.
LIMIT_S = 400


def unpack(into: Path) -> None:
    """The packaged tests, of which those that are long are compressed, as they were."""
    for path in PACKAGED.iterdir():
        if path.suffix == ".gz":
            (into / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        elif path.is_file():
            shutil.copy(path, into / path.name)


def results(said: str) -> dict[str, str]:
    """How each test ended, by its class and name."""
    found: dict[str, str] = {}
    lines = said.splitlines()
    current = ""
    for line in lines:
        named = re.match(r"^(\w+) \((tests[\w.]+)\)", line)
        if named:
            current = f"{named[2]}.{named[1]}"
        ended = re.search(r"\.\.\. .*?(ok|skipped|FAIL|ERROR)\b|^(ok|FAIL|ERROR)$", line)
        if current and ended:
            found[current] = ended[1] or ended[2]
            current = ""
    return found


def run(name: str, tests: Path, device: str, out: Path) -> None:
    command = ["/usr/bin/python3", str(tests / "run_tests.py"), "--dev", device, "--gid", "1", "-v"]
    counted = out / f"{name}.count"
    environment = {**os.environ, "LD_PRELOAD": str(out / "counter.so"), "VERBS_COUNTER": str(counted)}
    if name.startswith("recorded"):
        journal = out / f"{name}.journal.jsonl"
        command = [sys.executable, "-m", "rocekit", "record", "--quiet", "-o", str(journal), "--", *command]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with (out / f"{name}.txt").open("wb") as sink:
        ended = subprocess.run(
            command, stdout=sink, stderr=subprocess.STDOUT, env=environment, timeout=LIMIT_S
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = (out / f"{name}.txt").read_text(errors="replace")
    report = {
        "returncode": ended.returncode,
        "seconds": time.monotonic() - began,
        "processor_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "results": results(said),
    }
    (out / f"{name}.results.json").write_text(json.dumps(report, indent=1))
    sums = dict.fromkeys(COUNTS, 0)
    for path in out.glob(f"{counted.name}.*"):
        for number, which in enumerate(COUNTS):
            sums[which] += int.from_bytes(path.read_bytes()[8 * number : 8 * number + 8], sys.byteorder)
        path.unlink()
    (out / f"{name}.counts.json").write_text(json.dumps(sums))


def main(arguments: list[str]) -> int:
    out = Path(os.environ["ROCEKIT_LAB_OUT"])
    subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", "-o", str(out / "counter.so"), str(COUNTER), "-ldl", "-lpthread"],
        check=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
        for name in RUNS:
            run(name, Path(folder), arguments[0], out)
            print(name, "ended", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
