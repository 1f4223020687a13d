"""Claims about programs that cannot be attached to: one line says why, and the program is as it was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recorded import LIBRARY, compiled, recorder

from rocekit.record.attach.attached_recorder import AttachedRecorder
from rocekit.record.attach.target import AttachError, RunningProgram
from rocekit.record.build import interposer

_SEIZES = """
import sys, time
from rocekit.record.attach.stopped_thread import _ptrace
_ptrace(0x4206, int(sys.argv[1]))
print("seized", flush=True)
time.sleep(60)
"""


def attach(pid: int, tmp_path: Path, *before: str) -> str:
    """What ``rocekit record --attach`` says, which exits with 1."""
    journal = tmp_path / "refused.journal.jsonl"
    command = [
        *before,
        sys.executable,
        "-m",
        "rocekit.cli",
        "record",
        "--attach",
        str(pid),
        "-o",
        str(journal),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert not journal.exists()
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs that say a line when they are ready, and ends them."""
    running: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        running.append(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        )
        out = running[-1].stdout
        assert out is not None
        out.readline()
        return running[-1]

    yield start
    for process in reversed(running):  # a tracer before what it traces
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def path(program: Path) -> str:
    library = program.parent / LIBRARY
    return str(
        compiled(program.parent / "running", "running.c", str(library), f"-Wl,-rpath,{program.parent}")
    )


Start = Callable[..., subprocess.Popen[str]]
_WAITS = ("sh", "-c", "echo ready; read line")


def test_a_process_that_is_not_there(tmp_path: Path) -> None:
    assert attach(2**22 - 1, tmp_path).endswith(f"there is no process {2**22 - 1}")


def test_rocekit_itself() -> None:
    with pytest.raises(AttachError, match=r"is rocekit itself"):
        RunningProgram(os.getpid())


def test_a_thread() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(AttachError, match=rf"is a thread of process {os.getpid()}: name that"):
            RunningProgram(thread.native_id or 0)
    finally:
        done.set()
        thread.join()


def test_a_program_without_verbs(started: Start, tmp_path: Path) -> None:
    assert "has not loaded libibverbs, whose calls are recorded" in attach(started(*_WAITS).pid, tmp_path)


def test_a_program_without_an_open_device(started: Start, path: str, tmp_path: Path) -> None:
    assert attach(started(path, "no_device").pid, tmp_path).endswith("has no verbs device open now")


def test_a_program_that_is_recorded_already(started: Start, path: str, tmp_path: Path) -> None:
    started(*recorder(tmp_path / "x.journal.jsonl"), path)
    (pid,) = [int(p.name) for p in Path("/proc").glob("[0-9]*") if _exe(p) == os.path.realpath(path)]
    assert attach(pid, tmp_path).endswith(f"process {pid} is recorded already")


def _exe(process: Path) -> str:
    try:
        return str((process / "exe").readlink())
    except OSError:
        return ""


def test_a_program_that_is_attached_to_already(started: Start, path: str, tmp_path: Path) -> None:
    pid = started(path).pid
    journal = str(tmp_path / "x.journal.jsonl")
    other = subprocess.Popen(
        [sys.executable, "-m", "rocekit.cli", "record", "--attach", str(pid), "-o", journal],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert other.stderr is not None
    assert "attached" in other.stderr.readline()
    assert attach(pid, tmp_path).endswith(f"process {pid} is recorded already")
    other.send_signal(signal.SIGTERM)
    other.communicate(timeout=240)
    assert other.returncode == 0


def test_a_stopped_program(started: Start, path: str, tmp_path: Path) -> None:
    process = started(path)
    process.send_signal(signal.SIGSTOP)
    while Path(f"/proc/{process.pid}/stat").read_text().rsplit(")")[1].split()[0] != "T":
        time.sleep(0.001)
    assert attach(process.pid, tmp_path).endswith(
        f"is stopped: let it go on first (kill -CONT {process.pid})"
    )


def test_a_traced_program(started: Start, path: str, tmp_path: Path) -> None:
    process = started(path)
    tracer = started(sys.executable, "-c", _SEIZES, str(process.pid))
    assert attach(process.pid, tmp_path).endswith(
        f"is traced by process {tracer.pid}: end that debugger first"
    )


def test_a_static_program(started: Start, tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text(
        '#include <stdio.h>\nint main(void) { puts("ready"); fflush(stdout); return getchar(); }\n'
    )
    subprocess.run(["cc", "-static", "-o", str(tmp_path / "static"), str(source)], check=True, timeout=240)
    line = attach(started(str(tmp_path / "static")).pid, tmp_path)
    assert "is linked statically: no library can be loaded into it" in line


def test_a_program_that_ignores_the_signal_of_a_step(started: Start, tmp_path: Path) -> None:
    pid = started("sh", "-c", "trap '' TRAP; echo ready; read line").pid
    assert "ignores SIGTRAP" in attach(pid, tmp_path)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"\x7fELF\x01" + bytes(13) + b"\x03\x00", "is a program of 32 bits"),
        (b"\x7fELF\x02" + bytes(13) + b"\xb7\x00", "is a program for aarch64, not x86_64"),
        (b"\x7fELF\x02" + bytes(13) + b"\x99\x09", "is a program for machine number 2457, not x86_64"),
    ],
)
def test_a_program_of_another_kind(head: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(head)
    (tmp_path / "exe").symlink_to(tmp_path / "program")
    target = RunningProgram.__new__(RunningProgram)
    target.pid, target._folder = 7, tmp_path
    with pytest.raises(AttachError, match=words):
        target._check_program()


def test_a_program_in_another_mount_namespace(root: None, started: Start, path: str, tmp_path: Path) -> None:
    pid = started("unshare", "-m", path).pid
    assert "sees other files (a container or chroot): run rocekit record inside" in attach(pid, tmp_path)


def test_a_program_of_another_user(root: None, started: Start, path: str, tmp_path: Path) -> None:
    pid = started(path).pid
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:3]:
        folder.chmod(folder.stat().st_mode | 0o755)
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv (apt-get install util-linux)")
    words = attach(
        pid,
        tmp_path,
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "env",
        f"HOME={tmp_path}",
    )
    assert "no right to attach: it belongs to user 0; use sudo" in words


def test_a_program_that_ended_meanwhile(started: Start, path: str, tmp_path: Path) -> None:
    process = started(path)
    target = RunningProgram(process.pid)
    process.kill()
    process.wait()
    with pytest.raises(AttachError, match=r"ended before it was attached to"):
        AttachedRecorder(target, tmp_path / "x.journal.jsonl", interposer()).run()
    assert not (tmp_path / "x.journal.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--attach", "1", "--", "true"), "--attach records a program that runs: name no other"),
        (("--attach", "1", "--nccl"), "--nccl is for a program that is started"),
        ((), "name a program, behind --, or one that runs by --attach PID"),
    ],
)
def test_a_wrong_command_line(options: tuple[str, ...], words: str) -> None:
    command = [sys.executable, "-m", "rocekit.cli", "record", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert words in done.stderr
