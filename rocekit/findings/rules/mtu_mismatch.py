"""``mtu-mismatch``: the path MTU differs between the two ends, or is larger than the path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.costs import all_frames
from rocekit.findings.finding import ERROR, INFO, WARNING, Finding, Rule
from rocekit.findings.rules.mtu import Mtus, agrees_on_mtu, is_invalid_request, mtus, refused_for_size
from rocekit.wire.psn import wire_psn

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection


def _look(evidence: Evidence) -> Iterator[Finding]:
    # Elsewhere one size is all there is to see, and nothing is refused.
    agreed = (c for c in evidence.connections if c.naks or agrees_on_mtu(evidence, c))
    for connection in evidence.among(agreed, evidence.survey.several_sizes()):
        sizes = mtus(evidence, connection)
        refused = [side for side in (0, 1) if refused_for_size(evidence, connection, side)]
        for side in refused:
            yield _refused(evidence, connection, side, sizes)
        if not refused and sizes.differ:
            yield _differ(connection, sizes)
        elif not refused and sizes.smaller:
            yield _smaller(connection, sizes)
    for stories in evidence.told(RULE.name):
        story = stories[-1]
        connection, side = story.connection, story.side
        large, small = evidence.vanished_size(story)
        yield RULE.finding(
            f"Packets of {large:,} bytes vanish on {connection.way(side)}, while those of up to {small:,} "
            "bytes pass",
            connection=connection,
            transfer=story.transfer,
            frames=all_frames(stories),
            evidence={
                "vanishing_bytes": large,
                "passing_bytes": small,
                "transmissions": story.transmissions,
                "psns": [wire_psn(s.psn) for s in stories],
                "path_mtu": connection.path_mtu,
            },
            advice="A link on the way carries smaller frames than the path MTU and its headers need. Check "
            "the Ethernet MTU of every hop (`ping -M do -s SIZE`), or set a smaller path MTU.",
        )


def _refused(evidence: Evidence, connection: Connection, side: int, sizes: Mtus) -> Finding:
    naks = [
        (t, e)
        for t in evidence.transfers_of.get((connection.id, side), ())
        for e in t.events
        if is_invalid_request(e)
    ]
    transfer, nak = naks[0]
    sent, expected = sizes.sent[side], sizes.expected_of(side)
    taken = (
        f"the path MTU at {connection.named(1 - side)} is {expected:,}" if expected else "no path MTU is that"
    )
    return RULE.finding(
        f"{connection.named(side)} sends full packets of {', '.join(f'{s:,}' for s in sent)} bytes, but "
        f"{taken}: refused at PSN {wire_psn(nak.psn)}",
        connection=connection,
        transfer=transfer,
        frames=[*sizes.frames, transfer.first_frame, nak.frame],
        evidence=sizes.to_dict() | {"psns": [wire_psn(nak.psn)], "nak_frame": nak.frame},
    )


def _differ(connection: Connection, sizes: Mtus) -> Finding:
    return RULE.finding(
        f"The path MTU differs between {connection.named(0)} and {connection.named(1)}: {sizes.words()}",
        connection=connection,
        frames=sizes.frames,
        evidence=sizes.to_dict(),
        severity=WARNING,
    )


def _smaller(connection: Connection, sizes: Mtus) -> Finding:
    return RULE.finding(
        f"Less than the path MTU agreed on is used between {connection.named(0)} and {connection.named(1)}: "
        f"{sizes.words()}",
        connection=connection,
        frames=sizes.frames,
        evidence=sizes.to_dict(),
        severity=INFO,
        advice="Nothing is refused, so both ends are set to the smaller one, whatever they agreed on: look "
        "where the program sets path_mtu. Smaller packets cost some throughput.",
    )


RULE = Rule(
    "mtu-mismatch",
    ERROR,
    "the path MTU differs between the two ends, or is larger than the path",
    "The two ends of a QP pair have different path MTUs. Packets that do not end a message must be exactly "
    "as large as the receiver's path MTU, so it refuses them (NAK invalid request, WC 9); or the path MTU "
    "is larger than the path, and large packets vanish while small ones pass. A warning where it has done "
    "no harm yet, info where both ends use less than they agreed on.",
    "Payloads of FIRST and MIDDLE packets by direction; path_mtu in the REQ and in both journals; repeats "
    "of large packets that are never answered while smaller ones are.",
    "invalid-request, where sizes agree. retry-exceeded, where packets of that size had passed before.",
    "Set the same path MTU on both QPs: the smaller of the two ports' active_mtu (`ibv_devinfo`; perftest: "
    "-m; rdma_cm takes it from the path). The Ethernet MTU must have room for it: 4096 needs about 4200.",
    _look,
)
