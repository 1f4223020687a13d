"""``mtu-mismatch``: the path MTU differs between the two ends, or is too large for the path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.costs import all_frames
from rocekit.findings.finding import ERROR, INFO, WARNING, Finding, Rule
from rocekit.findings.rules.mtu import Mtus, invalid_by_size, is_invalid_request, may_know_mtu, mtus
from rocekit.wire.psn import wire_psn

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection


def _look(evidence: Evidence) -> Iterator[Finding]:
    # Other connections have packets of one size, no path MTU in a REQ or journal, and no NAK.
    said = (c for c in evidence.connections if c.naks or may_know_mtu(evidence, c))
    for connection in evidence.among(said, evidence.survey.several_sizes()):
        sizes = mtus(evidence, connection)
        invalid = [side for side in (0, 1) if invalid_by_size(evidence, connection, side)]
        for side in invalid:
            yield _invalid(evidence, connection, side, sizes)
        if not invalid and sizes.differ:
            yield _differ(connection, sizes)
        elif not invalid and sizes.unlike_said:
            yield _unlike_said(connection, sizes)
    for stories in evidence.stories_of(RULE.name):
        story = stories[-1]
        connection, side = story.connection, story.side
        large, small = evidence.vanished_size(story)
        yield RULE.finding(
            f"Packets with {large:,} bytes of payload get no answer on {connection.way(side)}, packets with "
            f"up to {small:,} bytes do",
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
            advice="Probably a link on the way does not carry frames as large as this path MTU with its "
            "headers, because only the large packets fail. Check the Ethernet MTU of every hop (`ping -M do "
            "-s SIZE`), or set a smaller path MTU.",
        )


def _invalid(evidence: Evidence, connection: Connection, side: int, sizes: Mtus) -> Finding:
    naks = [
        (t, e)
        for t in evidence.transfers_of.get((connection.id, side), ())
        for e in t.events
        if is_invalid_request(e)
    ]
    transfer, nak = naks[0]
    sent, expected = sizes.sent[side], sizes.expected_of(side)
    if not expected:
        taken = "no path MTU has this size"
    elif sizes.of_qps or sizes.sent[1 - side]:
        taken = f"the path MTU at {connection.named(1 - side)} is {expected:,}"
    else:
        taken = f"the REQ says {expected:,}"
    proven = not expected or sizes.of_qps or bool(sizes.sent[1 - side])
    open_ = " Open: the REQ does not say what the peer's QP is set to, so the NAK may have another cause."
    return RULE.finding(
        f"{connection.named(side)} sends full packets of {', '.join(f'{s:,}' for s in sent)} bytes, but "
        f"{taken}: {'' if proven else 'probably therefore '}NAK “invalid request” for PSN "
        f"{wire_psn(nak.psn)}",
        connection=connection,
        transfer=transfer,
        frames=[*sizes.frames, transfer.first_frame, nak.frame],
        evidence=sizes.to_dict() | {"psns": [wire_psn(nak.psn)], "nak_frame": nak.frame},
        advice=RULE.what_to_do + ("" if proven else open_),
    )


def _differ(connection: Connection, sizes: Mtus) -> Finding:
    return RULE.finding(
        f"The path MTUs of the two ends differ: {sizes.words(connection)}",
        connection=connection,
        frames=sizes.frames,
        evidence=sizes.to_dict(),
        severity=WARNING,
    )


def _unlike_said(connection: Connection, sizes: Mtus) -> Finding:
    used = max([*sizes.sent[0], *sizes.sent[1]])
    source = "the QPs were set to" if sizes.of_qps else "the REQ says"
    slower = " Smaller packets cost some throughput." if used < max(m or 0 for m in sizes.said) else ""
    return RULE.finding(
        f"Packets have another path MTU than {source}: {sizes.words(connection)}",
        connection=connection,
        frames=sizes.frames,
        evidence=sizes.to_dict(),
        severity=INFO,
        advice="No NAK for their size is in the capture. Check where the program sets path_mtu: it may set "
        f"another one than the connection manager uses.{slower}",
    )


RULE = Rule(
    "mtu-mismatch",
    ERROR,
    "the path MTU differs between the two ends, or is too large for the path",
    "The two ends of a connection have different path MTUs. A packet that does not end its message must "
    "have exactly the receiver's path MTU; otherwise the receiver sends a NAK “invalid request” (WC 9). Or "
    "the path MTU is too large for the path: large packets vanish, small ones arrive. Warning if it has "
    "done no harm yet; info if all packets have another path MTU than the REQ or the journals say.",
    "Payloads of FIRST and MIDDLE packets by direction; path_mtu in the REQ and in both journals; repeats "
    "of large packets that get no answer while smaller packets get one.",
    "invalid-request: the sizes agree. retry-exceeded: packets of that size arrived before.",
    "Set the same path MTU on both QPs: the smaller active_mtu of the two ports (`ibv_devinfo`; perftest: "
    "-m; rdma_cm takes it from the path). The Ethernet MTU must have room for the headers too: path MTU "
    "4096 needs about 4200.",
    _look,
)
