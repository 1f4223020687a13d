"""The events of a transfer in words: one step of its explanation each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.files.frame_names import frame_name
from rocekit.findings.cause_words import ASKED_AGAIN, NOT_OBEYED, repeat_cause
from rocekit.packets import CUT_SYNDROME
from rocekit.track.passes import (
    ANSWERED,
    BEFORE,
    BEHIND,
    MISSED,
    NOT_LOST,
    OPEN,
    OVERTAKEN,
    SECOND,
    THROWN_AWAY,
)
from rocekit.wire.words import duration, plural, psn_range, size

if TYPE_CHECKING:
    from rocekit.track.cm_exchanges import CmRecord
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

_COPIES: Final = {
    BEFORE: "lost before the capture point",
    BEHIND: "lost behind the capture point",
    NOT_LOST: "too soon: a late packet sent before the go-back drew it, and nothing was lost",
    OPEN: "lost behind the capture point, or sent too late to arrive before the NAK",
    ANSWERED: "lost behind the capture point, or late",
    MISSED: "lost before the capture point, or late",
    SECOND: "lost behind the capture point, or it came before the packet ahead of it",
    OVERTAKEN: "arrived after a later packet: reordered behind the capture point",
    THROWN_AWAY: "arrived behind a gap and was dropped by the responder: an effect of reordering",
}


#: What is said of a gap that is filled without a repeat.
LATE: Final = "arrived later, out of order"
#: What is said of a packet that came twice, if its IPv4 identification proves it, and if nothing does. The
#: network made the copy, or the capture (a mirror of two ports): identifications do not tell which.
ONCE: Final = "its sender sent it once"
ONCE_OR_AGAIN: Final = "sent once, or sent again"
#: Kinds of events that name the frame at which something is missing.
_MISSING: Final = frozenset({"hole", "response_hole"})
#: What stands before and behind the frame of an event whose words are always the same, by its kind.
_PLAIN: Final = {
    "response_repeat": (f"sent again {ASKED_AGAIN}", ""),
    "hole": ("missing", ": lost before the capture point, reordered, or not in the capture"),
    "response_hole": ("missing", ""),
    "response_late": ("response reordered", ""),
    "late": ("reordered", ""),
    "missed": ("not in the capture, although acknowledged", ""),
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the explanation: its time on the capture's clock, what it concerns, and what happened.

    Attributes:
        event: what of the transfer's events it is; None for any other step.
    """

    time_ns: int
    what: str
    detail: str
    trouble: bool = False
    event: Event | None = None


def syndrome_words(syndrome: int) -> str:
    """``ACK``, ``NAK PSN sequence error``, ``RNR NAK``: a syndrome as people write it."""
    if syndrome == CUT_SYNDROME:
        return "response, ACK or NAK unknown (cut)"
    return wire.syndrome_name(syndrome).replace("_", " ").replace("psn", "PSN")


def frame_words(reference: int, several: bool) -> str:
    """``frame 7``."""
    return f"frame {frame_name(reference, several=several)}"


def frames_words(first: int, last: int, several: bool) -> str:
    """``frames 7–9``."""
    if first == last:
        return frame_words(first, several)
    return f"frames {frame_name(first, several=several)}–{frame_name(last, several=several)}"


def event_words(transfer: Transfer, event: Event, several: bool = False) -> str:
    """What an event is, without its frames and numbers of packets: alike events have the same words."""
    return "".join(_around_frame(transfer, event, several))


def event_step(transfer: Transfer, event: Event, several: bool = False, *, late: bool = False) -> Step:
    """An event of a transfer in words.

    Args:
        late: of a ``hole``: the packets came later and were not sent again.
    """
    where, trouble = psn_range(event.psn, event.last_psn), event.kind != "duplicate"
    if event.kind == "repeat":
        return _repeat(transfer, event, where, several)
    if event.kind == "response_repeat":
        where += " again"
    frame = frame_words(event.frame, several)
    if late:
        return Step(event.time_ns, where, f"missing at {frame}: {LATE}", trouble, event)
    before, after = _around_frame(transfer, event, several)
    if event.kind in ("response_hole", "response_repeat"):
        before = f"{plural(event.count, 'response')} {before}"
    between = " at " if event.kind in _MISSING else ", "
    return Step(event.time_ns, where, f"{before}{between}{frame}{after}", trouble, event)


def _around_frame(transfer: Transfer, event: Event, several: bool) -> tuple[str, str]:
    """What stands before and behind the frame of an event."""
    kind = event.kind
    if kind == "nak":
        syndrome = event.syndrome or 0
        if wire.syndrome_value(syndrome) != wire.NAK_SEQUENCE_ERROR:
            return syndrome_words(syndrome), ""
        rest = [_COPIES[event.copy]] if event.copy and not several else []
        rest += [NOT_OBEYED] if event.ignored else []
        return "did not arrive: NAK PSN sequence error", "".join(f", {words}" for words in rest)
    if kind == "rnr_nak":
        return f"no receive was posted: RNR NAK, wait {duration(wire.rnr_wait_ns(event.syndrome or 0))}", ""
    if kind == "repeat":
        cause = repeat_cause(event, transfer.connection, transfer.side, transfer)
        known = ", although the capture already contains their ACK" if event.after_ack else ""
        return f"sent again, {cause}{known}", ""
    if kind == "duplicate":
        return came_before(event), f": {ONCE if event.copied else ONCE_OR_AGAIN}"
    return _PLAIN.get(kind, (kind, ""))


def came_before(event: Event) -> str:
    """What came twice: a datagram, where its IPv4 identification proves that it was sent once."""
    return "the same datagram again" if event.copied else "the same PSN again"


def message_again(record: CmRecord, resent: str) -> str:
    """Behind the name of a CM message: that it came before, or ``resent``; empty at the first time."""
    if record.duplicated:
        return f", the same datagram again: {ONCE}" if record.ip_id else f", again: {ONCE_OR_AGAIN}"
    return resent if record.repeated else ""


def _repeat(transfer: Transfer, event: Event, where: str, several: bool) -> Step:
    what = "READ request"
    if not transfer.is_read:
        what = f"{plural(event.count, 'packet')}, {size(event.bytes)}"
    words = [f"{what} {event_words(transfer, event)}"]
    if event.first_sight:
        words.append(f"{event.first_sight} of them not in the capture before")
    words.append(frames_words(event.frame, event.last_frame, several))
    return Step(event.time_ns, f"{where} again", ", ".join(words), True, event)
