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
    places = _Exchanges(exchanges)
    placed = []
    for event in events:
        connection = None if event.qp is None else connections.get((event.host, *event.qp))
        exchange = places.of(event, connection)
        if connection is None and exchange is not None:
            connection = exchange.connection
        record = None if exchange is None else places.message(event, exchange)
        placed.append(PlacedEvent(event, record, connection))
    return placed


class _Exchanges:
    """The exchanges of a capture, by what an event says of its own: there may be very many of both."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self._of_connection = {id(x.connection): x for x in exchanges if x.connection is not None}
        self._of_ports: dict[tuple[object, object], list[Exchange]] = {}
        self._of_data: dict[tuple[str, bytes], dict[int, Exchange]] = {}
        self._messages: dict[tuple[int, object, object], CmRecord | None] = {}
        for exchange in exchanges:
            for ends in _ports(exchange):
                self._of_ports.setdefault(ends, []).append(exchange)
            for record in exchange.records:
                key = record.message, record.cm.private_data.rstrip(b"\0")
                self._of_data.setdefault(key, {})[id(exchange)] = exchange
        self._places = {id(x): n for n, x in enumerate(exchanges)}

    def of(self, event: JournalEvent, connection: Connection | None) -> Exchange | None:
        """The exchange that an event belongs to; of several that fit, the last one begun by then."""
        if connection is not None and id(connection) in self._of_connection:
            return self._of_connection[id(connection)]
        here = (event.get("local_ip"), event.get("local_port"))
        there = (event.get("remote_ip"), event.get("remote_port"))
        fitting = self._of_ports.get((here, there), []) if None not in (*here, *there) else []
        fitting = fitting or self._with_data(event)
        # They are in order of time, but for captures of several clocks.
        begun = next((x for x in reversed(fitting) if x.request.time_ns <= event.time_ns), None)
        return begun or (fitting[-1] if fitting else None)

    def _with_data(self, event: JournalEvent) -> list[Exchange]:
        """Those of about that time with a message that can have caused the event and has its private data."""
        text = event.get("private_data")
        data = b"" if text is None else bytes.fromhex(text).rstrip(b"\0")
        if not data:
            return []
        found: dict[int, Exchange] = {}
        for name in _MESSAGES.get(str(event.get("type")), ()):
            for key, exchange in self._of_data.get((name, data), {}).items():
                if abs(exchange.request.time_ns - event.time_ns) < CLOCKS_DIFFER_NS:
                    found[key] = exchange
        return sorted(found.values(), key=lambda x: self._places[id(x)])

    def message(self, event: JournalEvent, exchange: Exchange) -> CmRecord | None:
        """The message from the peer that caused the event."""
        key = id(exchange), event.get("type"), event.get("remote_ip")
        if key not in self._messages:
            self._messages[key] = _message(event, exchange)
        return self._messages[key]


def _ports(exchange: Exchange) -> set[tuple[object, object]]:
    """The two ends of an exchange, as either of them sees them."""
    ip_cm = exchange.request.cm.ip_cm
    if ip_cm is None:
        return set()
    source = (ip_cm["source_address"], ip_cm["source_port"])
    destination = (ip_cm["destination_address"], ip_cm["destination_port"])
    return {(source, destination), (destination, source)}


def _message(event: JournalEvent, exchange: Exchange) -> CmRecord | None:
    """The message from the peer that caused the event."""
    remote = event.get("remote_ip")
    for name in _MESSAGES.get(str(event.get("type")), ()):
        for record in exchange.records:
            if record.message == name and remote in (None, record.src):
                return record
    return None
