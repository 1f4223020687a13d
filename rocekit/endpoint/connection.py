"""A QP and its way to a peer, as scenarios use it; see :mod:`rocekit.endpoint`."""

from __future__ import annotations

import errno
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocekit.endpoint.tcp_words import Place
from rocekit.endpoint.waiting import Deadline, errno_text
from rocekit.endpoint.work import (
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    RecvWr,
    Region,
    SendWr,
)
from rocekit.errors import VerbsError
from rocekit.wire.cm import REJ_REASONS

if TYPE_CHECKING:
    from rocekit.endpoint import Endpoint
    from rocekit.endpoint.tcp import TcpTalk

_FLUSH_S: Final = 0.5


DEFAULT_MTU: Final = 1024
"""Bytes of payload in a packet where neither the user nor a connection manager chose."""

ANSWERED: Final = frozenset({"CONNECT_RESPONSE", "ESTABLISHED"})
"""Events that tell the side that asked that its peer accepted."""

ARRIVED: Final = frozenset({"ESTABLISHED", "DISCONNECTED"})
"""Events that tell the side that accepted that it is connected, or was.

Of a peer that is quick to leave the DREQ may be heard before the RTU, or the RTU be lost: then the CM tells
of the end alone.
"""


@dataclass(frozen=True, slots=True)
class QpOptions:
    """How a QP is made and how patient it is.

    Attributes:
        send_depth, recv_depth: WRs that its queues hold.
        sges: elements in a scatter-gather list.
        inline_size: bytes that may be sent inline.
        path_mtu: bytes; None leaves it to the connection manager.
        timeout: local ACK timeout code, 4.096 µs × 2^code.
        retry_cnt: how often a lost packet is sent again; some devices (rxe) never count 7 down.
        rnr_retry: how often a receiver that was not ready is asked again; 7 is without end.
        min_rnr_timer: code of the pause that this side asks for when it is not ready.
        reads: READs and atomics outstanding at once, each way.
        transport: RC, UC or UD.
        access: what the peer may do through the QP (``qp_access_flags``), where its memory allows it too.
        shared: the receive queue that it takes its receives from, instead of one of its own.
    """

    send_depth: int = 128
    recv_depth: int = 512
    sges: int = 1
    inline_size: int = 0
    path_mtu: int | None = None
    timeout: int = 14
    retry_cnt: int = 6
    rnr_retry: int = 7
    min_rnr_timer: int = 12
    reads: int = 16
    transport: str = "RC"
    access: tuple[str, ...] = (REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC)
    shared: SharedReceives | None = None


