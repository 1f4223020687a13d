"""A large pipe is read on by another process: every byte comes, in order, and nobody is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

import rocekit
from rocekit.craft.generate import Traffic, generate
from rocekit.errors import CaptureError
from rocekit.files.pipe_reader import RING_BYTES
from rocekit.files.source import RawSource

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.skipif(not hasattr(os, "eventfd"), reason="eventfds are Linux's"),
]
LONG = 3 * RING_BYTES + 12_345


def noise(size: int) -> bytes:
    return np.random.default_rng(7).bytes(size)


@contextmanager
def piped(data: bytes, *, ends: bool = True) -> Iterator[RawSource]:
    """A source whose pipe gets ``data``, in odd helpings, as fast as it takes them."""
    reading, writing = os.pipe()

    def write() -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(writing, view[:70_001]) :]
        except BrokenPipeError:
            pass
        if ends:
            os.close(writing)

    with os.fdopen(reading, "rb", buffering=0) as file:
        source = RawSource(file, follow=False)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield source
        finally:
            source.close()
            file.close()
            writer.join(120)
            assert not writer.is_alive(), "the pipe's writer still waits"
            if not ends:
                os.close(writing)


def everything(source: RawSource, between: Callable[[], None] = lambda: None) -> bytes:
    buffer = memoryview(bytearray(1_000_003))
    got, parts = None, []
    while got != 0:
        got = source.readinto(buffer)
        parts.append(bytes(buffer[: got or 0]))
        between()
    return b"".join(parts)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def drained(source: RawSource) -> int:
    """Reads until the other process does; gives how many bytes came."""
    buffer = memoryview(bytearray(1 << 20))
    while not source._handed_over:
        assert source.readinto(buffer) != 0
        time.sleep(0.005)
    return source.bytes_read


def test_a_long_pipe_comes_whole_whoever_reads_it() -> None:
    data = noise(LONG)
    with piped(data) as source:
        # The other process takes a moment to be there, on a busy machine a longer one.
        assert everything(source, lambda: None if source._handed_over else time.sleep(0.02)) == data
        assert source.bytes_read == len(data)
        assert source._handed_over


def test_a_reader_slower_than_the_pipe_misses_nothing() -> None:
    data = noise(LONG)
    with piped(data) as source:
        assert everything(source, lambda: time.sleep(0.01)) == data


def test_a_short_pipe_needs_no_other_process() -> None:
    data = noise(1 << 20)
    with piped(data) as source:
        assert everything(source) == data
        assert source._pipe_reader is None


def test_while_nothing_comes_that_is_said_and_what_comes_later_is_read() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as file:
        source = RawSource(file, follow=False)
        buffer = memoryview(bytearray(16 << 20))
        sender = threading.Thread(target=lambda: os.write(writing, bytes(5 << 20)))
        sender.start()
        while not source._handed_over or source.bytes_read < 5 << 20:
            source.readinto(buffer)
        sender.join()
        assert source.readinto(buffer) is None
        os.write(writing, b"late")
        assert source.readinto(buffer) == 4
        assert bytes(buffer[:4]) == b"late"
        source.stop()
        assert source.readinto(buffer) == 0
        source.close()
        os.close(writing)


def test_a_reader_that_is_ended_is_an_error_and_no_end_of_the_pipe() -> None:
    with piped(noise(LONG), ends=False) as source:
        drained(source)
        assert source._pipe_reader is not None
        source._pipe_reader._process.send_signal(signal.SIGKILL)
        with pytest.raises(CaptureError, match="the process that read the pipe was ended"):
            everything(source)


def test_closing_in_the_middle_lets_the_writer_go_and_leaves_no_process() -> None:
    with piped(noise(LONG)) as source:
        drained(source)
        assert source._pipe_reader is not None
        process = source._pipe_reader._process
    assert process.returncode is not None


def test_the_reader_ends_with_its_starter() -> None:
    script = """
import os, sys, time
from rocekit.files.source import RawSource
source = RawSource("-", follow=False)
buffer = memoryview(bytearray(1 << 20))
while not source._handed_over:
    source.readinto(buffer)
    time.sleep(0.02)
print(source._pipe_reader._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    starter = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert starter.stdin is not None
    assert starter.stdout is not None
    with pytest.raises(BrokenPipeError):  # once nobody holds the pipe's other end
        starter.stdin.write(bytes(1 << 28))
    pid = int(starter.stdout.readline())
    starter.wait(120)
    until(
        lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    )
    starter.stdout.close()
    try:
        starter.stdin.close()
    except BrokenPipeError:
        pass


def test_without_a_reader_the_pipe_is_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    data = noise(12 << 20)
    with piped(data) as source:
        assert everything(source) == data
        assert not source._handed_over


def test_a_capture_through_a_pipe_is_analysed_as_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=40_000, loss=0.01))
    from_file = rocekit.analyze(path).to_dict()
    with path.open("rb") as file:
        cat = subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE)
    done = subprocess.run(
        [sys.executable, "-m", "rocekit.cli", "analyze", "-", "--format", "json"],
        stdin=cat.stdout,
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert cat.stdout is not None
    cat.stdout.close()
    assert cat.wait() == 0
    from_pipe = json.loads(done.stdout)
    for name, value in from_file.items():
        if name == "capture":
            value["files"] = ["-"]
            from_pipe[name]["taken_at"] = value["taken_at"]
        assert from_pipe[name] == value, name
