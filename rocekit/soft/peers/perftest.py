"""perftest's bandwidth tests, server and client: ib_write_bw, ib_read_bw, ib_send_bw, ib_atomic_bw (as 6.x
talk; ``perftest_talk``), with ``-R`` and without.

The server of WRITE, READ and atomics has nothing else to do than to be there. What can be checked of the data
is: every message has the bytes of the first one, atomics count one by one, a READ reads what the one before
it read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocekit.endpoint import Deadline
from rocekit.endpoint.qp_address import ADDRESS_BYTES, QpAddress, begins_address, read_address, write_address
from rocekit.errors import ScenarioError
from rocekit.soft.backend.qp import cm_error
from rocekit.soft.cm.ids import CmId, ConnParam
from rocekit.soft.engine.packet import GRH_AREA_BYTES
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.work import WC, SendWR, Sge
from rocekit.soft.peers.party import Party
from rocekit.soft.peers.perftest_talk import (
    NUMBER_BYTES,
    NUMBERS,
    PREAMBLE,
    READS,
    QpTalk,
    Talk,
    TcpTalk,
    must_hear,
    pack_place,
    preamble,
)
from rocekit.wire import PATH_MTU_BYTES

PORT: Final = 18515
QKEY: Final = 0x1111_1111
_PSN: Final = 0x00ABCD
_RECEIVES: Final = 512
_TX_DEPTH: Final = 128
_MEMORY: Final = 1 << 20
_ATOMIC_BYTES: Final = 8
_NOBODY_LISTENS: Final = 8  # a REJ's reason, invalid service ID (12.6.7.2)
_AGAIN_S: Final = 0.1
#: Places told with -R beside the greetings: before and after the second connection, and after the test.
_TALKED_PLACES: Final = 3


@dataclass(frozen=True, slots=True)
class Test:
    """A test: what the client posts, how often it says where it is before it begins, and how many numbers
    it tells after it."""

    opcode: str
    greetings: int
    numbers: int


TESTS: Final = {
    "write_bw": Test("RDMA_WRITE", 3, 5),
    "read_bw": Test("RDMA_READ", 3, 5),
    "send_bw": Test("SEND", 4, 0),
    "atomic_bw": Test("ATOMIC_FETCH_AND_ADD", 3, 5),
}
TRANSPORTS: Final = {
    "RC": frozenset(TESTS),
    "UC": frozenset({"write_bw", "send_bw"}),
    "UD": frozenset({"send_bw"}),
}
"""What each transport can do (table 35 of the IBA specification)."""


def _pattern(length: int) -> bytes:
    """Bytes that come again after 251, so that no two packets are alike."""
    return (bytes(range(1, 252)) * (length // 251 + 1))[:length]


def _check(test: str, transport: str, rdma_cm: bool) -> None:
    if test not in TRANSPORTS[transport]:
        raise ScenarioError(f"{transport} has no {test}: {', '.join(sorted(TRANSPORTS[transport]))}")
    if rdma_cm and transport == "UD":
        raise ScenarioError(
            "perftest over UD is met by TCP only here: --no-rdma_cm, and the other side without -R"
        )


def _ready(party: Party, qp: Qp, mtu: int, peer: QpAddress) -> None:
    """To RTS, without a connection manager."""
    device, now = party.device, party.now
    if qp.transport == "UD":
        device.modify_qp(qp, now, state="RTR")
        device.modify_qp(qp, now, state="RTS", sq_psn=_PSN)
        return
    to: dict[str, Any] = {"dest_ip": peer.ip, "dest_qpn": peer.qpn, "path_mtu": mtu, "rq_psn": peer.psn}
    go: dict[str, Any] = {"sq_psn": _PSN}
    if qp.transport == "RC":
        to |= {"max_dest_rd_atomic": READS, "min_rnr_timer": 12}
        go |= {"timeout": 18, "retry_cnt": 7, "rnr_retry": 7, "max_rd_atomic": READS}
    device.modify_qp(qp, now, state="RTR", **to)
    device.modify_qp(qp, now, state="RTS", **go)


class _Served:
    """A server's QP and memory."""

    def __init__(self, party: Party, test: str, transport: str) -> None:
        self.party = party
        self.mr = party.memory(_MEMORY)
        self.qp = party.qp(transport, max_send_wr=1, max_recv_wr=_RECEIVES)
        self.came = 0
        self._area = GRH_AREA_BYTES if transport == "UD" else 0
        self._first: bytes | None = None
        self._test = test
        if test == "read_bw":
            self.mr.view[:] = _pattern(self.mr.length)
        if test == "send_bw":
            for n in range(_RECEIVES):
                party.receive(self.qp, n, self.mr, 0, self.mr.length)

    def receive(self) -> None:
        """Count the messages that have come, and post their receives again.

        Raises:
            ScenarioError: they differ; perftest sends one buffer again and again.
        """
        came = [wc for wc in self.party.completions if wc.qpn == self.qp.qpn and wc.opcode.startswith("RECV")]
        for wc in came:
            self.party.completions.remove(wc)
            content = bytes(self.mr.view[self._area : wc.byte_len])
            if self._first is None:
                self._first = content
            if content != self._first:
                raise ScenarioError(f"message {self.came} differs from the first one")
            self.party.receive(self.qp, wc.wr_id, self.mr, 0, self.mr.length)
            self.came += 1

    @property
    def rounds(self) -> int:
        """Messages received, or what the atomics have counted up to."""
        if self._test == "atomic_bw":
            # perftest goes from one cache line to the next.
            return sum(self.mr.view.cast("Q"))
        return self.came

    def place(self, psn: int) -> QpAddress:
        return QpAddress(self.qp.qpn, psn, self.mr.rkey, self.mr.addr, self.party.ip)


