"""What the rules look at: everything the stages before them found, and the stories that it makes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocekit.connections import Connection
    from rocekit.decode import Counts
    from rocekit.exchanges import CmRecord, Exchange
    from rocekit.findings.stories import Story
    from rocekit.observe import Observer
    from rocekit.transfers import Transfer


@dataclass(frozen=True)
class Evidence:
    """All that a capture, and a journal beside it, tell.

    Attributes:
        exchanges: CM exchanges; cm: all CM messages, also those whose REQ was not seen.
        counts: what the decoder counted.
        damage: (file, words) of what could not be read.
        malformed: (frame, code) of malformed packets; bad_icrc: frames with wrong ICRCs of no known
        connection. icrc_ignored: whether most ICRCs are wrong, so that the packets were tracked regardless.
        journal: the correlation with the journals; None without any. several: whether several captures were
        read. observer: what whole columns tell; without it some rules see nothing. dropped: packets that the
        capturing machine says it lost.
    """

    connections: Sequence[Connection]
    transfers: Sequence[Transfer]
    exchanges: Sequence[Exchange]
    counts: Counts
    damage: Sequence[tuple[str, str]] = ()
    malformed: Sequence[tuple[int, int]] = ()
    bad_icrc: Sequence[int] = ()
    icrc_ignored: bool = False
    journal: Any = None
    several: bool = False
    observer: Observer | None = None
    cm: Sequence[CmRecord] = ()
    dropped: int | None = None

    @cached_property
    def last_ns(self) -> int:
        """The time of the last packet known."""
        times = [c.last_ns for c in self.connections if c.last_ns is not None]
        times += [r.time_ns for e in self.exchanges for r in e.records]
        if self.observer is not None and self.observer.last_ns is not None:
            times.append(self.observer.last_ns)
        return max(times, default=0)

    @cached_property
    def misses_packets(self) -> bool:
        """Whether the capture is known to lack packets that were on the wire."""
        return bool(self.dropped) or any(c.missed and c.transport != "UC" for c in self.connections)

    @cached_property
    def cm_records(self) -> list[CmRecord]:
        """All CM messages, in the capture's order."""
        return list(self.cm) or sorted(
            (r for e in self.exchanges for r in e.records), key=lambda r: (r.time_ns, r.frame)
        )

    @cached_property
    def transfers_of(self) -> Mapping[tuple[int, int], list[Transfer]]:
        """The transfers by (connection id, requester's side)."""
        found: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        for transfer in self.transfers:
            found[transfer.connection.id, transfer.side].append(transfer)
        return found

    @cached_property
    def stories(self) -> list[Story]:
        """What made requesters repeat, each told once."""
        from rocekit.findings.stories import tell

        return tell(self)

    def told(self, rule: str) -> list[list[Story]]:
        """The stories of a rule, those of one direction of a connection together."""
        found: dict[tuple[int, int], list[Story]] = {}
        for story in self.stories:
            if story.rule == rule:
                found.setdefault((story.connection.id, story.side), []).append(story)
        return list(found.values())

    def is_mtu_mismatch(self, connection: Connection, side: int) -> bool:
        """Whether the requests of ``side`` were refused because of their packets' size."""
        return False

    def known_region(self, connection: Connection, side: int, transfer: Transfer) -> Mapping[str, Any]:
        """What the journal says of the memory that a transfer reached for."""
        return {}


def status_of(transfer: Transfer | None) -> str | None:
    """The status of a transfer's work completion, such as ``RETRY_EXC_ERR``; None without journal or
    completion.
    """
    wc = None if transfer is None else transfer.wc
    status = getattr(wc, "status", None)
    return None if status is None else str(status)
