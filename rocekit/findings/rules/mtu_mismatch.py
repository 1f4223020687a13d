"""``mtu-mismatch``: the path MTU differs between the two ends, or is too large for the path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit.findings.costs import all_frames, costs, main_transfer
from rocekit.findings.finding import ERROR, INFO, WARNING, Finding, Rule
from rocekit.findings.read_mtus import read_mtus
from rocekit.findings.rules.mtu import Mtus, invalid_by_size, is_invalid_request, may_know_mtu, mtus
from rocekit.findings.witnesses import silence_evidence, silence_words
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.read_mtus import ReadMtus
    from rocekit.findings.stories.story import Story
    from rocekit.track.connections import Connection

#: What a packet has around its payload at least, without the IP header: UDP, BTH and ICRC.
_HEADERS: Final = 8 + 12 + 4
#: The MTU of Ethernet without jumbo frames: the link that is most often too small.
_USUAL_MTU: Final = 1500


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
        found = read_mtus(evidence, stories[0].connection, stories[0].side)
        yield _black_hole(evidence, stories) if found is None else _of_reads(stories, found)


def _of_reads(stories: list[Story], found: ReadMtus) -> Finding:
    """The PSNs of READs are counted in two ways, so that nothing says what was lost."""
    connection, side = stories[0].connection, stories[0].side
    requester, responder = connection.named(side), connection.named(1 - side)
    cost = costs(stories)
    if found.requester > found.responder:  # some of them are new READs
        cost = {name: n for name, n in cost.items() if not name.startswith("repeated_")}
    delay = f", {duration(cost['added_ns'])} of delay" if cost["added_ns"] else ""
    return RULE.finding(
        f"{requester} {'' if found.proven else 'probably '}counts the PSNs of its READs with a path MTU of "
        f"{found.requester:,}, and {responder} sends responses of {found.responder:,} bytes: "
        f"{plural(found.steps, 'request')} without the PSN behind the responses to the READ before{delay}",
        connection=connection,
        transfer=main_transfer(stories),
        frames=all_frames(stories),
        evidence=cost
        | {
            "requester_path_mtu": found.requester,
            "responder_path_mtu": found.responder,
            "unlike_steps": found.steps,
            "proven": found.proven,
            "of_reads": True,
        },
        advice=RULE.what_to_do
        + " Open, until both have the same: whether anything was lost here as well, and to which READ a PSN "
        "belongs, so READs may be counted twice, or in parts." + ("" if found.proven else _LIKELY),
    )


def _black_hole(evidence: Evidence, stories: list[Story]) -> Finding:
    """Large packets vanish on the path, small ones pass."""
    story = stories[-1]
    connection, side, transfer = story.connection, story.side, story.transfer
    large, small = evidence.vanished_size(story)
    is_read = transfer is not None and transfer.is_read
    headers = (40 if ":" in (connection.ips[side] or "") else 20) + _HEADERS
    link = _USUAL_MTU if small + headers <= _USUAL_MTU < large + headers else None
    end_ns = max(g.last_event.last_ns for s in stories for g in s.repeats)
    other = silence_evidence(evidence, connection.ips, stories[0].time_ns, end_ns)
    what = "READ responses" if is_read else "packets"
    guess = (
        f" An MTU of {link:,} on one link would do this: the large packets have at least "
        f"{large + headers:,} bytes with their headers, the small ones {small + headers:,} or little more."
        if link is not None
        else ""
    )
    return RULE.finding(
        f"Probably an MTU black hole on {connection.way(1 - side if is_read else side)}: {what} with "
        f"{large:,} bytes of payload {'do not come' if is_read else 'get no answer'}, with up to {small:,} "
        f"bytes they do",
        connection=connection,
        transfer=transfer,
        frames=all_frames(stories),
        evidence={
            "vanishing_bytes": large,
            "passing_bytes": small,
            "vanishing_ip_bytes": large + headers,
            "passing_ip_bytes": small + headers,
            "link_mtu_guess": link,
            "of_responses": is_read,
            "transmissions": story.transmissions,
            "psns": [wire_psn(s.psn) for s in stories],
            "path_mtu": connection.path_mtu,
        }
        | other,
        advice=silence_words(other)
        + "A link on the way probably does not carry frames as large as this path MTU with its headers, "
        f"because only the large packets fail.{guess} Check the MTU of every hop (`ping -M "
        "do -s SIZE` in both directions), or set a smaller path MTU.",
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


_LIKELY: Final = (
    " “Probably” means: each of these steps is too long by just what this path MTU makes it, and none is as "
    "long as the responses take; but a request that was lost each time there would look the same."
)
RULE = Rule(
    "mtu-mismatch",
    ERROR,
    "the path MTU differs between the two ends, or is too large for the path",
    "The two ends of a connection have different path MTUs. A packet that does not end its message must "
    "have exactly the receiver's path MTU; otherwise the receiver sends a NAK “invalid request” (WC 9). Or "
    "the path MTU is too large for the path (an MTU black hole): large packets vanish, small ones arrive. "
    "Warning if it has done no harm yet; info if all packets have another path MTU than the REQ or the "
    "journals say. READs with two path MTUs look like losses: a requester gives the next request the PSN "
    "behind as many responses as it expects, and the responder sends more of them, or fewer (IBA Vol. 1, "
    "9.4.4). Then this is told, and no loss of that direction.",
    "Payloads of FIRST and MIDDLE packets by direction; path_mtu in the REQ and in both journals; repeats "
    "of large packets that get no answer while smaller packets get one; the step from a READ request's PSN "
    "to the next request's, beside the size of its responses.",
    "invalid-request: the sizes agree. retry-exceeded: packets of that size arrived before. loss: some "
    "READs are followed by a request where their responses end.",
    "Set the same path MTU on both QPs: the smaller active_mtu of the two ports (`ibv_devinfo`; perftest: "
    "-m; rdma_cm takes it from the path). The Ethernet MTU must have room for the headers too: path MTU "
    "4096 needs about 4200.",
    _look,
)