def serve(party: Party, test: str, *, port: int = PORT, rdma_cm: bool = False, transport: str = "RC") -> int:
    """Be the server of one client.

    Args:
        rdma_cm: the client was started with ``-R``.

    Returns:
        messages received by ``send_bw``, the sum that ``atomic_bw`` left, else 0.

    Raises:
        ScenarioError: the client does not do its part, or its messages are not alike.
    """
    _check(test, transport, rdma_cm)
    if rdma_cm:
        return _serve_by_cm(party, test, port, transport)
    served = _Served(party, test, transport)
    talk = TcpTalk(party, party.tcp(None, port))
    said = b""
    for length in PREAMBLE:
        said = must_hear(talk, length)
        talk.say(said)
    mtu = _read_mtu(said)
    own = write_address(served.place(_PSN), READS)
    while True:
        head = talk.hear(NUMBER_BYTES)
        served.receive()
        if head is None:
            break
        if not begins_address(head):  # a number of the client's; it wants one back
            talk.say(head)
            continue
        said = head + must_hear(talk, ADDRESS_BYTES - NUMBER_BYTES)
        if served.qp.state == "INIT":
            _ready(party, served.qp, mtu, read_address(said))
        talk.say(own)
    party.ending = True
    party.linger(0.2)
    served.receive()
    return served.rounds


def _read_mtu(said: bytes) -> int:
    """The path MTU in bytes, of its code, a digit: the end of what a client says first."""
    try:
        return PATH_MTU_BYTES[int(said[:1], 16)]
    except (ValueError, KeyError):
        raise ScenarioError(f"the other side is no perftest: its path MTU is {said!r}") from None


