"""Letting go of connections, so that a tracker can follow an interface for weeks.

What is kept goes on as if nothing had happened: its messages, PSNs and timers. All tables of a tracker have
rows by the numbers of connections, addresses and flows; what stays gets new numbers, from 0, and the rest of
the tables is dropped. So a flood of addresses or QPNs leaves nothing behind.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.track.bulk import Chains
from rocekit.track.cm_exchanges import Exchanges
from rocekit.track.connections import Connection
from rocekit.track.datagrams import Datagrams
from rocekit.track.pairs.address_numbers import AddressNumbers
from rocekit.track.pairs.waiting import AWAITED, NO_VOTES, SCOPE, UNNUMBERED, way_key
from rocekit.track.pairs.waiting_rows import WaitingRows, waiting_flows
from rocekit.track.requests import Requests
from rocekit.track.rest.resting import rest_connection
from rocekit.track.suspect_icrcs import Suspects
from rocekit.wire import QPN_BITS

if TYPE_CHECKING:
    from rocekit.track.tracker import Tracker

#: Connections that a live view keeps, unless another number is asked for.
MOST_CONNECTIONS: Final = 100_000
#: Exchanges of the CM that are not over, kept for their answers; and lists of damaged packets.
MOST_OPEN: Final = 1_000
MOST_DAMAGED: Final = 100_000
#: A connection with so many packets, the last of them not longer ago, is no part of a flood.
_ESTABLISHED: Final = 8
_IN_USE_NS: Final = 60_000_000_000
#: More than any time: those in use come first.
_IN_USE: Final = 1 << 64


class Evicted(NamedTuple):
    """What was let go.

    Attributes:
        gone: the connections, as they were.
        kept: by the old number of each connection that was kept, its new one.
        addresses: the old numbers of the addresses that stay, in the order of the new ones.
    """

    gone: tuple[Connection, ...]
    kept: Mapping[int, int]
    addresses: list[int]


def crowd(tracker: Tracker, numbered: int) -> int:
    """How many connections a tracker's tables are as large as: a flood may fill others than theirs.

    Args:
        numbered: addresses or one-way flows with numbers; a connection has two, and its packets outlive it.
    """
    return max(
        len(tracker.connections) + tracker._chains.waiters, numbered // 4, len(tracker.cm.records) // 8
    )


def end_idle(tracker: Tracker, most: int) -> tuple[Connection, ...]:
    """End all connections but ``most``, those used last; gives those that were ended.

    Open transfers end as they do at a capture's end, and are reported. Connections of few packets are ended
    before those that are in use, however new they are: a flood has nothing else.
    """
    with collected_later():
        return _end_idle(tracker, most)


def _end_idle(tracker: Tracker, most: int) -> tuple[Connection, ...]:
    every = tracker.connections
    tracker._settle_all()
    if tracker._suspects.wrong:  # they are counted at the connections of their flows
        tracker._know_all()
    since_ns = _last_used_ns(tracker, most)
    ended = set()
    for key in list(tracker._lobbies):
        known = len(every)
        tracker._let_all_go(key, since_ns)
        for connection in every[known:]:
            # What a flood leaves takes much memory, all of it at once: it goes one by one.
            if connection.packets >= _ESTABLISHED:
                continue
            if (connection.last_ns or 0) < since_ns:
                tracker._end(connection)
                _drop_sides(tracker, connection)
                connection.progress = (None, None)
                ended.add(connection.id)
            else:
                rest_connection(tracker, connection)
    in_use_ns = max((connection.last_ns or 0 for connection in every), default=0) - _IN_USE_NS

    def rank(connection: Connection) -> int:
        last_ns = connection.last_ns or 0
        return last_ns + _IN_USE * (connection.packets >= _ESTABLISHED and last_ns >= in_use_ns)

    ranked = sorted(every, key=rank, reverse=True)
    ended.update(connection.id for connection in ranked[most:])
    gone = tuple(connection for connection in every if connection.id in ended)
    for connection in gone:
        tracker._end(connection)
    tracker.forget()
    return gone


def _drop_sides(tracker: Tracker, connection: Connection) -> None:
    """What refers to itself in circles would stay until garbage is searched for, which is seldom."""
    at = 2 * connection.id
    for side in tracker._sides[at : at + 2]:
        if isinstance(side, Requests):
            troubles = side.ledger.troubles
            if troubles is not None:
                passes = troubles.passes
                for one in (passes.current, passes.before):
                    if one is not None:
                        one.naks = ()
            side.ledger.troubles = side.clean = None
    tracker._sides[at : at + 2] = [None, None]


def _last_used_ns(tracker: Tracker, most: int) -> int:
    """When the ``most``-th of all connections and waiting flows was used last, counted from the latest."""
    times = [connection.last_ns or 0 for connection in tracker.connections]
    for flow in waiting_flows(tracker._lobbies.values()):
        _, _, rows, i, chain = flow.held[-1]
        times.append(rows.time_ns[i] if chain is None else chain.last_ns())
    times += tracker._lone_times()
    return sorted(times)[-most] if len(times) > most else 0


@contextmanager
def collected_later() -> Iterator[None]:
    """Without searches for garbage, which take longer than all else where so much is made and dropped."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()


