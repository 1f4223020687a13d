"""Claims about the files of recorded processes: none is overlooked, and what is not found is named."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recorded import record

from rocekit.record import ring
from rocekit.record.losses import TABLE
from rocekit.record.new_rings import NewRings


def told(folder: Path, pid: int) -> tuple[int, str]:
    (folder / f"{pid}.0.told").write_text(f"of {pid}")
    return pid, f"of {pid}"


def test_two_files_of_one_tick_of_the_kernel_s_clock_are_both_found(tmp_path: Path) -> None:
    """Before Linux 6.13 both leave the folder with the same time of change (multigrain timestamps)."""
    rings = NewRings([tmp_path])
    first = told(tmp_path, 1)
    at = tmp_path.stat().st_mtime_ns
    assert list(rings.look()) == [first]
    second = told(tmp_path, 2)
    os.utime(tmp_path, ns=(at, at))
    assert list(rings.look()) == [second]
    assert list(rings.look()) == []


def test_the_last_look_finds_what_the_folder_s_time_does_not_show(tmp_path: Path) -> None:
    rings = NewRings([tmp_path])
    at = time.time_ns() - 10_000_000_000
    first = told(tmp_path, 1)
    os.utime(tmp_path, ns=(at, at))
    assert list(rings.look()) == [first]
    second = told(tmp_path, 2)
    os.utime(tmp_path, ns=(at, at))
    assert list(rings.look(last=True)) == [second]


def test_a_file_that_its_process_takes_away_is_no_error(tmp_path: Path) -> None:
    """There was no room for it: it goes between two steps of the recorder, which had seen its name."""
    (tmp_path / "7.0.ring").symlink_to(tmp_path / "gone")
    rings = NewRings([tmp_path])
    assert list(rings.look()) == []
    assert list(rings.look(last=True)) == []


@pytest.mark.parametrize("age_s", [0, 60])
def test_rings_that_were_never_complete_are_named_at_the_end(tmp_path: Path, age_s: int) -> None:
    """Their process was killed while it made them, or it is of another version."""
    unfinished = tmp_path / "7.0.ring"
    unfinished.write_bytes(bytes(1 << 16))
    at = time.time_ns() - age_s * 1_000_000_000
    os.utime(unfinished, ns=(at, at))
    rings = NewRings([tmp_path])
    assert list(rings.look()) == []
    assert list(rings.look(last=True)) == [
        (7, "process 7: its rings were not complete when the recording ended")
    ]


def test_a_file_that_no_process_names_so_is_passed_over(tmp_path: Path) -> None:
    """Where root records, everybody may put files there."""
    for name in ("x.ring", "x.0.told", "²¹.0.ring"):
        (tmp_path / name).write_bytes(bytes(100))
    rings = NewRings([tmp_path])
    assert list(rings.look()) == []
    assert list(rings.look(last=True)) == []


@pytest.mark.parametrize("age_s", [0, 60])
def test_rings_that_are_complete_late_are_found(tmp_path: Path, age_s: int) -> None:
    """A machine without free memory took six seconds for a process's pages; the folder does not change."""
    made, slots = tmp_path / "7.0.ring", 64
    size = ring.PAGE * 2 + slots * ring.SLOT + TABLE
    made.write_bytes(bytes(size))
    at = time.time_ns() - age_s * 1_000_000_000
    for path in (made, tmp_path):
        os.utime(path, ns=(at, at))
    rings = NewRings([tmp_path])
    assert list(rings.look()) == []
    head = ring.FILE.pack(ring.MAGIC, ring.LAYOUT, 1, slots, 7, 0, 0, 0, 0, 0, b"program")
    with made.open("r+b") as file:
        file.write(head)
    os.utime(made, ns=(at, at))
    found = list(rings.look())
    while not found:  # it is looked at ten times a second, or sooner
        time.sleep(0.01)
        found = list(rings.look())
    (file_found,) = found
    assert isinstance(file_found, ring.RingFile)
    assert (file_found.pid, file_found.program) == (7, "program")
    file_found.close()
    assert list(rings.look(last=True)) == []


def test_a_folder_that_was_removed_is_made_again_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "rings"
    folder.mkdir()
    rings = NewRings([folder])
    assert list(rings.look()) == []
    folder.rmdir()
    why = "programs that had just opened their first device may not be in the journal"
    assert list(rings.look()) == [(os.getpid(), f"{folder} was removed by somebody: {why}")]
    second = told(folder, 2)
    assert list(rings.look()) == [second]


def test_the_journal_says_that_its_rings_were_removed(tmp_path: Path) -> None:
    ran = record(tmp_path / "x.jsonl", ["sh", "-c", "rmdir $ROCEKIT_RECORD_FOLDER; sleep 0.3"])
    (said,) = (what["what"] for what in ran.of("not_recorded"))
    assert "was removed by somebody" in said
    assert f"not recorded: {said}" in ran.stderr


def test_a_recorder_that_can_open_no_file_takes_no_other_one_for_dead() -> None:
    """It would remove that one's rings."""
    code = """
import os, resource
from rocekit.record.start import alive
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(alive(os.getpid()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
