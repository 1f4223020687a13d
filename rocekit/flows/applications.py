"""Which application uses a connection: from private data, first messages, and the port it connected to.

Its own bytes make it certain; a port alone, or a layout that others may have too, makes it probable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from rocekit.wire.applications import BY_PORT, Application, named, on_its_port
from rocekit.wire.applications.files import RPC
from rocekit.wire.applications.programs import NCCL, ROCEKIT
from rocekit.wire.applications.said import HINT, MAGIC, SHAPE, Said

if TYPE_CHECKING:
    from rocekit.flows.first_messages import FirstMessages, Flow
    from rocekit.track.cm_exchanges import Exchange
    from rocekit.track.connections import Connection

_ASKS, _ANSWERS = 0, 1
#: The hosts that ask and answer, the port, the application's name.
_Service = tuple[str, str, int | None, str]


@dataclass(frozen=True, slots=True)
class _Fact:
    """What bytes say; ``side`` sent them: 0 the REQ's sender, or the connection's first end."""

    said: Said
    side: int
    where: str


def name_applications(
    connections: Sequence[Connection], exchanges: Iterable[Exchange], messages: FirstMessages
) -> None:
    """Set each connection's ``application``: those that their own bytes name first."""
    sharers: Mapping[Flow, int] = {}
    if messages.said:
        sharers = Counter(_flow(connection, side) for connection in connections for side in (0, 1))
    of_connection = {id(e.connection): e for e in exchanges if e.connection is not None}
    guessed: list[tuple[Connection, Exchange, bool]] = []
    known: dict[_Service, Connection] = {}
    for connection in connections:
        exchange = of_connection.get(id(connection))
        port = None if exchange is None else exchange.request.cm.port
        facts = list(_cm_facts(exchange, port))
        flows: list[Flow] = []
        if messages.said or port in BY_PORT:
            asker = _asker(connection, exchange)
            flows = [_flow(connection, side) for side in (asker, 1 - asker)]
            facts += _message_facts(connection, flows, messages, sharers)
        connection.application = _by_facts(facts, port) or _by_text(connection, messages)
        if exchange is None or port not in BY_PORT:
            continue
        if connection.application is None:
            guessed.append((connection, exchange, flows[0] in messages.opened))
        elif connection.application.certain:
            known.setdefault(_service(exchange, connection.application.name), connection)
    for connection, exchange, opened in guessed:
        connection.application = _by_port(exchange, opened, known)


def _service(exchange: Exchange, name: str) -> _Service:
    return exchange.src, exchange.dst, exchange.request.cm.port, name


def _asker(connection: Connection, exchange: Exchange | None) -> int:
    """The side that sent the REQ."""
    if exchange is None:
        return 0
    own = exchange.src, exchange.request.cm.number("local_qpn")
    return int(own == (connection.ips[1], connection.qpns[1]) != (connection.ips[0], connection.qpns[0]))


def _flow(connection: Connection, side: int) -> Flow:
    """The flow that ``side`` sends, as :class:`FirstMessages` names it; one that is unknown is not there."""
    return connection.ips[side] or "", connection.ips[1 - side] or "", connection.qpns[1 - side] or 0


def _cm_facts(exchange: Exchange | None, port: int | None) -> Iterator[_Fact]:
    if exchange is None:
        return
    for record in (exchange.request, exchange.reply):
        said = None if record is None else record.cm.said(port)
        if record is not None and said is not None:
            side = _ASKS if record is exchange.request else _ANSWERS
            yield _Fact(said, side, f"the {record.message}'s private data")


def _message_facts(
    connection: Connection, flows: Sequence[Flow], messages: FirstMessages, sharers: Mapping[Flow, int]
) -> Iterator[_Fact]:
    """What first messages say. Of connections with the same QPNs, one after the other, times tell whose."""
    first_ns, last_ns = connection.first_ns or 0, connection.last_ns or 0
    for side, flow in enumerate(flows):
        for time_ns, said in messages.said.get(flow, ()):
            if sharers[flow] == 1 or first_ns <= time_ns <= last_ns:
                yield _Fact(said, side, "its first messages")


def _by_facts(facts: Sequence[_Fact], port: int | None) -> Application | None:
    """By what the connection's own bytes say: a magic, the layout on its port or at both ends, a layout."""
    if not facts:
        return None
    magic = [f for f in facts if f.said.sure == MAGIC]
    own = [f for f in facts if f.said.sure > HINT and on_its_port(f.said, port)]
    shapes = [f for f in facts if f.said.sure == SHAPE]
    both = [
        f for f in shapes if any(f.said.application == g.said.application for g in shapes if g.side != f.side)
    ]
    if magic:  # NFS and Gluster are RPC-over-RDMA too
        name = named(min(magic, key=lambda f: f.said.application == RPC).said, port)
        return _made(name, True, [f for f in facts if named(f.said, port) in (name, RPC)], None)
    if own:
        return _made(named(own[0].said, port), True, own, port)
    if both:
        return _made(both[0].said.application, True, both, None)
    usable = [f for f in facts if f.said.sure in (SHAPE, HINT)]
    if len({f.said.application for f in usable}) == 1:
        return _made(usable[0].said.application, False, usable, None)
    return None


def _made(name: str, certain: bool, facts: Sequence[_Fact], port: int | None) -> Application:
    details: dict[str, int | str] = {}
    for fact in facts:
        details = {**fact.said.details, **details}
    *first, last = dict.fromkeys([*([] if port is None else [f"port {port}"]), *(f.where for f in facts)])
    ground = f"{', '.join(first)} and {last}" if first else last
    short = next((fact.said.short for fact in facts if fact.said.short), "")
    return Application(name, certain, ground, MappingProxyType(details), short)


def _by_text(connection: Connection, messages: FirstMessages) -> Application | None:
    """By the text, or the structs, over TCP in which both ends named their QPs."""
    if connection.paired_by != "handshake":
        return None
    programs = {
        messages.offers.get((ip, qpn))
        for ip, qpn in zip(connection.ips, connection.qpns, strict=True)
        if ip and qpn
    }
    if len(programs) != 1 or (program := programs.pop()) is None:
        return None
    ground = "its structs over TCP" if program == NCCL else "its text over TCP"
    return Application(program, program == ROCEKIT, ground)


def _by_port(exchange: Exchange, opened: bool, known: Mapping[_Service, Connection]) -> Application | None:
    """By the port alone, if nothing that the application always sends is missing.

    Args:
        opened: whether the first SEND of the REQ's sender was looked at; nothing knew it.
        known: by hosts, port and name, the first connection that is certain.
    """
    port = exchange.request.cm.port
    ulp = BY_PORT[port or 0]
    request = exchange.request.cm
    if ulp.always_asks and not request.truncated:
        return None
    if ulp.never_asks and any(request.private_data):
        return None
    sibling = known.get(_service(exchange, ulp.name))
    if sibling is None and ulp.opens and opened:
        return None
    ground = f"port {port}" if sibling is None else f"port {port}, as connection {sibling.id}"
    return Application(ulp.name, False, ground, MappingProxyType({"port": port or 0}))
