"""``duplicate``: packets came twice, and nothing shows that they were sent again.

The same IPv4 identification proves that a packet was sent once. It does not tell whether the network made the
copy or the capture did (a mirror of two ports), and nor does another TTL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.finding import INFO, MAX_LISTED, Finding, Rule
from rocekit.findings.stories import REORDERING
from rocekit.findings.stories.copies import misses_packets
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer


#: So many copies, and of so many of a hundred packets, are the capture's: it saw each packet at two places.
_LEAST: Final = 8
_NEARLY_ALL: Final = 90
#: Copies of a mirror come sooner; what comes later may be of a QP that was used again.
_SOON_NS: Final = 100_000_000
#: The network makes copies within this time; a requester needs longer to ask again.
_AT_ONCE_NS: Final = 50_000
#: Interrupts of NICs are gathered for as long, or shorter.
_STAMPED_LATE_NS: Final = 250_000

#: Transports whose requesters send again.
_RELIABLE: Final = frozenset({"RC", "XRC"})

#: Packets that came twice, each with its transfer where that is known.
_Copies = list["tuple[Event, Transfer | None]"]


def _look(evidence: Evidence) -> Iterator[Finding]:
    found: dict[int, tuple[Connection, _Copies]] = {}
    for transfer in evidence.met.copies:
        for event in _duplicates(transfer):
            found.setdefault(transfer.connection.id, (transfer.connection, []))[1].append((event, transfer))
    for stories in evidence.stories_of(RULE.name):
        for story in stories:
            number = story.connection.id
            for run in story.go_backs:
                at = found.setdefault(number, (story.connection, []))[1]
                at += [(event, _holder(event, run.transfers)) for event in run.events]
    every = {
        c.id for c in evidence.connections if _is_captured_twice(c) and _are_soon(found.get(c.id, (c, []))[1])
    }
    for connection, copies in found.values():
        if connection.id in every:
            continue
        copies = [(event, transfer) for event, transfer in copies if event.copied or not event.ip_id]
        copies.sort(key=lambda d: (d[0].time_ns, d[0].frame))
        runs = _sent_again(copies) if connection.transport in _RELIABLE else set()
        lacking = _lacks_packets(evidence, connection)
        disorder = lacking or _is_disordered(evidence, connection) or not _are_soon(copies)
        single = [c for c in copies if id(c[0]) not in runs]
        open_ = {
            id(c[0])
            for c in single
            if not c[0].copied and (disorder or _is_late_answer(*c) or c[0].time_ns == connection.last_ns)
        }
        yield from _sent_once(connection, [c for c in single if id(c[0]) not in open_])
        yield from _by_sender(connection, [c for c in copies if id(c[0]) in runs])
        either = [c for c in single if id(c[0]) in open_]
        yield from _by_either(connection, either, _LACKING if lacking else _DISORDER)
    for connection in evidence.connections:
        if connection.id in every:
            yield _by_capture(connection)
        elif connection.copied_ack_count:
            yield _acks(connection)


def _is_captured_twice(connection: Connection) -> bool:
    """Whether nearly every packet came twice, as behind a mirror of two ports.

    A file like that is used as two capture points, an interface is not.
    """
    copies = connection.duplicates + connection.copied_ack_count
    return copies >= _LEAST and 2 * copies * 100 >= _NEARLY_ALL * connection.packets


def _are_soon(copies: _Copies) -> bool:
    """Whether most copies came soon behind their messages, as those of a mirror do."""
    late = sorted(e.time_ns - max(t.first_ns, t.request_end_ns) for e, t in copies if t is not None)
    return not late or late[len(late) // 2] < _SOON_NS


def _by_capture(connection: Connection) -> Finding:
    copies = connection.duplicates + connection.copied_ack_count
    first, second = connection.ips
    return RULE.finding(
        f"Nearly every packet between {first} and {second} came twice ({copies:,} copies of "
        f"{connection.packets - copies:,} packets): probably captured at two places, as by a mirror",
        connection=connection,
        evidence={"count": copies, "captured_twice": True},
        advice="Write the packets to a file (`rocekit trace -w FILE`) and analyze it, without another "
        "capture: a file is used as two capture points. Until then, losses and reordering of this connection "
        "are not sure.",
    )


def _acks(connection: Connection) -> Finding:
    """ACKs and NAKs that came twice with one identification. Those sent again are no finding of their own."""
    total = connection.copied_ack_count
    return RULE.finding(
        f"{plural(total, 'acknowledgement')} came again between {connection.ips[0]} and {connection.ips[1]}: "
        f"{_ONE if total == 1 else _EACH}",
        connection=connection,
        frames=connection.copied_acks,
        evidence={
            "count": total,
            "acks": True,
            "same_identification": total,
            "duplicate_acks": connection.duplicate_acks,
        },
    )


def _sent_once(connection: Connection, copies: _Copies) -> Iterator[Finding]:
    events = [event for event, _ in copies]
    total = sum(e.count for e in events)
    if not total:
        return
    proven = sum(e.copied for e in events)
    what = f"PSN {wire_psn(events[0].psn)}" if total == 1 else plural(total, "packet")
    once = _ONE if total == 1 else _EACH
    if not proven:
        once = once.replace("sent", "probably sent")
    elif proven < total:
        once += f" ({total - proven:,} of them probably)"
    yield RULE.finding(
        f"{what} came again between {connection.ips[0]} and {connection.ips[1]}: {once}",
        connection=connection,
        transfer=next((t for _, t in copies if t is not None), None),
        frames=[e.frame for e in events],
        evidence=_counted(copies) | {"same_identification": proven},
        advice=RULE.what_to_do + (_GROUND if proven < total else ""),
    )


def _by_sender(connection: Connection, copies: _Copies) -> Iterator[Finding]:
    """PSNs in a row that came again: a sender goes back like this; copies are of single packets."""
    events = [event for event, _ in copies]
    if not events:
        return
    yield RULE.finding(
        f"{plural(len(events), 'packet')} came again between {connection.ips[0]} and {connection.ips[1]}, in "
        "runs of consecutive PSNs: probably sent again",
        connection=connection,
        transfer=next((t for _, t in copies if t is not None), None),
        frames=[e.frame for e in events],
        evidence=_counted(copies) | {"probably_sent_again": len(events)},
        advice="Nothing in the capture made the sender go back, and the packets' IPv4 identifications do not "
        "tell. Take a capture at the sender: a NAK may be missing here.",
    )


def _by_either(connection: Connection, copies: _Copies, ground: str) -> Iterator[Finding]:
    """Packets that came twice, whose place among the others tells nothing, for a ``ground``."""
    events = [event for event, _ in copies]
    if not events:
        return
    or_else = (
        "sent again" if connection.transport in _RELIABLE else "by a QP that has its number and PSNs again"
    )
    yield RULE.finding(
        f"{plural(len(events), 'packet')} came again between {connection.ips[0]} and {connection.ips[1]}: "
        f"sent once, or {or_else}",
        connection=connection,
        transfer=next((t for _, t in copies if t is not None), None),
        frames=[e.frame for e in events],
        evidence=_counted(copies) | {"or_sent_again": len(events)},
        advice=f"Open: which of the two. The packets' IPv4 identifications tell nothing, and {ground}. A "
        "capture at the sender decides.",
    )


def _lacks_packets(evidence: Evidence, connection: Connection) -> bool:
    """Whether the capture lacks packets of a connection: one of them may have asked for these again."""
    if misses_packets(connection):
        return True
    transfers = [t for side in (0, 1) for t in evidence.transfers_of.get((connection.id, side), ())]
    return any(t.responses_missing for t in transfers)


def _is_late_answer(event: Event, transfer: Transfer | None) -> bool:
    """Whether a response came again later than a network makes copies: its requester may have asked again."""
    if event.kind != "response_repeat" or transfer is None:
        return False
    before = [
        e.time_ns
        for e in transfer.events
        if e.kind == "response_repeat" and e.psn <= event.psn <= e.last_psn and e.time_ns < event.time_ns
    ]
    if transfer.acked_ns is not None and event.psn == transfer.last_psn:
        before.append(transfer.acked_ns)
    return not any(0 <= event.time_ns - ns < _AT_ONCE_NS for ns in before)


def _is_disordered(evidence: Evidence, connection: Connection) -> bool:
    """Whether packets of a connection arrived out of order."""
    return any(story.rule == REORDERING and story.connection is connection for story in evidence.stories)


def _counted(copies: _Copies) -> dict[str, Any]:
    events = [event for event, _ in copies]
    return {
        "count": sum(e.count for e in events),
        "psns": [wire_psn(e.psn) for e in events[:MAX_LISTED]],
        "transfers": list(dict.fromkeys(t.id for _, t in copies if t is not None))[:MAX_LISTED],
    }


def _sent_again(copies: _Copies) -> set[int]:
    """The ``id()`` of the events that are runs of consecutive PSNs, with nothing new sent in between."""
    runs: set[int] = set()
    before: dict[int, Event] = {}
    for event, transfer in copies:
        if event.kind != "duplicate" or event.copied or transfer is None:
            continue
        last = before.get(transfer.side)
        if last is not None and event.psn == last.psn + 1 and event.sent_psn == last.sent_psn:
            runs |= {id(last), id(event)}
        before[transfer.side] = event
    return runs


def _holder(event: Event, transfers: list[Transfer]) -> Transfer | None:
    """The transfer that contains an event's first PSN; None if there is none."""
    return next((t for t in transfers if t.first_psn <= event.psn <= t.last_psn), None)


