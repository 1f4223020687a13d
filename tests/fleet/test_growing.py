"""A rotation that grows is read once, and its LAKE is that of one run over all of its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_lake import KEPT, contents, made
from places import PCAPS

from rocekit import analyze
from rocekit.errors import CaptureError
from rocekit.files.joined import CannotGoOn, Growing
from rocekit.fleet.grow import Keepers, grow_stream
from rocekit.fleet.lake import Lake
from rocekit.fleet.streams import find_streams
from rocekit.fleet.watching import Watcher
from rocekit.fleet.work import add_stream

RECORD, HEAD = 16, 24


def pieces(capture: Path, folder: Path, count: int) -> list[Path]:
    """A pcap cut into files of a rotation, ``x.pcap``, ``x.pcap1`` …, not yet in the folder of the fleet."""
    data = capture.read_bytes()
    order = "little" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else "big"
    starts, at = [], HEAD
    while at < len(data):
        starts.append(at)
        at += RECORD + int.from_bytes(data[at + 8 : at + 12], order)  # type: ignore[arg-type]
    ends = [starts[len(starts) * k // count] for k in range(count)] + [len(data)]
    files = []
    for k in range(count):
        files.append(folder / f"x.pcap{k or ''}")
        files[-1].write_bytes(data[:HEAD] + data[ends[k] : ends[k + 1]])
    return files


@pytest.fixture
def keepers() -> Iterator[Keepers]:
    kept = Keepers(most=1)
    yield kept
    kept.end()


class Rotation:
    """A capture with losses, whose files appear one after the other, and the LAKE that follows them."""

    def __init__(self, folder: Path, capture: Path, count: int) -> None:
        self.sources, self.lake = folder / "captures", folder / "lake"
        waiting = folder / "waiting"
        for made_now in (self.sources, waiting):
            made_now.mkdir()
        self.files = iter(pieces(capture, waiting, count))
        Lake(self.lake).make(KEPT)
        self.next()

    def next(self) -> Path:
        shutil.copy(file := next(self.files), self.sources)
        return self.sources / file.name

    def grow(self, keepers: Keepers) -> bool:
        """Add what there is; whether the process that keeps the analysis did it."""
        (stream,) = find_streams([self.sources])
        done = keepers.add(str(self.lake), stream, KEPT)
        if done is not None:
            Lake(self.lake).forget_others(stream, done.captures)
        return done is not None

    def rows(self) -> dict[str, bytes]:
        return {name: data for name, data in contents(self.lake).items() if name.startswith("day=")}


def whole(rotation: Rotation, folder: Path) -> dict[str, bytes]:
    """The rows of one run over all files."""
    made_at_once = contents(made(folder, rotation.sources))
    return {name: data for name, data in made_at_once.items() if name.startswith("day=")}


def test_a_lake_that_follows_a_rotation_is_that_of_one_run(
    captures: Path, tmp_path: Path, keepers: Keepers
) -> None:
    rotation = Rotation(tmp_path, captures / "host0006.pcap", 5)
    for number in range(1, 5):
        first = rotation.next()
        assert rotation.grow(keepers)
        assert rotation.rows() == whole(rotation, tmp_path / f"lake{number}")
    assert first.name == "x.pcap4"


def test_finished_files_are_not_read_again(captures: Path, tmp_path: Path, keepers: Keepers) -> None:
    """What is put in the place of a finished file, with its size and time, is not noticed."""
    rotation = Rotation(tmp_path, captures / "host0006.pcap", 4)
    rotation.next()
    assert rotation.grow(keepers)
    rotation.next()
    rotation.next()
    truth = whole(rotation, tmp_path / "whole")
    first = rotation.sources / "x.pcap"
    status, data = first.stat(), first.read_bytes()
    first.write_bytes(b"\0" * len(data))
    os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert rotation.grow(keepers)
    assert rotation.rows() == truth


def test_a_finished_file_that_changes_is_read_again(captures: Path, tmp_path: Path, keepers: Keepers) -> None:
    rotation = Rotation(tmp_path, captures / "host0006.pcap", 4)
    rotation.next()
    assert rotation.grow(keepers)
    rotation.next()
    shutil.copy(rotation.sources / "x.pcap1", rotation.sources / "x.pcap")
    assert not rotation.grow(keepers)  # its times run back, which only a whole analysis puts in order
    (stream,) = find_streams([rotation.sources])
    done = grow_stream(str(rotation.lake), stream, KEPT)
    Lake(rotation.lake).forget_others(stream, done.captures)
    assert rotation.rows() == whole(rotation, tmp_path / "whole")


def test_what_a_rotation_s_process_cannot_do_is_left_to_a_whole_analysis(
    tmp_path: Path, keepers: Keepers
) -> None:
    rotation = Rotation(tmp_path, PCAPS / "ping-write-loss-behind.pcap", 3)
    assert not rotation.grow(keepers)  # one file
    rotation.next()
    (rotation.sources / "x.journal.jsonl").touch()
    assert not rotation.grow(keepers)  # a journal says which packets belong together
    (rotation.sources / "x.journal.jsonl").unlink()
    assert rotation.grow(keepers)
    # The process that keeps another rotation takes its place, and it begins anew.
    other = tmp_path / "other"
    other.mkdir()
    second = Rotation(other, PCAPS / "ping-write-loss-behind.pcap", 2)
    (second.sources / "x.pcap").rename(second.sources / "y.pcap")
    second.next().rename(second.sources / "y.pcap1")
    assert second.grow(keepers)
    rotation.next()
    assert rotation.grow(keepers)
    assert rotation.rows() == whole(rotation, tmp_path / "whole")


def test_a_rotation_is_not_read_again_before_its_end(tmp_path: Path) -> None:
    files = pieces(PCAPS / "ping-write-loss-behind.pcap", tmp_path, 3)
    truth = analyze(f"rotated:{files[0]}..{files[-1].name}", journals=())
    assert analyze(Growing(map(str, files)), journals=()).to_dict() == truth.to_dict()
    back = map(str, [files[1], files[0], files[2]])
    with pytest.raises(CannotGoOn):
        analyze(Growing(back), journals=())
    with pytest.raises(CaptureError, match="name the first file first"):
        analyze(f"rotated:{files[-1]}..{files[0].name}", journals=())


def test_of_a_rotation_that_is_written_to_the_finished_files_are_due(tmp_path: Path) -> None:
    watcher = Watcher([str(tmp_path)])
    data = (PCAPS / "rping-clean.pcap").read_bytes()
    names = ["x.pcap", "x.pcap1", "x.pcap2"]
    found = []
    for turn, name in enumerate(names):
        for look in range(3):
            with (tmp_path / name).open("ab") as file:  # at every look it has grown
                file.write(data[look * 100 : (look + 1) * 100])
            found += [(turn, s.files, s in watcher.grown) for s in watcher.due()]
    paths = [str(tmp_path / name) for name in names]
    assert found == [(1, (paths[0],), False), (2, (paths[0], paths[1]), True)]
    assert [s.files for s in watcher.due()] == [tuple(paths)]  # the last one rests
    with (tmp_path / names[-1]).open("ab") as file:
        file.write(data[300:400])
    assert watcher.due() == []  # and is written to again: the LAKE keeps what it has of it until it rests
    assert [s.files for s in watcher.due()] == [tuple(paths)]


def test_a_lake_with_other_settings_gets_rows_by_these(keepers: Keepers, tmp_path: Path) -> None:
    """A worker of a scheduler outlives the run that made its LAKE."""
    rotation = Rotation(tmp_path, PCAPS / "ping-write-loss-behind.pcap", 3)
    rotation.next()
    assert rotation.grow(keepers)
    rotation.next()
    other = KEPT._replace(transfers=0 if KEPT.transfers != 0 else 100)
    (stream,) = find_streams([rotation.sources])
    lakes = tmp_path / "grown", tmp_path / "whole"
    for lake in lakes:
        Lake(lake).make(other)
    assert keepers.add(str(lakes[0]), stream, other) is not None
    assert add_stream(str(lakes[1]), stream, other).new
    assert contents(lakes[0]) == contents(lakes[1])
