"""Two captures of the same packets, of which one is cut sooner: what is cut does not tell packets apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from capture_bytes import Frame, pcap
from talk import MS, US, Talk

import rocekit

FLIGHT = 20 * US
LOSSES = 6
#: Ethernet, IPv4, UDP and BTH; the AETH behind them.
BTH_END, AETH_END = 54, 58


def both(operation: str) -> tuple[list[Frame], list[Frame]]:
    """A's capture, and B's, which lacks one request of each burst: the network lost it in between."""
    t, lost = Talk(), set()
    for k in range(LOSSES):
        first = 10 * k
        for psn in range(first, first + 4):
            number = t.atomic(psn) if operation == "atomic" else t.send(psn)
            if psn == first + 2:
                lost.add(number if isinstance(number, int) else number[psn])
        t.wait(100 * US)
        for psn in (first, first + 1):
            if operation == "atomic":
                t.atomic_answer(psn)
            elif psn == first + 1:
                t.ack(psn)
        t.nak(first + 2)
        t.wait(100 * US)
        for psn in (first + 2, first + 3):
            t.atomic(psn) if operation == "atomic" else t.send(psn)
        t.wait(100 * US)
        for psn in (first + 2, first + 3):
            if operation == "atomic":
                t.atomic_answer(psn)
            elif psn == first + 3:
                t.ack(psn)
        t.wait(MS)
    at_b = [
        Frame(f.data, f.time_ns + (FLIGHT if f.data[29] == 1 else -FLIGHT))
        for n, f in enumerate(t.frames, 1)
        if n not in lost
    ]
    return t.frames, sorted(at_b, key=lambda f: f.time_ns)


def cut(frames: list[Frame], snaplen: int, since: int = 0) -> list[Frame]:
    return [f if n < since else Frame(f.data[:snaplen], f.time_ns, len(f.data)) for n, f in enumerate(frames)]


def document(folder: Path, a: list[Frame], b: list[Frame]) -> dict[str, Any]:
    files = folder / "a.pcap", folder / "b.pcap"
    for file, frames in zip(files, (a, b), strict=True):
        file.write_bytes(pcap(frames, unit="ns"))
    return rocekit.analyze(*files).document()


@pytest.mark.parametrize("operation", ["send", "atomic"])
@pytest.mark.parametrize("snaplen", [BTH_END, BTH_END + 1, AETH_END - 1, AETH_END, 64, 96])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("since", [0, 30])
def test_each_packet_is_in_both(tmp_path: Path, operation: str, snaplen: int, which: int, since: int) -> None:
    captures = list(both(operation))
    captures[which] = cut(captures[which], snaplen, since)
    found = document(tmp_path, *captures)
    there, back = sorted(found["paths"], key=lambda path: path["src"])
    assert (there["missing"], back["missing"]) == (LOSSES, 0)
    for path in (there, back):
        assert not any(path[name] for name in ("doubled", "corrupted", "only_second", "missed_second"))
    assert not {"duplicate", "icrc-bad"} & {finding["rule"] for finding in found["findings"]}
