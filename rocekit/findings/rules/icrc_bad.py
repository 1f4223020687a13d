"""``icrc-bad``: packets whose invariant CRC does not fit: corrupted, or rewritten on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rocekit.findings.costs import all_frames, costs, main_transfer, price
from rocekit.findings.finding import ERROR, MAX_LISTED, Finding, Rule
from rocekit.findings.stories.places import places
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories import Story
    from rocekit.track.connections import Connection


def _look(evidence: Evidence) -> Iterator[Finding]:
    if evidence.icrc_ignored:
        yield _rewritten(evidence)
        return
    told = [story for stories in evidence.told(RULE.name) for story in stories]
    by_connection: dict[int, list[Story]] = {}
    for story in told:
        by_connection.setdefault(story.connection.id, []).append(story)
    blamed = {frame for story in told for frame in story.bad_frames}
    for connection in evidence.connections:
        stories = by_connection.get(connection.id, [])
        if stories or connection.bad_icrc_count:
            yield _on_connection(evidence, connection, stories, blamed)
    strays = [f for f in sorted({*evidence.bad_icrc, *_malformed_too(evidence)}) if f not in blamed]
    if strays:
        yield RULE.finding(
            f"{plural(len(strays), 'packet')} with a wrong ICRC that {'fits' if len(strays) == 1 else 'fit'} "
            "no known connection",
            frames=strays,
            evidence={"count": len(strays)},
        )


def _malformed_too(evidence: Evidence) -> list[int]:
    """Frames whose lengths or opcodes are damaged as well, so that they were tracked with no connection."""
    bad = evidence.observer.bad if evidence.observer is not None else []
    return [b.frame for b in bad if b.icrc_wrong and b.malformed]


def _on_connection(
    evidence: Evidence, connection: Connection, stories: list[Story], blamed: set[int]
) -> Finding:
    own = {frame for frame in connection.bad_icrc if frame not in blamed}
    strays = {*evidence.bad_icrc, *_malformed_too(evidence)}
    total = connection.bad_icrc_count + sum(f in strays for s in stories for f in s.bad_frames)
    found: dict[str, Any] = {"count": total, "with_effect": len(stories)}
    title = f"{plural(total, 'packet')} with a wrong ICRC on {connection.way(0)}"
    psns = [b.psn for b in (evidence.observer.bad if evidence.observer is not None else ()) if b.frame in own]
    if stories:
        placed, told = places(evidence, stories)
        found = costs(stories) | placed | found
        if len(stories) == 1:
            title = f"PSN {wire_psn(stories[0].psn)} arrived corrupted on {connection.way(stories[0].side)}"
        title += f": {price(stories)}{told.replace('lost', 'corrupted')}"
    else:
        title += ": the receiver dropped them" if total > 1 else ": the receiver dropped it"
    found["psns"] = [*found.get("psns", []), *psns][:MAX_LISTED]
    return RULE.finding(
        title,
        connection=connection,
        transfer=main_transfer(stories) if stories else None,
        frames=sorted([*own, *all_frames(stories)]),
        evidence=found,
    )


def _rewritten(evidence: Evidence) -> Finding:
    counts = evidence.counts
    checked = counts.roce_packets - counts.unchecked_icrc
    works = any(t.acked_ns is not None for t in evidence.transfers)
    return RULE.finding(
        f"{counts.bad_icrc:,} of {checked:,} ICRCs are wrong, so not by chance: they are rewritten, or not "
        "filled in yet, where this was captured",
        frames=[b.frame for b in (evidence.observer.bad if evidence.observer is not None else ())[:10]],
        evidence={"count": counts.bad_icrc, "checked_packets": checked, "acknowledged_anyway": works},
        advice="Receivers acknowledge these packets, so the wire carries right ICRCs and only the capture "
        "point sees others (a NIC that fills them in after the tap, a tunnel, an edited capture): capture "
        "behind it."
        if works
        else "Nothing is acknowledged: something on the way changes what the ICRC covers (addresses by NAT, "
        "the UDP source port, a tunnel that rewrites) without knowing RoCE. Take it out of the way.",
    )


RULE = Rule(
    "icrc-bad",
    ERROR,
    "corrupted packets, or a middlebox that rewrites them",
    "The invariant CRC (A17.3.3) of a packet does not fit what it covers. Receivers drop such a packet "
    "without a word, so to the transport it is a loss: what was sent again because of it is part of this "
    "finding.",
    "The ICRC computed from the captured bytes differs from the one they carry. A few packets at random: "
    "bit errors. All or most: a middlebox that rewrites, or a capture point before the hardware fills the "
    "ICRC in.",
    "A capture edited by an anonymiser has wrong ICRCs throughout. Packets cut by the snaplen cannot be "
    "checked and are not counted here.",
    "Bit errors come from a cable, a transceiver or a memory on the way: look at symbol, FCS and FEC "
    "counters of each hop (`ethtool -S`, `mlxlink`), and whether the Ethernet FCS was right, for then a "
    "device corrupted the packet between two ports. rx_icrc_encapsulated (mlx5) counts them at the receiver.",
    _look,
)
