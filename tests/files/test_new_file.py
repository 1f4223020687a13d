"""Outputs on their way: nobody can put another file in their way, and nothing of them is lost or left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocekit.errors import CaptureError, RocekitError
from rocekit.files.growing import GrowingFile
from rocekit.files.new_file import NewFile
from rocekit.files.outputs import Together, complete
from rocekit.journal import JournalWriter, read_journal

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of another user")

HOLDS = """
import sys, time
from rocekit.files.new_file import NewFile
new = NewFile(sys.argv[1])
new.file.write(b"half")
print("ready", flush=True)
time.sleep(600)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def holding(out: Path) -> subprocess.Popen[bytes]:
    """A process in the middle of writing a file."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(out)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_a_temporary_name_is_another_one_each_time(tmp_path: Path) -> None:
    first, second = NewFile(tmp_path / "x.html"), NewFile(tmp_path / "x.html")
    assert len(names(tmp_path)) == 2
    assert not any(str(os.getpid()) in name for name in names(tmp_path))
    first.discard()
    second.discard()
    assert names(tmp_path) == []


def test_what_a_killed_process_left_goes_with_the_next_run_and_not_before(tmp_path: Path) -> None:
    out = tmp_path / "x.html"
    with holding(out) as process:
        with complete(out) as file:
            file.write(b"whole")
        assert len(names(tmp_path)) == 2  # the other one is still being written
        process.kill()
    with complete(tmp_path / "y.html") as file:
        file.write(b"other")
    assert names(tmp_path) == ["x.html", "y.html"]
    assert out.read_bytes() == b"whole"


def test_a_link_with_the_name_of_a_left_over_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / ".rocekit-abcd").symlink_to(tmp_path / "precious")
    with complete(tmp_path / "x.html") as file:
        file.write(b"whole")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert (tmp_path / ".rocekit-abcd").is_symlink()


@needs_root
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_another_user_put_into_a_shared_folder_is_not_written_through(tmp_path: Path, kind: str) -> None:
    shared, out = tmp_path / "shared", tmp_path / "shared" / "x.pcap"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "precious").write_bytes(b"precious")
    if kind == "link":
        out.symlink_to(tmp_path / "precious")
    else:
        os.mkfifo(out)
    os.chown(out, 65534, 65534, follow_symlinks=False)
    for make in (complete, GrowingFile):
        with pytest.raises(RocekitError, match=f"is a {kind} of another user"):
            make(out).__enter__() if make is complete else make(out)
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_file_keeps_its_rights_and_a_new_one_gets_those_of_the_umask(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"")
    (tmp_path / "old").chmod(0o604)
    before = os.umask(0o027)
    try:
        for name in ("old", "new"):
            with complete(tmp_path / name) as file:
                file.write(b"x")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("old", "new")] == [0o604, 0o640]


def test_files_of_one_command_take_their_places_together_or_none_does(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old a")
    (tmp_path / "c").write_bytes(b"old c")

    def write() -> None:
        with Together() as together:
            for name in ("a", "b", "c"):
                together.open(tmp_path / name).write(b"new")
            (tmp_path / "b").mkdir()  # no file can take this place

    with pytest.raises(CaptureError, match="b: cannot be written"):
        write()
    assert (tmp_path / "a").read_bytes() == b"old a"
    assert (tmp_path / "c").read_bytes() == b"old c"
    assert names(tmp_path) == ["a", "b", "c"]


# ------------------------------------------------------------------ files that grow


def test_a_growing_file_is_seen_under_its_own_name_if_it_is_new(tmp_path: Path) -> None:
    growing = GrowingFile(tmp_path / "x.pcapng")
    assert names(tmp_path) == ["x.pcapng"]
    growing.close()
    assert names(tmp_path) == ["x.pcapng"]


def test_a_growing_file_replaces_an_old_one_at_its_end(tmp_path: Path) -> None:
    out = tmp_path / "x.pcapng"
    out.write_bytes(b"old")
    growing = GrowingFile(out)
    growing.file.write(b"new")
    assert out.read_bytes() == b"old"
    growing.close()
    assert (names(tmp_path), out.read_bytes()) == (["x.pcapng"], b"new")


def test_packets_that_came_before_the_disk_was_full_are_kept_beside_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "x.pcapng"
    out.write_bytes(b"old")
    growing = GrowingFile(out)
    growing.file.write(b"new")
    error = growing.failed(OSError(28, "No space left on device"))
    with pytest.raises(CaptureError):
        growing.close()
    (part,) = (path for path in tmp_path.iterdir() if path != out)
    assert str(error).endswith(f"No space left on device; what was written is in {part}")
    assert part.name.startswith("x.partial-")
    assert (out.read_bytes(), part.read_bytes()) == (b"old", b"new")


def test_a_journal_to_which_nothing_could_be_added_is_as_long_as_before(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with JournalWriter(path, append=True) as journal:
        journal.write("mr_registered", device="rxe0", addr=0, length=1, lkey=1, rkey=1)
    before = path.read_bytes()
    program = (
        "import resource, sys; from rocekit.journal import JournalWriter\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 50},) * 2)\n"
        "with JournalWriter(sys.argv[1], append=True) as journal:\n"
        "  for k in range(1000):\n"
        "    journal.write('mr_registered', device='rxe0', addr=k, length=1, lkey=1, rkey=1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, check=False)
    assert b"x.jsonl: cannot be written: File too large" in done.stderr
    assert path.read_bytes() == before
    with JournalWriter(path, append=True) as journal:
        journal.write("mr_registered", device="rxe0", addr=1, length=1, lkey=1, rkey=1)
    assert len(read_journal(path).events) == 2


@pytest.mark.parametrize("there", [False, True], ids=["new", "old"])
def test_a_growing_file_to_which_nothing_could_be_written_is_not_left(there: bool, tmp_path: Path) -> None:
    full = tmp_path / "x.pcapng"
    if there:
        full.write_bytes(b"old")
    program = (
        "import resource, sys; from rocekit.files.pcapng_write import PcapngWriter\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "PcapngWriter(sys.argv[1]).close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(full)], capture_output=True, check=False)
    assert done.stderr.endswith(b"x.pcapng: cannot be written: File too large\n")
    assert names(tmp_path) == (["x.pcapng"] if there else [])
    assert not there or full.read_bytes() == b"old"
