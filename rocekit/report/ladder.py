"""A transfer as a ladder between its two hosts: its packets in order and direction, and its silences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from rocekit import wire
from rocekit.explanation.event_steps import syndrome_words
from rocekit.files.frame_names import frame_name
from rocekit.report.collector import CE, DUPLICATE, LOST, RESPONSE
from rocekit.report.happenings import FAILED, HOLE, RESPONSE_HOLE, TIMEOUT, happenings, journal_times
from rocekit.report.lanes import Lanes
from rocekit.wire.opcodes import opcode_words
from rocekit.wire.psn import MASK
from rocekit.wire.words import plural, size

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.report.happenings import Happening
    from rocekit.track.transfers import Transfer

PACKET, NOTE = "packet", "note"
#: Of more rungs than this, consecutive packets share one.
FOLD_ABOVE: Final = 60


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of the ladder.

    Attributes:
        kind: ``packet`` goes from one host to the other, ``note`` is at the requester, ``hole`` is not in the
            capture. back: from responder to requester. lost: sent and did not arrive.
        until_ns: the time of the last packet folded into it; count: how many there are.
        nak: a NAK or RNR NAK; ack: an ACK, NAK or RNR NAK.
    """

    kind: str
    time_ns: int
    until_ns: int
    first_psn: int = 0
    last_psn: int = 0
    words: str = ""
    frame: int | str = ""
    back: bool = False
    ack: bool = False
    nak: bool = False
    lost: bool = False
    round: int = 1
    count: int = 1
    bytes: int = 0

    @property
    def text(self) -> str:
        """The words on it."""
        if self.kind == NOTE:
            return self.words
        first, last = self.first_psn & MASK, self.last_psn & MASK
        words = f"PSN {first}" if first == last else f"PSN {first}–{last}"
        words += f" {plural(self.count, 'packet') if self.count > 1 else self.words}"
        if self.bytes:
            words += f" · {size(self.bytes)}"
        if self.round > 1:
            words += f", {self.round}{ {2: 'nd', 3: 'rd'}.get(self.round, 'th') } time"
        return words


def ladder(analysis: Results, lanes: Lanes, transfer: Transfer) -> list[Rung]:
    """The rungs of a transfer, by time.

    Args:
        lanes: the transfer's lane alone.
    """
    own = [h for h in happenings(analysis, [transfer.connection]) if h.transfer == transfer.id]
    until = max([transfer.last_ns, transfer.acked_ns or 0, *(h.time_ns for h in own)])
    low, high = np.searchsorted(lanes.time_ns, [transfer.first_ns, until + 1]).tolist()
    rungs = [_packet(analysis, lanes, row) for row in range(low, high) if _belongs(lanes, row, transfer)]
    rungs += [_note(h) for h in own if h.kind in (HOLE, RESPONSE_HOLE, TIMEOUT, FAILED)]
    for time_ns, words in zip(journal_times(transfer, analysis), ("WR posted", "WC polled"), strict=True):
        if time_ns is not None:
            rungs.append(Rung(NOTE, time_ns, time_ns, words=words))
    # A timeout comes before the packet that it sent again.
    rungs.sort(key=lambda rung: (rung.time_ns, rung.kind == PACKET))
    return _folded(rungs) if len(rungs) > FOLD_ABOVE else rungs


def _belongs(lanes: Lanes, row: int, transfer: Transfer) -> bool:
    psn = int(lanes.psn[row])
    if wire.OPERATION[lanes.opcode[row]] == "ACK":
        its_own = transfer.first_psn <= psn <= transfer.last_psn
        return its_own or int(lanes.time_ns[row]) == transfer.acked_ns
    return psn + int(lanes.span[row]) > transfer.first_psn and psn <= transfer.last_psn


def _packet(analysis: Results, lanes: Lanes, row: int) -> Rung:
    opcode, flags = int(lanes.opcode[row]), int(lanes.flags[row])
    psn, syndrome = int(lanes.psn[row]), int(lanes.syndrome[row])
    ack = wire.OPERATION[opcode] == "ACK"
    words = syndrome_words(syndrome) if ack else _short_name(opcode)
    words += ", CE" * bool(flags & CE) + ", came twice" * bool(flags & DUPLICATE)
    time_ns = int(lanes.time_ns[row])
    return Rung(
        PACKET,
        time_ns,
        time_ns,
        psn,
        psn if ack else psn + int(lanes.span[row]) - 1,
        words,
        frame_name(int(lanes.frame[row]), several=analysis.capture.several),
        back=bool(flags & RESPONSE),
        lost=bool(flags & LOST),
        ack=ack,
        nak=ack and wire.syndrome_kind(syndrome) in (wire.NAK, wire.RNR_NAK),
        round=int(lanes.round[row]),
        bytes=int(lanes.bytes[row]),
    )


def _short_name(opcode: int) -> str:
    """The name of an opcode without its transport: ``WRITE_FIRST``."""
    name = opcode_words(opcode)
    return name.partition("_")[2].removeprefix("RDMA_") if opcode in wire.OPCODES else name


def _note(happening: Happening) -> Rung:
    time_ns = happening.time_ns
    if happening.kind in (HOLE, RESPONSE_HOLE):
        psns = happening.psn, happening.last_psn
        return Rung(HOLE, time_ns, time_ns, *psns, "not in the capture", back=happening.kind == RESPONSE_HOLE)
    return Rung(NOTE, time_ns, time_ns, words=happening.label or happening.what)


def _folded(rungs: list[Rung]) -> list[Rung]:
    folded: list[Rung] = []
    for rung in rungs:
        before = folded[-1] if folded else None
        if before is not None and _goes_on(before, rung):
            folded[-1] = replace(
                before,
                until_ns=rung.time_ns,
                last_psn=rung.last_psn,
                count=before.count + 1,
                bytes=before.bytes + rung.bytes,
            )
        else:
            folded.append(rung)
    return folded


def _goes_on(before: Rung, rung: Rung) -> bool:
    plain = all(r.kind == PACKET and not r.ack and not r.lost and "," not in r.words for r in (before, rung))
    alike = (before.back, before.round) == (rung.back, rung.round)
    return plain and alike and rung.first_psn == before.last_psn + 1 and "REQUEST" not in rung.words
