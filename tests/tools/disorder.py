"""Captures whose times run back: the packets of another capture in another order, or at other times."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from capture_bytes import Frame, pcap

from rocekit.files.reader import open_capture

MS = 1_000_000

#: Frames with their numbers in the capture that is in order.
Numbered = list[tuple[int, Frame]]


def frames_of(path: Path) -> list[Frame]:
    """The frames of an Ethernet capture in order of time, no two of them at the same time."""
    found: list[Frame] = []
    with open_capture(path) as reader:
        for batch in reader:
            times, lengths = batch.time_ns.tolist(), batch.wirelen.tolist()
            found += [Frame(*row) for row in zip(batch.frames(), times, lengths, strict=True)]
    found.sort(key=lambda frame: frame.time_ns)
    last_ns = 0
    for i, frame in enumerate(found):
        last_ns = max(frame.time_ns, last_ns + 1)
        found[i] = Frame(frame.data, last_ns, frame.wirelen)
    return found


def shuffled(frames: Numbered, random: Random, within_ns: int = MS) -> Numbered:
    """Each frame is written up to ``within_ns`` late."""
    late = {number: frame.time_ns + random.randrange(within_ns) for number, frame in frames}
    return sorted(frames, key=lambda one: late[one[0]])


def in_queues(frames: Numbered, random: Random, block: int = 32) -> Numbered:
    """Each sender's frames go through a queue of its own, which is written block by block."""
    blocks = []
    for sender in {_sender(frame) for _, frame in frames}:
        mine = [one for one in frames if _sender(one[1]) == sender]
        blocks += [mine[at : at + block] for at in range(0, len(mine), block)]
    blocks.sort(key=lambda one: one[-1][1].time_ns)
    return [one for block in blocks for one in block]


def with_an_old_block(frames: Numbered, random: Random, block: int = 40) -> Numbered:
    """A block from the middle is written at the end."""
    sender = _sender(random.choice(frames)[1])
    mine = [one for one in frames if _sender(one[1]) == sender]
    at = max(0, len(mine) // 2 - block // 2)
    old = mine[at : at + block]
    return [one for one in frames if one not in old] + old


def on_two_clocks(frames: Numbered, random: Random, ahead_ns: int = 200_000) -> Numbered:
    """The clock of the port at which the second sender's frames come in differs from the first's."""
    first = _sender(frames[0][1])
    return [
        (n, f if _sender(f) == first else Frame(f.data, f.time_ns + ahead_ns, f.wirelen)) for n, f in frames
    ]


REORDERED: dict[str, Callable[[Numbered, Random], Numbered]] = {
    "shuffled": shuffled,
    "queues": in_queues,
    "old block": with_an_old_block,
}


def _sender(frame: Frame) -> bytes:
    return frame.data[6:12]


def write(path: Path, frames: Sequence[Frame]) -> Path:
    path.write_bytes(pcap(list(frames), unit="ns"))
    return path


class Renumbered:
    """The document of a capture, with the frame numbers of the capture that is in order."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers

    def document(self, document: dict[str, Any]) -> dict[str, Any]:
        known = dict(document)
        known["capture"] = {
            name: value
            for name, value in document["capture"].items()
            if name not in ("files", "disordered_packets", "disorder_ns", "time_orders")
        }
        known = {name: self._of(value) if name != "capture" else value for name, value in known.items()}
        known["findings"].sort(key=json.dumps)  # they are listed by their first frames
        return known

    def _of(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: self._of(one, key) for key, one in value.items()}
        if isinstance(value, list):
            found = [self._of(one, name) for one in value]
            return sorted(found) if name == "frames" else found
        if isinstance(value, int) and (name == "frames" or name.endswith("frame")):
            return self._numbers[value - 1]
        return value
