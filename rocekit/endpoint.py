"""What a scenario needs of an RDMA stack: the interface that every backend implements.

A :class:`Endpoint` is one side's device: it registers memory, meets peers and polls completions. A
:class:`Connection` is a QP and its way to the peer. Whatever a scenario does through them is written to the
journal here, once for all backends: a backend implements the methods that start with an underscore.

Nothing waits without a limit, and everything an endpoint made is taken down in reverse order when it is
closed.
"""

from __future__ import annotations

import contextlib
import errno
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NoReturn

from rocekit.errors import VerbsError
from rocekit.journal import JournalWriter

LOCAL_WRITE = "LOCAL_WRITE"
REMOTE_WRITE = "REMOTE_WRITE"
REMOTE_READ = "REMOTE_READ"
REMOTE_ATOMIC = "REMOTE_ATOMIC"

ATOMICS = frozenset({"ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP"})


class Region(ABC):
    """Registered memory.

    Attributes:
        addr, length: where it is, in bytes.
        lkey, rkey: the keys of local and of remote use.
    """

    addr: int
    length: int
    lkey: int
    rkey: int

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``."""

    @abstractmethod
    def write(self, offset: int, data: bytes) -> None:
        """Put ``data`` at ``offset``."""


@dataclass(frozen=True, slots=True)
class Sge:
    """A piece of a region, as an element of a scatter-gather list."""

    region: Region
    offset: int
    length: int

    @property
    def addr(self) -> int:
        return self.region.addr + self.offset

    def to_dict(self) -> dict[str, int]:
        return {"addr": self.addr, "length": self.length, "lkey": self.region.lkey}


@dataclass(frozen=True, slots=True)
class SendWr:
    """A work request for the send queue; names and meanings are those of ``ibv_send_wr``.

    ``compare`` and ``swap_add`` stand for themselves, whatever field of ``ibv_send_wr`` holds them: a
    FETCH_ADD adds ``swap_add``, a CMP_SWAP puts ``swap_add`` where it found ``compare``.
    """

    wr_id: int
    opcode: str
    sges: tuple[Sge, ...] = ()
    signaled: bool = True
    inline: bool = False
    fenced: bool = False
    solicited: bool = False
    remote_va: int | None = None
    rkey: int | None = None
    imm: int | None = None
    invalidate_rkey: int | None = None
    compare: int | None = None
    swap_add: int | None = None

    @property
    def length(self) -> int:
        """The bytes it moves."""
        return sum(sge.length for sge in self.sges)


@dataclass(frozen=True, slots=True)
class RecvWr:
    """A work request for the receive queue."""

    wr_id: int
    sges: tuple[Sge, ...] = ()

    @property
    def length(self) -> int:
        return sum(sge.length for sge in self.sges)


@dataclass(frozen=True, slots=True)
class Completion:
    """A work completion. ``opcode`` and ``byte_len`` mean nothing unless the status is SUCCESS."""

    qpn: int
    wr_id: int
    status: str
    opcode: str | None = None
    byte_len: int | None = None
    vendor_err: int | None = None
    imm: int | None = None
    src_qpn: int | None = None


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


class Deadline:
    """A point in time up to which something may take, or no such point.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.seconds = seconds

    def left(self) -> float:
        """Seconds left, never under 0."""
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self._end


