"""What a command is told to write: nothing that is read is lost, and what cannot be written is named, once.

Each runs as a process of its own, as people run it; most are forks of one Python, which is loaded once.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from forked import forked
from last_words import last_words
from places import PCAPS, ROOT

from rocekit.errors import JournalError
from rocekit.files.outputs import complete
from rocekit.journal import JournalWriter

MAIN = "import sys; sys.argv[0] = 'rocekit'; from rocekit.cli import main; main()"
FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")


def environment() -> dict[str, str]:
    # Standard output has a buffer, as it has in a user's shell.
    found = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    # Where no file may grow, Python keeps the half of a module's bytecode that there was room for, and every
    # later run of that module ends in "marshal data too short".
    return {**found, "PYTHONDONTWRITEBYTECODE": "1"}


def start(*arguments: str | Path, **kwargs: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **kwargs,  # type: ignore[call-overload]
    )


def rocekit(*arguments: str | Path, cwd: Path | None = None, stdout: int | None = None) -> tuple[int, str]:
    """Exit status and standard error."""
    out = subprocess.PIPE if stdout is None else stdout
    ended = forked(*arguments, stdout=out, cwd=cwd, env=environment())
    return ended.status, ended.said


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "x.pcap"
    shutil.copy(PCAPS / "ping-write-clean.pcap", path)
    return path


# ------------------------------------------------------------------ two outputs, and standard output


@pytest.mark.parametrize(
    "command",
    [
        ("inject", "ping-sr", "--both", "--backend", "soft", "-n", "1", "--capture", "x", "--journal", "./x"),
        ("inject", "mesh", "--backend", "soft", "-n", "1", "--capture", "x", "--journal", "x"),
        ("record", "-i", "lo", "-w", "x", "-o", "x", "--", "true"),
    ],
    ids=["inject", "mesh", "record"],
)
def test_packets_and_journal_do_not_share_a_file(tmp_path: Path, command: tuple[str, ...]) -> None:
    status, said = rocekit(*command, cwd=tmp_path)
    assert (status, said) == (1, "rocekit: error: x: packets and journal cannot go to one file; name two\n")
    assert not (tmp_path / "x").exists()


def test_nowhere_takes_packets_and_journal(tmp_path: Path) -> None:
    both = ("inject", "ping-sr", "--both", "--backend", "soft", "-n", "1")
    assert rocekit(*both, "--capture", "/dev/null", "--journal", "/dev/null") == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        ("inject", "ping-sr", "--both", "--backend", "soft", "--capture", "-"),
        ("inject", "ping-sr", "--both", "--backend", "soft", "--journal", "-"),
        ("trace", "lo", "--duration", "1", "--write", "-"),
        ("record", "-o", "-", "--", "true"),
    ],
    ids=["inject capture", "inject journal", "trace", "record"],
)
def test_packets_do_not_mix_with_the_text_of_standard_output(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    status, said = rocekit(*command, cwd=tmp_path)
    assert status == 2
    assert "name a file" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("annotate",), ("slice", "--transfer", "0")], ids=["annotate", "slice"])
def test_a_dash_is_standard_output_and_no_file(
    capture: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    process = start(command[0], capture, "-", *command[1:], stdout=subprocess.PIPE, cwd=tmp_path)
    written, said = last_words(process, 120)
    assert process.returncode == 0, said
    assert written.startswith(b"\x0a\x0d\x0d\x0a")  # a pcapng section header
    assert not (tmp_path / "-").exists()


# ------------------------------------------------------------------ what cannot be written


TO_STDOUT: dict[str, Callable[[Path], tuple[str | Path, ...]]] = {
    "help": lambda x: ("--help",),
    "a command's help": lambda x: ("analyze", "--help"),
    "analyze": lambda x: ("analyze", x),
    "decode": lambda x: ("decode", x),
    "report": lambda x: ("report", x, "-o", "-"),
    "slice": lambda x: ("slice", x, "-", "--transfer", "0"),
    "annotate": lambda x: ("annotate", x, "-"),
    "replay": lambda x: ("replay", x, "-w", "-"),
    "craft": lambda x: ("craft", "--op", "RC_SEND_ONLY", "--count", "3000", "-w", "-"),
    "generate": lambda x: ("generate", "-", "--packets", "3000"),
    "inject": lambda x: ("inject", "--list"),
}


@needs_full
@pytest.mark.parametrize("name", TO_STDOUT)
def test_a_full_disk_behind_standard_output_is_one_line(capture: Path, name: str) -> None:
    with FULL.open("wb") as full:
        status, said = rocekit(*TO_STDOUT[name](capture), stdout=full.fileno())
    assert status == 1
    assert said.count("\n") == 1
    assert "standard output: " in said
    assert "No space left on device" in said


@pytest.mark.parametrize("name", TO_STDOUT)
def test_a_reader_that_went_away_ends_any_command_quietly(capture: Path, name: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        status, said = rocekit(*TO_STDOUT[name](capture), stdout=writer)
    finally:
        os.close(writer)
    assert (status, said) == (141, "")


@needs_full
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_a_journal_for_which_there_is_no_room_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.symlink_to(FULL)

    def write() -> None:
        with JournalWriter(path) as journal:
            for k in range(10_000):
                journal.write("mr_registered", device="rxe0", addr=k, length=4096, lkey=k, rkey=k)

    with pytest.raises(JournalError, match=f"{name}: cannot be written: No space left on device"):
        write()


@needs_full
@pytest.mark.parametrize(
    "command",
    [
        lambda x, out: ("report", x, "-o", out),
        lambda x, out: ("annotate", x, out),
        lambda x, out: ("replay", x, "-w", out),
        lambda x, out: ("inject", "ping-sr", "--both", "--backend", "soft", "-n", "9", "--capture", out),
    ],
    ids=["report", "annotate", "replay", "capture"],
)
def test_a_file_for_which_there_is_no_room_is_named(
    capture: Path, tmp_path: Path, command: Callable[[Path, Path], tuple[str | Path, ...]]
) -> None:
    out = tmp_path / "out"
    out.symlink_to(FULL)
    status, said = rocekit(*command(capture, out))
    assert status == 1
    assert said == f"rocekit: error: {out}: cannot be written: No space left on device\n"


def test_a_journal_that_grows_too_large_is_named(tmp_path: Path) -> None:
    both = ("inject", "ping-sr", "--both", "--backend", "soft", "-n", "50", "--journal", "x.jsonl")

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    process = start(*both, stdout=subprocess.PIPE, cwd=tmp_path, preexec_fn=little_room)
    _, said = last_words(process, 120)
    assert process.returncode == 1
    assert re.fullmatch(
        r"rocekit: error: x\.jsonl(\.server)?: cannot be written: File too large\n", said.decode()
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("x.html", ("report", "x.pcap", "-o", "x.html")),
        ("x.png", ("plot", "x.pcap", "-o", "x.png")),
        ("x.csv/packets.csv", ("export", "x.pcap", "--to", "csv", "-o", "x.csv")),
        ("x.pcapng", ("annotate", "x.pcap", "x.pcapng")),
        ("x.pcapng", ("slice", "x.pcap", "x.pcapng", "--connection", "0")),
        ("y.pcap", ("replay", "x.pcap", "-w", "y.pcap")),
        ("y.pcap", ("craft", "--op", "RC_SEND_ONLY", "--count", "300", "-w", "y.pcap")),
        ("y.pcap", ("generate", "y.pcap", "--packets", "3000")),
    ],
    ids=["report", "plot", "export", "annotate", "slice", "replay", "craft", "generate"],
)
def test_what_cannot_be_written_whole_leaves_what_was_there(
    name: str, arguments: tuple[str, ...], tmp_path: Path, capture: Path
) -> None:
    out = tmp_path / name
    out.parent.mkdir(exist_ok=True)
    out.write_bytes(b"of yesterday")
    before = sorted(tmp_path.rglob("*"))

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    process = start(*arguments, stdout=subprocess.PIPE, cwd=tmp_path, preexec_fn=little_room)
    _, said = last_words(process, 120)
    assert process.returncode == 1
    assert re.fullmatch(rf"rocekit: error: {re.escape(name)}: cannot be written[^\n]*\n", said.decode())
    assert out.read_bytes() == b"of yesterday"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", [("annotate",), ("slice", "--redact")], ids=["annotate", "slice"])
def test_one_file_where_two_are_needed_is_told_which_is_missing(
    command: tuple[str, ...], capture: Path
) -> None:
    before = capture.read_bytes()
    status, said = rocekit(*command, capture)
    assert status == 2
    assert "name the capture to read, and then the file to write" in said
    assert capture.read_bytes() == before


def test_an_interrupted_output_leaves_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "x.html"
    out.write_text("of yesterday")
    with suppress(KeyboardInterrupt), complete(out) as half:
        half.write(b"half")
        raise KeyboardInterrupt
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("x.html", "of yesterday")]


def test_a_complete_output_takes_the_place_of_the_file_behind_a_link_with_its_rights(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "file.html", tmp_path / "link.html"
    file.write_text("of yesterday")
    file.chmod(0o640)
    link.symlink_to(file)
    with complete(link) as new:
        new.write(b"of today")
    assert link.is_symlink()
    assert file.read_text() == "of today"
    assert file.stat().st_mode & 0o777 == 0o640
    assert list((tmp_path / "there").iterdir()) == [file]


# ------------------------------------------------------------------ what cannot be read


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without rights")
def test_a_capture_without_the_right_to_read_it_is_one_line(tmp_path: Path, capture: Path) -> None:
    source = ROOT
    if not os.access(source, os.R_OK) or not all(p.stat().st_mode & 1 for p in source.parents):
        pytest.skip("another user cannot reach this source tree")
    capture.chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 1 == 0:
            folder.chmod(folder.stat().st_mode | 1)  # passed through, not listed
        if folder.name.startswith("pytest-of-"):
            break
    process = start("analyze", capture, stdout=subprocess.PIPE, user=65534, group=65534, extra_groups=[])
    _, said = last_words(process, 120)
    assert process.returncode == 1
    reason = "may not be read by this user: change its permissions, or run as its owner"
    assert said.decode() == f"rocekit: error: {capture}: {reason}\n"


@pytest.mark.parametrize(
    "command", [("craft",), ("inject", "ping-sr", "--both", "--backend", "soft", "--faults")]
)
def test_what_is_no_text_is_no_yaml(capture: Path, command: tuple[str, ...]) -> None:
    status, said = rocekit(*command, capture)
    assert status == 1
    assert said.startswith(f"rocekit: error: {capture}: this is no text, so no YAML")


def test_a_copy_that_is_interrupted_ends_at_once(tmp_path: Path) -> None:
    big, out = tmp_path / "big.pcap", tmp_path / "out.pcapng"
    assert rocekit("generate", big, "--packets", "300000", "--snaplen", "128")[0] == 0
    process = start("annotate", big, out, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while f"{big}" not in opened(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    told, said = last_words(process, 120)
    assert (process.returncode, told, said) == (130, b"", b"")
    assert not out.exists()


def opened(pid: int) -> set[str]:
    """The files that a process has open."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(str(entry.readlink()))
        except OSError:
            continue
    return found
