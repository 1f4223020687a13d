"""What perftest's two sides tell each other before and after a test, and the two ways in which it goes.

Always in turns, always the same lengths: version, page size, cache line, path MTU, then several times where
the QP and its memory are; after the test that again, numbers, and that again. By default it goes over TCP
and places are text; with ``-R`` it goes over an RC QP of its own, and places are numbers.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Final, Protocol

from rocekit.endpoint import Deadline
from rocekit.endpoint.qp_address import ADDRESS_BYTES, QpAddress, read_address, write_address
from rocekit.errors import ScenarioError
from rocekit.soft.engine.work import SendWR, Sge
from rocekit.soft.peers.party import Party
from rocekit.wire import PATH_MTU_CODES
from rocekit.wire.build import gid

VERSION: Final = "6.06"
PREAMBLE: Final = (16, 4, 4, 2)
READS: Final = 16
NUMBER_BYTES: Final = 8
#: LID, outstanding READs, QPN, PSN, rkey, a gap, address, GID, SRQ number, GID index.
NUMBERS: Final = struct.Struct(">IIIIIIQ16sII")
_LONGEST: Final = 256
_RECEIVES: Final = 4
_FIRST_ID: Final = 1 << 20


def pack_place(place: QpAddress, reads: int = READS) -> bytes:
    """A side's place as it goes over a QP: numbers, big-endian."""
    return NUMBERS.pack(0, reads, place.qpn, place.psn, place.rkey, 0, place.address, gid(place.ip), 0, 0)


def unpack_place(said: bytes) -> QpAddress:
    """The place that the other side told over a QP."""
    _lid, _reads, qpn, psn, rkey, _gap, address, raw, _srq, _index = NUMBERS.unpack(said)
    return QpAddress(qpn, psn, rkey, address, _ip(raw))


def _ip(raw: bytes) -> str:
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def preamble(path_mtu: int) -> tuple[bytes, ...]:
    """What a client says first: version, page size, cache line and path MTU."""
    return (
        VERSION.encode().ljust(16, b"\0"),
        (4096).to_bytes(4, "big"),
        (64).to_bytes(4, "big"),
        f"{PATH_MTU_CODES[path_mtu]}\0".encode(),
    )


class Talk(Protocol):
    """A way to talk; whole messages, the device working while nothing comes."""

    def say(self, data: bytes) -> None: ...
    def hear(self, length: int) -> bytes | None: ...
    def say_place(self, place: QpAddress) -> None: ...
    def hear_place(self) -> QpAddress: ...


def must_hear(talk: Talk, length: int) -> bytes:
    """That many bytes.

    Raises:
        ScenarioError: the other side hung up, or says nothing.
    """
    said = talk.hear(length)
    if said is None:
        raise ScenarioError("perftest hung up")
    return said


class TcpTalk:
    """Over TCP."""

    def __init__(self, party: Party, connection: socket.socket) -> None:
        self._party = party
        self._socket = connection
        self._heard = b""
        connection.setblocking(False)

    def say(self, data: bytes) -> None:
        try:
            self._socket.setblocking(True)
            self._socket.sendall(data)
            self._socket.setblocking(False)
        except OSError:
            raise ScenarioError("perftest hung up") from None

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

    def say_place(self, place: QpAddress) -> None:
        self.say(write_address(place, READS))

    def hear_place(self) -> QpAddress:
        return read_address(must_hear(self, ADDRESS_BYTES))


class QpTalk:
    """Over an RC QP of its own, a message a SEND."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._memory = party.memory((_RECEIVES + 1) * _LONGEST)
        self.qp = party.qp("RC", max_send_wr=_RECEIVES, max_recv_wr=_RECEIVES)
        for n in range(_RECEIVES):
            party.receive(self.qp, _FIRST_ID + n, self._memory, n * _LONGEST, _LONGEST)

    def said(self) -> list[bytes]:
        """The messages that have come."""
        mine = [wc for wc in self._party.completions if wc.qpn == self.qp.qpn]
        self._party.completions[:] = [wc for wc in self._party.completions if wc.qpn != self.qp.qpn]
        heard = []
        for wc in mine:
            if wc.opcode.startswith("RECV"):
                at = (wc.wr_id - _FIRST_ID) * _LONGEST
                heard.append(bytes(self._memory.view[at : at + wc.byte_len]))
                self._party.receive(self.qp, wc.wr_id, self._memory, at, _LONGEST)
        return heard

    def say(self, data: bytes) -> None:
        at = _RECEIVES * _LONGEST
        self._memory.view[at : at + len(data)] = data
        sges = (Sge(self._memory.addr + at, len(data), self._memory.lkey),)
        self._party.post(self.qp, SendWR(0, "SEND", sges))

    def hear(self, length: int) -> bytes:
        """A message.

        Raises:
            ScenarioError: one of another length came, or none.
        """
        heard: list[bytes] = []

        def came() -> bool:
            heard.extend(self.said())
            return bool(heard)

        self._party.until(came, "no answer of perftest")
        if [len(said) for said in heard] != [length]:
            raise ScenarioError(f"perftest said {heard!r}, not {length} bytes")
        return heard[0]

    def say_place(self, place: QpAddress) -> None:
        self.say(pack_place(place))

    def hear_place(self) -> QpAddress:
        return unpack_place(self.hear(NUMBERS.size))
