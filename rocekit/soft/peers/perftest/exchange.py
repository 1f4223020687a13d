"""What perftest's client and server exchange before and after a test, over TCP or over a QP.

They send messages of fixed lengths in turns: version, page size, cache line, path MTU, then several times
the address of the QP and its memory; after the test the address, numbers, and the address again. By default
they use TCP, and addresses are text. With ``-R`` they use an RC QP of their own, and addresses are numbers.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Final, Protocol

from rocekit.endpoint import Deadline
from rocekit.endpoint.qp_address import ADDRESS_BYTES, QpAddress, read_address, write_address
from rocekit.errors import ScenarioError
from rocekit.soft.engine.memory import Sge
from rocekit.soft.engine.work import SendWR
from rocekit.soft.peers.party import Party
from rocekit.wire import PATH_MTU_CODES
from rocekit.wire.build import gid

VERSION: Final = "6.06"
PREAMBLE: Final = (16, 4, 4, 2)
READS: Final = 16
NUMBER_BYTES: Final = 8
#: LID, outstanding READs, QPN, PSN, rkey, padding, address, GID, SRQ number, GID index.
NUMBERS: Final = struct.Struct(">IIIIIIQ16sII")
_LONGEST: Final = 256
_RECEIVES: Final = 4
_FIRST_ID: Final = 1 << 20


def pack_address(own: QpAddress, reads: int = READS) -> bytes:
    """An address as it is sent over a QP: numbers, big-endian."""
    return NUMBERS.pack(0, reads, own.qpn, own.psn, own.rkey, 0, own.address, gid(own.ip), 0, 0)


def unpack_address(said: bytes) -> QpAddress:
    """The address that the peer sent over a QP."""
    _lid, _reads, qpn, psn, rkey, _padding, address, raw, _srq, _index = NUMBERS.unpack(said)
    return QpAddress(qpn, psn, rkey, address, _ip(raw))


def _ip(raw: bytes) -> str:
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def preamble(path_mtu: int) -> tuple[bytes, ...]:
    """What a client sends first: version, page size, cache line and path MTU."""
    return (
        VERSION.encode().ljust(16, b"\0"),
        (4096).to_bytes(4, "big"),
        (64).to_bytes(4, "big"),
        f"{PATH_MTU_CODES[path_mtu]}\0".encode(),
    )


class PerftestExchange(Protocol):
    """A way to exchange whole messages; the device works while nothing comes."""

    def send(self, data: bytes) -> None: ...
    def receive(self, length: int) -> bytes | None: ...
    def send_address(self, own: QpAddress) -> None: ...
    def receive_address(self) -> QpAddress: ...


def receive_all(exchange: PerftestExchange, length: int) -> bytes:
    """Receive ``length`` bytes.

    Raises:
        ScenarioError: the peer closed the connection, or sends nothing.
    """
    said = exchange.receive(length)
    if said is None:
        raise ScenarioError("perftest closed the connection")
    return said


class TcpExchange:
    """The exchange over TCP."""

    def __init__(self, party: Party, connection: socket.socket) -> None:
        self._party = party
        self._socket = connection
        self._received = b""
        connection.setblocking(False)

    def send(self, data: bytes) -> None:
        try:
            self._socket.setblocking(True)
            self._socket.sendall(data)
            self._socket.setblocking(False)
        except OSError:
            raise ScenarioError("perftest closed the connection") from None

    def receive(self, length: int) -> bytes | None:
        """Receive ``length`` bytes; None when the peer closed the connection."""
        deadline = Deadline(self._party.timeout_s)
        while len(self._received) < length:
            try:
                more = self._socket.recv(65536)
            except BlockingIOError:
                self._party.turn()
                if deadline.passed():
                    raise ScenarioError(f"perftest sends nothing for {deadline.seconds:g} s") from None
                continue
            except OSError:
                more = b""
            if not more:
                return None
            deadline = Deadline(self._party.timeout_s)
            self._received += more
        said, self._received = self._received[:length], self._received[length:]
        return said

    def send_address(self, own: QpAddress) -> None:
        self.send(write_address(own, READS))

    def receive_address(self) -> QpAddress:
        return read_address(receive_all(self, ADDRESS_BYTES))


class QpExchange:
    """The exchange over an RC QP of its own; each message is a SEND."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._memory = party.memory((_RECEIVES + 1) * _LONGEST)
        self.qp = party.qp("RC", max_send_wr=_RECEIVES, max_recv_wr=_RECEIVES)
        for n in range(_RECEIVES):
            party.receive(self.qp, _FIRST_ID + n, self._memory, n * _LONGEST, _LONGEST)

    def messages(self) -> list[bytes]:
        """The messages that have come."""
        completions = [wc for wc in self._party.completions if wc.qpn == self.qp.qpn]
        self._party.completions[:] = [wc for wc in self._party.completions if wc.qpn != self.qp.qpn]
        messages = []
        for wc in completions:
            if wc.opcode.startswith("RECV"):
                at = (wc.wr_id - _FIRST_ID) * _LONGEST
                messages.append(bytes(self._memory.view[at : at + wc.byte_len]))
                self._party.receive(self.qp, wc.wr_id, self._memory, at, _LONGEST)
        return messages

    def send(self, data: bytes) -> None:
        at = _RECEIVES * _LONGEST
        self._memory.view[at : at + len(data)] = data
        sges = (Sge(self._memory.addr + at, len(data), self._memory.lkey),)
        self._party.post(self.qp, SendWR(0, "SEND", sges))

    def receive(self, length: int) -> bytes:
        """Receive a message.

        Raises:
            ScenarioError: it has another length, or none came.
        """
        messages: list[bytes] = []

        def came() -> bool:
            messages.extend(self.messages())
            return bool(messages)

        self._party.until(came, "no answer of perftest")
        if [len(message) for message in messages] != [length]:
            raise ScenarioError(f"perftest sent {messages!r}, not {length} bytes")
        return messages[0]

    def send_address(self, own: QpAddress) -> None:
        self.send(pack_address(own))

    def receive_address(self) -> QpAddress:
        return unpack_address(self.receive(NUMBERS.size))
