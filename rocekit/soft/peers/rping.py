"""rping's two sides (librdmacm, examples/rping.c, as its messages show them).

A round: the client SENDs where its bytes are (address, R_Key, size; big-endian); the server READs them and
    SENDs
"go on"; the client SENDs where they are wanted back; the server WRITEs them there and SENDs "go on"; the
client compares.
"""

from __future__ import annotations

import struct
from typing import Final

from rocekit.errors import ScenarioError
from rocekit.soft.cm.ids import ConnParam
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.work import SendWR, Sge
from rocekit.soft.peers.party import Party

PORT: Final = 7174
_WHERE: Final = struct.Struct(">QII")
_DEPTH: Final = 16
_RETRIES: Final = 7


class _Side:
    """A connected side: one receive always posted, requests one at a time."""

    def __init__(self, party: Party, qp: Qp) -> None:
        self.party = party
        self.qp = qp
        self.messages = party.memory(2 * _WHERE.size)
        self._next = 1
        self._receive = self._take()
        party.receive(qp, self._receive, self.messages, 0, _WHERE.size)

    def _take(self) -> int:
        self._next += 1
        return self._next

    def heard(self) -> tuple[int, int, int]:
        """What the other side SENT: (address, R_Key, size)."""
        self.party.done(self._receive)
        said = _WHERE.unpack(self.messages.view[: _WHERE.size])
        self._receive = self._take()
        self.party.receive(self.qp, self._receive, self.messages, 0, _WHERE.size)
        return said

    def say(self, address: int, rkey: int, size: int, *, last: bool = False) -> None:
        """``last``: the peer may want to hear no more, and if it disconnects, it has heard this."""
        self.messages.view[_WHERE.size :] = _WHERE.pack(address, rkey, size)
        self.work("SEND", self.messages.addr + _WHERE.size, _WHERE.size, self.messages.lkey, last=last)

    def work(
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
        """Post one request and wait for its end."""
        wr_id = self._take()
        sges = (Sge(address, length, lkey),)
        self.party.post(self.qp, SendWR(wr_id, opcode, sges, remote_va=remote_va, rkey=rkey))
        party = self.party
        if last:
            party.until(lambda: bool(party.events) or party.has(wr_id), f"no completion of WR {wr_id}")
        if not last or party.has(wr_id):
            party.done(wr_id)


def serve(party: Party, *, port: int = PORT) -> int:
    """Serve one rping client until it disconnects, or has gone after a whole round.

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
            address, rkey, size = side.heard()
            if size > data.length:
                raise ScenarioError(f"rping asks for {size:,} bytes; here is room for {data.length:,}")
            side.work("RDMA_READ", data.addr, size, data.lkey, address, rkey)
            side.say(0, 0, 0)
            address, rkey, size = side.heard()
            side.work("RDMA_WRITE", data.addr, size, data.lkey, address, rkey)
            side.say(0, 0, 0, last=True)
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
    """Be the client of an rping server.

    Returns:
        how many rounds came back right.

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
        side.say(source.addr, source.rkey, size)
        side.heard()
        side.say(sink.addr, sink.rkey, size)
        side.heard()
        if sink.view != source.view:
            raise ScenarioError(f"round {n}: {bytes(sink.view[:32])!r} came back")
    party.ending = True
    cm.disconnect(cm_id, party.now)
    party.event("DISCONNECTED")
    return count
