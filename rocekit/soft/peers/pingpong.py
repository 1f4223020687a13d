"""The libibverbs ping-pongs' two sides: ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong (examples of
rdma-core).

They tell each other QPN, PSN and GID as text over TCP, and then send a buffer back and forth.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from rocekit.errors import ScenarioError
from rocekit.soft.engine.packet import GRH_AREA_BYTES
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.work import SendWR, Sge
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
#: What the client's buffer is full of, and the server's.
_BYTES: Final = frozenset({0x7B, 0x7C})


def _greet(qp: Qp, ip: str) -> bytes:
    return f"0000:{qp.qpn:06x}:{_PSN:06x}:{gid(ip).hex()}".encode() + b"\0"


def _understand(said: bytes) -> tuple[int, int, str]:
    """(QPN, PSN, IP) of a greeting."""
    try:
        _, qpn, psn, raw = said.rstrip(b"\0").decode().split(":")
        address = ipaddress.IPv6Address(bytes.fromhex(raw))
        return int(qpn, 16), int(psn, 16), str(address.ipv4_mapped or address)
    except ValueError:
        raise ScenarioError(f"the other side is no ping-pong of libibverbs: it said {said[:24]!r}") from None


def _say(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError:
        raise ScenarioError("the other ping-pong hung up") from None


def _hear(connection: socket.socket, length: int) -> bytes:
    heard = b""
    while len(heard) < length:
        try:
            more = connection.recv(length - len(heard))
        except TimeoutError:
            raise ScenarioError(
                f"the other ping-pong says nothing for {connection.gettimeout():g} s"
            ) from None
        except OSError:
            more = b""
        if not more:
            raise ScenarioError("the other ping-pong hung up")
        heard += more
    return heard


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
    """Be one side; ``host`` None is the server's.

    Returns:
        how many messages came.

    Raises:
        ScenarioError: what came has another length, or the other side's bytes are wrong.
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
        _say(connection, _greet(qp, party.ip))
        peer = _understand(_hear(connection, _GREETING))
        _ready(party, qp, transport, peer, path_mtu)
        _say(connection, _DONE)
    else:
        peer = _understand(_hear(connection, _GREETING))
        _ready(party, qp, transport, peer, path_mtu)
        _say(connection, _greet(qp, party.ip))
        _hear(connection, len(_DONE))

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


def _ready(party: Party, qp: Qp, transport: str, peer: tuple[int, int, str], path_mtu: int) -> None:
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