class Connection(ABC):
    """A QP and its way to one peer.

    A client gets one from :meth:`Endpoint.dial`, posts its first receives, and calls :meth:`connect`; a
    server gets one from :meth:`Request.connection`, posts its first receives, and calls :meth:`accept`.

    Attributes:
        qpn: this side's QP number.
        qkey: of a UD QP.
        peer_data: the private data that came with the peer's request or reply.
        peer: the peer's QP, where both told each other over TCP.
        path_mtu: bytes of payload in a packet; 0 before it is known.
        usual_mtu, peer_mtu: what each side would take, where both tell each other over TCP.
        connected: whether both sides may send.
        talk: the TCP connection over which the peers met, or None.
        shown: the region that is named to a peer met over TCP.
    """

    def __init__(self, endpoint: Endpoint, qpn: int, transport: str = "RC") -> None:
        self.endpoint = endpoint
        self.qpn = qpn
        self.transport = transport
        self.qkey = 0x1111_1111
        self.peer_data = b""
        self.peer: Place | None = None
        self.path_mtu = 0
        self.usual_mtu = self.peer_mtu = DEFAULT_MTU
        self.connected = False
        self.disconnected = False
        self.talk: TcpTalk | None = None
        self.shown: Region | None = None
        self.outstanding: set[tuple[bool, int]] = set()
        """(whether it is a receive, wr_id) of WRs whose completion is still to come."""

    @property
    def qp(self) -> tuple[str, int]:
        return (self.endpoint.device, self.qpn)

    def log_created(self, options: QpOptions) -> None:
        """Write the QP to the journal."""
        self.endpoint.log(
            "qp_created",
            self.qp,
            transport=self.transport,
            max_send_wr=options.send_depth,
            max_recv_wr=options.recv_depth,
            sq_sig_all=False,
            local_ip=self.endpoint.ip,
            srq=None if options.shared is None else options.shared.number,
        )

    # Work.

    def post_send(self, *wrs: SendWr) -> None:
        """Post one WR, or several in one list.

        Raises:
            VerbsError: the device refused one; those before it were posted.
        """
        now = self.endpoint.now()
        refused, code = self._post_send(wrs)
        for index, wr in enumerate(wrs[: refused + 1] if code else wrs):
            failed = code if code and index == refused else None
            self._journal_send(wr, now, failed)
            if failed is None and wr.signaled:
                self.outstanding.add((False, wr.wr_id))
        if code:
            raise RefusedPost(
                refused,
                f"{self.endpoint.device} refused WR {wrs[refused].wr_id} ({wrs[refused].opcode}): "
                f"{errno_text(code)}",
                code,
            )

    def post_recv(self, *wrs: RecvWr) -> None:
        """Post receives, in one list.

        Raises:
            VerbsError: the device refused one; those before it were posted.
        """
        posted = _post_receives(self.endpoint, self._post_recv, wrs, qp=self.qp)
        self.outstanding.update((True, wr.wr_id) for wr in posted)

    def _journal_send(self, wr: SendWr, now: int, failed: int | None) -> None:
        self.endpoint.log(
            "wr_posted",
            self.qp,
            time_ns=now,
            wr_id=wr.wr_id,
            opcode=wr.opcode,
            length=wr.length,
            sges=[sge.to_dict() for sge in wr.sges],
            remote_va=wr.remote_va,
            rkey=wr.rkey,
            imm=wr.imm,
            invalidate_rkey=wr.invalidate_rkey,
            compare=wr.compare,
            swap_add=wr.swap_add,
            signaled=wr.signaled,
            inline=wr.inline,
            fenced=wr.fenced,
            solicited=wr.solicited,
            dest_ip=None if wr.to is None else wr.to.ip,
            dest_qpn=None if wr.to is None else wr.to.qpn,
            qkey=None if wr.to is None else wr.to.qkey,
            errno=failed,
        )

    def grant(self, region: Region, offset: int, length: int, access: Iterable[str] = (LOCAL_WRITE,)) -> int:
        """A key of its own for a part of a region, which the peer may use and may invalidate.

        Raises:
            VerbsError: the device refused.
        """
        raise VerbsError(f"{self.endpoint.device} has no keys that a peer can invalidate")

    @abstractmethod
    def _post_send(self, wrs: Sequence[SendWr]) -> tuple[int, int]:
        """Post; (place of the WR that was refused, errno), or (0, 0)."""

    @abstractmethod
    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        """Post; (place of the WR that was refused, errno), or (0, 0)."""

    # Meeting the peer.

    def connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        """Ask the peer, and be connected; gives the peer's private data.

        Raises:
            VerbsError: refused, unreachable, or not in time.
        """
        if self.talk is not None:
            self.talk.connect(self, private_data, deadline)
        else:
            self.peer_data = self._connect(private_data, deadline)
        self.connected = True
        return self.peer_data

    def accept(self, private_data: bytes, deadline: Deadline) -> None:
        """Accept the peer that asked, and be connected.

        Raises:
            VerbsError: it went away, or not in time.
        """
        if self.talk is not None:
            self.talk.accept(self, private_data, deadline)
        else:
            self._accept(private_data, deadline)
        self.connected = True

    def start(self, peer: Place, psn: int, path_mtu: int) -> None:
        """Get ready to talk to a QP that is known without a connection manager.

        Args:
            psn: the first that this side sends.

        Raises:
            VerbsError: the device refused.
        """
        raise VerbsError(f"{self.endpoint.device} connects through a connection manager only")

    def disconnect(self, deadline: Deadline) -> None:
        """End the connection, and flush what is still posted. Does nothing the second time."""
        if not self.connected:
            return
        self.connected = False
        if self.talk is not None:
            self.talk.goodbye(self, deadline)
        else:
            self._goodbye(deadline)
        self.to_error()
        flush = Deadline(_FLUSH_S)
        while self.outstanding and not flush.passed():
            if not self.endpoint.poll():
                time.sleep(0.001)

    @abstractmethod
    def _connect(self, private_data: bytes, deadline: Deadline) -> bytes: ...

    @abstractmethod
    def _accept(self, private_data: bytes, deadline: Deadline) -> None: ...

    @abstractmethod
    def _goodbye(self, deadline: Deadline) -> None:
        """Tell the peer that it is over, or answer it, and wait until it is."""

    @abstractmethod
    def to_error(self) -> None:
        """Move the QP to ERR: what is posted is flushed."""


