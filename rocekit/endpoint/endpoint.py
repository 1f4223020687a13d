"""One side's device, as a scenario uses it: the interface that every backend implements.

An :class:`Endpoint` registers memory, connects to peers and polls completions. It writes what a scenario does
to the journal, once for all backends: a backend implements the methods that start with an underscore.

Every wait has a limit, and closing an endpoint takes down everything it made, last made first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

from rocekit.endpoint.connection import Connection, Request
from rocekit.endpoint.errors import Disconnected
from rocekit.endpoint.local_device import Introducible
from rocekit.endpoint.options import EndpointOptions, QpOptions
from rocekit.endpoint.receives import SharedReceives
from rocekit.endpoint.tcp_introduction import LOOK_S
from rocekit.endpoint.tcp_listener import TcpListener, connect_tcp
from rocekit.endpoint.waiting import Deadline, WaitWays
from rocekit.endpoint.work import (
    LOCAL_WRITE,
    WC_MEANINGS,
    Completion,
    DeviceMemory,
    Region,
    is_receive,
)
from rocekit.errors import VerbsError
from rocekit.journal import JournalWriter

#: A sleeping program looks for events at least this often.
SLICE_S = 0.1


@dataclass(frozen=True, slots=True)
class CmNews:
    """A connection event that an endpoint got: a name of ``wire.CM_EVENTS``, and its status."""

    type: str
    status: int


class Endpoint(ABC):
    """One side's device.

    Attributes:
        device: its name in the journal.
        ip: the address that it sends from.
        journal: where events are written, or None.
        heard_of: every connection event so far.
        stamps: whether completions of sends have the device's timestamps.
        has_windows: whether keys for parts of a region are memory windows.
    """

    def __init__(
        self, device: str, ip: str, journal: JournalWriter | None, options: EndpointOptions | None = None
    ) -> None:
        options = options or EndpointOptions()
        self.device = device
        self.ip = ip
        self.journal = journal
        self.ways = options.ways.filled(WaitWays("poll", "poll"))
        self.tcp = options.tcp
        self.allow_remote = options.allow_remote
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
        self._listener: TcpListener | None = None
        self._introduced = selectors.DefaultSelector()
        self.resources.callback(self._introduced.close)

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
        """Memory on the device itself, registered; its addresses start at 0 (``ibv_alloc_dm``).

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
        """The completions that are there now, at most ``most``."""
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
        """What a program does when nothing has completed: notice events, check the limit, wait.

        Poll once more afterwards: the completion channel reports no completion that came before it was armed.

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
        """Wait in the chosen way, at most so long."""
        if self.ways.cq == "poll":
            self._breathe()
        elif not self._armed:
            self._arm()
            self._armed = True
        elif self._sleep(min(seconds, LOOK_S if self.tcp else SLICE_S)):
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
        """Let other processes run; a busy loop stays busy."""
        os.sched_yield()

    def _arm(self) -> None:  # noqa: B027 -- see _sleep
        """Ask for an event at the next completion (``ibv_req_notify_cq``)."""

    def _sleep(self, seconds: float) -> bool:
        """Sleep until a completion is reported, at most so long; whether one was."""
        time.sleep(min(seconds, 0.001))
        return True

    # Peers.

    def hear(self, wait_s: float = 0.0) -> None:  # noqa: B027 -- a backend may have nothing to hear
        """Read the connection events that are there; wait for the first one at most so long."""

    def gone(self, *, expected: bool = False) -> Connection | None:
        """A connection that its peer has ended, if any; ``ways.cm`` or ``expected`` has events read first."""
        if expected or self.ways.cm == "poll":
            self.hear()
        for key, _ in self._introduced.select(0) if self._introduced.get_map() else ():
            key.data.look_for_goodbye()
            if key.data.disconnected:
                self._introduced.unregister(key.fileobj)
        return next((one for one in self.connections.values() if one.disconnected), None)

    def watch(self, connection: Introducible) -> None:
        """Notice from now on when a peer introduced over TCP says goodbye or hangs up."""
        connection.look_for_goodbye()  # it may have been read already
        if connection.introduction is not None and not connection.disconnected:
            self._introduced.register(connection.introduction, selectors.EVENT_READ, connection)

    def forget(self, connection: Connection) -> None:
        """Look no more at a connection that is over; it is taken down with the endpoint."""
        self.connections.pop(connection.qpn, None)

    def provoke(
        self, event: str, peer: tuple[str, int], private_data: bytes, deadline: Deadline
    ) -> str | None:
        """Make a connection event happen that no ordinary connection has; why not, if it cannot.

        Args:
            event: a name of ``wire.CM_EVENTS``.
            peer: address and port of a listener that accepts a request with ``private_data``.
        """
        return "this backend cannot make it happen"

    def counts(self) -> dict[str, int]:
        """What the device itself counted, for JSON; most count elsewhere."""
        return {}

    def check_mtu(self, options: QpOptions) -> None:  # noqa: B027 -- a backend may carry any
        """Refuse a path MTU that the device does not support.

        Raises:
            VerbsError: it is above the port's.
        """

    def dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> Connection:
        """A QP with a route to a listener; connected by :meth:`Connection.connect`.

        Raises:
            VerbsError: there is no route.
        """
        self.check_mtu(options)
        if not self.tcp:
            return self._dial(host, port, options, deadline)
        return connect_tcp(self, host, port, options, deadline)

    def listen(self, port: int, backlog: int) -> None:
        """Let peers ask to connect.

        Raises:
            VerbsError: the port is taken.
        """
        if not self.tcp:
            self._listen(port, backlog)
            return
        self._listener = TcpListener(self.ip, port, backlog)
        self.resources.callback(self._listener.close)

    def request(self, deadline: Deadline) -> Request:
        """The next peer that asks to connect.

        Raises:
            VerbsError: none did in time.
            Disconnected: one that is connected went away.
        """
        while True:
            asked = self._asked() if self._listener is None else self._listener.request(self)
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
            self.hear(min(SLICE_S if self._listener is None else 0.01, deadline.left()))

    def draw_psn(self) -> int:
        """The starting PSN of a QP that no connection manager introduces."""
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
