"""One capture in many files, and many captures of other hosts: no two are compared that share no packet."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap

import rocekit
from rocekit.packets.merging.alike import Alike
from rocekit.packets.merging.matching import _Matcher
from rocekit.packets.slim import SlimColumn
from rocekit.wire.build import build_frame

FILES, EACH = 24, 6


def frames(host: int, first: int) -> list[Frame]:
    """Packets of one host; every other one without an IPv4 identification, as some devices send them."""
    return [
        Frame(
            build_frame(
                "RC_SEND_ONLY",
                src=f"10.0.0.{host}",
                dst="10.0.1.1",
                dest_qpn=20,
                psn=n,
                ackreq=1,
                identification=n % 2 and n,
            ),
            n * 1000,
        )
        for n in range(first, first + EACH)
    ]


def files(folder: Path, *, split: bool) -> list[Path]:
    paths = [folder / f"{n:03}.pcap" for n in range(FILES)]
    for n, path in enumerate(paths):
        path.write_bytes(pcap(frames(1, n * EACH) if split else frames(n + 1, 0)))
    return paths


@pytest.mark.parametrize("split", [True, False])
def test_no_two_files_without_common_packets_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: bool
) -> None:
    looked: dict[str, int] = {}

    def counted(owner: type, name: str) -> None:
        before = getattr(owner, name)

        def count(*arguments: object, **options: object) -> object:
            looked[name] = looked.get(name, 0) + 1
            return before(*arguments, **options)

        monkeypatch.setattr(owner, name, count)

    for owner, name in (
        (Alike, "common"),
        (Alike, "pairs"),
        (_Matcher, "_mark_off"),
        (SlimColumn, "_look_up"),
    ):
        counted(owner, name)
    analysis = rocekit.analyze(*files(tmp_path, split=split))
    assert len(analysis.connections) == (1 if split else FILES)
    assert analysis.capture.counts.roce_packets == FILES * EACH
    assert not looked.keys() & {"common", "pairs", "_mark_off"}
    # Of as many directions as files, each is asked how many of its packets each file has.
    assert looked.get("_look_up", 0) < FILES * (FILES - 1) // 2 * (1 if split else 4)


def test_the_text_names_some_pairs_of_captures_and_counts_the_others(tmp_path: Path) -> None:
    analysis = rocekit.analyze(*files(tmp_path, split=False))
    lines = [line for line in str(analysis).splitlines() if "the same traffic" in line]
    assert len(lines) == 11
    every = FILES * (FILES - 1) // 2
    assert lines[-1].strip() == f"… and {every - 10} more pairs of captures that are not of the same traffic"
    assert analysis.capture.relations is not None
    assert len(analysis.capture.relations.every) == every


def test_one_capture_in_many_files_is_one_stream(tmp_path: Path) -> None:
    analysis = rocekit.analyze(*files(tmp_path, split=True))
    assert analysis.capture.relations is not None
    assert analysis.capture.relations.overall == "consecutive"
    psns = [transfer.first_psn for transfer in analysis.transfers]
    assert all(after == before + 1 for before, after in pairwise(sorted(psns)))
    assert len(psns) == FILES * EACH


def test_a_clock_is_told_against_the_capture_that_shares_the_packets(tmp_path: Path) -> None:
    """A copy of the third of many files has nothing in common with the first one."""
    paths = files(tmp_path, split=True)
    copy = tmp_path / "copy.pcap"
    copy.write_bytes(paths[2].read_bytes())
    (line,) = [
        line for line in str(rocekit.analyze(*paths, copy)).splitlines() if "ahead of the clock" in line
    ]
    assert f"clock of {copy}:" in line
    assert f"the clock of {paths[2]} ({EACH} packets in both; nothing bounds it)" in line
