"""What happened to the packets of a lane, for graphs: each with its place, its wait and its words.

One list by time has the tracker's events, the CM messages, and failed work requests of the journal. The words
are those of ``explain``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from errno import errorcode
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.explanation.event_steps import event_step, message_again
from rocekit.files.frame_names import frame_name
from rocekit.findings.cause_words import repeat_cause, short_timeout
from rocekit.journal.work_requests import SUCCESS
from rocekit.wire.words import duration, plural, size

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.journal.work_requests import WorkRequest
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

KINDS: Final = (
    "nak",
    "rnr",
    "timeout",
    "repeat",
    "hole",
    "response_hole",
    "missed",
    "late",
    "duplicate",
    "cm",
    "failed",
    "jump",
    "unsent",
)
NAK, RNR, TIMEOUT, REPEAT, HOLE, RESPONSE_HOLE, MISSED, LATE, DUPLICATE, CM, FAILED, JUMP, UNSENT = KINDS
#: Those that stand for PSNs that are not in the capture.
HOLES: Final = (HOLE, RESPONSE_HOLE, MISSED)
_KINDS: Final = {
    "nak": NAK,
    "rnr_nak": RNR,
    "repeat": REPEAT,
    "response_repeat": REPEAT,
    "hole": HOLE,
    "response_hole": RESPONSE_HOLE,
    "response_late": LATE,
    "late": LATE,
    "duplicate": DUPLICATE,
    "missed": MISSED,
}


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened, to be drawn at its time and PSN.

    Attributes:
        lane: ``2 × connection + side`` of the requester.
        time_ns: when; from_ns, until_ns: its wait (the silence before a timeout, the time after an RNR NAK,
            for a work request without packets the time since its post), both ``time_ns`` without one.
        frame: frame reference, 0 without one; psn, last_psn: unwrapped.
        transfer: its id, None without one.
        what, detail: its words; label: short ones for a timeout.
    """

    kind: str
    lane: int
    time_ns: int
    from_ns: int
    until_ns: int
    frame: int
    psn: int
    last_psn: int
    transfer: int | None
    what: str
    detail: str
    label: str = ""


def happenings(analysis: Results, connections: Iterable[Connection] | None = None) -> list[Happening]:
    """Everything that happened on the connections (all of them unless given), by time."""
    chosen = None if connections is None else {c.id for c in connections}
    several = analysis.capture.several
    found: list[Happening] = []
    for transfer in analysis.transfers:
        if chosen is not None and transfer.connection.id not in chosen:
            continue
        found += (_of_event(transfer.connection, transfer, e, several) for e in transfer.events)
        if transfer.wc is not None and transfer.wc.status != "SUCCESS":
            found.append(_failure(transfer, analysis))
    for connection in analysis.connections:
        if chosen is None or connection.id in chosen:
            strays = [*connection.stray_events, *connection.missed]
            found += (_of_event(connection, None, event, several) for event in strays)
            found += _jumps(connection, several)
    found += _messages(analysis, chosen)
    found += _unsent(analysis, chosen)
    found.sort(key=lambda h: (h.time_ns, h.frame))
    return found


def _of_event(connection: Connection, transfer: Transfer | None, event: Event, several: bool) -> Happening:
    side = event.side if transfer is None else transfer.side
    kind, begin, end, label = _KINDS[event.kind], event.time_ns, event.time_ns, ""
    if transfer is None and event.kind != "missed":
        what, detail = _stray_words(connection, event, several)
    elif transfer is None:
        what = "packets not in the capture"
        detail = f"{plural(event.count, 'packet')} acknowledged, but not in the capture"
    else:
        step = event_step(transfer, event, several)
        what, detail = step.what, step.detail
    if kind == RNR:
        end += wire.rnr_wait_ns(event.syndrome or 0)
    elif event.cause == "timeout" and event.opens:
        kind, begin = TIMEOUT, event.time_ns - event.waited_ns
        label = short_timeout(event, connection, side, transfer)
        detail += timeout_words(connection, side)
    return Happening(
        kind,
        2 * connection.id + side,
        event.time_ns,
        begin,
        end,
        event.frame,
        event.psn,
        event.last_psn,
        None if transfer is None else transfer.id,
        what,
        detail,
        label,
    )


def timeout_words(connection: Connection, side: int) -> str:
    """``; local ACK timeout 4.096 µs × 2^16 = 268.4 ms``, or that it is unknown."""
    code = connection.negotiated[side].ack_timeout
    if code is None:
        return "; local ACK timeout unknown"
    timeout_ns = wire.local_ack_timeout_ns(code)
    if timeout_ns is None:
        return "; local ACK timeout 0: infinite"
    return f"; local ACK timeout 4.096 µs × 2^{code} = {duration(timeout_ns)}"


