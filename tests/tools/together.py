"""Tests that run in one process, one after the other: those of modules with the same ``xdist_group``.

`--dist loadgroup` of pytest-xdist 3.8 writes the group into the node IDs of tests, which pytest 9.2 does not
let it change: each test went to whatever process was free. Here the group is read from the module's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

_GROUP = re.compile(r'^pytestmark = pytest\.mark\.xdist_group\("([^"]+)"\)$', re.MULTILINE)


def groups(folder: Path = ROOT / "tests") -> dict[str, str]:
    """The groups of test modules, by their paths in the repository."""
    found = {}
    for path in folder.rglob("test_*.py"):
        group = _GROUP.search(path.read_text(encoding="utf-8"))
        if group is not None:
            found[path.relative_to(folder.parent).as_posix()] = group[1]
    return found


def piece(nodeid: str, known: Mapping[str, str]) -> str:
    """What a test is given to a process with: its group, or itself alone."""
    return known.get(nodeid.partition("::")[0], nodeid)


def by_groups(config: pytest.Config, log: Any) -> Any:
    """What gives all tests of a group to one process, and each other test to a free one."""
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

    known = groups()

    class ByGroups(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return piece(nodeid, known)

    return ByGroups(config, log)
