"""Whether a file is read on in a thread or not, the same comes of it, and nothing is left behind."""

from __future__ import annotations

import errno
import gzip
import io
import threading
from pathlib import Path
from typing import Any

import pytest
from capture_bytes import Frame, enhanced, interface, pcap, section
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocekit.capture import open_capture
from rocekit.errors import CaptureError
from rocekit.files import window
from rocekit.files.read_ahead import HEADROOM, ReadAhead

FRAMES = [
    Frame(bytes([n % 251]) * (40 + 7 * n % 900), 1_700_000_000_000_000_000 + n * 1000) for n in range(400)
]
LONG = Frame(bytes(range(256)) * ((HEADROOM - 1024) // 256), 1_700_000_000_000_500_000)
FORMS = {
    "pcap": pcap(FRAMES),
    "pcapng": section() + interface() + b"".join(enhanced(f.data, f.time_ns // 1000) for f in FRAMES),
    "long": pcap([*FRAMES[:3], LONG, *FRAMES[3:9], LONG, LONG, *FRAMES[9:]]),
}


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rocekit read-ahead"]


def told(path: Path, chunk: int) -> list[Any]:
    """All that a reader says of a capture."""
    with open_capture(path, chunk_bytes=chunk) as reader:
        frames = [
            (frame, int(time_ns), int(number), int(wirelen))
            for batch in reader
            for frame, time_ns, number, wirelen in zip(
                batch.frames(), batch.time_ns, batch.number, batch.wirelen, strict=True
            )
        ]
        return [frames, list(reader.damage), reader.damage.total, reader.bytes_read, reader.skipped]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    form=st.sampled_from(sorted(FORMS)),
    packed=st.booleans(),
    chunk=st.sampled_from([64, 1000, 5000, 70_000, 1 << 20]),
    cut=st.none() | st.integers(12, 60_000),
    broken=st.lists(st.tuples(st.integers(24, 60_000), st.integers(0, 255)), max_size=4),
)
def test_the_same_comes_of_it(
    tmp_path: Path,
    form: str,
    packed: bool,
    chunk: int,
    cut: int | None,
    broken: list[tuple[int, int]],
) -> None:
    data = bytearray(FORMS[form])
    for place, value in broken:
        data[place % len(data)] = value
    path = tmp_path / "x.pcap"
    path.write_bytes(gzip.compress(data[:cut]) if packed else data[:cut])
    found = []
    for least in (0, 1 << 60):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(window, "AHEAD_FROM", least)
            try:
                found.append(told(path, chunk))
            except CaptureError as error:
                found.append([str(error)])
    assert found[0] == found[1]
    assert not threads()


def test_a_reader_that_is_closed_in_the_middle_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "AHEAD_FROM", 0)
    path = tmp_path / "x.pcap"
    path.write_bytes(FORMS["pcap"])
    with open_capture(path, chunk_bytes=1000) as reader:
        assert len(next(iter(reader))) > 0
        assert len(threads()) == 1
    assert not threads()


def test_a_file_that_is_no_capture_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "AHEAD_FROM", 0)
    path = tmp_path / "x.pcap"
    path.write_bytes(b"no capture" * 1000)
    with pytest.raises(CaptureError, match="not a capture"):
        open_capture(path)
    assert not threads()


def test_a_disk_that_fails_is_an_error_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(io.FileIO):
        def readinto(self, target: Any) -> int:
            if self.tell() > 20_000:
                raise OSError(errno.EIO, "Input/output error")
            return super().readinto(target)

    monkeypatch.setattr(window, "AHEAD_FROM", 0)
    path = tmp_path / "x.pcap"
    path.write_bytes(FORMS["pcap"])
    with Failing(path) as file, open_capture(file, chunk_bytes=4000) as reader:
        with pytest.raises(CaptureError, match="Input/output error"):
            list(reader)
        assert 0 < reader.frames < len(FRAMES)
    assert not threads()


class Asked(io.BytesIO):
    """A source that keeps how much was asked for each time."""

    def __init__(self, size: int) -> None:
        super().__init__(bytes(size))
        self.sizes: list[int] = []

    def readinto(self, buffer: Any) -> int:
        self.sizes.append(len(buffer))
        return super().readinto(buffer)


@pytest.mark.parametrize(
    ("frames", "flows", "grows"),
    [
        pytest.param(20_000, 128, False, id="many frames"),
        pytest.param(2_000, 128, True, id="few frames"),
        pytest.param(20_000, 20_000, True, id="few frames of each flow"),
    ],
)
def test_chunks_grow_where_they_have_few_frames_or_few_of_each_flow(
    frames: int, flows: int, grows: bool
) -> None:
    source, most = Asked(60 << 20), 8 << 20
    ahead = ReadAhead(source, most)  # type: ignore[arg-type]  # of a source, only its bytes are asked for
    try:
        while ahead.take()[1]:
            ahead.fit(frames, flows)
    finally:
        ahead.close()
    assert source.sizes[:3] == [2 << 20] * 3
    assert set(source.sizes) == ({2 << 20, 4 << 20, most} if grows else {2 << 20})


def test_what_lies_before_the_first_chunk_says_nothing_of_its_frames() -> None:
    source = Asked(20 << 20)
    ahead = ReadAhead(source, 8 << 20)  # type: ignore[arg-type]
    try:
        ahead.fit(400)  # the file's head, which was read to see what it is
        while ahead.take()[1]:
            ahead.fit(20_000)
    finally:
        ahead.close()
    assert set(source.sizes) == {2 << 20}
