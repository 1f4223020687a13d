"""CM events beside CM messages: which message caused each event of a program, on which connection.

An event is placed by its QP where it has one, else by the addresses and ports in the header of the REQ's
private data (IBA Vol. 1, A11), else by the private data itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from rocekit.files.frame_names import frame_name
from rocekit.track.pairs.known_pairs import CLOCKS_DIFFER_NS

if TYPE_CHECKING:
    from rocekit.journal import JournalEvent
    from rocekit.track.cm_exchanges import CmRecord, Exchange
    from rocekit.track.connections import Connection

#: The messages from the peer that cause an event (rdma_get_cm_event(3)); other events have none.
_MESSAGES: Final = MappingProxyType(
    {
        "CONNECT_REQUEST": ("REQ",),
        "CONNECT_RESPONSE": ("REP",),
        "ESTABLISHED": ("RTU", "REP"),
        "REJECTED": ("REJ",),
        "DISCONNECTED": ("DREQ", "DREP"),
    }
)


@dataclass(frozen=True, slots=True)
class PlacedEvent:
    """A CM event, the message that caused it, and its connection; None where unknown."""

    event: JournalEvent
    record: CmRecord | None
    connection: Connection | None

    def to_dict(self, *, several: bool = False) -> dict[str, Any]:
        """For JSON: ``{"type", "time_ns", "host", "pid", "status", "qp", "connection", "frame"}``."""
        event = self.event
        return {
            "type": event.get("type"),
            "time_ns": event.time_ns,
            "host": event.host,
            "pid": event.pid,
            "status": event.get("status"),
            "qp": None if event.qp is None else {"device": event.qp[0], "qpn": event.qp[1]},
            "connection": None if self.connection is None else self.connection.id,
            "frame": None if self.record is None else frame_name(self.record.frame, several=several),
        }


def place_cm_events(
    events: Sequence[JournalEvent],
    exchanges: Sequence[Exchange],
    connections: dict[tuple[str, str, int], Connection],
) -> list[PlacedEvent]:
    """The message and the connection of each event.

    Args:
        connections: of the journal's QPs, by (host, device, QPN).
    """
    placed = []
    for event in events:
        connection = None if event.qp is None else connections.get((event.host, *event.qp))
        exchange = _exchange(event, exchanges, connection)
        if connection is None and exchange is not None:
            connection = exchange.connection
        record = None if exchange is None else _message(event, exchange)
        placed.append(PlacedEvent(event, record, connection))
    return placed


def _exchange(
    event: JournalEvent, exchanges: Sequence[Exchange], connection: Connection | None
) -> Exchange | None:
    """The exchange that an event belongs to; of several that fit, the last one begun by then."""
    if connection is not None:
        own = [x for x in exchanges if x.connection is connection]
        if own:
            return own[-1]
    fitting = [x for x in exchanges if _same_ports(event, x)] or [
        x
        for x in exchanges
        if abs(x.request.time_ns - event.time_ns) < CLOCKS_DIFFER_NS and _same_data(event, x)
    ]
    begun = [x for x in fitting if x.request.time_ns <= event.time_ns]
    chosen = begun or fitting
    return chosen[-1] if chosen else None


def _same_ports(event: JournalEvent, exchange: Exchange) -> bool:
    ip_cm = exchange.request.cm.ip_cm
    if ip_cm is None:
        return False
    here = (event.get("local_ip"), event.get("local_port"))
    there = (event.get("remote_ip"), event.get("remote_port"))
    source = (ip_cm["source_address"], ip_cm["source_port"])
    destination = (ip_cm["destination_address"], ip_cm["destination_port"])
    return None not in (*here, *there) and (here, there) in ((source, destination), (destination, source))


def _same_data(event: JournalEvent, exchange: Exchange) -> bool:
    """Whether a message that can have caused the event carries its private data, padding aside."""
    text = event.get("private_data")
    data = b"" if text is None else bytes.fromhex(text).rstrip(b"\0")
    if not data:
        return False
    wanted = _MESSAGES.get(str(event.get("type")), ())
    return any(r.message in wanted and r.cm.private_data.rstrip(b"\0") == data for r in exchange.records)


def _message(event: JournalEvent, exchange: Exchange) -> CmRecord | None:
    """The message from the peer that caused the event."""
    remote = event.get("remote_ip")
    for name in _MESSAGES.get(str(event.get("type")), ()):
        for record in exchange.records:
            if record.message == name and remote in (None, record.src):
                return record
    return None
