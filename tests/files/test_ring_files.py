"""One capture in many files: nothing is lost between them, none is too large, the newest stay."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from amount import examples
from handmade import batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rocekit.errors import CaptureError
from rocekit.files.capture_names import rotation
from rocekit.files.joined import join_name
from rocekit.files.reader import open_capture
from rocekit.files.ring_files import RingLimits, RingWriter


def frames_in(path: str | Path) -> list[tuple[bytes, int]]:
    with open_capture(path) as reader:
        return [(batch.frame(i), time) for batch in reader for i, time in enumerate(batch.time_ns.tolist())]


def write(
    folder: Path, frames: list[bytes], limits: RingLimits, *, times: list[int], batch: int
) -> RingWriter:
    ring = RingWriter(folder / "x.pcapng", limits, interface_name="va")
    for start in range(0, len(frames), batch):
        stop = start + batch
        stamps = np.array(times[start:stop], np.int64)
        ring.write_batch(replace(batch_of(frames[start:stop]), time_ns=stamps))
    ring.write_statistics(len(frames), 0)
    ring.close()
    return ring


@settings(max_examples=examples(15))
@given(
    sizes=st.lists(st.integers(60, 1500), min_size=1, max_size=40),
    limit=st.integers(300, 6000),
    batch=st.integers(1, 17),
)
def test_the_files_together_have_every_frame_once_and_none_is_larger_than_its_limit(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int, batch: int
) -> None:
    folder = tmp_path_factory.mktemp("ring")
    frames = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    times = [10**18 + n for n in range(len(frames))]
    ring = write(folder, frames, RingLimits(size_bytes=limit), times=times, batch=batch)
    assert ring.frames == len(frames)
    assert frames_in(join_name([str(f) for f in ring.files])) == list(zip(frames, times, strict=True))
    assert sorted(folder.iterdir()) == ring.files
    for file in ring.files[:-1]:
        assert file.stat().st_size <= limit or len(frames_in(file)) == 1


def test_a_file_has_the_frames_of_so_long(tmp_path: Path) -> None:
    times = [0, 400_000_000, 999_999_999, 1_000_000_000, 1_900_000_000, 5_000_000_000]
    frames = [bytes(60)] * len(times)
    ring = write(tmp_path, frames, RingLimits(period_ns=10**9), times=times, batch=4)
    assert [[time for _, time in frames_in(file)] for file in ring.files] == [
        times[:3],
        times[3:5],
        times[5:],
    ]


def test_the_newest_files_stay_and_only_own_ones_go(tmp_path: Path) -> None:
    other = tmp_path / "x_00001_20200101000000.pcapng"
    other.write_bytes(b"of another day")
    frames = [bytes([n]) * 200 for n in range(10)]
    ring = write(tmp_path, frames, RingLimits(size_bytes=400, keep=3), times=list(range(10)), batch=10)
    assert [frame[0] for file in ring.files for frame, _ in frames_in(file)] == [7, 8, 9]
    assert (ring.frames, ring.removed) == (10, 7)
    assert other.read_bytes() == b"of another day"
    assert len(list(tmp_path.iterdir())) == 4


def test_the_names_are_those_that_dumpcap_gives(tmp_path: Path) -> None:
    ring = write(tmp_path, [bytes(60)] * 3, RingLimits(size_bytes=1), times=[1, 2, 3], batch=3)
    places = [rotation(file.name) for file in ring.files]
    assert [place.number for place in places] == [1, 2, 3]
    assert {(place.base, place.suffix) for place in places} == {("x", ".pcapng")}


def test_tshark_reads_each_file(tshark: str, tmp_path: Path) -> None:
    ring = write(tmp_path, [bytes(60)] * 6, RingLimits(size_bytes=400), times=list(range(6)), batch=6)
    counts = []
    for file in ring.files:
        done = subprocess.run(
            [tshark, "-r", str(file)], capture_output=True, text=True, timeout=240, check=True
        )
        counts.append(len(done.stdout.splitlines()))
    assert sum(counts) == 6
    assert len(counts) > 1


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be written"):
        RingWriter(tmp_path / "no" / "x.pcapng", RingLimits(size_bytes=100))
    with pytest.raises(ValueError, match="at least one"):
        RingWriter(tmp_path / "x.pcapng", RingLimits(keep=0))
