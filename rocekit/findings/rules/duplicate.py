"""``duplicate``: the network duplicated packets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.finding import INFO, MAX_LISTED, Finding, Rule
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer


def _look(evidence: Evidence) -> Iterator[Finding]:
    found: dict[int, tuple[Connection, list[tuple[Event, Transfer | None]]]] = {}
    for transfer in evidence.transfers:
        for event in _duplicates(transfer):
            found.setdefault(transfer.connection.id, (transfer.connection, []))[1].append((event, transfer))
    for stories in evidence.stories_of(RULE.name):
        for story in stories:
            number = story.connection.id
            for run in story.go_backs:
                at = found.setdefault(number, (story.connection, []))[1]
                at += [(event, _holder(event, run.transfers)) for event in run.events]
    for connection, copies in found.values():
        copies.sort(key=lambda d: (d[0].time_ns, d[0].frame))
        events = [event for event, _ in copies]
        total = sum(e.count for e in events)
        what = f"PSN {wire_psn(events[0].psn)} was" if total == 1 else f"{plural(total, 'packet')} were"
        yield RULE.finding(
            f"{what} duplicated by the network between {connection.ips[0]} and {connection.ips[1]}",
            connection=connection,
            transfer=next((t for _, t in copies if t is not None), None),
            frames=[e.frame for e in events],
            evidence={
                "count": total,
                "psns": [wire_psn(e.psn) for e in events[:MAX_LISTED]],
                "transfers": list(dict.fromkeys(t.id for _, t in copies if t is not None))[:MAX_LISTED],
            },
        )


def _holder(event: Event, transfers: list[Transfer]) -> Transfer | None:
    """The transfer that contains an event's first PSN; None if there is none."""
    return next((t for t in transfers if t.first_psn <= event.psn <= t.last_psn), None)


def _duplicates(transfer: Transfer) -> Iterator[Event]:
    """The packets of a transfer that came twice, though the requester did not repeat the request.

    Each request gets one response. A request that got an RNR NAK was not executed, so its repeat counts as
    the first one.
    """
    requested: list[int] = []
    responses: dict[int, int] = {}
    for event in transfer.events:
        if event.kind == "duplicate":
            yield event
        elif event.kind == "repeat" and event.cause != "rnr":
            requested.append(event.psn)
        elif event.kind == "response_repeat" and not event.first_sight:
            responses[event.psn] = responses.get(event.psn, 1) + 1
            if responses[event.psn] > 1 + sum(psn <= event.psn for psn in requested):
                yield event


RULE = Rule(
    "duplicate",
    INFO,
    "the network duplicated packets",
    "The network delivered packets twice. The responder recognises a duplicate by its PSN and acknowledges "
    "it again; the cost is small.",
    "The same PSN twice, with the same IPv4 identification, or with no reason for the requester to send it "
    "again.",
    "ack-loss and tail-loss: the requester sends again after a timeout. A capture on an interface that "
    "sees each packet enter and leave (a bridge, `-i any`) has every packet twice.",
    "If every packet comes twice, capture on one interface only. Otherwise look for a switch that mirrors "
    "into the production network, or for a bridging loop.",
    _look,
)
