"""``loss``: a packet inside a burst was lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from rocekit.findings.costs import all_frames, cost_words, costs, main_transfer
from rocekit.findings.finding import MAX_LISTED, WARNING, Finding, Rule
from rocekit.findings.stories.copies import is_first_behind, lost_copies
from rocekit.findings.stories.doubts import doubt_words, probably
from rocekit.findings.stories.naks_alone import naks_alone
from rocekit.findings.stories.places import checks_icrcs, lost, places, sides
from rocekit.findings.stories.story import told_by
from rocekit.findings.stories.unidentified import is_doubted, is_unproven, unidentified_ways
from rocekit.findings.stories.unseen_rnrs import unseen_rnrs
from rocekit.track.transfers import INCOMPLETE
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    behind_rnrs = {id(s) for s in unseen_rnrs(evidence.stories) if not s.certain}
    for stories in evidence.stories_of(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        refused = {id(s) for s in stories} & behind_rnrs
        copies = [copy for s in stories if id(s) not in refused for copy in lost_copies(s)]
        # Where late packets and copies look like those sent again, or the order among several captures is not
        # known, or no receive was posted, what a pass lacks need not be lost.
        without = bool(unidentified_ways(stories))
        open_ = without or evidence.sightings is not None
        counted = [s for s in stories if s.certain or not (open_ or id(s) in refused)]
        certain = sum(c.packets for s in counted if s.certain for c in lost_copies(s))
        likely_lost = sum(c.packets for s in counted if not s.certain for c in lost_copies(s))
        likely_lost += len(stories) - len(counted)
        packets = certain + likely_lost
        place = sides(stories, copies)
        told = told_by(stories)
        alone = {id(s) for s in naks_alone(evidence, stories)}
        no_nak = told.alone and any(not (s.certain or s.naks or s.gappy or s.or_overtaken) for s in stories)
        if packets == 1:
            what = f"PSN {wire_psn(stories[0].psn)} was {'probably ' if told.guessed else ''}lost"
        else:
            likely = probably(told.guessed, len(stories))
            # More may be: the last ones before a go-back, and behind the capture point all but the first.
            what = f"At least {plural(packets, 'packet')} lost{likely}"
        found = costs(stories)
        free = not (found["repeated_packets"] or found["added_ns"])
        unseen = "not in the capture before its NAK" if free and all(map(is_first_behind, stories)) else ""
        placed, where = places(evidence, stories)
        # A packet that was corrupted before its capture is dropped behind it, by its receiver.
        corrupt = place["lost_behind_capture_point"] > 0 and not checks_icrcs(evidence)
        found |= placed | {
            "lost_packets": packets,
            "probably_lost_packets": likely_lost,
            **place,
            "nak_seen": told.of_nak,
            "or_overtaken": told.or_overtaken,
            "or_corrupted": corrupt,
            "most_transmissions": told.most_sent,
        }
        yield RULE.finding(
            f"{what} on {connection.way(side)}: {unseen or cost_words(stories)}{lost(where)}",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
            advice=_advice(place, where)
            + _OR_CORRUPTED * corrupt
            + _NO_NAK * no_nak
            + doubt_words([s for s in stories if id(s) not in alone])
            + _NAKS_ALONE * bool(alone)
            + _UNSEEN_RNR * bool(refused)
            + _UNIDENTIFIED * (without and any(map(is_doubted, stories)))
            + _UNPROVEN * any(is_doubted(s) and is_unproven(s) for s in stories),
        )
    yield from _unreliable(evidence)


def _unreliable(evidence: Evidence) -> Iterator[Finding]:
    """Holes of UC. It has no ACKs, so nothing proves that the capture is complete."""
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
        packets = sum((*there, wire_psn(p)) not in corrupted for p in missing)
        if not packets:
            continue  # they were captured, corrupted: see the rule icrc-bad
        broken = [t for t in evidence.transfers_of.get((connection.id, side), ()) if t.status == INCOMPLETE]
        so = (
            f", and {plural(len(broken), 'message')} {'is' if len(broken) == 1 else 'are'} incomplete "
            "in the capture"
            if broken
            else ""
        )
        yield RULE.finding(
            f"{plural(packets, 'UC packet')} missing on {connection.way(side)}: UC sends nothing again{so}",
            connection=connection,
            transfer=broken[0] if broken else None,
            frames=[e.frame for e in connection.unfilled],
            evidence={
                "count": len(connection.unfilled),
                "psns": [wire_psn(e.psn) for e in connection.unfilled[:MAX_LISTED]],
                "lost_packets": packets,
                "incomplete_messages": len(broken),
                "or_missed_by_capture": True,
            },
            advice="Compare the receiver's completions with what was sent, and read the capture's own drop "
            "count. If packets were lost, find the drops by the counters along the path. If messages must "
            "arrive, use RC. Open: lost on the way, or missed by the capture (UC has no ACKs).",
        )


def _advice(place: Mapping[str, int], where: str) -> str:
    """What to do: where to look for the drops, by the captures (``where``) or by the capture point."""
    behind, before = place["lost_behind_capture_point"], place["lost_before_capture_point"]
    if not where and behind and before:
        where = f"on both sides of the capture point ({before:,} before it, {behind:,} behind it)"
    elif not where and behind:
        where = "between the capture point and the responder (the capture has the lost packets)"
    elif not where and before:
        where = "between the requester and the capture point (the lost packets are not in the capture)"
    return (
        f"Place of the drops: {where or 'unknown'}. Read the drop and discard "
        "counters of each hop there (`ethtool -S IFACE`, switch queue drops, PFC counters), first at the "
        "switch port with the smaller buffer or the lower speed. The hosts count it in "
        "/sys/class/infiniband/DEV/ports/1/hw_counters: the responder as out_of_sequence (mlx5) or "
        "out_of_seq_request (rxe), the requester as packet_seq_err (mlx5)."
    )


_OR_CORRUPTED: Final = (
    " Or packets were corrupted before the capture that has them, and their receiver dropped them: their "
    "ICRCs could not be checked here."
)
_UNPROVEN: Final = (
    " “Probably” means: IPv4 identifications do not tell whether a packet that filled a gap was sent again, "
    "and others of this direction were overtaken; it may only have come late."
)
_UNIDENTIFIED: Final = (
    " “Probably” means: packets of this direction were overtaken or came twice, and their IPv4 "
    "identifications do not tell whether one that fills a gap is late, or was sent again."
)
_NAKS_ALONE: Final = (
    " “Probably” means: the capture has NAKs, and no request of this direction. A packet that was only "
    "overtaken draws the same NAK."
)
_UNSEEN_RNR: Final = (
    " “Probably” means: an RNR NAK for a packet that takes a receive may have been lost before the capture, "
    "or missed by it; behind RNR NAKs of this connection that the capture has, such a NAK came as well."
)
_NO_NAK: Final = (
    " “Probably” means: the packets from the lost one on came again sooner than after any timeout, but the "
    "capture has no NAK. A NAK after reordering, or an RNR NAK, that the capture missed looks the same."
)
RULE = Rule(
    "loss",
    WARNING,
    "a packet inside a burst was lost",
    "A packet inside a burst did not arrive. The responder answered the packets behind it with a NAK “PSN "
    "sequence error”, and the requester sent everything again from the lost packet on (go-back-N, IBA Vol. "
    "1, 9.7.5.1.1).",
    "A NAK with syndrome 0x60 and a repeat from its PSN on. A capture behind the loss has a hole in the "
    "PSNs, and the packet for the first time in the repeat; a capture before the loss has the packet "
    "twice. On UC, which has no ACKs, only a hole.",
    "reordering: the packet comes late, but before any repeat. capture-gap: the responder acknowledged the "
    "packet, so only the capture missed it. icrc-bad: the packet came corrupted. A capture at the other "
    "end shows where it was dropped.",
    "Find the hop that drops: compare the drop and discard counters along the path, and take a second "
    "capture at the other end.",
    _look,
)