def evict(tracker: Tracker, gone: tuple[Connection, ...]) -> Evicted:
    """Forget the connections that were ended; between two batches of packets."""
    tracker._settle_all()
    tracker._know_all()
    tracker._may_be_lone = False
    _settle_wrong(tracker)
    for connection in gone:
        _drop_sides(tracker, connection)
    leaving = {id(connection) for connection in gone}
    kept = [connection for connection in tracker.connections if id(connection) not in leaving]
    staying = {id(connection) for connection in kept}
    _drop_transfers(tracker, staying)
    numbers = {connection.id: new for new, connection in enumerate(kept)}
    sides = tracker._sides
    tracker._sides = [side for old in numbers for side in sides[2 * old : 2 * old + 2]]
    for connection in kept:
        connection.id = numbers[connection.id]
    tracker.connections[:] = kept
    addresses = _Renumbered()
    tracker._lane.forget_flows()
    tracker._chains, tracker._waiting, tracker._tail = Chains(), WaitingRows(), ((), ())
    _keep_flows(tracker, staying, addresses)
    tracker._datagrams = _datagrams(tracker, staying, addresses)
    tracker.cm = _exchanges(tracker.cm, staying)
    known = tracker._known.by_end
    for end in list(known):
        known[end] = [
            pair for pair in known[end] if pair.connection is None or id(pair.connection) in staying
        ]
        if not known[end]:
            del known[end]
    ips = {ip for connection in kept for ip in connection.ips}
    tracker._turnarounds = {k: v for k, v in tracker._turnarounds.items() if ips.issuperset(k)}
    del tracker.malformed[MOST_DAMAGED:], tracker.bad_icrc[MOST_DAMAGED:]
    return Evicted(gone, numbers, addresses.order)


class _Renumbered:
    """New numbers of addresses, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self._new: dict[int, int] = {}

    def of(self, old: int) -> int:
        new = self._new.setdefault(old, len(self.order))
        if new == len(self.order):
            self.order.append(old)
        return new


def _drop_transfers(tracker: Tracker, staying: set[int]) -> None:
    """Where all transfers are kept, those of other connections are counted only."""
    if tracker.forgets():
        return
    for transfer in tracker.transfers:
        if id(transfer.connection) not in staying:
            tracker.left_out[transfer.status] += 1
    tracker.transfers = [t for t in tracker.transfers if id(t.connection) in staying]


def _settle_wrong(tracker: Tracker) -> None:
    """Count the packets with wrong ICRCs at their connections, as at the end."""
    for key, frame in tracker._suspects.wrong:
        flow = tracker._flows.get(key)
        if flow is not None and flow.connection is not None:
            flow.connection.note_bad_icrc(frame)
        else:
            tracker.bad_icrc.append(frame)
    tracker._suspects = Suspects()


def _keep_flows(tracker: Tracker, staying: set[int], addresses: _Renumbered) -> None:
    flows, distrusted = tracker._flows, tracker._distrusted
    tracker._flows, tracker._by_number, tracker._lobbies = {}, [], {}
    tracker._scopes, tracker._awaited, tracker._distrusted = {}, {}, set()
    tracker._numbers = AddressNumbers()
    for old, flow in flows.items():
        if flow.connection is None or id(flow.connection) not in staying:
            flow.lobby = flow.partner = flow.clean = None  # circles, as in _drop_sides
            flow.votes = NO_VOTES
            continue
        number = AWAITED if flow.number == AWAITED else UNNUMBERED
        flow.src, flow.dst = addresses.of(flow.src), addresses.of(flow.dst)
        flow.number, flow.lobby = number, None
        flow.votes, flow.first_bucket, flow.last_bucket = NO_VOTES, -1, -1
        way = way_key(flow.src, flow.dst, flow.qpn)
        key = way_key(flow.src, flow.dst, flow.qpn, flow.scope)
        if flow.scope:
            tracker._scopes.setdefault(way, set()).add(flow.scope)
        if flow.scope and number == AWAITED:
            tracker._awaited.setdefault(way, set()).add(flow.scope)
        tracker._flows[key] = flow
        if old in distrusted:
            tracker._distrusted.add(key)
        if flow.partner is None and flow.transport == "RC" and flow.high >= 0:
            tracker._put_back(flow)


def _datagrams(tracker: Tracker, staying: set[int], addresses: _Renumbered) -> Datagrams:
    """The UD connections that stay; a copy of a datagram before is taken for another one."""
    before, after = tracker._datagrams, Datagrams(tracker, tracker._connect_datagrams)
    after._scoped = before._scoped

    def end(key: int) -> int:
        scope, place = divmod(key, SCOPE)
        number, qpn = place >> QPN_BITS, place & (1 << QPN_BITS) - 1
        return scope * SCOPE + (addresses.of(number) << QPN_BITS | qpn)

    for (first, second), (connection, side) in before._ends.items():
        if id(connection) in staying:
            after._ends[end(first), end(second)] = connection, side
    for (first, second), connections in before._one_way.items():
        found = [c for c in connections if id(c) in staying and c not in before._both_ways]
        if found:
            after._one_way[end(first), end(second)] = found
    return after


def _exchanges(before: Exchanges, staying: set[int]) -> Exchanges:
    """The exchanges of the connections that stay, and the latest that have none yet."""
    after = Exchanges()
    open_ones = {id(e) for e in [e for e in before.exchanges if e.connection is None][-MOST_OPEN:]}
    after.exchanges = [
        e
        for e in before.exchanges
        if (id(e) in open_ones if e.connection is None else id(e.connection) in staying)
    ]
    wanted = {id(e) for e in after.exchanges}
    after.records = [r for r in before.records if r.exchange is not None and id(r.exchange) in wanted]
    for key, known in before._by_ids.items():
        found = [e for e in known if id(e) in wanted]
        if found:
            after._by_ids[key] = found
    recent = {id(record) for record in after.records}
    after._seen = {identity: r for identity, r in before._seen.items() if id(r) in recent}
    return after
