"""What an analysis says of the connection manager, beside what its messages show at both captures.

A message is a MAD to QP 1 (IBA Vol. 1, 12.6). One exchange has the local communication ID that its REQ names;
the answers name it as the remote one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from truth_bench.experiments import BEHIND
from truth_bench.packets import addresses, bth_at, frames

REQ, MRA, REJ, REP, RTU, DREQ, DREP = range(0x10, 0x17)
#: Where the attribute ID and the communication IDs stand, from the BTH on: behind that and the DETH.
_ATTRIBUTE_AT: Final = 12 + 8 + 16
_IDS_AT: Final = _ATTRIBUTE_AT + 8
_ANSWERS: Final = {REQ: (REP, REJ, MRA), REP: (RTU, REJ, MRA, DREQ), DREQ: (DREP, DREQ)}


@dataclass(eq=False)
class Message:
    """A message sent once: the frame and the time in each capture that has it, ``va`` or ``vb``."""

    src: str
    kind: int
    local: int
    remote: int
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)


class Exchanges:
    """The messages of both captures of an experiment."""

    def __init__(self, folder: Path, truth: dict[str, Any]) -> None:
        self._truth = truth
        self._ends = {truth["hosts"]["a"]["ip"]: "va", truth["hosts"]["b"]["ip"]: "vb"}
        known: dict[bytes, Message] = {}
        for point in ("va", "vb"):
            for number, time_ns, data in frames(folder / f"{point}.pcap"):
                bth = bth_at(data)
                if bth is None or len(data) < bth + _IDS_AT + 8 or data[bth + 5 : bth + 8] != b"\0\0\1":
                    continue
                (kind,) = struct.unpack_from(">H", data, bth + _ATTRIBUTE_AT)
                if kind in range(REQ, DREP + 1):
                    ids = struct.unpack_from(">II", data, bth + _IDS_AT)
                    made = Message(addresses(data)[0], kind, *ids)
                    known.setdefault(data[14:], made).seen[point] = number, time_ns
        self.messages = sorted(known.values(), key=lambda m: min(ns for _, ns in m.seen.values()))

    def _of(self, first: Message) -> list[Message]:
        """The messages of the exchange that a message belongs to."""
        ids = {first.local, first.remote} - {0}
        ids |= {m.local for m in self.messages if m.remote in ids}
        ids |= {m.remote for m in self.messages if m.local in ids and m.remote}
        return [m for m in self.messages if m.local in ids and (m.kind == REQ or m.remote in ids)]

    def _may_be_dropped(self, message: Message) -> bool:
        """Whether a fault behind the receiver's capture may have dropped a message."""
        return any(
            fault["where"] == BEHIND
            and fault.get("of", "").startswith("cm")
            and self._truth["hosts"][fault["sender"]]["ip"] == message.src
            for fault in self._truth["faults"]
        )

    def _reached(self, message: Message) -> int | None:
        """When a message was taken by its receiver; None if it was not, or need not have been."""
        here = self._ends[message.src]
        there = next(point for end, point in self._ends.items() if point != here)
        if there not in message.seen or self._may_be_dropped(message):
            return None
        return message.seen[there][1]

    def contradiction(self, finding: dict[str, Any], points: tuple[str, ...]) -> str | None:
        """What contradicts a finding of ``cm-unanswered`` or ``cm-rejected``; empty if nothing does.

        None: the finding names no message.
        """
        named = [m for frame in finding["frames"] if (m := self._named(frame, points)) is not None]
        if not named:
            return None
        of, title = self._of(named[0]), finding["title"]
        if finding["rule"] == "cm-rejected":
            return "" if any(m.kind == REJ for m in of) else "there was no REJ"
        asked = DREQ if "DREQ" in title else REP if "REP" in title else REQ
        sent = [m for m in of if m.kind == asked and m.src == next(n.src for n in named if n.kind == asked)]
        answers = [m for m in of if m.kind in _ANSWERS[asked] and m.src != sent[0].src]
        if "had not got" in title:
            last_ns = max(min(ns for _, ns in m.seen.values()) for m in sent)
            early = [ns for m in answers if m.kind == RTU and (ns := self._reached(m)) and ns < last_ns]
            return "an RTU had arrived" if early and len(sent) > 1 else ""
        if "came only after" in title:
            return "" if len(sent) > 1 else "it was sent once"
        if "did not answer" in title and answers:
            return "it answered, and the answer was lost"
        if finding["evidence"].get("req_again_after_rep"):
            return "the REP had arrived" if any(self._reached(m) for m in sent) else ""
        return "it was answered" if any(self._reached(m) for m in answers) else ""

    def _named(self, frame: int | str, points: tuple[str, ...]) -> Message | None:
        place, _, number = str(frame).rpartition(":")
        point = points[int(place) if place else 0]
        return next((m for m in self.messages if m.seen.get(point, (0, 0))[0] == int(number)), None)
