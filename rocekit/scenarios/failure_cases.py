"""The cases with which ``failures`` provokes completion statuses: one mistake each, on its own connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rocekit.endpoint import (
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Completion,
    Connection,
    Deadline,
    Endpoint,
    QpOptions,
    RecvWr,
    Region,
    SendWr,
    Sge,
    Target,
)
from rocekit.endpoint.qp_address import QpAddress
from rocekit.errors import VerbsError
from rocekit.scenarios.plan import Remote

BYTES: Final = 4096
SHORT: Final = 8
LONG: Final = 64
_ALL: Final = (LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ)


class Forged(Region):
    """A region with a key that is not its own."""

    def __init__(self, region: Region) -> None:
        self.addr, self.length = region.addr, region.length
        self.lkey = self.rkey = region.lkey ^ 0x5A5A_5A00

    def read(self, offset: int, length: int) -> bytes:
        raise NotImplementedError("a forged region is not read")

    def write(self, offset: int, data: bytes) -> None:
        raise NotImplementedError("a forged region is not written")


@dataclass(slots=True)
class Side:
    """One side of a case: its QP, both sides' memory, and its completions."""

    endpoint: Endpoint
    connection: Connection
    region: Region
    peer: Remote = field(default_factory=lambda: Remote(0, 0, 0))
    completions: list[Completion] = field(default_factory=list)

    def receive(self, wr_id: int, length: int, region: Region | None = None) -> None:
        self.connection.post_recv(RecvWr(wr_id, (Sge(region or self.region, 0, length),)))

    def send(self, wr_id: int, opcode: str = "SEND", length: int = LONG, **more: Any) -> None:
        sges = (Sge(more.pop("region", self.region), 0, length),)
        self.connection.post_send(SendWr(wr_id, opcode, sges, **more))

    def await_completions(self, count: int, seconds: float) -> None:
        """Poll until so many WRs have completed, with any status, or the time is over."""
        limit = Deadline(seconds)
        while len(self.completions) < count and not limit.passed():
            found = self.endpoint.poll()
            self.completions += found
            if not found:
                self.endpoint.hear()
                self.endpoint.pause(min(0.01, limit.left()))


def _nothing(side: Side) -> None:
    """This side does nothing."""


def _same(options: QpOptions) -> QpOptions:
    return options


@dataclass(frozen=True, slots=True)
class Case:
    """How a status is caused.

    Attributes:
        status: that of the client's completion.
        how: the mistake, in words.
        client: posts the WR that fails; ``expect`` completions are waited for.
        prepare: the server's part before the connection is made.
        server: its part afterwards.
        client_options, server_options: how the QPs differ from usual ones.
        access: what the server's memory is registered for.
        windows: whether the device must have memory windows.
    """

    status: str
    how: str
    client: Callable[[Side], None]
    expect: int = 1
    prepare: Callable[[Side], None] = _nothing
    prepare_client: Callable[[Side], None] = _nothing
    server: Callable[[Side], None] = _nothing
    client_options: Callable[[QpOptions], QpOptions] = _same
    server_options: Callable[[QpOptions], QpOptions] = _same
    access: tuple[str, ...] = _ALL
    windows: bool = False


def _write(**wrong: int) -> Callable[[Side], None]:
    def post(side: Side) -> None:
        target = {"remote_va": side.peer.addr + wrong.get("beyond", 0), "rkey": side.peer.rkey}
        target["rkey"] ^= wrong.get("rkey", 0)
        side.send(1, "RDMA_WRITE", **target)

    return post


def _flushed(side: Side) -> None:
    _write(rkey=0x5A00)(side)
    try:
        side.send(2)
    except VerbsError:
        pass  # the device may have failed the QP already, and refuse any WR


def _forged_send(side: Side) -> None:
    side.send(1, region=Forged(side.region))


def _to_the_wrong_family(side: Side) -> None:
    """A datagram to an address that this device cannot reach, on a QP of its own."""
    endpoint = side.endpoint
    datagrams = endpoint.queue_pair(QpOptions(send_depth=1, recv_depth=1, transport="UD"))
    datagrams.start(QpAddress(1, 0, 0, 0, endpoint.ip), 0, BYTES)
    other = "fd00::1" if ":" not in endpoint.ip else "192.0.2.1"
    datagrams.post_send(SendWr(1, "SEND", (Sge(side.region, 0, SHORT),), to=Target(other, 2, datagrams.qkey)))


