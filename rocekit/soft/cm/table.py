"""A connection manager's identifiers, found by what a message names, and their timers in order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from rocekit.soft.cm.ids import ESTABLISHED, LISTEN, REP_SENT, REQ_RCVD, SIDR_REQ_RCVD, CmId

#: The states of a peer that asked and waits for the program.
_ASKED: Final = frozenset({REQ_RCVD, SIDR_REQ_RCVD})
#: The states in which the peer's QP counts as connected.
_CONNECTED: Final = frozenset({REP_SENT, ESTABLISHED})


class IdTable:
    """The identifiers of one device.

    Each is found in one look, however many there are: by its communication ID, by its peer's, by its port, by
    its QPN or by its peer's QP. The first deadline is at the top of a heap.
    """

    def __init__(self) -> None:
        self._all: dict[int, CmId] = {}
        self._by_comm_id: dict[int, CmId] = {}
        self._by_peer: dict[tuple[str, int], CmId] = {}
        self._by_qpn: dict[int, CmId] = {}
        self._by_remote_qp: dict[tuple[str, int, int], CmId] = {}
        self._listeners: dict[tuple[int, bool], CmId] = {}
        self._asked: dict[int, list[CmId]] = {}
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[CmId]:
        return iter(list(self._all.values()))

    def add(self, cm_id: CmId) -> None:
        self._all[cm_id.number] = cm_id
        self._by_comm_id[cm_id.local_comm_id] = cm_id

    def add_request(self, cm_id: CmId) -> None:
        """Add an identifier whose peer asked to connect."""
        self.add(cm_id)
        self._by_peer[cm_id.peer_ip, cm_id.remote_comm_id] = cm_id
        if cm_id.listener is not None:
            self._asked.setdefault(cm_id.listener.number, []).append(cm_id)

    def add_listener(self, cm_id: CmId) -> None:
        """Have a known identifier found by its port."""
        self._listeners[_port(cm_id.port, cm_id.transport)] = cm_id

    def expect_data(self, cm_id: CmId) -> None:
        """Have an identifier whose REP was sent found by its QPN: data may come before the RTU."""
        self._by_qpn[cm_id.qpn] = cm_id

    def connect(self, cm_id: CmId) -> None:
        """Have an identifier found by its peer's QP."""
        self._by_remote_qp[cm_id.peer_ip, *cm_id.remote_qp] = cm_id

    def remove(self, cm_id: CmId) -> None:
        """Forget an identifier, if it is known."""
        if self._all.pop(cm_id.number, None) is None:
            return
        cm_id.deadline = None
        del self._by_comm_id[cm_id.local_comm_id]
        self._asked.pop(cm_id.number, None)
        peer, port = (cm_id.peer_ip, cm_id.remote_comm_id), _port(cm_id.port, cm_id.transport)
        if self._by_peer.get(peer) is cm_id:
            del self._by_peer[peer]
        if self._listeners.get(port) is cm_id:
            del self._listeners[port]
        if self._by_qpn.get(cm_id.qpn) is cm_id:
            del self._by_qpn[cm_id.qpn]
        remote = cm_id.peer_ip, *cm_id.remote_qp
        if self._by_remote_qp.get(remote) is cm_id:
            del self._by_remote_qp[remote]

    def of_comm_id(self, local_comm_id: int | None) -> CmId | None:
        """The identifier with a communication ID of this side."""
        found = None if local_comm_id is None else self._by_comm_id.get(local_comm_id)
        return None if found is None or found.state == LISTEN else found

    def of_request(self, peer_ip: str, remote_comm_id: int) -> CmId | None:
        """The identifier that a request of a peer made."""
        return self._by_peer.get((peer_ip, remote_comm_id))

    def listener(self, port: int, transport: str) -> CmId | None:
        """What listens on a port."""
        return self._listeners.get(_port(port, transport))

    def take_unconfirmed(self, qpn: int) -> CmId | None:
        """The identifier of a QP whose RTU is awaited; the next call does not find it."""
        return self._by_qpn.pop(qpn, None)

    def connected_to(self, peer_ip: str, guid: int, qpn: int) -> CmId | None:
        """The identifier that is connected to that QP of that channel adapter."""
        found = self._by_remote_qp.get((peer_ip, guid, qpn))
        return found if found is not None and found.state in _CONNECTED else None

    def waiting(self, listener: CmId) -> int:
        """At most how many peers that asked wait for a listener's program; exact from its backlog on."""
        asked = self._asked.get(listener.number, [])
        if len(asked) >= listener.backlog:
            asked[:] = [one for one in asked if one.state in _ASKED and one.number in self._all]
        return len(asked)

    # -- timers

    def set_timer(self, cm_id: CmId, due: int) -> None:
        cm_id.deadline = due
        heapq.heappush(self._deadlines, (due, cm_id.number))

    def next_timer(self) -> int | None:
        """When the first timer expires, or None."""
        heap = self._deadlines
        while heap:
            found = self._all.get(heap[0][1])
            if found is not None and found.deadline == heap[0][0]:
                return heap[0][0]
            heapq.heappop(heap)  # it was stopped, or set anew
        return None

    def expired(self, now: int) -> CmId | None:
        """Stop a timer that has expired; its identifier, or None when no more has."""
        due = self.next_timer()
        if due is None or now < due:
            return None
        found = self._all[heapq.heappop(self._deadlines)[1]]
        found.deadline = None
        return found


def _port(port: int, transport: str) -> tuple[int, bool]:
    """One port space for RC and UC (TCP's), one for UD (A11.2)."""
    return port, transport == "UD"
