"""The verbs backend: an endpoint on any device of the kernel, through pyverbs and librdmacm.

The QPs are the program's own and rdma_cm only introduces the peers ("external QPs"): so every state change
and every attribute is known when it happens, and can be chosen. rdma_cm moves the QPs that it makes itself
and reports nothing.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections import deque

from rocekit.endpoint import (
    Completion,
    Connection,
    Deadline,
    DeviceMemory,
    Endpoint,
    EndpointOptions,
    QpOptions,
    Region,
    Request,
    SharedReceives,
    WaitWays,
)
from rocekit.endpoint.errors import port_taken
from rocekit.errors import VerbsError
from rocekit.journal import JournalWriter
from rocekit.machine import devices as sysfs
from rocekit.verbs.connection import QpHost, VerbsConnection, VerbsShared
from rocekit.verbs.cq import Completions
from rocekit.verbs.loading import load
from rocekit.verbs.memory import VerbsDeviceMemory, VerbsMemory
from rocekit.verbs.open_device import OpenDevice
from rocekit.verbs.provoke import provoke
from rocekit.verbs.rdma_cm import Channel, RdmaCmEvent, RdmaCmId, cm_error

_LOOK_EVERY_S = 0.001
_LISTEN_S = 0.05


class VerbsRequest(Request):
    """A client that asks rdma_cm to connect."""

    def __init__(self, endpoint: QpHost, cm: RdmaCmId, event: RdmaCmEvent) -> None:
        self._endpoint = endpoint
        self._cm = cm
        self.private_data = event.private_data

    def connection(self, options: QpOptions) -> VerbsConnection:
        made = VerbsConnection(self._endpoint, self._cm, options)
        made.peer_data = self.private_data
        return made

    def reject(self, private_data: bytes) -> None:
        self._cm.reject(private_data)
        self._cm.close()


class VerbsEndpoint(Endpoint):
    """An endpoint on a device of the kernel's.

    Args:
        options: which one; see :func:`rocekit.machine.devices.choose`.
        journal: where to write what happens.

    Raises:
        VerbsError: pyverbs, RDMA in the kernel, or the device is missing; names it, and how to get it.
    """

    def __init__(self, options: EndpointOptions, journal: JournalWriter | None = None) -> None:
        found = sysfs.devices()
        pyverbs = load()
        local = sysfs.choose(
            found, device=options.device, port=options.port, gid_index=options.gid_index, ip=options.ip
        )
        super().__init__(local.device.name, local.gid.ip, journal, options)
        self.has_windows = True
        self.by_id: dict[int, VerbsConnection] = {}
        self._requests: deque[tuple[RdmaCmId, RdmaCmEvent]] = deque()
        self._dialing: deque[RdmaCmEvent] = deque()
        self._looked = 0.0
        self._news = threading.Condition()
        self._stopping = False
        try:
            self.channel = Channel()
            self.resources.callback(self._close_channel)
            self.opened = OpenDevice(pyverbs, local, self.resources)
            self.max_reads = self.opened.max_reads
            self.completions = Completions(
                self.opened,
                min(options.completions, self.opened.max_cqe),
                way=self.ways.cq,
                extended=options.extended,
                timestamps=options.timestamps,
                # By its source, rdma-core's rxe has given the CQ back when ibv_next_poll finds no more; the
                # ibv_end_poll that must follow then skips the next completion, before it is there.
                walks=local.device.driver != "rxe",
            )
            if self.ways.cm == "thread":
                thread = threading.Thread(target=self._listen_to_events, name="cm events", daemon=True)
                thread.start()
                self.resources.callback(self._stop, thread)
        except BaseException:
            self.close()
            raise

    def _close_channel(self) -> None:
        with contextlib.suppress(VerbsError):
            self.channel.close()

    def _register(self, length: int, access: list[str]) -> Region:
        return VerbsMemory(self.opened, length, self.opened.access(access))

    def _device_memory(self, length: int, access: list[str]) -> DeviceMemory:
        return VerbsDeviceMemory(self.opened, length, self.opened.access(access))

    def _share(self, depth: int, sges: int) -> SharedReceives:
        return VerbsShared(self, depth, sges)

    def _poll(self, most: int) -> list[Completion]:
        return self.completions.poll(most)

    def _arm(self) -> None:
        self.completions.arm()

    def _sleep(self, seconds: float) -> bool:
        also = self.channel.fd if self.ways == WaitWays("poll", "nonblocking") else None
        return self.completions.sleep(seconds, also)

    # Connecting to peers.

    def hear(self, wait_s: float = 0.0) -> None:
        if self.ways.cm == "thread":
            with self._news:
                if wait_s:
                    self._news.wait(wait_s)
            return
        event = self.channel.event(wait_s)
        while event is not None:
            self._heard(event)
            event = self.channel.event()

    def _listen_to_events(self) -> None:
        """The thread that reads connection events with ``--cm thread``."""
        while not self._stopping:
            event = self.channel.event(_LISTEN_S)
            if event is not None:
                with self._news:
                    self._heard(event)
                    self._news.notify_all()

    def _stop(self, thread: threading.Thread) -> None:
        self._stopping = True
        thread.join()

    def _heard(self, event: RdmaCmEvent) -> None:
        connection = self.by_id.get(event.id)
        cm = RdmaCmId(self.channel, event.id)
        self.log_cm(event.type, event.status, event.private_data, cm.local, cm.remote, connection)
        if event.type == "CONNECT_REQUEST":
            self._requests.append((cm, event))
        elif connection is not None:
            connection.heard(event)
        else:
            self._dialing.append(event)

    def gone(self, *, expected: bool = False) -> Connection | None:
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return None
        self._looked = now
        return super().gone(expected=expected)

    def _dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> VerbsConnection:
        self._dialing.clear()
        cm = self.channel.create_id()
        try:
            cm.resolve_address(self.ip, host, port, deadline)
            self._step("ADDR_RESOLVED", cm, deadline)
            cm.resolve_route(deadline)
            self._step("ROUTE_RESOLVED", cm, deadline)
            return VerbsConnection(self, cm, options)
        except BaseException:
            if cm.handle not in self.by_id:
                cm.close()
            raise

    def _step(self, wanted: str, cm: RdmaCmId, deadline: Deadline) -> None:
        while not self._dialing:
            self.hear(min(0.1, deadline.left()))
            if not self._dialing and deadline.passed():
                raise VerbsError(
                    f"no {wanted} within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                )
        event = self._dialing.popleft()
        if event.type != wanted:
            raise cm_error(event, cm)

    def queue_pair(self, options: QpOptions) -> Connection:
        return VerbsConnection(self, None, options)

    def provoke(
        self, event: str, peer: tuple[str, int], private_data: bytes, deadline: Deadline
    ) -> str | None:
        return provoke(self, event, peer[0], deadline)

    def check_mtu(self, options: QpOptions) -> None:
        """Refuse a path MTU that the port does not support.

        Raises:
            VerbsError: it is above the port's.
        """
        if options.path_mtu is not None and options.path_mtu > self.opened.active_mtu:
            raise VerbsError(
                f"MTU {options.path_mtu} (-m) is above the {self.opened.active_mtu} of {self.device} port "
                f"{self.opened.port}; its netdev's MTU decides (ip link set ... mtu)"
            )

    def _listen(self, port: int, backlog: int) -> None:
        cm = self.channel.create_id()
        self.opened.release(cm.close)
        try:
            cm.bind(self.ip, port)
            cm.listen(backlog)
        except VerbsError as error:
            raise port_taken(self.ip, port) if error.errno == errno.EADDRINUSE else error from None

    def _asked(self) -> VerbsRequest | None:
        return VerbsRequest(self, *self._requests.popleft()) if self._requests else None
