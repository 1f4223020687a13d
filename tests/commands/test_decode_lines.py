"""Printed by kinds and columns, packets look as each of them does by itself."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from amount import runs
from handmade import batch_of

from rocekit.capture import open_capture
from rocekit.commands.decode_fields import FieldLines
from rocekit.commands.decode_lines import PacketLines
from rocekit.packets import COLUMNS, Packets
from rocekit.packets.decoder import Decoder
from rocekit.packets.mads import RequestPorts, find_mads
from rocekit.packets.printing import kinds

CAPTURES = ("mesh-soft.pcapng", "rping-clean.pcap", "ping-write-loss-behind.pcap")


def frames_of(folder: Path) -> list[bytes]:
    """Frames of captures of every kind, tunnels included: the first few of each."""
    found: list[bytes] = []
    for path in sorted([*(folder / name for name in CAPTURES), *(folder / "field").glob("*.pcap*")]):
        with open_capture(path) as capture:
            found += [bytes(frame) for batch in capture for frame in batch.frames()][:40]
    return found


def damaged(frames: list[bytes], seed: int, count: int) -> Iterator[bytes]:
    """Frames with some bytes changed, and some cut."""
    draw = random.Random(seed)
    for _ in range(count):
        frame = bytearray(draw.choice(frames))
        for _ in range(draw.choice((0, 1, 1, 4))):
            frame[draw.randrange(14, min(len(frame), 100))] = draw.randrange(256)
        yield bytes(frame[: draw.randrange(40, len(frame))] if draw.random() < 0.2 else frame)


@pytest.fixture(params=range(runs(2)))
def packets(request: pytest.FixtureRequest, pcaps: Path) -> Packets:
    frames = list(damaged(frames_of(pcaps), request.param, 400))
    wirelen = [len(frame) if i % 3 else len(frame) + 100 for i, frame in enumerate(frames)]
    return Decoder().decode(batch_of(frames, wirelen=wirelen))


def test_json_has_every_field_of_the_packet_s_row(packets: Packets) -> None:
    ports, mads = RequestPorts(), dict(find_mads(packets))
    wanted = []
    for i, row in enumerate(packets.rows()):
        document = dict(row)
        if i in mads:
            document["mad"] = mads[i].to_dict(ports.of(mads[i].cm, row["src"], row["dst"]))
        wanted.append(json.dumps(document, ensure_ascii=False))
    lines = b"".join(map(bytes, FieldLines([], as_json=True).pieces(packets))).decode()
    assert lines.splitlines() == wanted


def test_chosen_fields_are_those_of_the_packet_s_row(packets: Packets) -> None:
    names = [*COLUMNS, "psn"]
    as_json = b"".join(map(bytes, FieldLines(names, as_json=True).pieces(packets))).decode()
    rows = list(packets.rows())
    wanted = [
        {name: row.get(name) for name in COLUMNS} | {"has": has}
        for row, has in zip(rows, packets.has.tolist(), strict=True)
    ]
    assert [json.loads(line) for line in as_json.splitlines()] == wanted
    head, *lines = b"".join(
        map(bytes, FieldLines(["psn", "src"], as_json=False).pieces(packets))
    ).splitlines()
    assert head == b"psn\tsrc"
    assert lines == [f"{row.get('psn', '')}\t{row['src']}".encode() for row in rows]


def test_a_packet_s_line_is_the_same_among_others_and_alone(packets: Packets) -> None:
    together = list(PacketLines().lines(packets, 0))[1:]
    for i, line in enumerate(together):
        alone = list(PacketLines().lines(packets.where(slice(i, i + 1)), 0))[1]
        if "CM" not in line:  # an answer has the port of its request
            assert line.split() == alone.split()


def test_bytes_and_text_are_the_same_lines(packets: Packets) -> None:
    as_bytes = b"".join(map(bytes, PacketLines().pieces(packets, 0))).decode()
    assert as_bytes.splitlines() == list(PacketLines().lines(packets, 0))
    assert "\x1b" in as_bytes
    plain = b"".join(map(bytes, PacketLines(coloured=False).pieces(packets, 0)))
    assert b"\x1b" not in plain


def test_kinds_that_were_forgotten_are_made_again(packets: Packets, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = list(PacketLines().lines(packets, 0))[1:]
    monkeypatch.setattr(kinds, "_MOST", 1)
    printer = PacketLines()
    for _ in range(2):
        assert [line for line in printer.lines(packets, 0) if "seconds" not in line] == wanted


def test_times_beyond_all_reason_are_exact(packets: Packets) -> None:
    few = packets.where(slice(0, 2))
    first_ns = -(1 << 63)
    far = few.at(few.time_ns * 0 + ((1 << 63) - 1))
    line = list(PacketLines().lines(far, first_ns))[1]
    assert line.split()[1] == "18446744073.709551615"
