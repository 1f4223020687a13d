"""perftest's bandwidth tests, server and client: ib_write_bw, ib_read_bw, ib_send_bw, ib_atomic_bw (as 6.x
talk).

The two sides tell each other over TCP, in turns, always the same lengths: version, page size, cache line,
    path MTU,
then several times where the QP and its memory are, as text; after the test that again, numbers, and that
again. The server of WRITE, READ and atomics has nothing else to do than to be there.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

from rocekit.build import gid
from rocekit.endpoint import Deadline
from rocekit.errors import ScenarioError
from rocekit.places import PLACE_BYTES, Place, read_place, write_place
from rocekit.soft.cm_id import CmId, ConnParam
from rocekit.soft.memory import MR
from rocekit.soft.peers.party import Party
from rocekit.soft.qp import Qp
from rocekit.soft.work import SendWR, Sge
from rocekit.wire import PATH_MTU_BYTES, PATH_MTU_CODES

PORT: Final = 18515
VERSION: Final = "6.06"
_PSN: Final = 0x00ABCD
_READS: Final = 16
_RECEIVES: Final = 512
_NUMBER: Final = 8
_PREAMBLE: Final = (16, 4, 4, 2)
_TX_DEPTH: Final = 128
#: LID, outstanding READs, QPN, PSN, rkey, a gap, address, GID, SRQ number, GID index.
_PLACE: Final = struct.Struct(">IIIIIIQ16sII")
_TALK_BYTES: Final = 256
_TALK: Final = 1 << 20
_MEMORY: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Test:
    """A test: what the client posts, and how often it says where it is before it begins."""

    opcode: str
    greetings: int
    numbers: int


TESTS: Final = {
    "write_bw": Test("RDMA_WRITE", 3, 5),
    "read_bw": Test("RDMA_READ", 3, 5),
    "send_bw": Test("SEND", 4, 0),
    "atomic_bw": Test("ATOMIC_FETCH_AND_ADD", 3, 5),
}


class _Talk:
    """The TCP side: whole messages, the device working while nothing comes."""

    def __init__(self, party: Party, connection: socket.socket) -> None:
        self._party = party
        self._socket = connection
        self._heard = b""
        connection.setblocking(False)

    def say(self, data: bytes) -> None:
        self._socket.setblocking(True)
        self._socket.sendall(data)
        self._socket.setblocking(False)

    def hear(self, length: int) -> bytes | None:
        """That many bytes; None when the other side hung up."""
        deadline = Deadline(self._party.timeout_s)
        while len(self._heard) < length:
            try:
                more = self._socket.recv(65536)
            except BlockingIOError:
                self._party.turn()
                if deadline.passed():
                    raise ScenarioError(f"perftest says nothing for {deadline.seconds:g} s") from None
                continue
            except OSError:
                more = b""
            if not more:
                return None
            deadline = Deadline(self._party.timeout_s)
            self._heard += more
        said, self._heard = self._heard[:length], self._heard[length:]
        return said

    def must_hear(self, length: int) -> bytes:
        said = self.hear(length)
        if said is None:
            raise ScenarioError("perftest hung up")
        return said


def _ready(party: Party, qp: Qp, mtu: int, peer: Place) -> None:
    device = party.device
    device.modify_qp(
        qp,
        party.now,
        state="RTR",
        dest_ip=peer.ip,
        dest_qpn=peer.qpn,
        path_mtu=mtu,
        rq_psn=peer.psn,
        max_dest_rd_atomic=_READS,
        min_rnr_timer=12,
    )
    device.modify_qp(
        qp, party.now, state="RTS", sq_psn=_PSN, timeout=18, retry_cnt=7, rnr_retry=7, max_rd_atomic=_READS
    )


def _received(party: Party, qp: Qp, mr: MR) -> int:
    """Post the receives that have been used again; how many messages that were."""
    came = [wc for wc in party.completions if wc.opcode.startswith("RECV") and wc.qpn == qp.qpn]
    for wc in came:
        party.completions.remove(wc)
        party.receive(qp, wc.wr_id, mr, 0, mr.length)
    return len(came)


def serve(party: Party, test: str, *, port: int = PORT, rdma_cm: bool = False) -> int:
    """Be the server of one client.

    Args:
        rdma_cm: the client was started with ``-R``.

    Returns:
        messages received: those of ``send_bw``, else 0.
    """
    if rdma_cm:
        return _serve_by_cm(party, test, port)
    mr = party.memory(_MEMORY)
    qp = _served_qp(party, test, mr)
    talk = _Talk(party, party.tcp(None, port))
    mtu = 0
    for length in _PREAMBLE:
        said = talk.must_hear(length)
        talk.say(said)
        mtu = PATH_MTU_BYTES.get(int(said[:1], 16) if length == _PREAMBLE[-1] else 0, mtu)
    own = write_place(Place(qp.qpn, _PSN, mr.rkey, mr.addr, party.ip), _READS)
    came = 0
    while True:
        head = talk.hear(_NUMBER)
        came += _received(party, qp, mr)
        if head is None:
            break
        if b":" not in head:  # a number of the client's; it wants one back
            talk.say(head)
            continue
        said = head + talk.must_hear(PLACE_BYTES - _NUMBER)
        if qp.state == "INIT":
            _ready(party, qp, mtu, read_place(said))
        talk.say(own)
    party.ending = True
    party.linger(0.2)
    return came + _received(party, qp, mr)


def _served_qp(party: Party, test: str, mr: MR) -> Qp:
    qp = party.qp("RC", max_send_wr=1, max_recv_wr=_RECEIVES)
    if test == "send_bw":
        for n in range(_RECEIVES):
            party.receive(qp, n, mr, 0, mr.length)
    return qp


def _serve_by_cm(party: Party, test: str, port: int) -> int:
    """With ``-R`` there is no TCP: a first connection carries the same talk in SENDs, a second one the
    test.
    """
    cm = party.device.cm
    cm.listen(cm.create_id(), port)
    param = ConnParam(responder_resources=_READS, initiator_depth=_READS)
    talk = party.memory(2 * _TALK_BYTES)
    control = party.qp("RC", max_send_wr=4, max_recv_wr=4)
    for n in range(4):
        party.receive(control, _TALK + n, talk, 0, _TALK_BYTES)
    mr = party.memory(_MEMORY)
    data: Qp | None = None
    ids: list[CmId] = []
    came = 0
    while True:
        party.until(lambda: bool(party.events or party.completions), "the client's next word")
        while party.events:
            event = party.events.pop(0)
            if event.type == "CONNECT_REQUEST":
                if ids:
                    data = _served_qp(party, test, mr)
                event.id.qp = data or control
                ids.append(event.id)
                cm.accept(event.id, param, party.now)
            elif event.type == "DISCONNECTED":
                party.ending = True
                for cm_id in ids:
                    if cm_id.state in ("ESTABLISHED", "DREQ_RCVD"):
                        cm.disconnect(cm_id, party.now)
                party.linger(1.0)
                return came
        if data is not None and test == "send_bw":
            came += _received(party, data, mr)
        heard = [wc for wc in party.completions if wc.qpn == control.qpn]
        party.completions[:] = [wc for wc in party.completions if wc.qpn != control.qpn]
        for wc in heard:
            if not wc.opcode.startswith("RECV"):
                continue
            said = bytes(talk.view[: wc.byte_len])
            place = Place(data.qpn if data else 0, data.sq_psn if data else 0, mr.rkey, mr.addr, party.ip)
            answer = pack_place(place) if len(said) == _PLACE.size else said
            party.receive(control, wc.wr_id, talk, 0, _TALK_BYTES)
            talk.view[_TALK_BYTES : _TALK_BYTES + len(answer)] = answer
            sges = (Sge(talk.addr + _TALK_BYTES, len(answer), talk.lkey),)
            party.post(control, SendWR(0, "SEND", sges))


def pack_place(place: Place) -> bytes:
    """A side's place as it goes over a QP: numbers, big-endian."""
    return _PLACE.pack(0, _READS, place.qpn, place.psn, place.rkey, 0, place.address, gid(place.ip), 0, 0)


