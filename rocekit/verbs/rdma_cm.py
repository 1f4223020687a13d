"""rdma_cm: connecting to a peer, and the events of this, as far as an endpoint needs them.

pyverbs gives neither the private data nor the status nor the identifier of a CM event, and its calls block
the whole process; so the few calls needed are made through :mod:`rocekit.verbs.librdmacm`. None of them
blocks: the event channel is non-blocking and waited on with poll().
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
from dataclasses import dataclass
from typing import Any

from rocekit.endpoint.errors import cm_error as meaning_of
from rocekit.endpoint.waiting import Deadline
from rocekit.errors import VerbsError
from rocekit.verbs.librdmacm import (
    ConnParameters,
    EventStruct,
    IdStruct,
    QpAttr,
    load,
    read_sockaddr,
    sockaddr,
)
from rocekit.wire import CM_EVENTS

PORT_SPACE_TCP = 0x0106
PORT_SPACE_UDP = 0x0111
#: What an application may add to a REQ (92 bytes, less the RDMA IP CM header's 36), a REP and a REJ.
CONNECT_DATA_BYTES = 56
ACCEPT_DATA_BYTES = 196
REJECT_DATA_BYTES = 148


@dataclass(frozen=True, slots=True)
class RdmaCmEvent:
    """An event of rdma_cm.

    Attributes:
        type: a name of ``wire.CM_EVENTS``.
        id: the handle of its identifier; a CONNECT_REQUEST has a new one.
        status: 0, a negative errno, or the reason in the peer's REJ if it is REJECTED.
        private_data: what the peer sent with it, with the zeros that the MAD ends in.
        initiator_depth, responder_resources: READs and atomics at once that the peer starts, and takes.
    """

    type: str
    id: int
    status: int
    private_data: bytes
    initiator_depth: int
    responder_resources: int


class RdmaCmId:
    """One ``rdma_cm_id``. :meth:`close` destroys it, which needs its events acknowledged: they are."""

    def __init__(self, channel: Channel, handle: int) -> None:
        self._channel = channel
        self._call = channel.call
        self.handle = handle

    def _view(self) -> Any:
        return IdStruct.from_address(self.handle)

    @property
    def local(self) -> tuple[str, int] | None:
        """(IP, port) of this side."""
        return read_sockaddr(bytes(self._view().src_addr))

    @property
    def remote(self) -> tuple[str, int] | None:
        """(IP, port) of the peer."""
        return read_sockaddr(bytes(self._view().dst_addr))

    def bind(self, ip: str, port: int) -> None:
        self._call("rdma_bind_addr", self.handle, sockaddr(ip, port))

    def resolve_address(self, source: str, host: str, port: int, deadline: Deadline) -> None:
        milliseconds = max(1, int(deadline.left() * 1000))
        self._call("rdma_resolve_addr", self.handle, sockaddr(source, 0), sockaddr(host, port), milliseconds)

    def resolve_route(self, deadline: Deadline) -> None:
        self._call("rdma_resolve_route", self.handle, max(1, int(deadline.left() * 1000)))

    def listen(self, backlog: int) -> None:
        self._call("rdma_listen", self.handle, backlog)

    def connect(
        self,
        qpn: int,
        private_data: bytes,
        *,
        reads: int,
        retry: int,
        rnr_retry: int,
        depth: int | None = None,
    ) -> None:
        """Send the REQ; ``reads`` is what this side takes, ``depth`` what it starts, as many if not given."""
        if len(private_data) > CONNECT_DATA_BYTES:
            raise ValueError(f"{len(private_data)} bytes of private data; a REQ takes {CONNECT_DATA_BYTES}")
        with_data, keep = self._parameters(qpn, private_data, reads, retry, rnr_retry, depth)
        self._call("rdma_connect", self.handle, ctypes.byref(with_data))
        del keep

    def accept(
        self, qpn: int, private_data: bytes, *, reads: int, rnr_retry: int, depth: int | None = None
    ) -> None:
        """Send the REP; ``reads`` and ``depth`` as for :meth:`connect`."""
        if len(private_data) > ACCEPT_DATA_BYTES:
            raise ValueError(f"{len(private_data)} bytes of private data; a REP takes {ACCEPT_DATA_BYTES}")
        with_data, keep = self._parameters(qpn, private_data, reads, 0, rnr_retry, depth)
        self._call("rdma_accept", self.handle, ctypes.byref(with_data))
        del keep

    def _parameters(
        self, qpn: int, private_data: bytes, reads: int, retry: int, rnr_retry: int, depth: int | None
    ) -> tuple[ConnParameters, object]:
        buffer = ctypes.create_string_buffer(private_data, len(private_data)) if private_data else None
        parameters = ConnParameters(
            private_data=None if buffer is None else ctypes.addressof(buffer),
            private_data_len=len(private_data),
            responder_resources=reads,
            initiator_depth=reads if depth is None else depth,
            retry_count=retry,
            rnr_retry_count=rnr_retry,
            qp_num=qpn,
        )
        return parameters, buffer

    def join(self, group: str) -> None:
        """Join a multicast group; MULTICAST_JOIN or MULTICAST_ERROR follows."""
        self._call("rdma_join_multicast", self.handle, sockaddr(group, 0), None)

    def establish(self) -> None:
        self._call("rdma_establish", self.handle)

    def reject(self, private_data: bytes) -> None:
        self._call("rdma_reject", self.handle, private_data, len(private_data[:REJECT_DATA_BYTES]))

    def disconnect(self) -> None:
        self._call("rdma_disconnect", self.handle)

    def qp_attributes(self, state: int) -> tuple[QpAttr, int]:
        """The attributes that a QP needs for a state (``enum ibv_qp_state``), and their mask."""
        attributes = QpAttr(qp_state=state)
        mask = ctypes.c_int()
        self._call("rdma_init_qp_attr", self.handle, ctypes.byref(attributes), ctypes.byref(mask))
        return attributes, mask.value

    def close(self) -> None:
        if self.handle:
            handle, self.handle = self.handle, 0
            self._call("rdma_destroy_id", handle)


class Channel:
    """An event channel and the identifiers made on it.

    Raises:
        VerbsError: librdmacm is missing, or the kernel has no rdma_ucm.
    """

    def __init__(self) -> None:
        self.call = load()
        try:
            self._handle: int = self.call("rdma_create_event_channel")
        except VerbsError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOSYS):
                raise VerbsError(
                    "no connection manager in this kernel: modprobe rdma_ucm", errno=error.errno
                ) from None
            raise
        # struct rdma_event_channel is its file descriptor.
        self.fd = ctypes.c_int.from_address(self._handle).value
        os.set_blocking(self.fd, False)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def create_id(self, port_space: int = PORT_SPACE_TCP) -> RdmaCmId:
        handle = ctypes.c_void_p()
        self.call("rdma_create_id", self._handle, ctypes.byref(handle), None, port_space)
        assert handle.value is not None
        return RdmaCmId(self, handle.value)

    def event(self, wait_s: float = 0.0) -> RdmaCmEvent | None:
        """The next event, acknowledged; None when none comes in time."""
        if not self._poll.poll(wait_s * 1000):
            return None
        pointer = ctypes.c_void_p()
        try:
            self.call("rdma_get_cm_event", self._handle, ctypes.byref(pointer))
        except VerbsError as error:
            # The library does not hand on some events; then there is nothing to read.
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return None
            raise
        assert pointer.value is not None
        event = EventStruct.from_address(pointer.value)
        name = CM_EVENTS[event.event] if event.event < len(CM_EVENTS) else str(event.event)
        conn = event.conn
        data = b""
        if conn.private_data and conn.private_data_len:
            data = ctypes.string_at(conn.private_data, conn.private_data_len)
        found = RdmaCmEvent(
            name, event.id or 0, event.status, data, conn.initiator_depth, conn.responder_resources
        )
        self.call("rdma_ack_cm_event", pointer)
        return found

    def close(self) -> None:
        if self._handle:
            self.call("rdma_destroy_event_channel", self._handle)
            self._handle = 0


def cm_error(event: RdmaCmEvent, cm: RdmaCmId) -> VerbsError:
    """What a CM event that ends a handshake means."""
    remote = cm.remote
    there = "the peer" if remote is None else f"{remote[0]} port {remote[1]}"
    return meaning_of(event.type, event.status, event.private_data, there)
