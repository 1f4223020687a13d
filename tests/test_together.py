"""Tests of one group run in one process."""

from __future__ import annotations

from places import ROOT
from together import groups, piece


def test_the_group_of_each_module_that_has_one_is_found() -> None:
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.xdist_group(" in path.read_text(encoding="utf-8") and path.name != "test_together.py"
    }
    assert groups().keys() == marked
    assert len(marked) > 3


def test_tests_of_a_group_are_one_piece_of_work_and_others_each_one() -> None:
    known = groups()
    a, b = "tests/fleet/test_urls.py::a[x@y]", "tests/fleet/test_run.py::b"
    assert piece(a, known) == piece(b, known) == "fleet"
    alone = "tests/wire/test_wire.py::a[1]"
    assert piece(alone, known) == alone
