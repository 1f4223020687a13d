"""A QP and its way to a peer, as scenarios use it."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from rocekit.endpoint.errors import RefusedPost, errno_text
from rocekit.endpoint.local_device import LocalDevice
from rocekit.endpoint.options import DEFAULT_MTU, QpOptions
from rocekit.endpoint.qp_address import QpAddress
from rocekit.endpoint.receives import post_receives
from rocekit.endpoint.tcp_introduction import Introduced, TcpIntroduction
from rocekit.endpoint.waiting import Deadline
from rocekit.endpoint.work import LOCAL_WRITE, RecvWr, Region, SendWr
from rocekit.errors import VerbsError
from rocekit.machine import guard

_FLUSH_S: Final = 0.5

ANSWERED: Final = frozenset({"CONNECT_RESPONSE", "ESTABLISHED"})
"""Events by which the client learns that the server accepted."""

ARRIVED: Final = frozenset({"ESTABLISHED", "DISCONNECTED"})
"""Events by which the server learns that it is connected, or was.

If the client leaves quickly, its DREQ may come before its RTU, or the RTU be lost: then the CM reports only
the end.
"""


class Connection(ABC):
    """A QP and its way to one peer.

    A client gets one from :meth:`Endpoint.dial`, posts its first receives, and calls :meth:`connect`; a
    server gets one from :meth:`Request.connection`, posts its first receives, and calls :meth:`accept`.

    Attributes:
        qpn: this side's QP number.
        qkey: of a UD QP.
        peer_data: the private data that came with the peer's request or reply.
        peer: the peer's QP, if they were introduced over TCP.
        path_mtu: bytes of payload in a packet; 0 before it is known.
        usual_mtu, peer_mtu: what each side would take, if they were introduced over TCP.
        connected: whether both sides may send.
        introduction: the TCP connection over which they were introduced, or None.
        shown: the region whose address is sent to a peer over TCP.
    """

    def __init__(self, endpoint: LocalDevice, qpn: int, transport: str = "RC") -> None:
        self.endpoint = endpoint
        self.qpn = qpn
        self.transport = transport
        self.qkey = 0x1111_1111
        self.peer_data = b""
        self.peer: QpAddress | None = None
        self.path_mtu = 0
        self.usual_mtu = self.peer_mtu = DEFAULT_MTU
        self.connected = False
        self.disconnected = False
        self.introduction: TcpIntroduction | None = None
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
        posted = post_receives(self.endpoint, self._post_recv, wrs, qp=self.qp)
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
        """A key for a part of a region, which the peer may use and may invalidate.

        Raises:
            VerbsError: the device refused.
        """
        raise VerbsError(f"{self.endpoint.device} has no keys that a peer can invalidate")

    @abstractmethod
    def _post_send(self, wrs: Sequence[SendWr]) -> tuple[int, int]:
        """Post; (index of the WR that was refused, errno), or (0, 0)."""

    @abstractmethod
    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        """Post; (index of the WR that was refused, errno), or (0, 0)."""

    # Connecting to the peer.

    def connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        """Ask the peer, and be connected; gives the peer's private data.

        Raises:
            VerbsError: rejected, unreachable, or not in time.
        """
        if self.introduction is not None:
            own = self._introduced(private_data)
            self.peer, self.peer_data, mtu = self.introduction.request(own, deadline)
            self._check_address(self.peer, self.introduction)
            self.start(self.peer, own[0].psn, min(mtu, self.usual_mtu))
            self.introduction.ready()
            self.endpoint.watch(self)
        else:
            self.peer_data = self._connect(private_data, deadline)
        self.connected = True
        return self.peer_data

    def accept(self, private_data: bytes, deadline: Deadline) -> None:
        """Accept the peer that asked, and be connected.

        Raises:
            VerbsError: it went away, or not in time.
        """
        if self.introduction is not None:
            assert self.peer is not None
            self._check_address(self.peer, self.introduction)
            own = self._introduced(private_data)
            self.start(self.peer, own[0].psn, min(self.peer_mtu, self.usual_mtu))
            self.introduction.reply(own, deadline)
            self.endpoint.watch(self)
        else:
            self._accept(private_data, deadline)
        self.connected = True

    def _check_address(self, peer: QpAddress, introduction: TcpIntroduction) -> None:
        """Refuse an address that the peer merely names: nothing may be sent there.

        Raises:
            ScenarioError: it is not the one that its TCP connection has, and the guard does not allow it.
        """
        if self.endpoint.leaves_machine:
            guard.check([peer.ip], (introduction.peer_ip, *self.endpoint.allow_remote))

    def _introduced(self, private_data: bytes) -> Introduced:
        """What the peer is sent over TCP."""
        shown = self.shown
        rkey, address = (0, 0) if shown is None else (shown.rkey, shown.addr)
        own = QpAddress(self.qpn, self.endpoint.draw_psn(), rkey, address, self.endpoint.ip)
        return own, private_data, self.usual_mtu

    def start(self, peer: QpAddress, psn: int, path_mtu: int) -> None:
        """Get ready to exchange packets with a QP that is known without a connection manager.

        Args:
            psn: the first that this side sends.

        Raises:
            VerbsError: the device refused.
        """
        raise VerbsError(f"{self.endpoint.device} connects through a connection manager only")

    def look_for_goodbye(self) -> None:
        """Notice that a peer introduced over TCP said goodbye or hung up."""
        if self.introduction is not None and not self.disconnected:
            self.disconnected = self.introduction.peer_left()

    def say_goodbye(self) -> None:
        """Tell a peer introduced over TCP that the connection ends, and do not wait for its word."""
        if self.introduction is not None and self.connected:
            with contextlib.suppress(VerbsError):
                self.introduction.say_goodbye()

    def disconnect(self, deadline: Deadline) -> None:
        """End the connection, and flush what is still posted. Does nothing the second time."""
        if not self.connected:
            return
        self.connected = False
        if self.introduction is not None:
            with contextlib.suppress(VerbsError):
                self.introduction.say_goodbye()
                if not self.disconnected:
                    self.introduction.await_goodbye(deadline)
                    self.disconnected = True
        else:
            self._goodbye(deadline)
        self.abandon()

    def abandon(self) -> None:
        """Move the QP to the error state, and take the completions of what was posted."""
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
        """Send the peer the end of the connection, or confirm the peer's, and wait until it is over."""

    @abstractmethod
    def to_error(self) -> None:
        """Move the QP to ERR: what is posted is flushed."""


class Request(ABC):
    """A peer that asks to connect."""

    private_data: bytes

    @abstractmethod
    def connection(self, options: QpOptions) -> Connection:
        """A QP for this peer; ready for receives, connected by :meth:`Connection.accept`."""

    @abstractmethod
    def reject(self, private_data: bytes) -> None:
        """Reject the peer's request."""
