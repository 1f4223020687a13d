"""``reordering``: packets arrived out of order and cost a go-back-N."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit.findings.costs import all_frames, cost_words, costs, main_transfer
from rocekit.findings.finding import INFO, MAX_LISTED, WARNING, Finding, Rule
from rocekit.findings.stories.capture_view import NEAR
from rocekit.findings.stories.overtaken import is_in_file_order
from rocekit.findings.stories.story import affected, late_of
from rocekit.findings.stories.unidentified import fills_gap_openly
from rocekit.findings.stories.unseen_rnrs import behind_refusals
from rocekit.track.passes import SELECTIVE
from rocekit.track.transfers import ACKED
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.points.sightings import Sightings
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer


def _look(evidence: Evidence) -> Iterator[Finding]:
    yield from _unreliable(evidence)
    troubled = {(s.connection.id, s.side) for s in evidence.stories if s.naks or s.repeats}
    # The order of packets that only one of several captures has each is estimated.
    ordered = evidence.sightings is None or evidence.sightings.one_clock
    refused = {id(s) for s in behind_refusals(evidence.stories)}
    for of_direction in evidence.stories_of(RULE.name):
        for of_response in (False, True):
            stories = [s for s in of_direction if s.of_response == of_response]
            if stories:
                way = stories[0].connection.id, stories[0].side
                yield _of_way(stories, refused, way in troubled, ordered)


def _of_way(stories: list[Story], refused: set[int], troubled: bool, ordered: bool) -> Finding:
    """The finding of one side's requests, or of the responses to them.

    Args:
        refused: the ids of stories whose packet an RNR NAK refused before.
        troubled: whether the direction has a NAK or repeat; ordered: whether the packets' order is captured.
    """
    connection, side, of_response = stories[0].connection, stories[0].side, stories[0].of_response
    costly = [s for s in stories if s.naks or s.repeats]
    guessed = sum(not s.certain for s in stories)
    late, late_by = late_of(stories)
    overtaken, counted_by = _overtaken(stories[0], late, ordered)
    packet = "READ response" if of_response else "packet"
    if len(stories) == 1 and overtaken <= 1:
        what = f"PSN {wire_psn(stories[0].psn)}{' probably' if guessed else ''} arrived out of order"
    elif overtaken or guessed < len(stories):
        likely = " probably" if guessed == len(stories) and counted_by != "identification" else ""
        what = f"{plural(overtaken or len(stories) - guessed, packet)}{likely} arrived out of order"
    else:
        what = f"{'READ responses' if of_response else 'Packets'} probably arrived out of order"
    delay = f", {'up to ' if overtaken > 1 else ''}{duration(late_by)} late," if late_by else ""
    probably = f" (in {guessed:,} of {len(stories):,} cases probably because of it)" if guessed else ""
    found = costs(stories)
    taken = not costly and _all_acknowledged(stories)
    cost = f"{cost_words(stories)}{probably if len(stories) > 1 else ''}"
    bare = any(not s.certain and s.naks and not s.late and not s.runs() for s in stories)
    behind = any(id(s) in refused for s in stories)
    gappy = of_response and any(s.gappy and not s.certain for s in stories)
    stamped = any(not s.certain and not s.naks and is_in_file_order(s) for s in stories)
    filled = any(map(fills_gap_openly, stories))
    ground = _FILLED if filled else _GROUND
    for holds, words in ((stamped, _STAMPED), (gappy, _GAPPY), (behind, _BEHIND_REFUSAL), (bare, _BARE)):
        ground = words if holds else ground
    advice = RULE.what_to_do + (ground if guessed else "")
    if not costly and of_response:
        cost, advice = _free_responses(taken, cost)
    elif not costly:
        cost, advice = _free(connection, taken, cost, troubled)
        first = any(s.gappy and not s.certain for s in stories)
        advice += _STAMPED if stamped else _FIRST if first else _FILLED if filled else ""
    return RULE.finding(
        f"{what}{delay} on {connection.way(side ^ of_response)}: {cost}",
        connection=connection,
        transfer=main_transfer(stories),
        frames=all_frames(stories),
        evidence=found
        | {
            "late_max_ns": late_by,
            "with_go_back": len(costly),
            "overtaken_packets": overtaken,
            "overtaken_by": counted_by,
            "sent_again_packets": found["repeated_packets"],
            "probable_cases": guessed,
            "all_acknowledged": taken,
            "of_responses": of_response,
        },
        severity=WARNING if costly else INFO,
        advice=advice,
    )


def _free_responses(taken: bool, cost: str) -> tuple[str, str]:
    """What is said of READ responses out of order that nothing requested again, and the advice."""
    if not taken:
        return cost, _OPEN_RESPONSES
    return "nothing requested again because of it, all READs complete", _TAKEN_RESPONSES


def _free(connection: Connection, taken: bool, cost: str, troubled: bool) -> tuple[str, str]:
    """What is said of an order that no NAK or repeat followed, and the advice.

    Args:
        taken: whether all messages have their ACK; cost: what is said if not.
        troubled: whether the direction has a NAK or repeat of another cause.
    """
    if not taken:
        return cost if not troubled else "no NAK or repeat because of it in this capture", _OPEN
    if not troubled:
        return "no NAK, nothing sent again, all acknowledged", _TAKEN
    advice = _TAKEN if connection.recovery == SELECTIVE else _BESIDE
    return "no NAK or repeat because of it, all acknowledged", advice


def _all_acknowledged(stories: list[Story]) -> bool:
    """Whether the messages in which packets were out of order all have their ACK."""
    transfers = affected(stories)
    return bool(transfers) and all(t.status == ACKED for t in transfers)


def _overtaken(story: Story, late: int, ordered: bool) -> tuple[int, str | None]:
    """How many packets the capture has out of order, and by what that is known.

    The IPv4 identifications count every transmission; without them, a packet that fills a gap is known, and
    there are ``late`` ones.
    """
    by_id = 0 if story.of_response or not ordered else story.connection.overtaken[story.side]
    if by_id >= late > 0 or (by_id and not late):
        return by_id, "identification"
    return late, "sequence" if late else None


def _unreliable(evidence: Evidence) -> Iterator[Finding]:
    """Holes of UC that were filled late: its responder has dropped the message by then (9.8.2.2.3)."""
    for connection in evidence.connections:
        if connection.transport != "UC":
            continue
        open_ = [(e.psn, e.last_psn) for e in connection.unfilled]
        late = [
            (event, transfer)
            for side in (0, 1)
            for transfer in evidence.transfers_of.get((connection.id, side), ())
            for event in transfer.events
            if event.kind == "hole" and not any(a <= event.last_psn and event.psn <= b for a, b in open_)
        ]
        if evidence.sightings is not None and not evidence.sightings.one_clock:
            counts = _seen_late(evidence.sightings, connection, late)
        else:
            counts = [event.count for event, _ in late]
        late = [hole for hole, count in zip(late, counts, strict=True) if count]
        if not late:
            continue
        transfer = late[0][1]
        messages = list(dict.fromkeys(t for _, t in late))
        arrived = sum(t.recv_wc is not None for t in messages)
        packets = sum(counts)
        yield RULE.finding(
            f"{plural(packets, 'UC packet')} arrived out of order on {connection.way(transfer.side)}, in "
            f"{plural(len(messages), 'message')}: a UC responder drops such messages",
            connection=connection,
            transfer=transfer,
            frames=[e.frame for e, _ in late],
            evidence={
                "count": len(late),
                "psns": [wire_psn(e.psn) for e, _ in late[:MAX_LISTED]],
                "transfers": [t.id for t in messages[:MAX_LISTED]],
                "receives_completed_nevertheless": arrived,
            },
            severity=WARNING if arrived < len(messages) else INFO,
        )


def _seen_late(
    sightings: Sightings, connection: Connection, holes: list[tuple[Event, Transfer]]
) -> list[int]:
    """How many packets of each hole one capture has behind a later one.

    Of packets of which each is in another capture only, the merged order is estimated.
    """
    rows: dict[int, dict[int, list[int]]] = {}
    for side in {transfer.side for _, transfer in holes}:
        of_psn = rows[side] = {}
        sent = sightings.sent_by(connection, side)
        for row, psn in zip(sent.tolist(), sightings.psn[sent].tolist(), strict=True):
            of_psn.setdefault(psn, []).append(row)
    return [
        sum(
            any(sightings.is_overtaken(row, NEAR) for row in rows[transfer.side].get(wire_psn(psn), ()))
            for psn in range(event.psn, event.last_psn + 1)
        )
        for event, transfer in holes
    ]


_TAKEN: Final = (
    "Nothing to do: the receiver takes packets out of order, or only the capture has them in this order. "
    "Adaptive routing, packet spraying and multipath reorder on purpose."
)
_TAKEN_RESPONSES: Final = (
    "Nothing to do: the requester takes READ responses out of order, or only the capture has them in this "
    "order. Adaptive routing, packet spraying and multipath reorder on purpose."
)
_OPEN_RESPONSES: Final = (
    "Nothing to do as long as the requester requests nothing again. Whether it takes READ responses out of "
    "order is unknown: not all of these READs are complete in the capture."
)
_OPEN: Final = (
    "Nothing to do as long as no NAK or repeat follows: adaptive routing, packet spraying and multipath "
    "reorder on purpose. Whether the receiver takes packets out of order is unknown: not all of these "
    "messages have an ACK in the capture."
)
_BESIDE: Final = (
    "Nothing to do about the order: it cost nothing here. Adaptive routing, packet spraying and multipath "
    "reorder on purpose. What was sent again in this direction has another cause."
)
_GROUND: Final = (
    " “Probably” means: the capture does not have the late packet of that case, but others of this direction."
)
_BARE: Final = (
    " “Probably” means: the capture has neither the late packet nor a go-back to it, so it may lack a whole "
    "go-back."
)
_BEHIND_REFUSAL: Final = (
    " “Probably” means: an RNR NAK for the same packet came before the NAK. A responder may send both for "
    "one copy and what is behind it; then nothing was overtaken, and the NAK only came late."
)
_FIRST: Final = (
    " “Probably” means: the capture misses packets. That packet may be the first of a go-back, of which it "
    "lacks others."
)
_STAMPED: Final = (
    " “Probably” means: the file has the packets in order, and only their times say that one came late. "
    "Times may be some microseconds wrong, as where several queues or processors stamp."
)
_GAPPY: Final = (
    " “Probably” means: the capture lacks packets that were acknowledged, or responses that nobody asked for "
    "again. A response that it has behind later ones may be to a request that it lacks."
)
_FILLED: Final = (
    " “Probably” means: nothing in the capture proves whether the packet that filled the gap came late, or "
    "was sent again."
)
RULE = Rule(
    "reordering",
    WARNING,
    "packets arrived out of order and cost a go-back-N",
    "Packets overtook each other on the way. An RC responder takes a gap for a loss: it sent a NAK, and "
    "the requester sent everything again from the late packet on. Info if no NAK or repeat followed: the "
    "receiver takes packets out of order, as adaptive routing, packet spraying and multipath need it. A UC "
    "responder drops the message.",
    "A NAK for a PSN that arrives shortly after, before any repeat; then the repeat brings it a second time. "
    "Or, of a READ or atomic, more answers than copies that were sent since the NAK.",
    "loss: the packet does not come before the repeat. A capture before the point that reorders shows "
    "the difference of READs and atomics only; take one at the responder.",
    "Find what spreads the packets of one QP over several paths or queues: packet spraying or adaptive "
    "routing without a NIC that accepts out-of-order packets, LAG hashing that changes, several receive "
    "queues, or a UDP source port that changes within the flow. Keep a flow on one path, or enable "
    "out-of-order support on the NIC.",
    _look,
)
