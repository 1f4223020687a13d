"""How commands end that are not let to their end: signals, an unexpected error, a strange standard output."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from last_words import last_words
from places import PCAPS
from processes import status_of

from rocekit import analyze, ending

MAIN = 'import sys; sys.argv[0] = "rocekit"; from rocekit.cli import main; main()'
OLD = b"of yesterday"


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture that takes a while."""
    path = tmp_path_factory.mktemp("big") / "big.pcap"
    subprocess.run(
        [sys.executable, "-c", MAIN, "generate", path, "--packets", "400000", "--snaplen", "128"], check=True
    )
    return path


def opened(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except OSError:
            continue
    return found


#: Where nothing is open for long: the process handles signals.
HANDLED = "handles SIGTERM"
#: Arguments, and the file that a process has open when it has begun.
WRITING: dict[str, tuple[tuple[str, ...], str]] = {
    "annotate": (("annotate", "BIG", "out.pcapng"), "big.pcap"),
    "check": (("check", "BIG", "-o", "out.xml"), "big.pcap"),
    "conform": (("conform", "--known", "FIFO", "--junit", "out.xml"), HANDLED),
    "counters": (("counters", "lo", "--for", "100", "-o", "out.journal.jsonl"), HANDLED),
    "craft": (("craft", "--op", "RC_SEND_ONLY", "--count", "100000000", "-w", "out.pcap"), "/.rocekit-"),
    "export": (("export", "BIG", "--to", "csv", "-o", "out"), "big.pcap"),
    "generate": (("generate", "out.pcap", "--packets", "100000000"), "/.rocekit-"),
    "plot": (("plot", "BIG", "-o", "out.png"), "big.pcap"),
    "replay": (("replay", "BIG", "-w", "out.pcap"), "big.pcap"),
    "report": (("report", "BIG", "-o", "out.html"), "big.pcap"),
    "slice": (("slice", "BIG", "out.pcapng", "--headers-only"), "big.pcap"),
}


def has_begun(pid: int, sign: str) -> bool:
    if sign == HANDLED:
        return bool(int(status_of(pid)[0]["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)
    return any(sign in file for file in opened(pid))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("name", WRITING)
def test_a_writing_command_that_is_ended_leaves_what_was_there(
    name: str, number: signal.Signals, big: Path, tmp_path: Path
) -> None:
    arguments, sign = WRITING[name]
    (tmp_path / "out").mkdir()
    for old in ("out.pcapng", "out.pcap", "out.png", "out.html", "out.xml", "out.journal.jsonl"):
        (tmp_path / old).write_bytes(OLD)
    for old in ("out/packets.csv", "out/transfers.csv"):
        (tmp_path / old).write_bytes(OLD)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    words = [str(big) if word == "BIG" else word for word in arguments]
    os.mkfifo(tmp_path / "FIFO")  # nobody writes it: who reads it waits
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 240
    while not has_begun(process.pid, sign) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    told, said = last_words(process)
    assert told == b""
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert said == b"" or b"stays as it was" in said or b"left out" in said
    else:
        assert (process.returncode, said) == (1, b"rocekit: error: ended by SIGTERM\n")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    assert {path.read_bytes() for path in before} == {OLD}


#: Ctrl-C when the command line is known, and before its command runs.
BETWEEN = """
import os, signal, sys
from rocekit.commands.command_line import Commands
invoke = Commands.invoke

def interrupted(self, ctx):
    os.kill(os.getpid(), signal.SIGINT)
    invoke(self, ctx)

Commands.invoke = interrupted
sys.argv[0] = "rocekit"
from rocekit.cli import main
main()
"""


def test_ctrl_c_before_the_command_runs_says_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", BETWEEN, "rules"], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_traffic_that_is_ended_leaves_what_was_seen_of_it(tmp_path: Path) -> None:
    for old in ("x.pcapng", "x.journal.jsonl"):
        (tmp_path / old).write_bytes(OLD)
    words = ["inject", "ping-write", "--both", "--backend", "soft", "-n", "100000000", "-s", "65536"]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *words, "--capture", "x.pcapng", "--journal", "x.journal.jsonl"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        sizes = [path.stat().st_size for path in tmp_path.glob("x.partial-*.pcapng")]
        if sizes and min(sizes) > 1 << 16:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    told, said = last_words(process)
    assert (process.returncode, told, said) == (1, b"", b"rocekit: error: ended by SIGTERM\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.journal.jsonl", "x.pcapng"]
    analysis = analyze(tmp_path / "x.pcapng", journals=[tmp_path / "x.journal.jsonl"])
    assert analysis.journal is not None
    assert any(transfer.wr is not None for transfer in analysis.transfers)


LEFT = """
import atexit, sys, threading, time
from rocekit.ending import guarded

class Held:
    def __del__(self):
        print("taken apart", flush=True)

held = Held()
atexit.register(print, "what ends it was called")
threading.Thread(target=lambda: (time.sleep(0.2), print("the thread has ended"))).start()
guarded(lambda: sys.exit(7))
"""


def test_a_command_ends_with_its_threads_and_its_output_but_takes_no_objects_apart() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == "the thread has ended\nwhat ends it was called\n"


def test_a_command_under_a_profiler_ends_as_the_interpreter_does() -> None:
    under = "import os, sys; os._exit = print; sys.setprofile(lambda *_: None)\n" + LEFT
    done = subprocess.run(
        [sys.executable, "-c", under], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 7
    assert done.stdout == "the thread has ended\nwhat ends it was called\n"  # and no status printed


def sent_to(program: str, number: signal.Signals) -> tuple[int, bytes, bytes]:
    """A program's status and what it prints after ``begun``, when it gets a signal then."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(number)
    told, said = last_words(process)
    return process.returncode, told, said


DROPPED = """
import time
from rocekit.ending import guarded

def program():
    try:
        print("begun", flush=True)
        time.sleep(600)
    except BaseException:
        pass
    try:
        time.sleep(600)
    finally:
        time.sleep(1.2)  # what is taken down is not disturbed
        print("taken down", flush=True)

guarded(program)
"""


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (signal.SIGTERM, 1, b"rocekit: error: ended by SIGTERM\n"),
        (signal.SIGINT, 130, b""),
    ],
    ids=["SIGTERM", "SIGINT"],
)
def test_a_signal_whose_exception_was_dropped_ends_the_command_all_the_same(
    number: signal.Signals, status: int, words: bytes
) -> None:
    assert sent_to(DROPPED, number) == (status, b"taken down\n", words)


WRAPPED = """
import time
from rocekit.ending import ending, guarded

def program():
    with ending():
        try:
            print("begun", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            assert not "in the middle of something"

guarded(program)
"""


def test_an_error_that_came_of_ctrl_c_is_no_defect() -> None:
    assert sent_to(WRAPPED, signal.SIGINT) == (130, b"", b"")


#: Ctrl-C while click is loaded, before there is somebody to handle it.
EARLY = """
import os, signal, sys

class Pressing:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressing())
"""


def test_ctrl_c_at_the_very_start_prints_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY + MAIN, "--help"], capture_output=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


CAUGHT = """
import time
from rocekit.ending import guarded
from rocekit.dropped_signals import heard

def program():
    try:
        print("begun", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        heard()
    time.sleep(1.2)
    print("gone on", flush=True)

guarded(program)
"""


def test_what_goes_on_after_ctrl_c_is_not_ended_by_it_again() -> None:
    assert sent_to(CAUGHT, signal.SIGINT) == (0, b"gone on\n", b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_ctrl_c_does_not_wait_for_a_reader_that_does_not_read(unbuffered: str) -> None:
    reader, writer = os.pipe()
    words = ["craft", "--op", "RC_SEND_ONLY", "--count", "100000000", "-w", "-"]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writer)
    size = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)
    have = bytearray(4)
    deadline = time.monotonic() + 240
    while int.from_bytes(have, sys.byteorder) < size - 8192 and time.monotonic() < deadline:
        time.sleep(0.01)
        fcntl.ioctl(reader, 0x541B, have)  # FIONREAD
    process.send_signal(signal.SIGINT)
    _, said = last_words(process)
    os.close(reader)
    assert (process.returncode, said) == (130, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_all_bytes_go_to_a_standard_output_that_takes_only_some_at_a_time(unbuffered: str) -> None:
    capture = PCAPS / "ping-write-clean.pcap"
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "report", capture, "-o", "-"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        page = file.read()
    _, said = last_words(process)
    assert process.returncode == 0, said
    assert len(page) > 1 << 16  # more than a pipe holds
    assert page.rstrip().endswith(b"</html>")


# ------------------------------------------------------------------ the last resort

BROKEN = """
import sys
sys.argv[0] = "rocekit"
import rocekit.commands.rules as rules
from rocekit.cli import main

def broken(**given):
    raise IndexError("pop from\\x1b[31m an\\nempty deque")

rules.command.callback = broken
main()
"""


def broken(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_an_error_that_nobody_thought_of_is_one_line_that_says_how_to_report_it() -> None:
    assert broken("rules") == (
        1,
        "rocekit: error: a defect of rocekit: IndexError: pop from\\x1b[31m an empty deque; please report it "
        "with what this command prints with --debug, and with the input if you may\n",
    )


@pytest.mark.parametrize("arguments", [("--debug", "rules"), ("rules", "--debug")])
def test_debug_prints_the_traceback_of_an_unexpected_error(arguments: tuple[str, ...]) -> None:
    status, said = broken(*arguments)
    assert status == 1
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.splitlines()[-1].startswith("rocekit: error: a defect of rocekit: IndexError")


def test_a_defect_names_its_place_in_rocekit() -> None:
    program = BROKEN.replace('raise IndexError("pop from\\x1b[31m an\\nempty deque")', "stem(3)").replace(
        "def broken", "from rocekit.files.capture_names import stem\n\ndef broken"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "rules"], capture_output=True, text=True, check=False
    )
    assert "TypeError" in done.stderr
    assert " at files/capture_names.py:" in done.stderr


def test_a_clone_in_a_folder_of_rocekits_name_has_other_libraries_beside_it() -> None:
    folder = Path(ending.__file__).parent
    assert ending._in_package(str(folder / "files" / "pcap.py")) == "files/pcap.py"
    assert ending._in_package("rocekit/track/tracker.py") == "track/tracker.py"
    assert ending._in_package(f"{folder.parent}/.venv/lib/rocekit/click/core.py") is None


def test_an_output_is_no_part_of_a_closed_standard_output(tmp_path: Path) -> None:
    shutil.copy(PCAPS / "ping-write-clean.pcap", tmp_path / "x.pcap")
    words = f"{sys.executable} -c '{MAIN}' annotate x.pcap y.pcapng >&- 2>&-"
    assert subprocess.run(["sh", "-c", words], cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "y.pcapng").read_bytes()[:4] == b"\x0a\x0d\x0d\x0a"
