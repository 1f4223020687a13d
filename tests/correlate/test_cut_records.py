"""What is matched where the head of a capture or of its journals is missing: as in the whole, or less."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import rocekit

PCAPS = Path(__file__).parents[2] / "pcaps"
ENDS = ("client", "server")
NAMES = sorted(
    path.stem
    for path in PCAPS.glob("*.pcap")
    if all((PCAPS / f"{path.stem}.{end}.journal.jsonl").exists() for end in ENDS)
)


def tail_of_capture(name: str, share: float, path: Path) -> Path:
    """The packets behind a share of them."""
    data = (PCAPS / f"{name}.pcap").read_bytes()
    at, starts = 24, []
    while at < len(data):
        starts.append(at)
        at += 16 + struct.unpack_from("<I", data, at + 8)[0]
    path.write_bytes(data[:24] + data[starts[int(len(starts) * share)] :])
    return path


def tails_of_journals(name: str, share: float, folder: Path) -> list[Path]:
    """The lines behind a share of them, the head that names the format aside."""
    found = []
    for end in ENDS:
        lines = (PCAPS / f"{name}.{end}.journal.jsonl").read_text().splitlines(keepends=True)
        found.append(folder / f"{end}.journal.jsonl")
        found[-1].write_text("".join(lines[int(len(lines) * share) :]))
    return found


Matched = dict[tuple[str, int, int, int], int]


def matched(capture: Path, journals: list[Path]) -> tuple[Matched, Matched]:
    """For each message, when its work request was posted, and when its receive's completion was polled."""
    analysis = rocekit.analyze(capture, journals=journals)
    sent: Matched = {}
    received: Matched = {}
    for t in analysis.transfers:
        key = (
            str(t.connection.ips[t.side]),
            t.connection.qpns[1 - t.side] or 0,
            t.first_psn & 0xFFFFFF,
            t.last_ns,
        )
        if t.wr is not None:
            sent[key] = t.wr.posted_ns
        if t.recv_wc is not None:
            received[key] = t.recv_wc.polled_ns
    return sent, received


@pytest.mark.parametrize("name", NAMES)
def test_a_head_that_is_missing_leaves_no_other_match(name: str, tmp_path: Path) -> None:
    capture = PCAPS / f"{name}.pcap"
    journals = [PCAPS / f"{name}.{end}.journal.jsonl" for end in ENDS]
    whole = matched(capture, journals)
    for share in (0.3, 0.6):
        tail = tail_of_capture(name, share, tmp_path / "tail.pcap")
        cut = tails_of_journals(name, share, tmp_path)
        for few in (matched(tail, journals), matched(capture, cut), matched(tail, cut)):
            for known, those in zip(whole, few, strict=True):
                common = {key: time for key, time in those.items() if key in known}
                assert common == {key: known[key] for key in common}, share
