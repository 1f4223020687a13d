"""Server and client of rping (librdmacm, examples/rping.c).

A round: the client SENDs the address of its bytes (address, R_Key, size; big-endian); the server READs them
and SENDs "go on"; the client SENDs the address for the way back; the server WRITEs them there and SENDs "go
on"; the client compares.
"""

from __future__ import annotations

import struct
from typing import Final

from rocekit.errors import ScenarioError
from rocekit.soft.cm.ids import ConnParam
from rocekit.soft.engine.memory import Sge
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.work import SendWR
from rocekit.soft.peers.party import Party

PORT: Final = 7174
_ADDRESS: Final = struct.Struct(">QII")
_DEPTH: Final = 16
_RETRIES: Final = 7


class _Side:
    """A connected side: one receive is always posted, and requests are posted one at a time."""

    def __init__(self, party: Party, qp: Qp) -> None:
        self.party = party
        self.qp = qp
        self.messages = party.memory(2 * _ADDRESS.size)
        self._next = 1
        self._receive_id = self._new_id()
        party.receive(qp, self._receive_id, self.messages, 0, _ADDRESS.size)

    def _new_id(self) -> int:
        self._next += 1
        return self._next

    def receive(self) -> tuple[int, int, int]:
        """Wait for the peer's next SEND: (address, R_Key, size)."""
        self.party.done(self._receive_id)
        message = _ADDRESS.unpack(self.messages.view[: _ADDRESS.size])
        self._receive_id = self._new_id()
        self.party.receive(self.qp, self._receive_id, self.messages, 0, _ADDRESS.size)
        return message

    def send(self, address: int, rkey: int, size: int, *, last: bool = False) -> None:
        """SEND a message; after the ``last`` one the peer may disconnect, which shows that it came."""
        self.messages.view[_ADDRESS.size :] = _ADDRESS.pack(address, rkey, size)
        self.post("SEND", self.messages.addr + _ADDRESS.size, _ADDRESS.size, self.messages.lkey, last=last)

    def post(
        self,
        opcode: str,
        address: int,
        length: int,
        lkey: int,
        remote_va: int = 0,
        rkey: int = 0,
        *,
        last: bool = False,
    ) -> None:
        """Post a request and wait for its completion."""
        wr_id = self._new_id()
        sges = (Sge(address, length, lkey),)
        self.party.post(self.qp, SendWR(wr_id, opcode, sges, remote_va=remote_va, rkey=rkey))
        party = self.party
        if last:
            party.until(lambda: bool(party.events) or party.has(wr_id), f"no completion of WR {wr_id}")
        if not last or party.has(wr_id):
            party.done(wr_id)


def serve(party: Party, *, port: int = PORT) -> int:
    """Serve one rping client until it disconnects, or is gone after a whole round.

    Returns:
        how many rounds there were.
    """
    cm = party.device.cm
    party.listen(port)
    request = party.event("CONNECT_REQUEST")
    qp = party.qp("RC", max_send_wr=_DEPTH, max_recv_wr=_DEPTH)
    request.id.qp = qp
    side = _Side(party, qp)
    cm.accept(
        request.id, ConnParam(responder_resources=1, initiator_depth=1, rnr_retry_count=_RETRIES), party.now
    )
    party.event("ESTABLISHED")
    rounds = 0
    data = party.memory(1 << 20)
    try:
        while not party.events:
            address, rkey, size = side.receive()
            if size > data.length:
                raise ScenarioError(f"rping needs {size:,} bytes; this side has {data.length:,}")
            side.post("RDMA_READ", data.addr, size, data.lkey, address, rkey)
            side.send(0, 0, 0)
            address, rkey, size = side.receive()
            side.post("RDMA_WRITE", data.addr, size, data.lkey, address, rkey)
            side.send(0, 0, 0, last=True)
            rounds += 1
            if not party.until_gone(qp, lambda: bool(party.events or party.completions), "no next round"):
                break
    finally:
        party.ending = True
        if any(event.type == "DISCONNECTED" for event in party.events):
            cm.disconnect(request.id, party.now)
    party.linger(0.2)
    return rounds


def call(party: Party, host: str, *, port: int = PORT, count: int = 10, size: int = 64) -> int:
    """Run the client of an rping server.

    Returns:
        how many rounds were right.

    Raises:
        ScenarioError: what came back is not what was sent.
    """
    cm = party.device.cm
    cm_id = party.dial(host, port)
    cm_id.path_mtu = party.mtu
    cm_id.qp = qp = party.qp("RC", max_send_wr=_DEPTH, max_recv_wr=_DEPTH)
    side = _Side(party, qp)
    param = ConnParam(responder_resources=1, initiator_depth=1, rnr_retry_count=_RETRIES)
    cm.connect(cm_id, param, party.now)
    party.event("ESTABLISHED")
    source, sink = party.memory(size), party.memory(size)
    for n in range(count):
        text = f"rdma-ping-{n}: ".encode()
        source.view[:] = (text + bytes(65 + (n + i) % 58 for i in range(size)))[: size - 1] + b"\0"
        sink.view[:] = bytes(size)
        side.send(source.addr, source.rkey, size)
        side.receive()
        side.send(sink.addr, sink.rkey, size)
        side.receive()
        if sink.view != source.view:
            raise ScenarioError(f"round {n}: {bytes(sink.view[:32])!r} came back")
    party.ending = True
    cm.disconnect(cm_id, party.now)
    party.event("DISCONNECTED")
    return count
