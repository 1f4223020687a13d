"""``loss``: a packet inside a burst was lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.costs import all_frames, costs, main_transfer, price
from rocekit.findings.finding import MAX_LISTED, WARNING, Finding, Rule
from rocekit.findings.stories.places import places
from rocekit.track.transfers import INCOMPLETE
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.told(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        lost = sum(s.lost for s in stories)
        behind = sum(s.hole is None for s in stories)
        if len(stories) == 1:
            what = f"PSN {wire_psn(stories[0].psn)} was lost"
        else:
            what = f"{plural(len(stories), 'loss', 'losses')}"
        again = max(s.transmissions for s in stories)
        placed, told = places(evidence, stories)
        found = (
            costs(stories)
            | placed
            | {
                "lost_packets": lost,
                "lost_behind_capture_point": behind,
                "lost_before_capture_point": len(stories) - behind,
                "nak_seen": sum(bool(s.naks) for s in stories),
                "most_transmissions": again,
            }
        )
        yield RULE.finding(
            f"{what} on {connection.way(side)}: {price(stories)}{told}",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
            advice=_advice(behind, len(stories), told),
        )
    yield from _unreliable(evidence)


def _unreliable(evidence: Evidence) -> Iterator[Finding]:
    """Holes of UC: nobody acknowledges, so nothing proves that the capture has all."""
    if evidence.misses_packets:
        return
    corrupted = {
        (b.dst, b.dest_qpn, b.psn) for b in (evidence.observer.bad if evidence.observer is not None else ())
    }
    for connection in evidence.connections:
        if connection.transport != "UC" or not connection.unfilled:
            continue
        side = connection.unfilled[0].side
        there = connection.ips[1 - side], connection.qpns[1 - side]
        missing = [p for e in connection.unfilled for p in range(e.psn, e.last_psn + 1)]
        lost = sum((*there, wire_psn(p)) not in corrupted for p in missing)
        if not lost:
            continue  # they came, corrupted: see the rule icrc-bad
        broken = [t for t in evidence.transfers_of.get((connection.id, side), ()) if t.status == INCOMPLETE]
        yield RULE.finding(
            f"{plural(lost, 'packet')} of UC never came by on {connection.way(side)}: nobody sends them "
            f"again, and {plural(len(broken), 'message')} stayed incomplete",
            connection=connection,
            transfer=broken[0] if broken else None,
            frames=[e.frame for e in connection.unfilled],
            evidence={
                "count": len(connection.unfilled),
                "psns": [wire_psn(e.psn) for e in connection.unfilled[:MAX_LISTED]],
                "lost_packets": lost,
                "incomplete_messages": len(broken),
                "or_missed_by_capture": True,
            },
            advice="UC has no acknowledgements, so the packets do not tell a loss from a hole in the "
            "capture: compare the receiver's completions with what was sent, and the capture's own drop "
            "count. If they are lost, find the drops by the counters along the path; if messages must "
            "arrive, use RC.",
        )


def _advice(behind: int, total: int, told: str) -> str:
    if told:
        where = told.removeprefix("; lost ")
    elif behind == total:
        where = "between the capture point and the responder (the lost packets were captured going there)"
    elif behind == 0:
        where = "between the requester and the capture point (the lost packets never came by)"
    else:
        where = "on both sides of the capture point"
    return (
        f"The drops happened {where}. Read the drop and discard counters of each hop on that side "
        "(`ethtool -S IFACE`, switch queue drops, PFC counters), first of all at the switch port with the "
        "smaller buffer or speed; out_of_seq_request and packet_seq_err in "
        "/sys/class/infiniband/DEV/ports/1/hw_counters count the same at the ends."
    )


RULE = Rule(
    "loss",
    WARNING,
    "a packet inside a burst was lost",
    "A packet inside a burst did not arrive. The responder refused what came behind it with a NAK “PSN "
    "sequence error”, and the requester sent everything from the lost packet on again (go-back-N, IBA Vol. "
    "1, 9.7.5.1.1).",
    "A NAK with syndrome 0x60 and a repeat from its PSN on. A capture behind the loss shows a hole in the "
    "PSNs and the packet for the first time in the repeat; a capture before it shows the packet twice. On "
    "UC, which nobody acknowledges, a hole alone.",
    "reordering (the packet comes after all, before any repeat), capture-gap (the responder acknowledged "
    "the packet, so only the capture missed it), icrc-bad (the packet came, but corrupted). A capture at "
    "the other end decides where it was dropped.",
    "Find the hop that drops: compare the drop and discard counters along the path, and take a second "
    "capture at the other end.",
    _look,
)
