"""Tests of one group or one module run in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from places import ROOT, TOOLS
from together import groups, piece, share

CONFTEST = """
def pytest_xdist_make_scheduler(config, log):
    from together import by_groups
    return by_groups(config, log)

def pytest_collection(session):
    from together import load_share
    load_share(session.config)
"""
GROUP = 'pytestmark = pytest.mark.xdist_group("both")\n'
LOADED = """
with open(os.environ["RAN"] + ".loaded", "a") as loaded:
    loaded.write(f"{os.getpid()} {__name__}\\n")
"""
TEST = """
def test_{n}():
    with open(os.environ["RAN"], "a") as ran:
        ran.write(f"{{os.getpid()}} {{__name__}} {n}\\n")
"""


def test_the_group_of_each_module_that_has_one_is_found() -> None:
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.xdist_group(" in path.read_text(encoding="utf-8") and path.name != "test_together.py"
    }
    assert groups().keys() == marked
    assert len(marked) > 3


def test_tests_of_a_group_or_a_module_are_one_piece_of_work_and_the_last_each_one() -> None:
    known = groups()
    a, b = "tests/fleet/test_urls.py::a[x@y]", "tests/fleet/test_run.py::b"
    assert piece(a, known) == piece(b, known) == piece(b, known, {b}) == "fleet"
    one, other = "tests/wire/test_wire.py::a[1]", "tests/wire/test_wire.py::b"
    assert piece(one, known) == piece(other, known) == "tests/wire/test_wire.py"
    assert piece(one, known, {one}) == one


def test_each_process_loads_its_share_of_the_modules_first(tmp_path: Path) -> None:
    files = [tmp_path / f"test_{n}.py" for n in range(9)]
    for n, path in enumerate(files):
        path.write_text("#" * (50 + 100 * n))
    shares = [share(files, process, 3) for process in range(3)]
    assert [path for part in shares for path in part] == files
    sizes = [sum(path.stat().st_size for path in part) for part in shares]
    assert max(sizes) - min(sizes) < 1000
    assert share([], 0, 2) == []


def test_each_test_runs_once_and_those_of_a_group_or_a_module_in_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    for name, mark in (("a", GROUP), ("b", ""), ("c", GROUP), ("d", "")):
        tests = "".join(TEST.format(n=number) for number in range(10))
        (folder / f"test_{name}.py").write_text(f"import os\nimport pytest\n{mark}{LOADED}{tests}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TOOLS), "RAN": str(tmp_path / "ran")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert " 40 passed" in done.stdout, done.stdout + done.stderr
    first: dict[str, str] = {}
    for line in (tmp_path / "ran.loaded").read_text().splitlines():
        first.setdefault(*line.split())
    assert sorted(first.values()) == ["test_a", "test_c"]
    lines = (tmp_path / "ran").read_text().splitlines()
    assert len(set(lines)) == len(lines) == 40
    processes: dict[str, set[str]] = {}
    for process, module, _ in map(str.split, lines):
        processes.setdefault(module, set()).add(process)
    assert processes["test_a"] == processes["test_c"]
    assert len(processes["test_a"]) == len(processes["test_b"]) == 1
