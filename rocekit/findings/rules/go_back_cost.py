"""``go-back-n-cost``: how many packets were sent again for each packet that was lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.findings.finding import INFO, Finding, Rule
from rocekit.findings.stories import ACK_LOSS, ICRC_BAD, IMPLIED_NAK, LOSS, TAIL_LOSS
from rocekit.findings.stories.copies import lost_copies
from rocekit.findings.stories.story import affected
from rocekit.track.passes import SELECTIVE
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.track.connections import Connection

#: The losses that make a requester send again.
_LOSSES: Final = frozenset({LOSS, TAIL_LOSS, ACK_LOSS, IMPLIED_NAK, ICRC_BAD})
#: From how many packets sent again on, for each one lost and in all, and from which share of the packets on,
#: they are worth a finding.
_EACH: Final = 32
_ALL: Final = 1_000
_SHARE: Final = 0.1


class Efficiency(NamedTuple):
    """What the losses of a connection made its ends send again.

    Attributes:
        lost: packets known to be lost; resent: packets sent again because of them, READ responses included.
    """

    lost: int
    resent: int

    @classmethod
    def of(cls, stories: Sequence[Story]) -> Efficiency:
        """Of the stories of one connection, or of one direction; only certain losses count."""
        stories = [story for story in stories if story.rule in _LOSSES and story.certain]
        lost = sum(copy.packets for story in stories for copy in lost_copies(story))
        responses = [
            event.count
            for transfer in affected([s for s in stories if s.rule == IMPLIED_NAK])
            for event in transfer.events
            if event.kind == "response_repeat"
        ]
        return cls(lost, sum(s.repeated_packets for s in stories) + sum(responses))

    @property
    def each(self) -> float | None:
        """Packets sent again for each one lost; None if none was."""
        return round(self.resent / self.lost, 2) if self.lost else None


def efficiencies(evidence: Evidence) -> Mapping[int, Efficiency]:
    """What losses cost, by the id of each connection that had any.

    Where responses are cut before their AETH, packets may have been sent again after RNR NAKs: unknown.
    """
    stories: dict[int, list[Story]] = defaultdict(list)
    for story in evidence.stories:
        if not story.connection.cut_responses:
            stories[story.connection.id].append(story)
    found = {number: Efficiency.of(own) for number, own in stories.items()}
    return {number: each for number, each in found.items() if each.lost}


def _look(evidence: Evidence) -> Iterator[Finding]:
    """Write the figure on each connection, and report where it is large."""
    if not evidence.totals.retransmitted_packets:
        return
    found = efficiencies(evidence)
    for connection in evidence.connections:
        cost = found.get(connection.id)
        if cost is not None:
            connection.resent_per_loss = cost.each
        if cost is not None and connection.recovery != SELECTIVE and _is_much(cost, connection):
            yield _finding(connection, cost)


def _is_much(cost: Efficiency, connection: Connection) -> bool:
    return cost.resent >= max(_EACH * cost.lost, _ALL, _SHARE * connection.packets)


def _finding(connection: Connection, cost: Efficiency) -> Finding:
    share = cost.resent / connection.packets
    each = f"{cost.resent / cost.lost:,.0f} packets sent again for each packet"
    return RULE.finding(
        f"{connection.named(0)} ⇄ {connection.named(1)}: {each} "
        f"known to be lost ({plural(cost.resent, 'packet')} for {cost.lost:,}), {share:.0%} of all packets",
        connection=connection,
        evidence={
            "lost_packets": cost.lost,
            "resent_packets": cost.resent,
            "resent_per_loss": cost.each,
            "packets": connection.packets,
            "resent_percent": round(100 * share, 1),
            "recovery": connection.recovery,
        },
    )


RULE = Rule(
    "go-back-n-cost",
    INFO,
    "each packet lost made many others come again",
    "A go-back-N responder drops all packets behind a lost one, so they are sent again too: the more packets "
    "are outstanding, the more a single loss costs.",
    f"At least {_EACH} packets sent again for each packet known to be lost, at least {_ALL:,} in all, and at "
    f"least {_SHARE:.0%} of the connection's packets.",
    "loss: counts what was lost, and where. Behind the capture point only the first packet of each gap is "
    "known to be lost, so each loss may have cost less.",
    "Fewer losses help most: see the findings loss, tail-loss and implied-nak. Fewer outstanding packets "
    "make each loss cheaper: smaller messages, or fewer WRs posted at once. Where the NICs of both ends have "
    "selective repeat, turn it on.",
    _look,
)
