"""What recording costs a suite of tests: `python benchmarks/record_suite.py [counted|lab] [TURNS]`.

rdma-core's own Python tests run on rxe in the lab's VM, plain and recorded in turn, once in a process and
three times. counted: one processor whose clock counts instructions, one a nanosecond. lab: two processors,
in real time. Each row has the time by the clock and the processor time, of everything and of the program
itself; what the clock shows before the program's first line and after its last is the recorder's alone.

rocekit is installed into the VM's memory, and Python's own modules are copied there: over 9p, from the host,
every module that either Python reads would wait for the emulated machine, as no local disk makes it wait.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "tools"), str(ROOT / "tests" / "inside")]

TIMES = (1, 3)
WAYS = ("plain", "recorded")

#: Runs the tests as run_tests.py does, several times, and says when it began and ended, and what it took.
PROGRAM = """
import time
began = time.monotonic()
import json, os, resource, sys, unittest
times, report = int(sys.argv.pop(1)), sys.argv.pop(1)
from importlib.machinery import SourceFileLoader
from args_parser import parser
tests = SourceFileLoader("tests", os.path.join(sys.path[0], "__init__.py")).load_module()
parser.parse_args()
for _ in range(times):
    unittest.main(module=tests, exit=False)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
took = sum(one.ru_utime + one.ru_stime for one in used)
with open(report, "w") as file:
    json.dump({"began": began, "ended": time.monotonic(), "processor_s": took}, file)
"""


#: As pip writes it.
SCRIPT = """#!{python}
import sys
from rocekit.cli import main
if __name__ == '__main__':
    sys.exit(main())
"""


#: The Python that runs the tests.
TESTS_PYTHON = "/usr/bin/python3"
#: Parts of Python's own modules that none of these programs loads.
UNUSED = ("test", "tests", "idlelib", "lib2to3", "ensurepip", "pydoc_data", "config-*")


def pack(into: Path) -> None:
    """The modules of both Pythons and of rocekit in one file each, which is read in few pieces."""
    ask = "import os, pyverbs; print(os.path.dirname(os.__file__), pyverbs.__path__[0], sep='\\n')"
    said = subprocess.run([TESTS_PYTHON, "-c", ask], check=True, capture_output=True, text=True).stdout
    folders = {Path(os.__file__).parent, *map(Path, said.split())}
    less = [f"--exclude={name}" for name in UNUSED]
    subprocess.run(
        ["tar", "-C", "/", *less, "-cf", into / "modules.tar", *(f[1:] for f in map(str, folders))]
    )
    (into / "folders").write_text("\n".join(map(str, folders)))
    # As pip does when it installs a wheel.
    subprocess.run([sys.executable, "-m", "compileall", "-q", ROOT / "rocekit"], check=True)
    subprocess.run(["tar", "-C", ROOT, "--exclude=*.c", "-cf", into / "rocekit.tar", "rocekit"], check=True)


def install(packed: Path, into: Path) -> Path:
    """rocekit in an environment of its own, as from a wheel, and all modules in memory; the command.

    A clone's environment (pip install -e) loads a finder of modules at each start of Python, which takes
    twice as long as the start itself.
    """
    venv.create(into, symlinks=True)
    (home,) = into.glob("lib/python3.*/site-packages")
    subprocess.run(["tar", "-C", home, "-xf", packed / "rocekit.tar"], check=True)
    command = into / "bin" / "rocekit"
    command.write_text(SCRIPT.format(python=into / "bin/python"))
    command.chmod(0o755)
    modules = into / "modules"
    modules.mkdir()
    subprocess.run(["tar", "-C", modules, "-xf", packed / "modules.tar"], check=True)
    for folder in (packed / "folders").read_text().split():
        subprocess.run(["mount", "--bind", f"{modules}{folder}", folder], check=True)
    return command


def one_run(way: str, times: int, tests: Path, out: Path, rocekit: Path) -> dict[str, float]:
    report, journal = out / "program.json", out / "x.journal.jsonl"
    report.unlink(missing_ok=True)
    journal.unlink(missing_ok=True)
    script = [str(tests / "repeated.py"), str(times), str(report)]
    command = [TESTS_PYTHON, *script, "--dev", "rxe0", "--gid", "1"]
    if way == "recorded":
        command = [str(rocekit), "record", "-q", "-o", str(journal), "--", *command]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with (out / f"{way}{times}.txt").open("ab") as sink:
        subprocess.run(command, stdout=sink, stderr=sink, check=False, timeout=1200)
    ended, after = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    program = json.loads(report.read_text())
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "clock_s": ended - began,
        "processor_s": processor_s,
        "program_clock_s": program["ended"] - program["began"],
        "program_processor_s": program["processor_s"],
        "before_s": program["began"] - began,
        "after_s": ended - program["ended"],
    }


def inside(turns: int, packed: Path) -> None:
    from lab_record_suite import unpack

    out = Path(os.environ["ROCEKIT_LAB_OUT"])
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as scratch:
        unpack(Path(folder))
        (Path(folder) / "repeated.py").write_text(PROGRAM)
        rocekit = install(packed, Path(scratch) / "rocekit")
        for way in WAYS:
            one_run(way, 1, Path(folder), Path(scratch), rocekit)  # the first finds nothing in the page cache
        for turn in range(turns):
            for times in TIMES:
                for way in WAYS if turn % 2 else reversed(WAYS):
                    found.setdefault(f"{way} {times}", []).append(
                        one_run(way, times, Path(folder), Path(scratch), rocekit)
                    )
                    print(turn, way, times, found[f"{way} {times}"][-1], flush=True)
                    (out / "suite.json").write_text(json.dumps(found))


def report(found: dict[str, list[dict[str, float]]]) -> None:
    for times in TIMES:
        plain, recorded = found[f"plain {times}"], found[f"recorded {times}"]
        print(f"{times} in a process, {len(plain)} turns:")
        for name in plain[0]:
            one, other = [run[name] for run in plain], [run[name] for run in recorded]
            ratio = statistics.median(other) / statistics.median(one)
            print(f"  {name}: plain {_spread(one)}, recorded {_spread(other)}, ratio {ratio:.3f}")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main(way: str, turns: int) -> None:
    from rocekit.lab import run

    counted = way == "counted"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as packed:
        pack(Path(packed))
        run(
            [sys.executable, __file__, "inside", str(turns), packed],
            out=folder,
            timeout_s=36_000,  # where instructions are counted, waiting for the host takes a multiple
            counted=counted,
            cpus=1 if counted else 2,
            boot_timeout_s=600,
        )
        report(json.loads(Path(folder, "suite.json").read_text()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What recording costs rdma-core's tests, in the lab's VM.")
    parser.add_argument("way", nargs="?", choices=("counted", "lab", "inside"), default="lab")
    parser.add_argument("turns", nargs="?", type=int, default=3)
    parser.add_argument("packed", nargs="?", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way == "inside":
        inside(given.turns, given.packed)
    else:
        main(given.way, given.turns)