def _serve_by_cm(party: Party, test: str, port: int, transport: str) -> int:
    """A first connection carries the talk, a second one the test; the server ends the second."""
    what = TESTS[test]
    cm = party.device.cm
    party.listen(port)
    param = ConnParam(responder_resources=READS, initiator_depth=READS)
    talk = QpTalk(party)
    served: _Served | None = None
    ids: list[CmId] = []
    told = 0
    over = False

    def heard() -> bool:
        return bool(party.events or party.completions)

    while True:
        if not over:
            party.until(heard, "no word of the client")
        elif not party.until_gone(talk.qp, heard, "no word of the client"):
            return served.rounds if served else 0
        while party.events:
            event = party.events.pop(0)
            if event.type == "CONNECT_REQUEST":
                if ids:
                    served = _Served(party, test, transport)
                event.id.qp = served.qp if served else talk.qp
                ids.append(event.id)
                cm.accept(event.id, param, party.now)
            elif event.type == "DISCONNECTED" and event.id is ids[0]:
                party.ending = True
                for cm_id in ids:
                    if cm_id.state in ("ESTABLISHED", "DREQ_RCVD"):
                        cm.disconnect(cm_id, party.now)
                party.linger(1.0)
                return served.rounds if served else 0
        if served is not None:
            served.receive()
        for said in talk.said():
            if len(said) != NUMBERS.size:
                talk.say(said)
                continue
            told += 1
            if served is None:
                talk.say(bytes(NUMBERS.size))
                continue
            talk.say(pack_place(served.place(served.qp.sq_psn)))
            if told == _TALKED_PLACES + what.greetings + bool(what.numbers):
                over = party.ending = True
                cm.disconnect(ids[1], party.now)


def call(
    party: Party,
    test: str,
    host: str,
    *,
    port: int = PORT,
    count: int = 100,
    size: int = 65536,
    path_mtu: int = 1024,
    rdma_cm: bool = False,
    transport: str = "RC",
    stay: bool = True,
) -> int:
    """Be the client of a server: post ``count`` requests of ``size`` bytes, many at a time.

    Args:
        rdma_cm: the server was started with ``-R``.
        stay: hear what the server says after the test: of UC and UD nothing, while messages are missing.

    Returns:
        how many succeeded.

    Raises:
        ScenarioError: a request failed, the server does not do its part, or what it sent back is wrong.
    """
    _check(test, transport, rdma_cm)
    if transport == "UD":
        party.check_datagram(size)
    work = _Work(party, test, transport, count, _ATOMIC_BYTES if test == "atomic_bw" else size)
    if rdma_cm:
        _call_by_cm(work, host, port, path_mtu)
        return count
    talk = TcpTalk(party, party.tcp(host, port))
    _introduce(talk, path_mtu)
    for _ in range(TESTS[test].greetings):
        peer = _swap_places(talk, work)
        if work.qp.state == "INIT":
            _ready(party, work.qp, path_mtu, peer)
    work.run(peer)
    if stay:
        _report(talk, work)
    else:
        party.linger(0.2)
    return count


class _Work:
    """A client's QP, memory and requests."""

    def __init__(self, party: Party, test: str, transport: str, count: int, size: int) -> None:
        self.party, self.test, self.count, self.size = party, test, count, size
        # What comes back goes to places of its own, so that it can be looked at.
        self._places = {"atomic_bw": count, "read_bw": 2}.get(test, 1)
        self.mr = party.memory(self._places * size)
        if test in ("write_bw", "send_bw"):
            self.mr.view[:] = _pattern(size)
        self.qp = party.qp(transport, max_send_wr=_TX_DEPTH, max_recv_wr=_RECEIVES)

    def place(self) -> QpAddress:
        psn = self.qp.sq_psn if self.qp.state == "RTS" else _PSN
        return QpAddress(self.qp.qpn, psn, self.mr.rkey, self.mr.addr, self.party.ip)

    def run(self, peer: QpAddress) -> None:
        """Post all requests, and look at what they brought."""
        party, posted = self.party, 0
        done = 0
        while done < self.count:
            while posted < self.count and posted - done < _TX_DEPTH:
                party.post(self.qp, self._request(posted, peer))
                posted += 1
            party.until(lambda: bool(self._mine()), f"no completion {done} of {self.count}")
            for wc in self._mine():
                party.completions.remove(wc)
                done += 1
        self._check()

    def _mine(self) -> list[WC]:
        return [wc for wc in self.party.completions if wc.qpn == self.qp.qpn]

    def _request(self, number: int, peer: QpAddress) -> SendWR:
        at = self.mr.addr + number % self._places * self.size
        sges = (Sge(at, self.size, self.mr.lkey),)
        ud = self.qp.transport == "UD"
        return SendWR(
            number,
            TESTS[self.test].opcode,
            sges,
            remote_va=peer.address,
            rkey=peer.rkey,
            swap_add=1,
            dest_ip=peer.ip if ud else None,
            dest_qpn=peer.qpn if ud else 0,
            qkey=QKEY if ud else 0,
        )

    def _check(self) -> None:
        came = [bytes(self.mr.view[n * self.size : (n + 1) * self.size]) for n in range(self._places)]
        if self.test == "atomic_bw":
            values = [int.from_bytes(value, "little") for value in came]
            if values != [(values[0] + n) % (1 << 64) for n in range(self.count)]:
                raise ScenarioError(f"atomics did not count one by one: {values[:8]}")
        elif self.test == "read_bw" and (came[0] != came[-1] or not any(came[0])):
            raise ScenarioError("two READs of the same bytes differ, or read nothing")