def _bind_without_right(side: Side) -> None:
    plain = side.endpoint.register(BYTES)
    side.connection.grant(plain, 0, BYTES, (LOCAL_WRITE, REMOTE_WRITE))
    side.send(1)


def _send_later(side: Side) -> None:
    """Post when the peer has had the time to do its part."""
    side.await_completions(1, 0.3)
    side.send(1)


def _impatient(options: QpOptions) -> QpOptions:
    return replace(options, timeout=12, retry_cnt=2)


def _for_writes_only(options: QpOptions) -> QpOptions:
    return replace(options, access=(REMOTE_WRITE,))


def _small_packets(options: QpOptions) -> QpOptions:
    return replace(options, path_mtu=256)


CASES: Final = (
    Case(
        "SUCCESS",
        "a SEND into a receive that is long enough",
        lambda side: side.send(1),
        prepare=lambda side: side.receive(1, LONG),
    ),
    Case(
        "LOC_LEN_ERR",
        f"the peer SENDs {LONG} bytes into a receive of {SHORT}",
        _nothing,
        prepare_client=lambda side: side.receive(1, SHORT),
        server=lambda side: side.send(1),
    ),
    Case(
        "REM_INV_REQ_ERR",
        f"a SEND of {LONG} bytes into a receive of {SHORT}",
        lambda side: side.send(1),
        prepare=lambda side: side.receive(1, SHORT),
    ),
    Case(
        "REM_INV_REQ_ERR",
        "a FETCH_ADD at an address that is no multiple of 8",
        lambda side: side.send(
            1,
            "ATOMIC_FETCH_AND_ADD",
            SHORT,
            remote_va=side.peer.addr + 1,
            rkey=side.peer.rkey,
            swap_add=1,
        ),
        access=(LOCAL_WRITE, REMOTE_ATOMIC),
    ),
    Case(
        "REM_INV_REQ_ERR",
        "a READ on a QP that was made ready without REMOTE_READ (qp_access_flags)",
        lambda side: side.send(1, "RDMA_READ", remote_va=side.peer.addr, rkey=side.peer.rkey),
        server_options=_for_writes_only,
    ),
    Case("REM_ACCESS_ERR", "a WRITE with a wrong rkey", _write(rkey=0x5A00)),
    Case("REM_ACCESS_ERR", "a WRITE past the end of the peer's memory", _write(beyond=BYTES - SHORT)),
    Case(
        "REM_ACCESS_ERR",
        "a WRITE into memory without REMOTE_WRITE",
        _write(),
        access=(LOCAL_WRITE, REMOTE_READ),
    ),
    Case("LOC_PROT_ERR", "a SEND from memory under a wrong lkey", _forged_send),
    Case("WR_FLUSH_ERR", "a SEND after a WRITE that failed", _flushed, expect=2),
    Case(
        "RNR_RETRY_EXC_ERR",
        "a SEND, no receive posted, sent again once (rnr_retry 1)",
        lambda side: side.send(1),
        client_options=lambda options: replace(options, rnr_retry=1),
        server_options=lambda options: replace(options, min_rnr_timer=1),
    ),
    Case(
        "RETRY_EXC_ERR",
        "a SEND to a QP that is in ERR and silent, sent again twice (retry_cnt 2)",
        _send_later,
        server=lambda side: side.connection.to_error(),
        client_options=_impatient,
    ),
    Case(
        "REM_OP_ERR",
        "a SEND into a receive whose lkey is wrong",
        lambda side: side.send(1),
        prepare=lambda side: side.receive(1, LONG, Forged(side.region)),
    ),
    Case(
        "BAD_RESP_ERR",
        "a READ of 1,024 bytes, with responses of another path MTU",
        lambda side: side.send(1, "RDMA_READ", 1024, remote_va=side.peer.addr, rkey=side.peer.rkey),
        server_options=_small_packets,
        client_options=_impatient,
    ),
    Case("LOC_QP_OP_ERR", "a datagram to an address of the other IP version", _to_the_wrong_family),
    Case(
        "MW_BIND_ERR",
        "a memory window on memory that was registered without MW_BIND",
        _bind_without_right,
        expect=2,
        windows=True,
    ),
)
