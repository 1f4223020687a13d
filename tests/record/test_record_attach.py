"""Claims about recording a program that runs already: it notices nothing, and nothing is missing since.

The program is ``stub/running.c``: threads that post and poll, by the plain and by the extended calls, beside
others that allocate memory and load libraries all the time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import LIBRARY, compiled

from rocekit.journal import Journal, read_journal
from rocekit.journal.work_requests import read_programs
from rocekit.record.attach import verbs_objects, way_in
from rocekit.record.attach.stopped_thread import StoppedThread, may_stop
from rocekit.record.attach.target import AttachError, RunningProgram
from rocekit.record.build import SOURCES, compiler

_GETPID = 39


class Running:
    """``stub/running.c`` while it runs."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [str(path), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, what: str) -> list[int]:
        """Say a word to it; its answer: functions that were replaced, and what its threads have posted."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return [int(word) for word in self._line().split()]

    def go_on(self) -> None:
        """Wait until each thread has posted what it had not when this was called."""
        _, *before = self.tell("look")
        while any(now < then + 3 for now, then in zip(self.tell("look")[1:], before, strict=True)):
            pass

    def end(self) -> list[list[int]]:
        """Have it end; of each thread what it posted, completed, and saw go wrong."""
        out, _ = self.process.communicate(timeout=240)
        assert self.process.returncode == 0
        return [[int(word) for word in line.split()] for line in out.splitlines()]


class Recorder:
    """``rocekit record --attach``, attached."""

    def __init__(self, pid: int, journal: Path, *options: str) -> None:
        command = [sys.executable, "-m", "rocekit.cli", "record", "--attach", str(pid), "-o", str(journal)]
        self.journal = journal
        self.process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.first = self.process.stderr.readline()
        assert "attached to process" in self.first, self.first

    def end(self) -> Journal:
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self) -> Journal:
        _, self.said = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, self.said
        return read_journal(self.journal)


@pytest.fixture(scope="module")
def path(program: Path) -> Path:
    library = program.parent / LIBRARY
    return compiled(program.parent / "running", "running.c", str(library), f"-Wl,-rpath,{program.parent}")


@pytest.fixture
def running(path: Path) -> Iterator[Running]:
    found = Running(path)
    yield found
    if found.process.poll() is None:
        found.process.kill()
        found.process.communicate()


def posted(journal: Journal, first: int) -> list[int]:
    """The wr_ids of the thread that counts from ``first``."""
    ids = [event["wr_id"] for event in journal.of("wr_posted")]
    return [wr_id for wr_id in ids if first <= wr_id < first + 1_000_000]


def test_from_then_on_nothing_is_missing_and_the_program_is_as_before(
    running: Running, tmp_path: Path
) -> None:
    recorder = Recorder(running.pid, tmp_path / "x.journal.jsonl")
    running.go_on()
    replaced, *before = running.tell("new")
    assert replaced == 3  # the functions of the context, of the extended QP and of the extended CQ
    running.go_on()
    running.tell("pause")
    replaced, *counts = running.tell("look")
    running.tell("go")
    journal = recorder.end()
    assert running.tell("look")[0] == 0
    assert journal.problems == []
    assert not journal.of("records_lost")
    for first, least, count in zip((1_000_000, 2_000_000), before[:2], counts[:2], strict=True):
        ids = posted(journal, first)
        assert ids == list(range(ids[0], ids[0] + len(ids)))
        assert ids[0] < first + least
        assert ids[-1] >= first + count - 2  # the thread may post two more before it sees the pause
        done = [e["wr_id"] for e in journal.of("wc_polled") if first <= e["wr_id"] < first + 1_000_000]
        assert done == list(range(done[0], done[0] + len(done)))
    made_after = posted(journal, 3_000_000)
    assert made_after == list(range(3_000_000, 3_000_000 + len(made_after)))
    assert made_after
    for posted_by_it, completed, wrong in running.end():
        assert (completed, wrong) == (posted_by_it, 0)


def test_what_was_there_before_is_described_or_said_to_be_unknown(running: Running, tmp_path: Path) -> None:
    recorder = Recorder(running.pid, tmp_path / "x.journal.jsonl")
    running.tell("new")
    running.go_on()
    journal = recorder.end()
    states = [event["state"] for event in journal.of("recording")]
    # The program says that it began, the recorder that it attached: on a loaded machine either is first.
    assert (sorted(states[:2]), states[2:]) == (["attached", "began"], ["detached"])
    assert [event.get("found") for event in journal.of("device_opened")] == [True]
    found = {event.qp[1]: event for event in journal.of("qp_found") if event.qp is not None}
    assert len(found) == 2
    for event in found.values():
        assert (event["transport"], event["state"], event["path_mtu"], event["dest_qpn"]) == (
            "RC",
            "RTS",
            1024,
            0x42,
        )
        assert (event["dest_ip"], event["local_ip"]) == ("10.9.0.2", "10.9.0.1")
        assert "sq_psn" not in event.fields, "of packets, not of posts"
    assert any("before the recorder was attached" in event["what"] for event in journal.of("not_recorded"))
    qps = {qp.qpn: qp for qp in read_programs(journal).qps}
    assert {qpn: qp.found for qpn, qp in qps.items()} == {qpn: qpn in found for qpn in qps}
    assert all(qps[qpn].lossy_ns is not None for qpn in found)


def test_it_can_be_attached_to_again(running: Running, tmp_path: Path) -> None:
    last = 0
    for again in range(2):
        recorder = Recorder(running.pid, tmp_path / f"{again}.journal.jsonl", "--ring-size", "4096")
        running.go_on()
        ids = posted(recorder.end(), 1_000_000)
        assert running.tell("look")[0] == 0
        assert ids == list(range(ids[0], ids[0] + len(ids)))
        assert ids[0] > last
        last = ids[-1]
    assert all(wrong == 0 for _, _, wrong in running.end())


def test_a_program_that_does_nothing_is_let_go_of_in_its_next_call(running: Running, tmp_path: Path) -> None:
    recorder = Recorder(running.pid, tmp_path / "x.journal.jsonl")
    running.tell("pause")
    recorder.end()
    assert "its next verbs call takes the recorder out" in recorder.said
    assert running.tell("go")[0] > 0
    while running.tell("look")[0]:
        pass
    assert all(wrong == 0 for _, _, wrong in running.end())


def test_the_program_s_end_ends_the_recording(running: Running, tmp_path: Path) -> None:
    recorder = Recorder(running.pid, tmp_path / "x.journal.jsonl")
    running.go_on()
    results = running.end()
    journal = recorder.ended()
    states = [event["state"] for event in journal.of("recording")]
    # The program's library may say that it began before the command says that it attached.
    assert sorted(states[:2]) == ["attached", "began"]
    assert states[2:] == ["ended"]
    for first, (count, _, _) in zip((1_000_000, 2_000_000), results, strict=True):
        assert posted(journal, first)[-1] == first + count - 1


def test_a_wait_without_end_is_not_interrupted(path: Path) -> None:
    waiting = Running(path, "epoll", "-1")
    target = RunningProgram(waiting.pid)
    mapping = next(m for m in target.mappings() if m.code and "libc.so" in m.path)
    instruction = mapping.start + target.read(mapping.start, mapping.end - mapping.start).index(b"\x0f\x05")
    for _ in range(20):
        with StoppedThread(target) as thread:
            assert thread.call_kernel(instruction, _GETPID) == waiting.pid
    target.close()
    out, _ = waiting.process.communicate("x\n", timeout=240)
    assert out == "0\n"


def test_a_wait_with_an_end_is_not_stopped_at_all(path: Path) -> None:
    waiting = Running(path, "epoll", "60000")
    target = RunningProgram(waiting.pid)
    while not target.system_call(waiting.pid).startswith("232 "):
        pass
    with pytest.raises(AttachError, match=r"each of its threads was in a system call that a stop would"):
        StoppedThread(target, wait_s=0.05).__enter__()
    target.close()
    out, _ = waiting.process.communicate("x\n", timeout=240)
    assert out == "0\n"


@pytest.mark.parametrize(
    ("call", "may"),
    [
        ("running", True),
        ("0 0x0 0x7ffd 0x400 0x0 0x0 0x0 0x7ffd 0x7f00", True),  # read
        ("202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f00", True),  # futex
        ("232 0x4 0x7ffd 0x1 0xffffffff 0x0 0x0 0x7ffd 0x7f00", True),  # epoll_wait without end
        ("232 0x4 0x7ffd 0x1 0x3e8 0x0 0x0 0x7ffd 0x7f00", False),  # for a second
        ("16 0x4 0x7ffd 0x1 0x3e8 0x0 0x0 0x7ffd 0x7f00", False),  # ioctl
        ("-1 0x7ffd 0x7f00", False),
        ("", False),
    ],
)
def test_a_thread_is_stopped_only_where_the_kernel_begins_the_call_anew(call: str, may: bool) -> None:
    assert may_stop(call) is may


def test_structures_are_those_of_the_headers(program: Path, tmp_path: Path) -> None:
    lines = [
        f'    printf("%zu\\n", offsetof(struct {structure}, {field}));\n'
        for structure, field in verbs_objects.OFFSETS
    ]
    sizes = ("struct attach_request", "struct attach_context", "struct attach_extended")
    lines += [f'    printf("%zu\\n", sizeof({name}));\n' for name in sizes]
    lines += ['    printf("%zu\\n", offsetof(struct attach_request, detach));\n']
    lines += ['    printf("%d\\n", ATTACH_LAYOUT);\n']
    source = tmp_path / "layout.c"
    includes = ("infiniband/verbs.h", "stdio.h", "stddef.h")
    head = "".join(f"#include <{name}>\n" for name in includes) + '#include "attach.h"\n'
    source.write_text(f"{head}int main(void)\n{{\n{''.join(lines)}    return 0;\n}}\n")
    cc = compiler()
    assert cc is not None
    subprocess.run(
        [cc, "-I", str(SOURCES), "-o", str(tmp_path / "layout"), str(source)], check=True, timeout=240
    )
    said = subprocess.run(
        [str(tmp_path / "layout")], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [int(word) for word in said] == [
        *verbs_objects.OFFSETS.values(),
        *(way_in.REQUEST.size, way_in.CONTEXT.size, way_in.EXTENDED.size, way_in.ANSWER, way_in.LAYOUT),
    ]


def test_the_code_is_that_of_its_source(tmp_path: Path) -> None:
    if shutil.which("as") is None or shutil.which("objcopy") is None:
        pytest.skip("no assembler (apt-get install binutils)")
    if os.uname().machine != "x86_64":
        pytest.skip("the code is for x86-64")
    source = Path(way_in.__file__).with_suffix(".S")
    subprocess.run(["as", "-o", str(tmp_path / "o"), str(source)], check=True, timeout=240)
    subprocess.run(
        ["objcopy", "-O", "binary", "-j", ".text", str(tmp_path / "o"), str(tmp_path / "bin")],
        check=True,
        timeout=240,
    )
    assert (tmp_path / "bin").read_bytes() == way_in.CODE


def test_a_line_of_a_found_qp_is_json_of_the_schema(running: Running, tmp_path: Path) -> None:
    recorder = Recorder(running.pid, tmp_path / "x.journal.jsonl", "--redact")
    running.go_on()
    assert recorder.end().problems == []
    lines = [json.loads(line) for line in (tmp_path / "x.journal.jsonl").read_text().splitlines()]
    assert {line["event"] for line in lines} >= {"qp_found", "device_opened", "wr_posted", "wc_polled"}