def _introduce(talk: Talk, path_mtu: int) -> None:
    for data in preamble(path_mtu):
        talk.say(data)
        must_hear(talk, len(data))


def _swap_places(talk: Talk, work: _Work) -> QpAddress:
    talk.say_place(work.place())
    return talk.hear_place()


def _report(talk: Talk, work: _Work) -> None:
    """Size, messages, and rates that nobody here measured."""
    numbers: Sequence[int] = (work.size, work.count, 0, 0, 0)[: TESTS[work.test].numbers]
    _swap_places(talk, work)
    for number in numbers:
        talk.say(number.to_bytes(NUMBER_BYTES, "big"))
        must_hear(talk, NUMBER_BYTES)
    if numbers:
        talk.say_place(work.place())
        # It may hang up instead of answering.
        talk.hear(ADDRESS_BYTES if isinstance(talk, TcpTalk) else NUMBERS.size)


def _connect(party: Party, qp: Qp, host: str, port: int, path_mtu: int, *, again: bool) -> CmId:
    """Connect a QP to a server that listens; ``again``: or is about to, as between its two connections."""
    depth = READS if qp.transport == "RC" else 0
    deadline = Deadline(party.timeout_s)
    while True:
        cm_id = party.dial(host, port, qp.transport)
        cm_id.qp, cm_id.path_mtu = qp, path_mtu
        param = ConnParam(responder_resources=depth, initiator_depth=depth)
        party.device.cm.connect(cm_id, param, party.now)
        event = party.event("ESTABLISHED", "REJECTED")
        if event.type == "ESTABLISHED":
            return cm_id
        if not again or event.status != _NOBODY_LISTENS or deadline.passed():
            raise cm_error(event)
        party.linger(_AGAIN_S)


def _call_by_cm(work: _Work, host: str, port: int, path_mtu: int) -> None:
    party, cm = work.party, work.party.device.cm
    talk = QpTalk(party)
    ids = []
    for qp in (talk.qp, work.qp):
        ids.append(_connect(party, qp, host, port, path_mtu, again=qp is work.qp))
        if qp is talk.qp:
            _introduce(talk, path_mtu)
        # Neither side knows its second QP when it says this first, nor needs it the second time.
        talk.say(bytes(NUMBERS.size))
        talk.hear(NUMBERS.size)
    for _ in range(TESTS[work.test].greetings):
        peer = _swap_places(talk, work)
    work.run(peer)
    _report(talk, work)
    party.ending = True
    # The server ends the test's connection, the client the talk's.
    party.event("DISCONNECTED")
    cm.disconnect(ids[1], party.now)
    cm.disconnect(ids[0], party.now)
    party.event("DISCONNECTED")
