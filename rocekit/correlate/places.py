"""The connection and side that a QP of a journal is, found by its addresses and QPNs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rocekit.correlate.addresses import gid_ip, may_be
from rocekit.track.pairs.known_pairs import may_be_of

if TYPE_CHECKING:
    from rocekit.journal.work_requests import JournalQp
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer


Places = Mapping[int | None, Sequence[tuple["Connection", int]]]
"""The connections and sides by their QPNs."""


def places_by_qpn(connections: Sequence[Connection]) -> Places:
    """The connections and sides by their QPNs, in the connections' order.

    A journal may have as many QPs as a capture has connections: each QP looks only at those of its number.
    """
    found: dict[int | None, list[tuple[Connection, int]]] = {}
    for connection in connections:
        for side in (0, 1):
            found.setdefault(connection.qpns[side], []).append((connection, side))
    return found


def find_place(qp: JournalQp, places: Places) -> tuple[Connection, int] | None:
    """The connection and side whose addresses, QPNs and times fit; of several, the one nearest in time.

    None if none fits, or if several are as near: both ends of a connection can have the same QPN, and a
    journal of which the beginning is missing has no address.
    """
    found = [place for place in named_alike(qp, places) if _may_be_of(qp, *place)]
    if len(found) > 1 and qp.transport != "UD":
        times = [wr.posted_ns for wr in qp.sends] + [wc.polled_ns for wc in qp.receive_completions]
        if not times:
            return found[0] if qp.attributes.get("local_ip") is not None else None
        far = [_distance_ns(connection, min(times), max(times)) for connection, _ in found]
        nearest = [place for place, distance in zip(found, far, strict=True) if distance == min(far)]
        has_address = qp.attributes.get("local_ip") is not None or bool(qp.addresses)
        return nearest[0] if has_address or len(nearest) == 1 else None
    return found[0] if found else None


def named_alike(qp: JournalQp, places: Places) -> list[tuple[Connection, int]]:
    """The connections and sides with the addresses and QPNs of a QP, at whatever time."""
    a = qp.attributes
    local, remote, dest = a.get("local_ip"), a.get("dest_ip") or gid_ip(a.get("dest_gid")), a.get("dest_qpn")
    found = []
    for connection, side in places.get(qp.qpn, ()):
        if qp.transport is not None and connection.transport != qp.transport:
            continue
        if not may_be(connection.qpns[1 - side], dest):
            continue
        if may_be(connection.ips[side], local) and may_be(connection.ips[1 - side], remote):
            found.append((connection, side))
    if local is None and qp.addresses:
        # The journal has no address of a QP that only received datagrams; it has those of the QP's device.
        found = [place for place in found if place[0].ips[place[1]] in (None, *qp.addresses)]
    return found


def _may_be_of(qp: JournalQp, connection: Connection, side: int) -> bool:
    """Whether a QP lived when the connection's packets were seen, or its PSNs prove that it is the same."""
    if connection.first_ns is None or connection.last_ns is None:
        return True
    starts = {side: qp.attributes.get("sq_psn"), 1 - side: qp.attributes.get("rq_psn")}
    return any(
        may_be_of(
            qp.span_ns,
            [starts[s]],
            connection.first_ns,
            connection.last_ns,
            [p.begin if p is not None and p.started else None],
        )
        for s, p in enumerate(connection.progress)
    )


def _distance_ns(connection: Connection, first_ns: int, last_ns: int) -> int:
    """The time between a connection's packets and a span of time; 0 where they overlap."""
    if connection.first_ns is None or connection.last_ns is None:
        return 1 << 62
    return max(connection.first_ns - last_ns, first_ns - connection.last_ns, 0)


def datagrams_of(
    qp: JournalQp,
    place: tuple[Connection, int],
    places: Places,
    sent: dict[tuple[int, int], list[Transfer]],
) -> list[Transfer]:
    """Everything that a UD QP sent, to all its peers: one PSN counter serves them all.

    Args:
        sent: transfers by their connection's number and their side.
    """
    ip = place[0].ips[place[1]]
    out = []
    for connection, side in places.get(qp.qpn, ()):
        if connection.transport == "UD" and connection.ips[side] == ip:
            out += sent.get((connection.id, side), [])
    return out