def _stray_words(connection: Connection, event: Event, several: bool) -> tuple[str, str]:
    words = event.kind.replace("_", " ")
    if event.kind == "repeat":
        words = f"sent again, {repeat_cause(event, connection, event.side, None)}"
    return "PSNs of an unknown transfer", f"{words}, frame {frame_name(event.frame, several=several)}"


def _jumps(connection: Connection, several: bool) -> Iterator[Happening]:
    for event in connection.jumps:
        lane, frame = 2 * connection.id + event.side, frame_name(event.frame, several=several)
        words = f"frame {frame}: the QP was used again, or as many packets are not in the capture"
        yield Happening(
            JUMP,
            lane,
            event.time_ns,
            event.time_ns,
            event.time_ns,
            event.frame,
            event.psn,
            event.last_psn,
            None,
            "PSN jump",
            words,
        )


def _failure(transfer: Transfer, analysis: Results) -> Happening:
    wc = transfer.wc
    assert wc is not None
    time_ns = journal_times(transfer, analysis)[1] or transfer.last_ns
    return Happening(
        FAILED,
        2 * transfer.connection.id + transfer.side,
        time_ns,
        time_ns,
        time_ns,
        0,
        transfer.first_psn,
        transfer.last_psn,
        transfer.id,
        f"WC {wc.wr_id} {wc.status}",
        "the work request completed with an error",
    )


def _messages(analysis: Results, chosen: set[int] | None) -> Iterator[Happening]:
    several = analysis.capture.several
    for record in analysis.cm:
        connection = record.connection
        if connection is None or (chosen is not None and connection.id not in chosen):
            continue
        again = message_again(record, ", sent again")
        words = f"{record.src} → {record.dst}, frame {frame_name(record.frame, several=several)}{again}"
        for side in (0, 1):
            yield Happening(
                CM,
                2 * connection.id + side,
                record.time_ns,
                record.time_ns,
                record.time_ns,
                record.frame,
                0,
                0,
                None,
                f"CM {record.message}",
                words,
            )


def _unsent(analysis: Results, chosen: set[int] | None) -> Iterator[Happening]:
    """Work requests without a packet in the capture that probably were not carried out.

    An unsignaled one before any completion was carried out: errors always complete (10.3.1). They are drawn
        at
    the PSN that would have been theirs: by arithmetic, or else the one after what their QP sent before.
    """
    journal = analysis.journal
    if journal is None:
        return
    for qp in journal.programs.qps:
        place = journal.place(qp)
        if place is None or (chosen is not None and place[0].id not in chosen):
            continue
        lane = 2 * place[0].id + place[1]
        sent = [t for wr in qp.sends if (t := journal.transfer_of(wr)) is not None]
        psn = sent[0].first_psn if sent else qp.attributes.get("sq_psn") or 0
        for wr in qp.sends:
            transfer = journal.transfer_of(wr)
            if transfer is not None:
                psn = transfer.last_psn + 1
            elif not wr.local and (wr.completion is None or (wr.wc is not None and wr.wc.status != SUCCESS)):
                yield _without_packets(wr, lane, psn if wr.first_psn is None else wr.first_psn, analysis)


def _without_packets(wr: WorkRequest, lane: int, psn: int, analysis: Results) -> Happening:
    posted, polled = _journal_times(wr, analysis)
    if wr.refused:
        code = abs(int(wr.event.fields["errno"]))
        detail = f"post failed: {errorcode.get(code, code)}"
    elif polled is None:
        detail = "no packet in the capture, no completion in the journal"
    else:
        detail = f"completed {duration(polled - posted)} after the post, no packet in the capture"
    outcome = "post failed" if wr.refused else wr.wc.status if wr.wc is not None else "no completion"
    what = f"WR {wr.wr_id} {wr.opcode} {size(wr.length)}, {outcome}"
    at = posted if polled is None else polled
    return Happening(UNSENT, lane, at, posted, at, 0, psn, psn, None, what, detail)


def journal_times(transfer: Transfer, analysis: Results) -> tuple[int | None, int | None]:
    """When its WR was posted and its WC was polled, on the capture's clock; None without a journal."""
    if transfer.wr is None or analysis.journal is None:
        return None, None
    return _journal_times(transfer.wr, analysis)


def _journal_times(wr: WorkRequest, analysis: Results) -> tuple[int, int | None]:
    clock = None if analysis.journal is None else analysis.journal.clocks.get(wr.qp.host)
    offset = 0 if clock is None else clock.offset_ns
    return wr.posted_ns - offset, None if wr.wc is None else wr.wc.polled_ns - offset