def call(
    party: Party,
    test: str,
    host: str,
    *,
    port: int = PORT,
    count: int = 100,
    size: int = 65536,
    path_mtu: int = 1024,
) -> int:
    """Be the client of a server: post ``count`` requests of ``size`` bytes, many at a time.

    Returns:
        how many succeeded.
    """
    what = TESTS[test]
    if test == "atomic_bw":
        size = 8
    mr = party.memory(max(size, 8))
    qp = party.qp("RC", max_send_wr=_TX_DEPTH, max_recv_wr=_RECEIVES)
    talk = _Talk(party, party.tcp(host, port))
    preamble = (
        VERSION.encode().ljust(16, b"\0"),
        (4096).to_bytes(4, "big"),
        (64).to_bytes(4, "big"),
        f"{PATH_MTU_CODES[path_mtu]}\0".encode(),
    )
    for data in preamble:
        talk.say(data)
        talk.must_hear(len(data))
    own = write_place(Place(qp.qpn, _PSN, mr.rkey, mr.addr, party.ip), _READS)
    peer: Place | None = None
    for _ in range(what.greetings):
        talk.say(own)
        peer = read_place(talk.must_hear(PLACE_BYTES))
        if qp.state == "INIT":
            _ready(party, qp, path_mtu, peer)
    assert peer is not None
    done = posted = 0
    while done < count:
        while posted < count and posted - done < _TX_DEPTH:
            sges = (Sge(mr.addr, size, mr.lkey),)
            party.post(
                qp,
                SendWR(posted, what.opcode, sges, remote_va=peer.address, rkey=peer.rkey, swap_add=1),
            )
            posted += 1
        before = done
        party.until(lambda: bool(party.completions), f"completion {before} of {count}")
        done += len(party.completions)
        party.completions.clear()
    talk.say(own)
    talk.must_hear(PLACE_BYTES)
    # The report: size, messages, and rates that nobody here measured.
    for n in range(what.numbers):
        talk.say((size, count, 0, 0, 0)[n].to_bytes(_NUMBER, "big"))
        talk.must_hear(_NUMBER)
    if what.numbers:
        talk.say(own)
        talk.hear(PLACE_BYTES)
    return done
