"""``capture-gap``, ``capture-truncated``, ``malformed``: limits of the capture itself, and broken packets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rocekit.findings.finding import INFO, MAX_LISTED, WARNING, Finding, Rule
from rocekit.findings.mixed import has_two_requesters
from rocekit.findings.read_mtus import read_mtus
from rocekit.packets.malformed import CUT, MALFORMED
from rocekit.track.transfers import INCOMPLETE, with_gaps
from rocekit.wire.text_table import safe
from rocekit.wire.words import plural, psn_range

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer


def _look_gap(evidence: Evidence) -> Iterator[Finding]:
    troubled = (transfer.connection for transfer in with_gaps(list(evidence.transfers)))
    lacking = evidence.connections if evidence.totals.unfilled else ()
    missing = (c for c in lacking if c.missed or c.unfilled)
    for connection in evidence.among(troubled, missing):
        transfers = [t for side in (0, 1) for t in evidence.transfers_of.get((connection.id, side), ())]
        missed = list(connection.missed)
        responses = [t for t in transfers if t.responses_missing and t.status != "unacknowledged"]
        if responses:
            lost = _ended_in_trouble(evidence, connection)
            responses = [t for t in responses if t.side not in lost]
        headless = [
            t for t in transfers if t.status == INCOMPLETE and not t.started and not _is_lost(evidence, t)
        ]
        early = _answered_early(headless) if headless else []
        if early:
            headless = [t for t in headless if t not in early]
            for side in (0, 1):
                of_side = [t for t in early if t.side == side]
                if of_side:
                    yield _early(connection, of_side)
        if connection.transport == "UC" and connection.unfilled:
            if evidence.misses_packets:
                missed += connection.unfilled
            else:
                headless = []  # nothing proves that the capture missed these: see the rule loss
        if not (missed or responses or headless):
            continue
        # What one of two requesters seems to lack, it may not have sent. Nor what a requester seems to lack
        # that counts PSNs with another path MTU than its responder.
        if not any(
            has_two_requesters(evidence, connection, side) or read_mtus(evidence, connection, side)
            for side in (0, 1)
        ):
            yield _gap(evidence, connection, missed, responses, headless)
    if evidence.dropped and not any(c.missed for c in evidence.connections):
        yield GAP.finding(
            f"The capturing machine reports {plural(evidence.dropped, 'dropped packet')}, which the capture "
            "lacks",
            evidence={"dropped": evidence.dropped},
        )


def _is_lost(evidence: Evidence, transfer: Transfer) -> bool:
    """Whether a message was never acknowledged, and its beginning probably was lost.

    It was sent again, or it is not the first that the capture has, so its requester gave up before.
    """
    if transfer.acked_ns is not None:
        return False
    if any(event.kind == "repeat" for event in transfer.events):
        return True
    return evidence.transfers_of[transfer.connection.id, transfer.side][0] is not transfer


def _ended_in_trouble(evidence: Evidence, connection: Connection) -> set[int]:
    """The sides whose last READ got no whole response: they may have given up for one before.

    rdma_rxe asks for nothing again while it is repeating; until its timer runs out it goes on with new READs.
    """
    found = set()
    for side in (0, 1):
        transfers = evidence.transfers_of.get((connection.id, side), ())
        last = max(transfers, key=lambda t: t.last_psn, default=None)
        if last is not None and (last.responses_missing or last.acked_ns is None):
            found.add(side)
    return found


def _answered_early(headless: list[Transfer]) -> list[Transfer]:
    """Those of transfers without a beginning that are in the capture behind their answers."""
    from rocekit.findings.stories.early_answers import is_answered_early

    return [t for t in headless if is_answered_early(t)]


def _early(connection: Connection, transfers: list[Transfer]) -> Finding:
    """READ requests behind their responses: the capture has all packets, and not in their order."""
    one = len(transfers) == 1
    requests = "1 READ request" if one else f"{len(transfers):,} READ requests"
    return GAP.finding(
        f"{requests} of {connection.way(transfers[0].side)} {'is' if one else 'are'} in the capture behind "
        f"the {'response' if one else 'responses'}, and probably {'was' if one else 'were'} not sent again",
        connection=connection,
        transfer=transfers[0],
        frames=[e.frame for t in transfers for e in t.events],
        evidence={"packets_missed": 0, "requests_behind_responses": len(transfers)},
        advice="Each of these requests is in the capture once, and so are its responses: two clocks, or two "
        "queues, as of two ports, probably put them in this order. Waits and turnarounds here are not sure. "
        "Capture both directions on one clock.",
    )


def _gap(
    evidence: Evidence,
    connection: Connection,
    missed: list[Any],
    responses: list[Transfer],
    headless: list[Transfer],
) -> Finding:
    packets = sum(e.count for e in missed) + sum(len(t.responses_missing) for t in responses)
    if packets:
        title = f"The capture lacks {plural(packets, 'packet')} of {connection.way(0)}"
        if len(missed) == 1 and not responses:
            title += f" ({psn_range(missed[0].psn, missed[0].last_psn)})"
        if connection.transport not in ("UC", "UD"):
            title += ", acknowledged" if missed else ", not requested again"
    else:
        firsts = [evidence.transfers_of[connection.id, t.side][0] for t in headless]
        why = "started before the capture" if firsts == headless else "without their first packet"
        title = f"{plural(len(headless), 'message')} of {connection.way(0)} {why}"
    found: dict[str, Any] = {
        "packets_missed": packets,
        "psns": [[e.psn & 0xFFFFFF, e.last_psn & 0xFFFFFF] for e in missed[:MAX_LISTED]],
        "messages_without_first_packet": len(headless),
    }
    if evidence.dropped is not None:
        found["dropped"] = evidence.dropped
    return GAP.finding(
        title,
        connection=connection,
        transfer=next(iter([*responses, *headless]), None),
        frames=[*(e.frame for e in missed), *(t.first_frame for t in [*responses, *headless])],
        evidence=found,
    )


def _look_truncated(evidence: Evidence) -> Iterator[Finding]:
    counts = evidence.counts
    if counts.truncated_packets:
        mirrored = counts.cut_by_mirror
        cutter = "the snaplen" if mirrored < counts.truncated_packets else "the mirror"
        if 0 < mirrored < counts.truncated_packets:
            cutter += " or the mirror"
        responses = sum(c.cut_responses for c in evidence.connections if c.incidents is not None)
        also = (
            f". {plural(responses, 'response')} cut before the AETH: ACK or NAK unknown" if responses else ""
        )
        again = sum(c.retransmitted_packets for c in evidence.connections if c.cut_responses)
        also += f", so for {plural(again, 'packet')} sent again the causes may be unknown" if again else ""
        yield TRUNCATED.finding(
            f"{counts.truncated_packets:,} of {counts.roce_packets:,} packets are truncated by {cutter}: "
            f"their ICRCs and payloads cannot be checked{also}",
            evidence={
                "truncated_packets": counts.truncated_packets,
                "cut_by_mirror": mirrored,
                "unchecked_icrc": counts.unchecked_icrc,
                "roce_packets": counts.roce_packets,
                "cut_responses": responses,
            },
        )
    if evidence.damage:
        file, words = evidence.damage[0]
        yield TRUNCATED.finding(
            f"{safe(file)} is damaged in {plural(len(evidence.damage), 'place')}: {safe(words)}",
            evidence={
                "damage": [f"{f}: {w}" for f, w in evidence.damage[:MAX_LISTED]],
                "count": len(evidence.damage),
            },
            advice="The readable part is analysed. If the capture was copied while it was being written, "
            "copy it again. Stop tcpdump with Ctrl-C and let it finish.",
        )


def _look_malformed(evidence: Evidence) -> Iterator[Finding]:
    corrupted = set()
    if evidence.observer is not None and not evidence.icrc_ignored:
        corrupted = {b.frame for b in evidence.observer.bad if b.icrc_wrong}
    odd = [(frame, code) for frame, code in evidence.malformed if frame not in corrupted and code != CUT]
    if not odd:
        return
    kinds: dict[str, int] = {}
    for _, code in odd:
        words = MALFORMED.get(code, f"code {code}")
        kinds[words] = kinds.get(words, 0) + 1
    worst = max(kinds, key=lambda k: kinds[k])
    yield MALFORMED_RULE.finding(
        f"{plural(len(odd), 'malformed packet')}: {worst}",
        frames=[frame for frame, _ in odd],
        evidence={"count": len(odd), "kinds": kinds},
    )


GAP = Rule(
    "capture-gap",
    INFO,
    "the capture missed packets",
    "Packets were on the wire but are not in the capture: the peer acknowledged them. This is no loss in "
    "the network.",
    "An ACK of PSNs that are not in the capture; READ responses that are missing but not requested again; "
    "a message without its first packet. READ requests behind their only responses: nothing is missing, "
    "but the order of the capture is not that of the packets.",
    "loss: a NAK or a repeat follows. UC has neither: there a hole counts as a gap only if the capture has "
    "other gaps.",
    "Capture with a larger buffer (`tcpdump -B 65536`), a smaller snaplen (`-s 128`), or the filter `udp "
    "port 4791`. Write to memory or to a fast disk. On hardware RDMA the packets bypass the kernel: mirror "
    "a switch port, or use the NIC's sniffer.",
    _look_gap,
)
TRUNCATED = Rule(
    "capture-truncated",
    INFO,
    "packets truncated by the snaplen or a mirror, or a damaged file",
    "The capture has only a part of each packet, or the file is damaged. Headers and timing can be judged; "
    "ICRCs and payloads (such as CM messages) cannot.",
    "The lengths in the file: captured length shorter than sent length, or IP and UDP lengths that agree on "
    "an end behind the frame's, as from a mirror that cuts; blocks or records that end early.",
    "malformed: the packet was too short on the wire.",
    "If corruption is suspected, capture whole packets (`tcpdump -s 0`, `rocekit trace --snaplen 65535`; a "
    "mirror may have a cut length of its own).",
    _look_truncated,
)
MALFORMED_RULE = Rule(
    "malformed",
    WARNING,
    "packets that break the format, without a wrong ICRC",
    "Packets to UDP port 4791 (or with EtherType 0x8915) break the RoCE format although their ICRC is not "
    "wrong, or are no RoCE packets.",
    "Lengths, versions, opcodes or pad counts that contradict each other.",
    "icrc-bad: corrupted packets can be malformed too, and are counted there. An unknown opcode with a right "
    "ICRC may be an operation of a newer release of the specification.",
    "List the packets with `rocekit decode FILE --filter malformed`. Another program may use port 4791; "
    "otherwise the sender is at fault.",
    _look_malformed,
)
RULES = (GAP, TRUNCATED, MALFORMED_RULE)
