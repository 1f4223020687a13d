"""Finds losses before the capture point by the journal: the capture has only the repeat.

The journal has the time of the post. If the send queue was idle and the first packet is captured one local
ACK timeout after the post, that packet is the repeat. A host that is often late by about as much, but not by
just a timeout, is late by a timeout now and then, too: there the wait tells nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import TAIL_LOSS
from rocekit.findings.stories.causes import loss_places
from rocekit.findings.stories.story import Story
from rocekit.track.events import Event

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.transfers import Transfer

#: The wait in local ACK timeouts if the direction is known to lose packets before the capture point. The
#: specification allows four, but a longer wait than this may also come from the host.
_RANGE: Final = (0.95, 1.6)
#: Otherwise only an exact timer counts, with some slack for the way to the device.
_EXACT: Final = (0.99, 1.02)
_SLACK_NS: Final = 2_000
#: Waits between these shares of a timeout are as long as one, whatever their cause.
_AS_LONG: Final = (0.5, 2.0)


def find_journal_losses(evidence: Evidence, known: list[Story]) -> list[Story]:
    """The losses at the end of a burst of which the capture has only the repeat."""
    found: list[Story] = []
    if evidence.journal is None:
        return found
    lossy, _ = loss_places([s for s in known if s.rule])
    known_transfers = {(s.connection.id, s.side, t.id) for s in known for t in s.transfers}
    for (number, side), transfers in evidence.transfers_of.items():
        connection = evidence.connections_by_id[number]
        timeout_ns = evidence.timeout_ns(connection, side)
        if timeout_ns is None or connection.transport != "RC":
            continue
        early, late = _RANGE if lossy[connection.ips[side], connection.ips[1 - side]] else _EXACT
        busy_ns, as_long, own = 0, 0, []
        for transfer in sorted(transfers, key=lambda t: t.first_psn):
            posted_ns = evidence.posted_ns(transfer)
            wait = None if posted_ns is None else transfer.first_ns - max(posted_ns, busy_ns)
            on_time = wait is not None and early * timeout_ns <= wait <= late * timeout_ns + _SLACK_NS
            as_long += wait is not None and _AS_LONG[0] * timeout_ns <= wait <= _AS_LONG[1] * timeout_ns
            if wait is not None and on_time and (number, side, transfer.id) not in known_transfers:
                story = Story(connection, side, transfer.first_psn, TAIL_LOSS)
                story.transfers, story.unseen = [transfer], _wait(transfer, wait)
                own.append(story)
            busy_ns = max(busy_ns, transfer.last_ns, transfer.acked_ns or 0)
        if 2 * len(own) > as_long:
            found += own
    return found


def _wait(transfer: Transfer, waited_ns: int) -> Event:
    return Event(
        "unseen",
        transfer.first_ns,
        transfer.first_frame,
        transfer.first_psn,
        transfer.last_psn,
        waited_ns=waited_ns,
    )
