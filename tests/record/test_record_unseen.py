"""Claims about what a recorded program starts and no library is preloaded into: the journal names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from recorded import LIBRARY, compiled, record

from rocekit.record.build import interposer


@pytest.fixture(scope="module")
def running(program: Path) -> Path:
    """A program that loads libibverbs and does no more until its input ends."""
    library = program.parent / LIBRARY
    return compiled(program.parent / "waiting", "running.c", str(library), f"-Wl,-rpath,{program.parent}")


def named(command: str, tmp_path: Path) -> list[str]:
    """What the journal names as not recorded, of a shell command whose input ends after a second."""
    ran = record(tmp_path / "x.journal.jsonl", ["sh", "-c", f"sleep 1 | {command}"])
    assert (ran.returncode, ran.stdout) == (0, "ready\n"), ran.stderr
    assert ran.journal.problems == []
    return [event["what"].partition(": ")[2] for event in ran.of("not_recorded")]


def test_a_recorded_child_is_not_named(running: Path, tmp_path: Path) -> None:
    assert named(f"{running} no_device", tmp_path) == []


def test_a_child_with_another_environment(running: Path, tmp_path: Path) -> None:
    assert named(f"env -i {running} no_device", tmp_path) == [
        "the recorder's library was not loaded into it (LD_PRELOAD was taken out of its environment)"
    ]


def test_a_set_uid_child(root: None, running: Path, tmp_path: Path) -> None:
    privileged = tmp_path / "privileged"
    shutil.copyfile(running, privileged)
    privileged.chmod(0o4755)
    for folder in {*privileged.parents, *running.parents}:
        folder.chmod(folder.stat().st_mode | 0o055)
    command = f"setpriv --reuid=65534 --regid=65534 --clear-groups {privileged} no_device"
    assert named(command, tmp_path) == [
        "it has privileges of its own (set-uid or capabilities), so nothing was preloaded into it"
    ]


def test_a_child_in_another_mount_namespace(root: None, running: Path, tmp_path: Path) -> None:
    hidden = interposer().parent
    inside = f"unshare -m sh -c 'mount -t tmpfs none {hidden} && exec {running} no_device'"
    assert named(inside, tmp_path) == [
        "it is in another mount namespace, and the recorder's library was not loaded there"
    ]
