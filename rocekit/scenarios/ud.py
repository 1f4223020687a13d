"""``ud``: datagrams, which are not acknowledged."""

from __future__ import annotations

import struct

from rocekit.endpoint import Target
from rocekit.errors import ScenarioError
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun
from rocekit.scenarios.unreliable import answer_each, ask_each

GRH = 40
"""Bytes in front of a datagram in its receive buffer (IBA Vol. 1, 11.4.2.1)."""
RECEIVES = 16
_NUMBER = struct.Struct(">Q")


class UnreliableDatagrams(Scenario):
    """UD ping-pong: each message is a packet, sent to an address, and may be lost.

    1. both make a UD QP (ibv_create_qp, IBV_QPT_UD) with a Q_Key, move it to RTS, which needs no peer
       (ibv_modify_qp), post receives with 40 bytes to spare for the network header (ibv_post_recv), and
       exchange addresses and QPNs over TCP, as ibv_ud_pingpong does;
    2. each makes an address handle to the other (ibv_create_ah) and names it, the QPN and the Q_Key in every
       request (ibv_post_send, ibv_send_wr.wr.ud.ah, remote_qpn, remote_qkey);
    3. a send completes (ibv_poll_cq) when it is sent: there is no ACK, nothing is sent again;
    4. a receive completes with the sender's QPN (wc.src_qp, wc.byte_len with the 40 bytes); the message
       starts with its number, the data is compared, the buffer posted again (ibv_post_recv) and the message
       sent back;
    5. a message that does not come back within a second (ibv_poll_cq) counts as lost, and the client
       continues.

    The time of an iteration is half the round trip, of messages that came back.
    """

    name = "ud"
    summary = "Datagrams with address handles and a Q_Key: no ACKs, lost messages are not sent again."
    default_size = 1024
    transport = "UD"
    tcp = True

    def check(self, plan: Plan) -> None:
        if plan.size < _NUMBER.size:
            raise ScenarioError(
                f"a datagram starts with its number, {_NUMBER.size} bytes; -s {plan.size} is less"
            )
        if plan.size > 4096:
            raise ScenarioError(f"a datagram is one packet: 4096 bytes, not {plan.size} (-s)")

    def client_memory(self, plan: Plan) -> int:
        return plan.size + RECEIVES * (GRH + plan.size)

    server_memory = client_memory

    def receives(self, plan: Plan) -> int:
        return RECEIVES

    def prepare_client(self, plan: Plan, link: PeerLink) -> None:
        for slot in range(RECEIVES):
            link.receive(self._buffer(plan, slot), GRH + plan.size)

    prepare_server = prepare_client

    def _buffer(self, plan: Plan, slot: int) -> int:
        return plan.size + slot * (GRH + plan.size)

    def client(self, run: ScenarioRun) -> Samples:
        return ask_each(run, self._send, self._take)

    def server(self, run: ScenarioRun) -> None:
        answer_each(run, self._take, self._send)

    def _send(self, run: ScenarioRun, link: PeerLink, i: int) -> None:
        size, peer = run.plan.size, link.connection.peer
        assert peer is not None
        link.region.write(0, _NUMBER.pack(i) + Pattern(size)(i)[_NUMBER.size :])
        to = Target(peer.ip, peer.qpn, link.connection.qkey)
        link.send(link.wr("SEND", 0, size, inline=run.inline_size, to=to))

    def _take(self, run: ScenarioRun, link: PeerLink) -> int:
        """The number of the received datagram; its data is compared, and its buffer posted again."""
        size = run.plan.size
        done, at = link.take()
        if done.byte_len != GRH + size:
            raise ScenarioError(f"a datagram of {done.byte_len} bytes came, not of {GRH} and {size}")
        message = link.region.read(at + GRH, size)
        (number,) = _NUMBER.unpack_from(message)
        Pattern(size).check(number, Pattern(size)(number)[: _NUMBER.size] + message[_NUMBER.size :])
        link.receive(at, GRH + size)
        return int(number)
