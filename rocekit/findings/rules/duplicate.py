"""``duplicate``: the network doubled packets."""

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
        for event in _doubled(transfer):
            found.setdefault(transfer.connection.id, (transfer.connection, []))[1].append((event, transfer))
    for stories in evidence.told(RULE.name):
        for story in stories:
            number = story.connection.id
            for run in story.go_backs:
                at = found.setdefault(number, (story.connection, []))[1]
                at += [(event, _holder(event, run.transfers)) for event in run.events]
    for connection, doubled in found.values():
        doubled.sort(key=lambda d: (d[0].time_ns, d[0].frame))
        events = [event for event, _ in doubled]
        total = sum(e.count for e in events)
        what = f"PSN {wire_psn(events[0].psn)} was" if total == 1 else f"{plural(total, 'packet')} were"
        yield RULE.finding(
            f"{what} doubled by the network between {connection.ips[0]} and {connection.ips[1]}",
            connection=connection,
            transfer=next((t for _, t in doubled if t is not None), None),
            frames=[e.frame for e in events],
            evidence={
                "count": total,
                "psns": [wire_psn(e.psn) for e in events[:MAX_LISTED]],
                "transfers": list(dict.fromkeys(t.id for _, t in doubled if t is not None))[:MAX_LISTED],
            },
        )


def _holder(event: Event, transfers: list[Transfer]) -> Transfer | None:
    """The transfer that an event's first PSN belongs to; None where the capture shows none."""
    return next((t for t in transfers if t.first_psn <= event.psn <= t.last_psn), None)


def _doubled(transfer: Transfer) -> Iterator[Event]:
    """Its packets that came twice without anybody asking.

    Each time that something is asked for, it is answered once; what was asked behind a refusal with RNR is
    not carried out, and the repeat takes its place.
    """
    asked: list[int] = []
    answers: dict[int, int] = {}
    for event in transfer.events:
        if event.kind == "duplicate":
            yield event
        elif event.kind == "repeat" and event.cause != "rnr":
            asked.append(event.psn)
        elif event.kind == "response_repeat" and not event.first_sight:
            answers[event.psn] = answers.get(event.psn, 1) + 1
            if answers[event.psn] > 1 + sum(psn <= event.psn for psn in asked):
                yield event


RULE = Rule(
    "duplicate",
    INFO,
    "the network doubled packets",
    "The network delivered packets twice. Responders recognise duplicates by their PSN and answer them "
    "again; it costs little.",
    "The same PSN twice, with the same IPv4 identification or without anything that would have made the "
    "requester repeat it.",
    "ack-loss and tail-loss (the requester repeats after a timeout). A capture on an interface that sees a "
    "packet on its way in and on its way out (a bridge, `-i any`) doubles every packet.",
    "If every packet is doubled, capture on one interface only. Else look for a switch that mirrors into the "
    "production network, or for a bridging loop.",
    _look,
)