class Disconnected(VerbsError):
    """The peer ended the connection while something was still wanted of it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, errno=errno.ECONNRESET)


class Connection(ABC):
    """A QP and its way to one peer.

    A client gets one from :meth:`Endpoint.dial`, posts its first receives, and calls :meth:`connect`; a
    server gets one from :meth:`Request.connection`, posts its first receives, and calls :meth:`accept`.

    Attributes:
        qpn: this side's QP number.
        peer_data: the private data that came with the peer's request or reply.
        path_mtu: bytes of payload in a packet; 0 before it is known.
        connected: whether both sides may send.
    """

    def __init__(self, endpoint: Endpoint, qpn: int) -> None:
        self.endpoint = endpoint
        self.qpn = qpn
        self.peer_data = b""
        self.path_mtu = 0
        self.connected = False
        self.disconnected = False
        self.outstanding: set[tuple[bool, int]] = set()
        """(whether it is a receive, wr_id) of WRs whose completion is still to come."""

    @property
    def qp(self) -> tuple[str, int]:
        return (self.endpoint.device, self.qpn)

    def post_send(self, *wrs: SendWr) -> None:
        """Post one WR, or several in one list.

        Raises:
            VerbsError: the device refused one; those before it were posted.
        """
        now = time.time_ns()
        refused, code = self._post_send(wrs)
        for index, wr in enumerate(wrs[: refused + 1] if code else wrs):
            failed = code if code and index == refused else None
            self._journal_send(wr, now, failed)
            if failed is None and wr.signaled:
                self.outstanding.add((False, wr.wr_id))
        if code:
            raise VerbsError(
                f"{self.endpoint.device} refused WR {wrs[refused].wr_id} ({wrs[refused].opcode}): "
                f"{errno_text(code)}",
                errno=code,
            )

    def post_recv(self, *wrs: RecvWr) -> None:
        """Post receives, in one list.

        Raises:
            VerbsError: the device refused one; those before it were posted.
        """
        now = time.time_ns()
        refused, code = self._post_recv(wrs)
        journal = self.endpoint.journal
        for index, wr in enumerate(wrs[: refused + 1] if code else wrs):
            failed = code if code and index == refused else None
            if journal is not None:
                sges = [sge.to_dict() for sge in wr.sges]
                journal.write(
                    "recv_posted",
                    time_ns=now,
                    qp=self.qp,
                    wr_id=wr.wr_id,
                    sges=sges,
                    length=wr.length,
                    errno=failed,
                )
            if failed is None:
                self.outstanding.add((True, wr.wr_id))
        if code:
            raise VerbsError(
                f"{self.endpoint.device} refused receive {wrs[refused].wr_id}: {errno_text(code)}",
                errno=code,
            )

    def _journal_send(self, wr: SendWr, now: int, failed: int | None) -> None:
        if self.endpoint.journal is None:
            return
        self.endpoint.journal.write(
            "wr_posted",
            time_ns=now,
            qp=self.qp,
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
            errno=failed,
        )

    @abstractmethod
    def _post_send(self, wrs: Sequence[SendWr]) -> tuple[int, int]:
        """Post; (place of the WR that was refused, errno), or (0, 0)."""

    @abstractmethod
    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        """Post; (place of the WR that was refused, errno), or (0, 0)."""

    @abstractmethod
    def connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        """Ask the peer, and be connected; gives the peer's private data.

        Raises:
            VerbsError: refused, unreachable, or not in time.
        """

    @abstractmethod
    def accept(self, private_data: bytes, deadline: Deadline) -> None:
        """Accept the peer that asked, and be connected.

        Raises:
            VerbsError: it went away, or not in time.
        """

    @abstractmethod
    def disconnect(self, deadline: Deadline) -> None:
        """End the connection, and flush what is still posted. Does nothing the second time."""


class Request(ABC):
    """A peer that asks to connect."""

    private_data: bytes

    @abstractmethod
    def connection(self, options: QpOptions) -> Connection:
        """A QP for this peer; ready for receives, connected by :meth:`Connection.accept`."""

    @abstractmethod
    def reject(self, private_data: bytes) -> None:
        """Turn it away."""


class Endpoint(ABC):
    """One side's device.

    Attributes:
        device: its name, as the journal has it.
        ip: the address that it talks from.
        journal: where events are written, or None.
    """

    def __init__(self, device: str, ip: str, journal: JournalWriter | None) -> None:
        self.device = device
        self.ip = ip
        self.journal = journal
        self.connections: dict[int, Connection] = {}
        self.resources = contextlib.ExitStack()
        self.max_reads = 255
        """READs and atomics that the device can have outstanding on a QP."""

    def register(self, length: int, access: Iterable[str] = (LOCAL_WRITE,)) -> Region:
        """Register ``length`` fresh bytes, all zero.

        Raises:
            VerbsError: the device refused.
        """
        names = list(access)
        region = self._register(length, names)
        if self.journal is not None:
            self.journal.write(
                "mr_registered",
                device=self.device,
                addr=region.addr,
                length=region.length,
                lkey=region.lkey,
                rkey=region.rkey,
                access=names,
            )
        return region

    def poll(self, most: int = 32) -> list[Completion]:
        """The completions that are there now, at most so many."""
        found = self._poll(most)
        if found:
            now = time.time_ns()
            for completion in found:
                self._journal_completion(completion, now)
        return found

    def _journal_completion(self, completion: Completion, now: int) -> None:
        connection = self.connections.get(completion.qpn)
        if connection is not None:
            connection.outstanding.discard((is_receive(completion), completion.wr_id))
            if completion.status != "SUCCESS":
                # The opcode of a failed completion is not defined; wr_ids of a scenario are unique per QP.
                connection.outstanding.discard((True, completion.wr_id))
                connection.outstanding.discard((False, completion.wr_id))
        if self.journal is not None:
            self.journal.write(
                "wc_polled",
                time_ns=now,
                qp=(self.device, completion.qpn),
                wr_id=completion.wr_id,
                status=completion.status,
                opcode=completion.opcode,
                byte_len=completion.byte_len,
                vendor_err=completion.vendor_err,
                imm=completion.imm,
                src_qpn=completion.src_qpn,
            )

    def look_around(self, deadline: Deadline) -> None:
        """What a busy loop does when nothing is there: give way, notice events, keep the limit.

        Raises:
            Disconnected: a peer went away.
            VerbsError: the limit has passed.
        """
        gone = self.gone()
        if gone is not None:
            raise Disconnected(f"the peer of QP {gone.qpn:#x} disconnected")
        if deadline.passed():
            raise VerbsError(
                f"nothing completed within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
            )

    def fail(self, completion: Completion) -> NoReturn:
        """Raises :class:`VerbsError` with what an unsuccessful completion means."""
        raise VerbsError(
            f"WR {completion.wr_id} on QP {completion.qpn:#x} ended with {completion.status}: "
            f"{WC_MEANINGS.get(completion.status, 'see the journal')}"
        )

    @abstractmethod
    def _register(self, length: int, access: list[str]) -> Region: ...

    @abstractmethod
    def _poll(self, most: int) -> list[Completion]: ...

    @abstractmethod
    def gone(self) -> Connection | None:
        """A connection that its peer has ended, if any; notices connection events that came."""

    def check_mtu(self, options: QpOptions) -> None:  # noqa: B027 -- a backend may carry any
        """Refuse a path MTU that the device cannot carry.

        Raises:
            VerbsError: it is above the port's.
        """

    @abstractmethod
    def dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> Connection:
        """A QP on the way to a listener; connected by :meth:`Connection.connect`.

        Raises:
            VerbsError: no way there.
        """

    @abstractmethod
    def listen(self, port: int, backlog: int) -> None:
        """Let peers ask to connect.

        Raises:
            VerbsError: the port is taken.
        """

    @abstractmethod
    def request(self, deadline: Deadline) -> Request:
        """The next peer that asks.

        Raises:
            VerbsError: nobody did in time.
        """

    def close(self) -> None:
        """Take down everything, last made first."""
        self.resources.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Which device, port and address an endpoint uses; None leaves the choice to the backend."""

    device: str | None = None
    port: int = 1
    gid_index: int | None = None
    ip: str | None = None
    completions: int = field(default=4096)
    """How many completions may wait to be polled."""


WC_MEANINGS = {
    "LOC_LEN_ERR": "a message was longer than the receive posted for it",
    "LOC_QP_OP_ERR": "the QP could not carry the work request out",
    "LOC_PROT_ERR": "the local memory is not registered for this use",
    "WR_FLUSH_ERR": "flushed: the QP had failed before, or the connection ended",
    "LOC_ACCESS_ERR": "the peer wrote where this side does not allow it",
    "REM_INV_REQ_ERR": "the peer found the request invalid",
    "REM_ACCESS_ERR": "the peer does not allow this access (rkey, bounds, permission)",
    "REM_OP_ERR": "the peer could not carry the request out",
    "RETRY_EXC_ERR": "no acknowledgement after all retries: the peer is gone, or packets are lost on the way",
    "RNR_RETRY_EXC_ERR": "the peer had no receive posted, each time it was asked",
}


def is_receive(completion: Completion) -> bool:
    """Whether a completion is that of a receive."""
    return completion.opcode is not None and completion.opcode.startswith("RECV")


def errno_text(code: int) -> str:
    """``EINVAL (Invalid argument)``."""
    import os

    return f"{errno.errorcode.get(code, str(code))} ({os.strerror(code)})"
