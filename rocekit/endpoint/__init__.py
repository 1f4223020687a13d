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
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from rocekit.endpoint.connection import Connection, QpOptions, Request, SharedReceives
from rocekit.endpoint.waiting import Deadline, Disconnected, Ways, errno_text
from rocekit.endpoint.work import (
    ATOMICS,
    LOCAL_WRITE,
    MW_BIND,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    WC_MEANINGS,
    Completion,
    DeviceMemory,
    RecvWr,
    Region,
    SendWr,
    Sge,
    Target,
    is_receive,
)
from rocekit.errors import VerbsError
from rocekit.journal import JournalWriter

if TYPE_CHECKING:
    from rocekit.endpoint.tcp import TcpDoor

__all__ = [
    "ATOMICS",
    "LOCAL_WRITE",
    "MW_BIND",
    "REMOTE_ATOMIC",
    "REMOTE_READ",
    "REMOTE_WRITE",
    "WC_MEANINGS",
    "CmNews",
    "Completion",
    "Connection",
    "Deadline",
    "DeviceMemory",
    "Disconnected",
    "Endpoint",
    "EndpointOptions",
    "QpOptions",
    "RecvWr",
    "Region",
    "Request",
    "SendWr",
    "Sge",
    "SharedReceives",
    "Target",
    "Ways",
    "errno_text",
    "is_receive",
]

