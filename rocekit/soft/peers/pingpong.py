"""Both sides of the libibverbs ping-pongs: ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong (rdma-core).

They exchange QPN, PSN and GID as text over TCP, and then send a buffer back and forth.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from rocekit.errors import ScenarioError
from rocekit.soft.engine.memory import Sge
from rocekit.soft.engine.packet import GRH_AREA_BYTES
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.work import SendWR
from rocekit.soft.peers.party import Party
from rocekit.wire.build import gid

PORT: Final = 18515
QKEY: Final = 0x1111_1111
_RECEIVES: Final = 100
#: "LID:QPN:PSN:GID" in hexadecimal, and a NUL.
_GREETING: Final = len("0000:000000:000000:00000000000000000000000000000000") + 1
_DONE: Final = b"done\0"
_PSN: Final = 0x123456
_SEND: Final = 1 << 20
#: The bytes that the buffers of client and server contain.
_BYTES: Final = frozenset({0x7B, 0x7C})


def _greeting(qp: Qp, ip: str) -> bytes:
    return f"0000:{qp.qpn:06x}:{_PSN:06x}:{gid(ip).hex()}".encode() + b"\0"


def _parse(said: bytes) -> tuple[int, int, str]:
    """(QPN, PSN, IP) of a greeting."""
    try:
        _, qpn, psn, raw = said.rstrip(b"\0").decode().split(":")
        address = ipaddress.IPv6Address(bytes.fromhex(raw))
        return int(qpn, 16), int(psn, 16), str(address.ipv4_mapped or address)
    except ValueError:
        raise ScenarioError(f"the peer is not a ping-pong of libibverbs: it sent {said[:24]!r}") from None


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError:
        raise ScenarioError("the other ping-pong closed the connection") from None


def _receive(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        try:
            more = connection.recv(length - len(received))
        except TimeoutError:
            raise ScenarioError(
                f"the other ping-pong sends nothing for {connection.gettimeout():g} s"
            ) from None
        except OSError:
            more = b""
        if not more:
            raise ScenarioError("the other ping-pong closed the connection")
        received += more
    return received


def run(
    party: Party,
    transport: str,
    host: str | None,
    *,
    port: int = PORT,
    count: int = 1000,
    size: int = 4096,
    path_mtu: int = 1024,
) -> int:
    """Run one side; ``host`` None: the server.

    Returns:
        how many messages came.

    Raises:
        ScenarioError: a message has another length or wrong bytes.
    """
    if transport == "UD":
        party.check_datagram(size)
    area = GRH_AREA_BYTES if transport == "UD" else 0
    qp = party.qp(transport, max_send_wr=4, max_recv_wr=_RECEIVES)
    out, into = party.memory(size), party.memory(size + area)
    out.view[:] = bytes([min(_BYTES) if host else max(_BYTES)]) * size
    for n in range(_RECEIVES):
        party.receive(qp, n, into, 0, size + area)
    connection = party.tcp(host, port)
    if host is not None:
        _send(connection, _greeting(qp, party.ip))
        peer = _parse(_receive(connection, _GREETING))
        party.check_address(peer[2])
        _move_to_rts(party, qp, transport, peer, path_mtu)
        _send(connection, _DONE)
    else:
        peer = _parse(_receive(connection, _GREETING))
        party.check_address(peer[2])
        _move_to_rts(party, qp, transport, peer, path_mtu)
        _send(connection, _greeting(qp, party.ip))
        _receive(connection, len(_DONE))

    def send(n: int) -> None:
        wr = SendWR(
            _SEND + n,
            "SEND",
            (Sge(out.addr, size, out.lkey),),
            dest_ip=peer[2] if transport == "UD" else None,
            dest_qpn=peer[0],
            qkey=QKEY,
        )
        party.post(qp, wr)

    if host is not None:
        send(0)
    came = 0
    while came < count:
        wc = party.done(came % _RECEIVES)
        if wc.byte_len != size + area:
            raise ScenarioError(f"message {came} has {wc.byte_len} bytes, not {size + area}")
        content = set(bytes(into.view[area:]))
        if not (len(content) == 1 and content <= _BYTES):
            raise ScenarioError(f"message {came} is not what a ping-pong sends: {sorted(content)[:8]}")
        came += 1
        party.receive(qp, wc.wr_id, into, 0, size + area)
        last = came == count
        if host is None or not last:
            party.done(_SEND + came - 1) if host is not None else None
            send(came)
    if host is None:
        party.done(_SEND + count)
    party.linger(0.3)
    return came


def _move_to_rts(party: Party, qp: Qp, transport: str, peer: tuple[int, int, str], path_mtu: int) -> None:
    qpn, psn, ip = peer
    device = party.device
    if transport == "UD":
        device.modify_qp(qp, party.now, state="RTR")
        device.modify_qp(qp, party.now, state="RTS", sq_psn=_PSN)
        return
    ready = {"dest_ip": ip, "dest_qpn": qpn, "path_mtu": path_mtu, "rq_psn": psn}
    sending = {"sq_psn": _PSN}
    if transport == "RC":
        ready |= {"max_dest_rd_atomic": 1, "min_rnr_timer": 12}
        sending |= {"timeout": 18, "retry_cnt": 7, "rnr_retry": 7, "max_rd_atomic": 1}
    device.modify_qp(qp, party.now, state="RTR", **ready)
    device.modify_qp(qp, party.now, state="RTS", **sending)
