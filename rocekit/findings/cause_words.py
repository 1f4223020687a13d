"""Why packets came again, in words: one clause a repeat, the same in every output.

``track.causes`` decides the cause. How sure it is stands in the clause: stated, "probably" with its ground,
or open. The clause has no frame numbers, because several captures number frames differently.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.findings.stories.early_answers import is_answered_early
from rocekit.track.causes import NAK_MISSED, OBEYED_NS
from rocekit.track.short_timers import fits_timer, short_timer_ns
from rocekit.wire import OWN_RESPONSE
from rocekit.wire.words import duration

if TYPE_CHECKING:
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

TIMEOUT: Final = "timeout"
#: Why a response came again.
ASKED_AGAIN: Final = "because the request was sent again"
#: What a requester did about a NAK that it seems to have ignored.
NOT_OBEYED: Final = "probably not obeyed: the requester sent again only after a timeout"
#: What is said of the rest of a go-back whose cause its first packet alone decides.
_GOES_ON: Final = "in a go-back that started at an earlier PSN"
#: The kinds of events that cause a repeat, by the name of the cause.
_REFUSALS: Final = {"nak": "nak", "rnr": "rnr_nak"}
_ABSENT: Final = "that is not in the capture"
#: The same where responses are cut before their AETH.
_ABSENT_OR_CUT: Final = "that is cut or not in the capture"
#: Each cause as a noun.
_NOUNS: Final = {
    "nak": "the NAK",
    "rnr": "the RNR NAK",
    TIMEOUT: "a timeout",
    "implied_nak": "a missing response",
    NAK_MISSED: f"a NAK {_ABSENT}",
}
#: Each other cause in a label.
_SHORT: Final = {
    "nak": "NAK",
    "rnr": "RNR NAK",
    "implied_nak": "missing response",
    NAK_MISSED: f"NAK {_ABSENT}",
}
#: A timer may run out this much too early: kernels count in ticks. And it may take up to four timeouts (IBA
#: Vol. 1, 9.7.6.1.3), and a tenth more for the capture's own error.
_EARLIEST, _LATEST = 0.875, 4.4
#: The events of a transfer are in order of time but for a few: so many around a time are looked at.
_NEAR: Final = 32


def repeat_cause(event: Event, connection: Connection, side: int, transfer: Transfer | None) -> str:
    """Why a requester sent again: ``after the NAK``.

    Args:
        event: a ``repeat``; transfer: the one that it happened to, None if unknown.
        side: the requester's side.
    """
    words = _cause_words(event, connection, side, transfer)
    if connection.cut_responses:
        words = words.replace(f"NAK {_ABSENT}", f"NAK or RNR NAK {_ABSENT}").replace(_ABSENT, _ABSENT_OR_CUT)
    return words


def _cause_words(event: Event, connection: Connection, side: int, transfer: Transfer | None) -> str:
    cause, doubt = event.cause or "", event.doubt
    if cause not in _NOUNS:
        return "cause unknown"
    if transfer is not None and is_answered_early(transfer):
        return "or in the capture behind its only response"
    if not _fits(event, connection, side, transfer):
        if _is_short_timer(event, connection, side):
            return _after_short_timer(event, connection, side)
        return _left_open(event, connection, side) if event.opens else _GOES_ON
    noun = _NOUNS[cause] + _detail(event, transfer)
    if doubt is not None and doubt == cause:
        return f"after {noun}, or the go-back before it continues"
    if doubt is not None:
        return f"after {noun} or {_other(event)}: both are possible"
    if cause == TIMEOUT:
        return f"after {noun}" if _is_stated(event, connection, side) else f"probably after {noun}"
    if cause in _REFUSALS and event.opens and not is_obeyed(event, transfer):
        return f"probably after an earlier {_SHORT[cause]}"
    if cause == "rnr" and event.opens:
        return f"{duration(event.waited_ns)} after the RNR NAK"
    if cause == NAK_MISSED:
        if transfer is not None and transfer.operation in OWN_RESPONSE:
            noun = f"a NAK or a response {_ABSENT}"
        return f"probably after {noun}: too soon for a timeout"
    if cause == "implied_nak" and event.response_seen == 1:
        return "probably after a response that was lost or overtaken behind the capture point"
    if cause == "implied_nak" and event.response_seen < 0:
        return f"probably after {noun}"
    return f"after {noun}"


def source_words(cause: str, event: Event) -> str:
    """What stands before the number of the frame that caused a repeat, where the clause leaves that open."""
    if cause == "implied_nak":
        return "last response: "
    return f"{_SHORT[cause]}: " if event.doubt is not None and cause in _SHORT else ""


def short_timeout(event: Event, connection: Connection, side: int, transfer: Transfer | None) -> str:
    """A timeout for a label: ``timeout 68.08 ms``, with its degree."""
    if not _is_timer(event, connection, side, transfer):
        likely = "probably timeout" if _is_short_timer(event, connection, side) else "silence"
    elif event.doubt is not None:
        likely = "timeout or go-back" if event.doubt == TIMEOUT else f"timeout or {_SHORT[event.doubt]}"
    else:
        likely = "timeout" if _is_stated(event, connection, side) else "probably timeout"
    return f"{likely} {duration(event.waited_ns)}"


def _is_timer(event: Event, connection: Connection, side: int, transfer: Transfer | None) -> bool:
    """Whether a timer may have caused a repeat: the requester waited long enough for it.

    It runs out soon after the last packet where not each packet restarts it, but a timeout after what is sent
    again was first sent. Only a timer that no ACK restarts (rdma_rxe) runs out sooner.
    """
    if event.cause != TIMEOUT:
        return False
    code = connection.negotiated[side].ack_timeout
    if code is None:
        return True
    timeout_ns = wire.local_ack_timeout_ns(code)
    if timeout_ns is None:
        return False
    longest_ns = event.waited_ns
    if transfer is not None:
        longest_ns = max(longest_ns, event.time_ns - transfer.first_ns)
    return longest_ns >= _EARLIEST * timeout_ns


def is_obeyed(event: Event, transfer: Transfer | None) -> bool:
    """Whether the wait of a go-back counts from a NAK or RNR NAK for this transfer."""
    if transfer is None:
        return False
    kind, since_ns = _REFUSALS.get(event.cause or ""), event.time_ns - event.waited_ns
    at = bisect_left(transfer.events, since_ns, key=attrgetter("time_ns"))
    near = transfer.events[max(0, at - _NEAR) : at + _NEAR]
    return any(e.kind == kind and e.time_ns == since_ns for e in near)


def _fits(event: Event, connection: Connection, side: int, transfer: Transfer | None) -> bool:
    """Whether the wait fits the cause."""
    if event.cause == "nak":
        return event.waited_ns <= OBEYED_NS or is_obeyed(event, transfer)
    return event.cause != TIMEOUT or _is_timer(event, connection, side, transfer)


def _left_open(event: Event, connection: Connection, side: int) -> str:
    """The clause of a repeat whose wait does not fit the cause. Some timers are not restarted by an ACK."""
    other = "" if event.doubt in (None, event.cause) else _other(event)
    open_ = f"{other}, or an unknown cause" if other else "cause unknown"
    code = connection.negotiated[side].ack_timeout
    if event.cause == "nak":
        return f"long after the NAK: {open_}"
    timeout_ns = None if code is None else wire.local_ack_timeout_ns(code)
    waited = f"{duration(event.waited_ns)} after its last request"
    if timeout_ns is None:
        return f"{waited}, although its timeout is infinite: {open_}"
    waited += f", sooner than its timeout ({duration(timeout_ns)})"
    other = other or "a NAK that is not in the capture"
    return f"{waited}: {other}, or a timer that started before or is shorter than negotiated"


def _is_short_timer(event: Event, connection: Connection, side: int) -> bool:
    """Whether a wait fits the timer that this requester probably has, which is shorter than negotiated."""
    if event.cause != TIMEOUT or event.doubt not in (None, TIMEOUT):
        return False
    timer_ns = short_timer_ns(connection, side)
    return timer_ns is not None and fits_timer(event.waited_ns, timer_ns)


def _after_short_timer(event: Event, connection: Connection, side: int) -> str:
    code, timer_ns = connection.negotiated[side].ack_timeout, short_timer_ns(connection, side)
    timeout_ns = None if code is None else wire.local_ack_timeout_ns(code)
    assert timer_ns is not None
    shorter = "" if timeout_ns is None else f", shorter than the negotiated {duration(timeout_ns)}"
    return (
        f"probably after a timeout ({duration(event.waited_ns)} after its last request): this requester's "
        f"timer is about {duration(timer_ns)} (adaptive{shorter})"
    )


def _is_stated(event: Event, connection: Connection, side: int) -> bool:
    """Whether a wait is as long as a timeout that is known; else it is only probably a timeout."""
    code = connection.negotiated[side].ack_timeout
    timeout_ns = None if code is None else wire.local_ack_timeout_ns(code)
    return timeout_ns is not None and _EARLIEST * timeout_ns <= event.waited_ns <= _LATEST * timeout_ns


def _detail(event: Event, transfer: Transfer | None) -> str:
    """How long before the repeat its cause was, as far as that is known."""
    if event.cause == TIMEOUT:
        return f" ({duration(event.waited_ns)} after its last request)"
    if event.cause == "rnr" and event.opens and event.doubt is not None and is_obeyed(event, transfer):
        return f" ({duration(event.waited_ns)} before)"
    return ""


def _other(event: Event) -> str:
    """The other cause that fits, with its wait."""
    noun = _NOUNS[event.doubt or ""]
    if not (event.opens and event.doubt_waited_ns):
        return noun
    since = "after it was last sent" if event.doubt == TIMEOUT else "before"
    return f"{noun} ({duration(event.doubt_waited_ns)} {since})"
