"""One of two captures has its packets twice: the copies are no packets that the other capture misses."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from capture_bytes import Frame
from click.testing import CliRunner
from doubled_capture import Change, frames_of, other_macs, routed, same, twice, write
from places import PCAPS

import rocekit
from rocekit.cli import rocekit as cli

CHANGES = {"nothing": same, "router": routed, "MAC addresses": other_macs}
#: Packets lost between the two captures.
SHARE = 0.1


def pair(tmp_path: Path, name: str, change: Change | None, *, is_second: bool) -> list[Path]:
    """Two captures, of which one lacks some packets; ``change``: of the copies in the first or the second."""
    rng = random.Random(7)
    near = write(frames_of(PCAPS / f"{name}.pcap"), tmp_path / "a.pcap")
    far = [
        Frame(frame.data, frame.time_ns + 20_000, frame.wirelen)
        for n, frame in enumerate(frames_of(near))
        if n < 20 or rng.random() >= SHARE
    ]
    paths = [near, write(far, tmp_path / "b.pcap")]
    if change is not None:
        write(twice(paths[is_second], change), paths[is_second])
    return paths


def told(analysis: rocekit.Analysis) -> object:
    """What is said of paths, transfers and findings, without the numbers of frames."""
    document = analysis.to_dict()
    paths = [{k: v for k, v in p.items() if "frames" not in k and k != "order_by"} for p in document["paths"]]
    transfers = [(t.status, t.retransmitted_packets, t.duplicates, t.naks) for t in analysis.transfers]
    return paths, transfers, [f.title for f in analysis.findings]


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("name", ["ping-write-loss-behind", "rping-clean", "ib_read_bw-clean"])
def test_copies_in_one_capture_change_nothing(tmp_path: Path, name: str, how: str, is_second: bool) -> None:
    source = rocekit.analyze(*pair(tmp_path, name, None, is_second=is_second), journals=[])
    analysis = rocekit.analyze(*pair(tmp_path, name, CHANGES[how], is_second=is_second), journals=[])
    packets = analysis.capture.to_dict()["roce_packets"]
    assert packets == source.capture.to_dict()["roce_packets"]
    [one] = analysis.capture.to_dict()["twice"]
    assert one["file"] == int(is_second)
    assert one["left_out"] == one["twice"] == one["packets"]
    name = "b.pcap" if is_second else "a.pcap"
    assert any(f"Every packet is in {name} twice" in line for line in str(analysis).splitlines())
    assert told(analysis) == told(source)
    assert not any(f.rule in {"duplicate", "cm-unanswered"} for f in analysis.findings)


def test_a_copy_that_the_mirror_missed_is_none_that_the_capture_misses(tmp_path: Path) -> None:
    """Of each packet one of two places is enough."""
    near, far = pair(tmp_path, "ping-write-loss-behind", None, is_second=True)
    source = rocekit.analyze(near, far, journals=[])
    rng, kept = random.Random(3), []
    for frame in frames_of(far):
        places = [frame, Frame(routed(frame.data), frame.time_ns + 5_000, frame.wirelen)]
        kept += [rng.choice(places)] if rng.random() < SHARE else places
    kept.sort(key=lambda frame: frame.time_ns)
    analysis = rocekit.analyze(near, write(kept, far), journals=[])
    assert analysis.capture.twice[1].twice < analysis.capture.twice[1].packets
    assert [(p.missing, p.only_second) for p in analysis.capture.paths.every] == [  # type: ignore[union-attr]
        (p.missing, p.only_second)
        for p in source.capture.paths.every  # type: ignore[union-attr]
    ]


def test_packets_that_are_sent_again_are_no_copies(tmp_path: Path) -> None:
    paths = pair(tmp_path, "ping-write-loss-behind", None, is_second=True)
    assert not rocekit.analyze(*paths, journals=[]).capture.twice


def test_annotate_keeps_the_copies(tmp_path: Path) -> None:
    paths = [str(path) for path in pair(tmp_path, "rping-clean", same, is_second=True)]
    out = tmp_path / "annotated"
    result = CliRunner().invoke(cli, ["annotate", *paths, str(out)])
    assert result.exit_code == 0, result.output
    [written] = out.glob("b*")
    assert len(frames_of(written)) == len(frames_of(Path(paths[1])))
    shown = CliRunner().invoke(cli, ["analyze", "--format", "json", *paths])
    assert json.loads(shown.output)["capture"]["doubled"] is None
