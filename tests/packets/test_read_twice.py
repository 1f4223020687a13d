"""Several large captures are read twice instead of kept: what is found of them is the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import pytest
from amount import MORE, runs
from capture_bytes import Frame, pcap
from disorder import frames_of
from places import OTHERS, PCAPS
from two_views import View

import rocekit
from rocekit import feeding
from rocekit.errors import CaptureError

FROM = (
    "ping-write-loss-behind.pcap",
    "ping-sr-ipv6-clean.pcap",
    "ib_write_bw-4qp-loss.pcap",
    "mesh-loss.pcap",
    "blast-sr-corruption.pcap",
    "ping-read-response-loss.pcap",
)
FEW = 600


def found(*paths: Path) -> str:
    analysis = rocekit.analyze(*paths, journals=())
    return f"{analysis}\n{json.dumps(analysis.to_dict(), indent=1)}"


def read_twice(patch: pytest.MonkeyPatch, *paths: Path) -> str:
    with patch.context() as patched:
        patched.setattr(feeding, "KEPT_ROWS", 0)
        return found(*paths)


def views(folder: Path, seed: int) -> list[Path]:
    """Two or three captures of the same packets, in which each capture point shows something else."""
    random = Random(seed)
    frames = frames_of(PCAPS / FROM[seed % len(FROM)])
    begin = random.randrange(max(1, len(frames) - FEW))
    frames = frames[begin : begin + FEW]
    paths = []
    for number in range(random.choice((2, 2, 2, 3))):
        paths.append(folder / f"{number}.pcap")
        paths[-1].write_bytes(pcap(View.any(random).of(frames, random), unit="ns"))
    return paths


@pytest.mark.parametrize("seed", range(runs(120, share=5 if MORE else 10)))
def test_what_is_found_in_captures_that_are_read_twice_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    paths = views(tmp_path, seed)
    assert read_twice(monkeypatch, *paths) == found(*paths)


@pytest.mark.skipif(not (OTHERS / "field").is_dir(), reason="needs the captures of others")
def test_the_same_of_two_capture_points_in_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [OTHERS / "field" / f"A1-write-mid-loss.v{point}.pcap.gz" for point in "ab"]
    assert read_twice(monkeypatch, *paths) == found(*paths)


@pytest.mark.skipif(not OTHERS.is_dir(), reason="needs the captures of others")
def test_the_same_of_captures_of_other_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [OTHERS / f"nccl_ring_node{node}.pcap" for node in range(3)]
    assert read_twice(monkeypatch, *paths) == found(*paths)


def test_a_stream_beside_a_large_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = views(tmp_path, 0)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    expected = found(paths[0], paths[1]).replace(str(paths[1]), str(pipe)).replace(paths[1].name, pipe.name)
    if os.fork() == 0:
        pipe.write_bytes(paths[1].read_bytes())
        os._exit(0)
    assert read_twice(monkeypatch, paths[0], pipe) == expected
    os.wait()


def two(folder: Path) -> tuple[list[Path], list[Frame]]:
    """Two captures, and what the second one has; the first has only nine in ten packets of it."""
    frames = frames_of(PCAPS / FROM[0])[:FEW]
    paths = [folder / "a.pcap", folder / "b.pcap"]
    paths[0].write_bytes(pcap([frame for i, frame in enumerate(frames) if i % 10], unit="ns"))
    paths[1].write_bytes(pcap(frames, unit="ns"))
    return paths, frames


def changed(path: Path, frames: list[Frame], how: str) -> None:
    """Another file where one that is being read was."""
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "other":
        path.write_bytes(pcap([Frame(f.data, f.time_ns + 1, f.on_wire) for f in frames], unit="ns"))
    else:
        path.write_bytes(b"something else")


@pytest.mark.parametrize("how", ["gone", "cut", "other", "text"])
def test_a_file_that_changes_between_its_two_readings_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    paths, frames = two(tmp_path)
    feed_parts = feeding._feed_parts

    def feed_changed(*arguments: object) -> None:
        changed(paths[1], frames, how)
        feed_parts(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(feeding, "_feed_parts", feed_changed)
    with pytest.raises(CaptureError) as error:
        read_twice(monkeypatch, *paths)
    words = {"cut": "changed while it was read", "other": "changed while it was read"}.get(how, "b.pcap")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_grew_is_read_as_far_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, frames = two(tmp_path)
    expected = found(*paths)
    feed_parts = feeding._feed_parts

    def feed_grown(*arguments: object) -> None:
        paths[1].write_bytes(pcap([*frames, *frames], unit="ns"))
        feed_parts(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(feeding, "_feed_parts", feed_grown)
    assert read_twice(monkeypatch, *paths) == expected