class RefusedPost(VerbsError):
    """A work request that the device did not take.

    Attributes:
        place: which of the list; those before it were posted, those behind it were not.
    """

    def __init__(self, place: int, message: str, code: int) -> None:
        super().__init__(message, errno=code)
        self.place = place


class SharedReceives(ABC):
    """A shared receive queue: several QPs take their receives from it.

    Attributes:
        number: what the journal calls it.
    """

    def __init__(self, endpoint: Endpoint, number: int) -> None:
        self.endpoint = endpoint
        self.number = number

    def post(self, *wrs: RecvWr) -> None:
        """Post receives, in one list.

        Raises:
            VerbsError: the device refused one; those before it were posted.
        """
        _post_receives(self.endpoint, self._post, wrs, device=self.endpoint.device, srq=self.number)

    @abstractmethod
    def _post(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        """Post; (place of the WR that was refused, errno), or (0, 0)."""


def _post_receives(
    endpoint: Endpoint,
    post: Callable[[Sequence[RecvWr]], tuple[int, int]],
    wrs: Sequence[RecvWr],
    *,
    qp: tuple[str, int] | None = None,
    device: str | None = None,
    srq: int | None = None,
) -> Sequence[RecvWr]:
    """Post and write to the journal; gives those that were posted."""
    now = endpoint.now()
    refused, code = post(wrs)
    for index, wr in enumerate(wrs[: refused + 1] if code else wrs):
        endpoint.log(
            "recv_posted",
            qp,
            time_ns=now,
            device=device,
            srq=srq,
            wr_id=wr.wr_id,
            sges=[sge.to_dict() for sge in wr.sges],
            length=wr.length,
            errno=code if code and index == refused else None,
        )
    if code:
        raise RefusedPost(
            refused, f"{endpoint.device} refused receive {wrs[refused].wr_id}: {errno_text(code)}", code
        )
    return wrs


class Request(ABC):
    """A peer that asks to connect."""

    private_data: bytes

    @abstractmethod
    def connection(self, options: QpOptions) -> Connection:
        """A QP for this peer; ready for receives, connected by :meth:`Connection.accept`."""

    @abstractmethod
    def reject(self, private_data: bytes) -> None:
        """Turn it away."""


def cm_error(kind: str, status: int, private_data: bytes, there: str) -> VerbsError:
    """What a connection event that ends a handshake means.

    Args:
        kind: a name of ``wire.CM_EVENTS``.
        status: 0, a negative errno, or of a REJECTED the reason that the peer's CM gave.
        there: whom it was about, in words.
    """
    if kind == "REJECTED":
        said = private_data.rstrip(b"\0").decode("utf-8", "replace")
        if said and said.isprintable():
            return VerbsError(f"{there} rejected the connection: {said}", errno=errno.ECONNREFUSED)
        reason = REJ_REASONS.get(status, f"reason {status}")
        hint = "; is its server running?" if status == 8 else ""
        return VerbsError(f"{there} rejected the connection: {reason}{hint}", errno=errno.ECONNREFUSED)
    code = -status if status < 0 else None
    why = "" if code is None else f": {errno_text(code)}"
    return VerbsError(f"{kind} on the way to {there}{why}", errno=code)
