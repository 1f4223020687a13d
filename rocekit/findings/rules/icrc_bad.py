"""``icrc-bad``: packets with a wrong invariant CRC: corrupted, or rewritten on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rocekit.findings.costs import all_frames, cost_words, costs, main_transfer
from rocekit.findings.finding import ERROR, MAX_LISTED, Finding, Rule
from rocekit.findings.stories.places import lost, places
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.track.connections import Connection


def _look(evidence: Evidence) -> Iterator[Finding]:
    if evidence.icrc_ignored:
        yield _rewritten(evidence)
        return
    found = [story for stories in evidence.stories_of(RULE.name) for story in stories]
    by_connection: dict[int, list[Story]] = {}
    for story in found:
        by_connection.setdefault(story.connection.id, []).append(story)
    explained = {frame for story in found for frame in story.bad_frames}
    for connection in evidence.connections:
        stories = by_connection.get(connection.id, [])
        if stories or connection.bad_icrc_count:
            yield _on_connection(evidence, connection, stories, explained)
    strays = [f for f in sorted({*evidence.bad_icrc, *_malformed_too(evidence)}) if f not in explained]
    if strays:
        yield RULE.finding(
            f"{plural(len(strays), 'packet')} with a wrong ICRC, of no known connection",
            frames=strays,
            evidence={"count": len(strays)},
        )


def _malformed_too(evidence: Evidence) -> list[int]:
    """Frames whose lengths or opcodes are damaged too, so that they were not tracked."""
    bad = evidence.observer.bad if evidence.observer is not None else []
    return [b.frame for b in bad if b.icrc_wrong and b.malformed]


def _on_connection(
    evidence: Evidence, connection: Connection, stories: list[Story], explained: set[int]
) -> Finding:
    own = {frame for frame in connection.bad_icrc if frame not in explained}
    strays = {*evidence.bad_icrc, *_malformed_too(evidence)}
    total = connection.bad_icrc_count + sum(f in strays for s in stories for f in s.bad_frames)
    found: dict[str, Any] = {"count": total, "with_effect": len(stories)}
    frames = {*own, *(f for s in stories for f in s.bad_frames)}
    title = f"{plural(total, 'packet')} with a wrong ICRC {_direction(evidence, connection, frames)}"
    psns = [b.psn for b in (evidence.observer.bad if evidence.observer is not None else ()) if b.frame in own]
    if stories:
        placed, where = places(evidence, stories)
        found = costs(stories) | placed | found
        if len(stories) == 1:
            psn = wire_psn(stories[0].psn)
            title = f"PSN {psn} arrived corrupted {_direction(evidence, connection, frames)}"
        title += f": {cost_words(stories)}{lost(where, 'corrupted')}"
    else:
        title += ": the receiver drops them" if total > 1 else ": the receiver drops it"
    found["psns"] = [*found.get("psns", []), *psns][:MAX_LISTED]
    return RULE.finding(
        title,
        connection=connection,
        transfer=main_transfer(stories) if stories else None,
        frames=sorted([*own, *all_frames(stories)]),
        evidence=found,
    )


def _direction(evidence: Evidence, connection: Connection, frames: set[int]) -> str:
    """Where corrupted packets went: ``on a → b`` if one side sent all of them, else ``between a and b``."""
    bad = evidence.observer.bad if evidence.observer is not None else []
    senders = [b.src for b in bad if b.frame in frames]
    for side in (0, 1):
        if len(senders) == len(frames) and {*senders} == {connection.ips[side]} != {connection.ips[1 - side]}:
            return f"on {connection.way(side)}"
    return f"between {connection.named(0)} and {connection.named(1)}"


def _rewritten(evidence: Evidence) -> Finding:
    counts = evidence.counts
    checked = counts.roce_packets - counts.unchecked_icrc
    works = any(t.acked_ns is not None for t in evidence.transfers)
    return RULE.finding(
        f"{counts.bad_icrc:,} of {checked:,} ICRCs are wrong, too many for bit errors: packets were "
        "rewritten, or captured before their ICRC was filled in",
        frames=[b.frame for b in (evidence.observer.bad if evidence.observer is not None else ())[:10]],
        evidence={"count": counts.bad_icrc, "checked_packets": checked, "acknowledged_anyway": works},
        advice="Receivers acknowledge these packets, so their ICRCs are right on the wire and wrong only in "
        "the capture (a NIC that fills them in behind the capture point, a tunnel, an edited capture). "
        "Capture behind that point."
        if works
        else "No packet is acknowledged, so probably something on the way changes fields that the ICRC "
        "covers (NAT, the UDP source port, a tunnel). Take it out of the path.",
    )


RULE = Rule(
    "icrc-bad",
    ERROR,
    "corrupted packets, or a middlebox that rewrites them",
    "The invariant CRC (A17.3.3) of a packet does not match its content. Receivers drop such a packet "
    "silently, so for the transport it is a loss. The packets sent again because of it are part of this "
    "finding.",
    "The ICRC computed from the captured bytes differs from the one in the packet. A few packets at "
    "random: bit errors. All or most packets: a middlebox that rewrites them, or a capture point before "
    "the hardware fills in the ICRC.",
    "A capture edited by an anonymiser has wrong ICRCs everywhere. Truncated packets cannot be checked and "
    "are not counted here.",
    "Bit errors come from a cable, a transceiver or memory on the way: read the symbol, FCS and FEC "
    "counters of each hop (`ethtool -S`, `mlxlink`). If the Ethernet FCS was right, a device corrupted the "
    "packet between two of its ports. rx_icrc_encapsulated (mlx5) counts these packets at the receiver.",
    _look,
)
