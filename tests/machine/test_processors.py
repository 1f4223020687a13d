"""Whether a processor is free: as the kernel counts who wants one, of those that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocekit.machine.processors import SpareProcessors, allowed


@pytest.mark.parametrize(
    ("count", "running", "spare"), [(2, 1, True), (2, 2, True), (2, 3, False), (4, 5, False), (1, 1, False)]
)
def test_a_processor_is_spare_if_all_that_want_one_have_one(
    tmp_path: Path, count: int, running: int, spare: bool
) -> None:
    """With one processor nobody knows who wants it while this looks."""
    load = tmp_path / "loadavg"
    load.write_text(f"4.99 4.20 3.50 {running}/317 22921\n")
    asked = SpareProcessors(count, str(load))
    assert bool(asked) is spare
    asked.close()
    assert not asked


def test_what_cannot_be_known_is_not_spare(tmp_path: Path) -> None:
    assert not SpareProcessors(4, str(tmp_path / "none"))
    (tmp_path / "empty").write_text("")
    assert not SpareProcessors(4, str(tmp_path / "empty"))


def test_the_kernel_s_own_file_is_understood() -> None:
    assert SpareProcessors(1 << 20)


@pytest.mark.parametrize(
    ("line", "files", "most"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000"}, None),
        ("0::/a/b", {"a/cpu.max": "150000 100000"}, 1),
        ("0::/a/b", {"cpu.max": "50000 100000"}, 0),
        ("4:cpu,cpuacct:/x", {"cpu,cpuacct/x/cpu.cfs_quota_us": "-1"}, None),
        (
            "4:cpu,cpuacct:/x",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "100000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("3:memory:/x", {"memory/x/cpu.max": "100000 100000"}, None),
    ],
)
def test_a_quota_counts_as_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, files: dict[str, str], most: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    groups = tmp_path / "groups"
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text + "\n")
    (tmp_path / "cgroup").write_text(line + "\n")
    assert allowed(tmp_path / "cgroup", groups, tmp_path) == (3 if most is None else most)


def test_two_threads_of_a_core_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{number}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}/topology/thread_siblings_list").write_text(siblings + "\n")
    assert allowed(tmp_path / "none", tmp_path, tmp_path) == 2