#: A sleeping program looks around at least this often.
SLICE_S = 0.1


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Which device, port and address an endpoint uses; None leaves the choice to the backend.

    Attributes:
        completions: how many may wait to be polled.
        ways: how it waits.
        extended: completions of sends come on an extended CQ of their own.
        timestamps: that CQ says when the device completed them.
        any_ip: another address than ``ip`` will do where that one is taken.
        tcp: QPs are introduced over TCP, as the examples of libibverbs and perftest do, not by rdma_cm.
    """

    device: str | None = None
    port: int = 1
    gid_index: int | None = None
    ip: str | None = None
    completions: int = 4096
    ways: Ways = field(default_factory=Ways)
    extended: bool = False
    timestamps: bool = True
    tcp: bool = False
    any_ip: bool = False


@dataclass(frozen=True, slots=True)
class CmNews:
    """A connection event that an endpoint was told of: a name of ``wire.CM_EVENTS``, and its status."""

    type: str
    status: int


class Endpoint(ABC):
    """One side's device.

    Attributes:
        device: its name, as the journal has it.
        ip: the address that it talks from.
        journal: where events are written, or None.
        heard_of: every connection event so far.
        stamps: whether completions of sends say when the device completed them.
        has_windows: whether keys for parts of a region are memory windows.
    """

    def __init__(
        self, device: str, ip: str, journal: JournalWriter | None, options: EndpointOptions | None = None
    ) -> None:
        options = options or EndpointOptions()
        self.device = device
        self.ip = ip
        self.journal = journal
        self.ways = options.ways.filled(Ways("poll", "poll"))
        self.tcp = options.tcp
        self.connections: dict[int, Connection] = {}
        self.resources = contextlib.ExitStack()
        self.heard_of: list[CmNews] = []
        self.stamps = options.extended and options.timestamps
        self.leaves_machine = True
        """Whether what it sends can leave this machine."""
        self.has_windows = False
        self.max_reads = 255
        """READs and atomics that the device can have outstanding on a QP."""
        self._armed = False
        self._door: TcpDoor | None = None

    # The journal.

    def now(self) -> int:
        """Nanoseconds since the epoch."""
        return time.time_ns()

    def log(self, event: str, qp: tuple[str, int] | None = None, **fields: Any) -> None:
        """Write an event to the journal, if there is one."""
        if self.journal is not None:
            self.journal.write(event, time_ns=fields.pop("time_ns", None) or self.now(), qp=qp, **fields)

    def log_cm(
        self,
        kind: str,
        status: int,
        private_data: bytes,
        local: tuple[str, int] | None,
        remote: tuple[str, int] | None,
        connection: Connection | None,
    ) -> None:
        """Note a connection event, and write it to the journal."""
        self.heard_of.append(CmNews(kind, status))
        here, there = local or (None, None), remote or (None, None)
        self.log(
            "cm_event",
            None if connection is None else connection.qp,
            type=kind,
            status=status,
            private_data=private_data.hex() or None,
            local_ip=here[0],
            local_port=here[1],
            remote_ip=there[0],
            remote_port=there[1],
        )

    # Memory.

    def register(self, length: int, access: Iterable[str] = (LOCAL_WRITE,)) -> Region:
        """Register ``length`` fresh bytes, all zero.

        Raises:
            VerbsError: the device refused.
        """
        names = list(access)
        region = self._register(length, names)
        self.log_region(region, names)
        return region

    def log_region(self, region: Region, access: list[str]) -> None:
        """Write a region to the journal."""
        self.log(
            "mr_registered",
            device=self.device,
            addr=region.addr,
            length=region.length,
            lkey=region.lkey,
            rkey=region.rkey,
            access=access,
        )

    def device_memory(self, length: int, access: Iterable[str] = (LOCAL_WRITE,)) -> DeviceMemory:
        """Memory on the device itself, registered; its addresses begin at 0 (``ibv_alloc_dm``).

        Raises:
            VerbsError: the device has none.
        """
        names = list(access)
        region = self._device_memory(length, names)
        self.log("dm_allocated", device=self.device, length=length)
        self.log_region(region, names)
        return region

    def share(self, depth: int, sges: int = 1) -> SharedReceives:
        """A shared receive queue (``ibv_create_srq``).

        Raises:
            VerbsError: the device refused.
        """
        made = self._share(depth, sges)
        self.log("srq_created", device=self.device, srq=made.number, max_wr=depth, max_sge=sges)
        return made

    # Completions.

    def poll(self, most: int = 32) -> list[Completion]:
        """The completions that are there now, at most so many."""
        found = self._poll(most)
        if found:
            now = self.now()
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
        self.log(
            "wc_polled",
            (self.device, completion.qpn),
            time_ns=now,
            wr_id=completion.wr_id,
            status=completion.status,
            opcode=completion.opcode,
            byte_len=completion.byte_len,
            vendor_err=completion.vendor_err,
            imm=completion.imm,
            src_qpn=completion.src_qpn,
        )

    def look_around(self, deadline: Deadline) -> None:
        """What a program does when nothing has completed: notice events, keep the limit, wait its way.

        Poll once more afterwards: what completes before a sleeping program has asked to be told of
        completions is not told.

        Raises:
            Disconnected: a peer went away.
            VerbsError: the limit has passed.
        """
        gone = self.gone()
        if gone is not None:
            raise Disconnected(gone.qpn)
        if deadline.passed():
            self._too_late(deadline)
        self.pause(deadline.left())

    def _too_late(self, deadline: Deadline) -> NoReturn:
        self.hear()
        gone = any(connection.disconnected for connection in self.connections.values())
        why = "; the peer had disconnected, which --cm sync does not notice" if gone else ""
        raise VerbsError(
            f"nothing completed within {deadline.seconds:g} s (--timeout){why}", errno=errno.ETIMEDOUT
        )

    def pause(self, seconds: float) -> None:
        """Wait the chosen way, at most so long."""
        if self.ways.cq == "poll":
            self._breathe()
        elif not self._armed:
            self._arm()
            self._armed = True
        elif self._sleep(min(seconds, SLICE_S)):
            self._armed = False

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

    def _device_memory(self, length: int, access: list[str]) -> DeviceMemory:
        raise VerbsError(f"{self.device} has no memory of its own", errno=errno.EOPNOTSUPP)

    def _share(self, depth: int, sges: int) -> SharedReceives:
        raise VerbsError(f"{self.device} has no shared receive queues", errno=errno.EOPNOTSUPP)

    def _breathe(self) -> None:
        """Let other processes go on; a busy loop stays busy."""
        os.sched_yield()

    def _arm(self) -> None:  # noqa: B027 -- see _sleep
        """Ask to be told of the next completion (``ibv_req_notify_cq``)."""

    def _sleep(self, seconds: float) -> bool:
        """Until a completion is told, at most so long; whether one was."""
        time.sleep(min(seconds, 0.001))
        return True

    # Peers.

    def hear(self, wait_s: float = 0.0) -> None:  # noqa: B027 -- a backend may have nothing to hear
        """Take the connection events that are there; wait for the first one at most so long."""

    def gone(self, *, expected: bool = False) -> Connection | None:
        """A connection that its peer has ended, if any; hears of it as ``ways.cm`` says, or if expected."""
        if expected or self.ways.cm == "poll":
            self.hear()
        for connection in self.connections.values():
            if connection.talk is not None:
                connection.talk.look(connection)
        return next((one for one in self.connections.values() if one.disconnected), None)

    def forget(self, connection: Connection) -> None:
        """A connection that is over is not looked at any more; it is taken down with the endpoint."""
        self.connections.pop(connection.qpn, None)

    def provoke(
        self, event: str, peer: tuple[str, int], private_data: bytes, deadline: Deadline
    ) -> str | None:
        """Make a connection event happen that no ordinary connection brings; why not, if it cannot be.

        Args:
            event: a name of ``wire.CM_EVENTS``.
            peer: address and port of a listener that accepts who comes with ``private_data``.
        """
        return "this backend has no means to bring it about"

    def counts(self) -> dict[str, int]:
        """What the device itself counted, for JSON; most do so elsewhere."""
        return {}

    def check_mtu(self, options: QpOptions) -> None:  # noqa: B027 -- a backend may carry any
        """Refuse a path MTU that the device cannot carry.

        Raises:
            VerbsError: it is above the port's.
        """

    def dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> Connection:
        """A QP on the way to a listener; connected by :meth:`Connection.connect`.

        Raises:
            VerbsError: no way there.
        """
        self.check_mtu(options)
        if not self.tcp:
            return self._dial(host, port, options, deadline)
        from rocekit.endpoint.tcp import knock

        return knock(self, host, port, options, deadline)

    def listen(self, port: int, backlog: int) -> None:
        """Let peers ask to connect.

        Raises:
            VerbsError: the port is taken.
        """
        if not self.tcp:
            self._listen(port, backlog)
            return
        from rocekit.endpoint.tcp import TcpDoor

        self._door = TcpDoor(self.ip, port, backlog)
        self.resources.callback(self._door.close)

    def request(self, deadline: Deadline) -> Request:
        """The next peer that asks.

        Raises:
            VerbsError: nobody did in time.
            Disconnected: one that is connected went away.
        """
        while True:
            asked = self._asked() if self._door is None else self._door.asked(self, deadline)
            if asked is not None:
                return asked
            gone = self.gone()
            if gone is not None:
                raise Disconnected(gone.qpn)
            if deadline.passed():
                raise VerbsError(
                    f"nobody asked to connect within {deadline.seconds:g} s (--timeout)",
                    errno=errno.ETIMEDOUT,
                )
            self.hear(min(SLICE_S if self._door is None else 0.01, deadline.left()))

    def draw_psn(self) -> int:
        """Where a QP that met its peer without a connection manager begins."""
        return random.getrandbits(24)

    def queue_pair(self, options: QpOptions) -> Connection:
        """A QP in INIT that no connection manager knows; see :meth:`Connection.start`.

        Raises:
            VerbsError: the device refused.
        """
        raise VerbsError(f"{self.device} connects through a connection manager only")

    @abstractmethod
    def _dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> Connection: ...

    @abstractmethod
    def _listen(self, port: int, backlog: int) -> None: ...

    @abstractmethod
    def _asked(self) -> Request | None:
        """A peer that asked to connect, if any."""

    def close(self) -> None:
        """Take down everything, last made first."""
        self.resources.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
