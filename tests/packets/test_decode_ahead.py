"""Whether packets are decoded in a thread or not, the same is found in them, and nothing is left behind."""

from __future__ import annotations

import errno
import functools
import io
import threading
from pathlib import Path
from typing import Any

import pytest
from places import PCAPS

from rocekit import analysis, feeding
from rocekit.capture import open_capture
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.decode import Decoder
from rocekit.errors import CaptureError
from rocekit.files import window
from rocekit.packets.decode_ahead import decoded

CAPTURES = sorted(p.name for p in PCAPS.glob("*.pcap*"))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.endswith("-ahead")]


def analysed(path: Path, monkeypatch: pytest.MonkeyPatch, *, ahead: bool, batches: int = 0) -> Any:
    """What an analysis says, with chunks of a few packets; it is ended after some batches, unless 0."""
    monkeypatch.setattr(window, "AHEAD_FROM", 0 if ahead else 1 << 60)
    monkeypatch.setattr(feeding, "open_capture", functools.partial(open_capture, chunk_bytes=2500))
    asked = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) == batches

    found = analysis.analyze(path, stop=stop)
    assert not threads()
    return found.to_dict()


@pytest.mark.parametrize("name", CAPTURES)
def test_the_same_is_found(pcaps: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The CM's messages among it, which are read from the chunks themselves."""
    there = analysed(pcaps / name, monkeypatch, ahead=True)
    assert there == analysed(pcaps / name, monkeypatch, ahead=False)


@pytest.mark.parametrize("batches", [1, 2, 7])
def test_what_was_decoded_when_it_is_ended_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=2000, operations=OPERATIONS, loss=0.01))
    for ahead in (True, False):
        there = analysed(path, monkeypatch, ahead=ahead, batches=batches)
        assert there["capture"]["interrupted"]
        assert 0 < there["capture"]["frames"] < 2000
        assert there["capture"]["frames"] == sum(c["packets"] for c in there["connections"])


def test_closed_in_the_middle_it_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "AHEAD_FROM", 0)
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=2000))
    with open_capture(path, chunk_bytes=2500) as reader:
        batches = decoded(reader, Decoder())
        assert len(next(batches)[0]) > 0
        assert sorted(threads()) == ["rocekit decode-ahead", "rocekit read-ahead"]
        batches.close()  # type: ignore[attr-defined]
        assert threads() == ["rocekit read-ahead"]
    assert not threads()


def test_a_disk_that_fails_is_an_error_where_its_packets_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(io.FileIO):
        def readinto(self, target: Any) -> int:
            if self.tell() > 50_000:
                raise OSError(errno.EIO, "Input/output error")
            return super().readinto(target)

    monkeypatch.setattr(window, "AHEAD_FROM", 0)
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=500))
    decoder = Decoder()
    with Failing(path) as file, open_capture(file, chunk_bytes=4000) as reader:
        with pytest.raises(CaptureError, match="Input/output error"):
            list(decoded(reader, decoder))
        assert 0 < decoder.counts.frames < 500
    assert not threads()
