"""Claims about what a recorded program starts and no library is preloaded into: the journal names it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from recorded import LIBRARY, compiled, record

from rocekit.record.build import interposer
from rocekit.record.unseen import UnseenProcesses


@pytest.fixture(scope="module")
def running(program: Path) -> Path:
    """A program that loads libibverbs and does no more until its input ends."""
    library = program.parent / LIBRARY
    return compiled(program.parent / "waiting", "running.c", str(library), f"-Wl,-rpath,{program.parent}")


def named(command: str, tmp_path: Path, *, until_named: bool = True) -> list[str]:
    """What the journal names as not recorded, of a shell command whose input ends.

    Args:
        until_named: its input ends when the journal names something: a loaded machine lets the recorder wait.
    """
    journal = tmp_path / "x.journal.jsonl"
    wait = "sleep 1"
    if until_named:
        wait = f"for i in $(seq 200); do grep -q not_recorded {journal} && break; sleep 0.1; done"
    ran = record(journal, ["sh", "-c", f"{{ {wait}; }} | {command}"])
    assert (ran.returncode, ran.stdout) == (0, "ready\n"), ran.stderr
    assert ran.journal.problems == []
    return [event["what"].partition(": ")[2] for event in ran.of("not_recorded")]


def test_a_recorded_child_is_not_named(running: Path, tmp_path: Path) -> None:
    assert named(f"{running} no_device", tmp_path, until_named=False) == []


def test_a_child_with_another_environment(running: Path, tmp_path: Path) -> None:
    assert named(f"env -i {running} no_device", tmp_path) == [
        "the recorder's library was not loaded into it (LD_PRELOAD does not name it)"
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


def test_of_a_process_that_may_not_be_looked_into_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        unseen = UnseenProcesses(child.pid, tmp_path / "library.so")
        monkeypatch.setattr(os, "readlink", refused)
        ((_, what),) = looked(unseen)
        child.kill()
    assert what.endswith(
        ": the recorder may not look into it, so whether it uses verbs is unknown "
        "(into a program that is set-uid or has capabilities nothing is preloaded)"
    )


def test_a_recorded_process_that_forbids_to_be_looked_into_is_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Path(
        next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc" in line)
    )
    unseen = UnseenProcesses(os.getpid(), library)
    looked(unseen)
    monkeypatch.setattr(os, "readlink", refused)
    # Other tests may have left children of this process.
    assert os.getpid() not in [pid for pid, _ in looked(unseen)]


def refused(_path: object) -> str:
    raise PermissionError


def looked(unseen: UnseenProcesses) -> list[tuple[int, str]]:
    unseen._next = 0.0
    return unseen.look({})


def test_a_child_in_another_mount_namespace(root: None, running: Path, tmp_path: Path) -> None:
    hidden = interposer().parent
    inside = f"unshare -m sh -c 'mount -t tmpfs none {hidden} && exec {running} no_device'"
    assert named(inside, tmp_path) == [
        "it is in another mount namespace, and the recorder's library was not loaded there"
    ]


def test_a_process_with_rings_is_known_by_them(running: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [running, "no_device"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        unseen = UnseenProcesses(child.pid, tmp_path / "library.so")
        assert unseen._unseen(child.pid, running.name) is None
        assert "which uses verbs" in str(
            UnseenProcesses(child.pid, tmp_path / "library.so")._unseen(child.pid, "another")
        )
        child.communicate("")
