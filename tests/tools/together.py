"""Which process runs which tests: one runs all of a module, and of the modules with the same ``xdist_group``.

What a module's tests share is then made once, and not in each process; each module is compiled by one. The
last tests are given out one by one, so that all processes end at the same time.

`--dist loadgroup` of pytest-xdist 3.8 writes the group into the node IDs of tests, which pytest 9.2 does not
let it change: each test went to whatever process was free. Here the group is read from the module's text.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

_GROUP = re.compile(r'^pytestmark = pytest\.mark\.xdist_group\("([^"]+)"\)$', re.MULTILINE)

SINGLE = 10
"""Of the tests without a group, the last in so many are given out one by one."""


def groups(folder: Path = ROOT / "tests") -> dict[str, str]:
    """The groups of test modules, by their paths in the repository."""
    found = {}
    for path in folder.rglob("test_*.py"):
        group = _GROUP.search(path.read_text(encoding="utf-8"))
        if group is not None:
            found[path.relative_to(folder.parent).as_posix()] = group[1]
    return found


def share(files: list[Path], process: int, processes: int) -> list[Path]:
    """The files that a process loads first: about as many bytes as each of the others."""
    sizes = [path.stat().st_size for path in files]
    middles = [sum(sizes[:n]) + sizes[n] // 2 for n in range(len(sizes))]
    return [
        path
        for path, middle in zip(files, middles, strict=True)
        if middle * processes // max(sum(sizes), 1) == process
    ]


def load_share(config: pytest.Config) -> None:
    """Load this process's share of the modules before it collects the tests of all.

    Where a module is loaded the first time, pytest compiles it, with what it adds to each ``assert``, and
    keeps that in a file. All processes loaded the same module at the same time, and each compiled it.
    """
    given = getattr(config, "workerinput", None)
    if given is None:
        return
    folders = [path for path in (config.rootpath / argument for argument in config.args) if path.is_dir()]
    files = sorted(path for folder in folders for path in folder.rglob("test_*.py"))
    for path in share(files, int(given["workerid"].removeprefix("gw")), given["workercount"]):
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        # Collecting says what is wrong with it.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(path.stem)


def piece(nodeid: str, known: Mapping[str, str], single: Collection[str] = ()) -> str:
    """What a test is given to a process with: its group or module; only itself if it is in ``single``."""
    module = nodeid.partition("::")[0]
    return known.get(module) or (nodeid if nodeid in single else module)


def by_groups(config: pytest.Config, log: Any) -> Any:
    """What gives all tests of a group or module to one process, and each of the last to a free one."""
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

    known = groups(config.rootpath / "tests")

    class ByGroups(LoadGroupScheduling):  # type: ignore[misc]
        single: Collection[str] = ()
        places: Mapping[str, int]

        def schedule(self) -> None:
            if self.collection is None:
                collected = next(iter(self.registered_collections.values()))
                self.places = {nodeid: place for place, nodeid in enumerate(collected)}
                self.single = frozenset(collected[-(len(collected) // SINGLE) :])
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return piece(nodeid, known, self.single)

        def _assign_work_unit(self, node: Any) -> None:
            """As pytest-xdist does, which looks through all tests for the place of each."""
            name, tests = self.workqueue.popitem(last=False)
            self.assigned_work[node][name] = tests
            node.send_runtest_some([self.places[nodeid] for nodeid, done in tests.items() if not done])

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            """As pytest-xdist does, which after each test counts all that the process has done before."""
            nodeid = self.registered_collections[node][item_index]
            name = self._split_scope(nodeid)
            tests = self.assigned_work[node][name]
            tests[nodeid] = True
            if all(tests.values()):
                del self.assigned_work[node][name]
            self._reschedule(node)

    return ByGroups(config, log)
