"""The server of perftest's bandwidth tests.

For WRITE, READ and atomics it only has to be there. It checks that all messages have the same bytes.
"""

from __future__ import annotations

from typing import Final

from rocekit.endpoint.qp_address import ADDRESS_BYTES, QpAddress, begins_address, read_address, write_address
from rocekit.errors import ScenarioError
from rocekit.soft.cm.ids import CmId, ConnParam
from rocekit.soft.engine.packet import GRH_AREA_BYTES
from rocekit.soft.peers.party import Party
from rocekit.soft.peers.perftest.bandwidth import (
    FIRST_PSN,
    PORT,
    RECEIVES,
    TESTS,
    check_test,
    move_to_rts,
    pattern,
)
from rocekit.soft.peers.perftest.exchange import (
    NUMBER_BYTES,
    NUMBERS,
    PREAMBLE,
    READS,
    QpExchange,
    TcpExchange,
    pack_address,
    receive_all,
)
from rocekit.wire import PATH_MTU_BYTES

_MEMORY: Final = 1 << 20
#: Addresses sent with -R besides the greetings: before and after the second connection, and after the test.
_OTHER_ADDRESSES: Final = 3


class _TestQp:
    """The server's QP of the test, and its memory."""

    def __init__(self, party: Party, test: str, transport: str) -> None:
        self.party = party
        self.mr = party.memory(_MEMORY)
        self.qp = party.qp(transport, max_send_wr=1, max_recv_wr=RECEIVES)
        self.received = 0
        self._area = GRH_AREA_BYTES if transport == "UD" else 0
        self._first: bytes | None = None
        self._test = test
        if test == "read_bw":
            self.mr.view[:] = pattern(self.mr.length)
        if test == "send_bw":
            for n in range(RECEIVES):
                party.receive(self.qp, n, self.mr, 0, self.mr.length)

    def receive(self) -> None:
        """Count the messages that have come, and post their receives again.

        Raises:
            ScenarioError: they differ; perftest always sends the same buffer.
        """
        came = [wc for wc in self.party.completions if wc.qpn == self.qp.qpn and wc.opcode.startswith("RECV")]
        for wc in came:
            self.party.completions.remove(wc)
            content = bytes(self.mr.view[self._area : wc.byte_len])
            if self._first is None:
                self._first = content
            if content != self._first:
                raise ScenarioError(f"message {self.received} differs from the first one")
            self.party.receive(self.qp, wc.wr_id, self.mr, 0, self.mr.length)
            self.received += 1

    @property
    def rounds(self) -> int:
        """Messages received, or the number of atomics."""
        if self._test == "atomic_bw":
            # perftest moves from one cache line to the next.
            return sum(self.mr.view.cast("Q"))
        return self.received

    def address(self, psn: int) -> QpAddress:
        """The address of the QP and its memory, for the client."""
        return QpAddress(self.qp.qpn, psn, self.mr.rkey, self.mr.addr, self.party.ip)


def serve(party: Party, test: str, *, port: int = PORT, rdma_cm: bool = False, transport: str = "RC") -> int:
    """Run the server for one client.

    Args:
        rdma_cm: the client was started with ``-R``.

    Returns:
        messages received by ``send_bw``, the sum after ``atomic_bw``, else 0.

    Raises:
        ScenarioError: the client does not follow the protocol, or its messages differ.
    """
    check_test(test, transport, rdma_cm)
    if rdma_cm:
        return _serve_by_cm(party, test, port, transport)
    test_qp = _TestQp(party, test, transport)
    exchange = TcpExchange(party, party.tcp(None, port))
    said = b""
    for length in PREAMBLE:
        said = receive_all(exchange, length)
        exchange.send(said)
    mtu = _read_mtu(said)
    own = write_address(test_qp.address(FIRST_PSN), READS)
    while True:
        head = exchange.receive(NUMBER_BYTES)
        test_qp.receive()
        if head is None:
            break
        if not begins_address(head):  # a number; the client expects one back
            exchange.send(head)
            continue
        said = head + receive_all(exchange, ADDRESS_BYTES - NUMBER_BYTES)
        if test_qp.qp.state == "INIT":
            move_to_rts(party, test_qp.qp, mtu, read_address(said))
        exchange.send(own)
    party.ending = True
    party.linger(0.2)
    test_qp.receive()
    return test_qp.rounds


def _read_mtu(said: bytes) -> int:
    """The path MTU in bytes, from its code: the last part of the client's preamble."""
    try:
        return PATH_MTU_BYTES[int(said[:1], 16)]
    except (ValueError, KeyError):
        raise ScenarioError(f"the peer is not perftest: its path MTU is {said!r}") from None


def _serve_by_cm(party: Party, test: str, port: int, transport: str) -> int:
    """Serve with a first connection for the exchange and a second one for the test; the server ends that."""
    what = TESTS[test]
    cm = party.device.cm
    party.listen(port)
    param = ConnParam(responder_resources=READS, initiator_depth=READS)
    exchange = QpExchange(party)
    test_qp: _TestQp | None = None
    ids: list[CmId] = []
    addresses = 0
    over = False

    def something_came() -> bool:
        return bool(party.events or party.completions)

    while True:
        if not over:
            party.until(something_came, "no message of the client")
        elif not party.until_gone(exchange.qp, something_came, "no message of the client"):
            return test_qp.rounds if test_qp else 0
        while party.events:
            event = party.events.pop(0)
            if event.type == "CONNECT_REQUEST":
                if ids:
                    test_qp = _TestQp(party, test, transport)
                event.id.qp = test_qp.qp if test_qp else exchange.qp
                ids.append(event.id)
                cm.accept(event.id, param, party.now)
            elif event.type == "DISCONNECTED" and event.id is ids[0]:
                party.ending = True
                for cm_id in ids:
                    if cm_id.state in ("ESTABLISHED", "DREQ_RCVD"):
                        cm.disconnect(cm_id, party.now)
                party.linger(1.0)
                return test_qp.rounds if test_qp else 0
        if test_qp is not None:
            test_qp.receive()
        for said in exchange.messages():
            if len(said) != NUMBERS.size:
                exchange.send(said)
                continue
            addresses += 1
            if test_qp is None:
                exchange.send(bytes(NUMBERS.size))
                continue
            exchange.send(pack_address(test_qp.address(test_qp.qp.sq_psn)))
            if addresses == _OTHER_ADDRESSES + what.greetings + bool(what.numbers):
                over = party.ending = True
                cm.disconnect(ids[1], party.now)