def _duplicates(transfer: Transfer) -> Iterator[Event]:
    """The packets of a transfer that came twice, though the requester did not repeat the request.

    Each request gets one response. A request that got an RNR NAK was not executed, so its repeat counts as
    the first one. A request may be stamped later than its response, as where interrupts are gathered.
    """
    requested = [(e.psn, e.time_ns) for e in transfer.events if e.kind == "repeat" and e.cause != "rnr"]
    responses: dict[int, int] = {}
    for event in transfer.events:
        if event.kind == "duplicate":
            yield event
        elif event.kind == "response_repeat" and not event.first_sight:
            responses[event.psn] = responses.get(event.psn, 1) + 1
            until_ns = event.time_ns + _STAMPED_LATE_NS
            if responses[event.psn] > 1 + sum(psn <= event.psn and ns <= until_ns for psn, ns in requested):
                yield event


_DISORDER: Final = (
    "packets of this connection came out of order, or these came late, or the capture ends with them"
)
_LACKING: Final = "the capture lacks packets of this connection, one of which may have asked for these again"
_ONE: Final = "its sender sent it once"
_EACH: Final = "each was sent once"
_GROUND: Final = (
    " “Probably” means: the packets' IPv4 identifications tell nothing (0, or the same on other packets), "
    "but nothing made the sender send the packet again."
)
RULE = Rule(
    "duplicate",
    INFO,
    "packets came twice, with no reason to send them again",
    "The capture has packets twice, and nothing made their sender send them again. The network made the "
    "copies, or the capture did, as one of a mirror of two ports. A responder that gets a packet "
    "twice recognises it by its PSN and acknowledges it again; the cost is small.",
    "The same PSN twice, with the same IPv4 identification; where identifications tell nothing, a single "
    "packet again, with no reason for the requester to send it again.",
    "ack-loss and tail-loss: the requester sends again after a timeout. Packets with another IPv4 "
    "identification were sent again, and runs of consecutive PSNs probably. A capture on an "
    "interface that sees each packet enter and leave (a bridge, `-i any`) has every packet twice.",
    "If every packet comes twice, capture on one interface only. Otherwise look for a switch that mirrors "
    "into the production network, or for a bridging loop. Open: whether copies were made on the way, or "
    "where they were captured, as by a mirror of two ports. A responder acknowledges again what reached it "
    "twice.",
    _look,
)
