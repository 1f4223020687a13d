"""librdmacm, as far as an endpoint needs it: meeting a peer, and the events on the way.

pyverbs has no way to the private data, the status or the identifier of a CM event, and its calls block the
whole process; so the few calls needed are made here, through ctypes. The structures are those of
``rdma/rdma_cma.h`` and ``infiniband/verbs.h`` (ABI of librdmacm.so.1 on 64-bit machines), read where a
field is needed and never built from Python beyond the connection parameters.

Every call that could wait is told not to: the event channel is non-blocking and waited on with poll().
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import ipaddress
import os
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocekit.endpoint.connection import cm_error as meaning_of
from rocekit.endpoint.waiting import Deadline, errno_text
from rocekit.errors import VerbsError
from rocekit.wire import CM_EVENTS

PORT_SPACE_TCP = 0x0106
PORT_SPACE_UDP = 0x0111
#: What an application may add to a REQ (92 bytes, less the RDMA IP CM header's 36), a REP and a REJ.
CONNECT_DATA_BYTES = 56
ACCEPT_DATA_BYTES = 196
REJECT_DATA_BYTES = 148


class _GlobalRoute(ctypes.Structure):
    _fields_ = [
        ("dgid", ctypes.c_uint8 * 16),
        ("flow_label", ctypes.c_uint32),
        ("sgid_index", ctypes.c_uint8),
        ("hop_limit", ctypes.c_uint8),
        ("traffic_class", ctypes.c_uint8),
        ("_pad", ctypes.c_uint8),
    ]


class _AhAttr(ctypes.Structure):
    _fields_ = [
        ("grh", _GlobalRoute),
        ("dlid", ctypes.c_uint16),
        ("sl", ctypes.c_uint8),
        ("src_path_bits", ctypes.c_uint8),
        ("static_rate", ctypes.c_uint8),
        ("is_global", ctypes.c_uint8),
        ("port_num", ctypes.c_uint8),
        ("_pad", ctypes.c_uint8),
    ]


class QpAttr(ctypes.Structure):
    """``struct ibv_qp_attr``."""

    _fields_ = [
        ("qp_state", ctypes.c_uint32),
        ("cur_qp_state", ctypes.c_uint32),
        ("path_mtu", ctypes.c_uint32),
        ("path_mig_state", ctypes.c_uint32),
        ("qkey", ctypes.c_uint32),
        ("rq_psn", ctypes.c_uint32),
        ("sq_psn", ctypes.c_uint32),
        ("dest_qp_num", ctypes.c_uint32),
        ("qp_access_flags", ctypes.c_uint32),
        ("cap", ctypes.c_uint32 * 5),
        ("ah_attr", _AhAttr),
        ("alt_ah_attr", _AhAttr),
        ("pkey_index", ctypes.c_uint16),
        ("alt_pkey_index", ctypes.c_uint16),
        ("en_sqd_async_notify", ctypes.c_uint8),
        ("sq_draining", ctypes.c_uint8),
        ("max_rd_atomic", ctypes.c_uint8),
        ("max_dest_rd_atomic", ctypes.c_uint8),
        ("min_rnr_timer", ctypes.c_uint8),
        ("port_num", ctypes.c_uint8),
        ("timeout", ctypes.c_uint8),
        ("retry_cnt", ctypes.c_uint8),
        ("rnr_retry", ctypes.c_uint8),
        ("alt_port_num", ctypes.c_uint8),
        ("alt_timeout", ctypes.c_uint8),
        ("rate_limit", ctypes.c_uint32),
        ("_pad", ctypes.c_uint32),
    ]


class _ConnParam(ctypes.Structure):
    _fields_ = [
        ("private_data", ctypes.c_void_p),
        ("private_data_len", ctypes.c_uint8),
        ("responder_resources", ctypes.c_uint8),
        ("initiator_depth", ctypes.c_uint8),
        ("flow_control", ctypes.c_uint8),
        ("retry_count", ctypes.c_uint8),
        ("rnr_retry_count", ctypes.c_uint8),
        ("srq", ctypes.c_uint8),
        ("qp_num", ctypes.c_uint32),
    ]


class _Event(ctypes.Structure):
    # The parameters are a union of which the connection's are the part read here.
    _fields_ = [
        ("id", ctypes.c_void_p),
        ("listen_id", ctypes.c_void_p),
        ("event", ctypes.c_uint32),
        ("status", ctypes.c_int32),
        ("conn", _ConnParam),
    ]


_Sockaddr = ctypes.c_uint8 * 128  # struct sockaddr_storage


class _Id(ctypes.Structure):
    _fields_ = [
        ("verbs", ctypes.c_void_p),
        ("channel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("qp", ctypes.c_void_p),
        ("src_addr", _Sockaddr),
        ("dst_addr", _Sockaddr),
    ]


@dataclass(frozen=True, slots=True)
class CmEvent:
    """A connection-manager event.

    Attributes:
        type: a name of ``wire.CM_EVENTS``.
        id: which identifier it is for; of a CONNECT_REQUEST, a new one.
        status: 0, a negative errno, or of a REJECTED the reason that the peer's CM gave.
        private_data: what the peer sent with it, padded with zeros as the MAD carries it.
        initiator_depth, responder_resources: READs and atomics at once that the peer starts, and takes.
    """

    type: str
    id: int
    status: int
    private_data: bytes
    initiator_depth: int
    responder_resources: int


_FUNCTIONS = {
    # name: (result, arguments); a result of int is 0 or -1 with errno, a pointer is NULL with errno.
    "rdma_create_event_channel": (ctypes.c_void_p, []),
    "rdma_destroy_event_channel": (None, [ctypes.c_void_p]),
    "rdma_create_id": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]),
    "rdma_destroy_id": (ctypes.c_int, [ctypes.c_void_p]),
    "rdma_bind_addr": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]),
    "rdma_resolve_addr": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int],
    ),
    "rdma_resolve_route": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "rdma_listen": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "rdma_connect": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "rdma_accept": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "rdma_reject": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint8]),
    "rdma_join_multicast": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]),
    "rdma_establish": (ctypes.c_int, [ctypes.c_void_p]),
    "rdma_disconnect": (ctypes.c_int, [ctypes.c_void_p]),
    "rdma_get_cm_event": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "rdma_ack_cm_event": (ctypes.c_int, [ctypes.c_void_p]),
    "rdma_init_qp_attr": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
}


def load() -> Callable[..., Any]:
    """librdmacm, as a caller ``call(function, *arguments)`` that raises :class:`VerbsError`.

    Raises:
        VerbsError: it is not installed, or the kernel lacks what it stands on.
    """
    try:
        library = ctypes.CDLL("librdmacm.so.1", use_errno=True)
    except OSError:
        raise VerbsError("librdmacm is missing: apt-get install librdmacm1 ibverbs-providers") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments

    def call(name: str, *arguments: Any) -> Any:
        ctypes.set_errno(0)
        result = getattr(library, name)(*arguments)
        function_result = _FUNCTIONS[name][0]
        if (function_result is ctypes.c_int and result != 0) or (
            function_result is ctypes.c_void_p and not result
        ):
            code = ctypes.get_errno()
            raise VerbsError(f"{name}: {errno_text(code)}", errno=code)
        return result

    return call


def sockaddr(ip: str, port: int) -> bytes:
    """``struct sockaddr_in`` or ``sockaddr_in6``; an IPv6 scope (``fe80::1%eth0``) is kept."""
    address = ipaddress.ip_address(ip)
    if address.version == 4:
        return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + address.packed + bytes(8)
    scope = getattr(address, "scope_id", None)
    index = 0 if scope is None else (int(scope) if scope.isdigit() else socket.if_nametoindex(scope))
    head = struct.pack("=H", socket.AF_INET6) + struct.pack(">HI", port, 0)
    return head + address.packed + struct.pack("=I", index)


def read_sockaddr(raw: bytes) -> tuple[str, int] | None:
    """(IP, port) out of a ``struct sockaddr_storage``."""
    (family,) = struct.unpack_from("=H", raw)
    (port,) = struct.unpack_from(">H", raw, 2)
    if family == socket.AF_INET:
        return str(ipaddress.ip_address(raw[4:8])), port
    if family == socket.AF_INET6:
        return str(ipaddress.ip_address(raw[8:24])), port
    return None


class CmId:
    """One ``rdma_cm_id``. :meth:`close` destroys it; its events must have been acknowledged, and are."""

    def __init__(self, channel: Channel, handle: int) -> None:
        self._channel = channel
        self._call = channel.call
        self.handle = handle

    def _view(self) -> Any:
        return _Id.from_address(self.handle)

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

    def connect(self, qpn: int, private_data: bytes, *, reads: int, retry: int, rnr_retry: int) -> None:
        if len(private_data) > CONNECT_DATA_BYTES:
            raise ValueError(f"{len(private_data)} bytes of private data; a REQ takes {CONNECT_DATA_BYTES}")
        with_data, keep = self._parameters(qpn, private_data, reads, retry, rnr_retry)
        self._call("rdma_connect", self.handle, ctypes.byref(with_data))
        del keep

    def accept(self, qpn: int, private_data: bytes, *, reads: int, rnr_retry: int) -> None:
        if len(private_data) > ACCEPT_DATA_BYTES:
            raise ValueError(f"{len(private_data)} bytes of private data; a REP takes {ACCEPT_DATA_BYTES}")
        with_data, keep = self._parameters(qpn, private_data, reads, 0, rnr_retry)
        self._call("rdma_accept", self.handle, ctypes.byref(with_data))
        del keep

    def _parameters(
        self, qpn: int, private_data: bytes, reads: int, retry: int, rnr_retry: int
    ) -> tuple[_ConnParam, object]:
        buffer = ctypes.create_string_buffer(private_data, len(private_data)) if private_data else None
        parameters = _ConnParam(
            private_data=None if buffer is None else ctypes.addressof(buffer),
            private_data_len=len(private_data),
            responder_resources=reads,
            initiator_depth=reads,
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
        """What the handshake says a QP needs for a state (``enum ibv_qp_state``), and the mask of it."""
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

    def create_id(self, port_space: int = PORT_SPACE_TCP) -> CmId:
        handle = ctypes.c_void_p()
        self.call("rdma_create_id", self._handle, ctypes.byref(handle), None, port_space)
        assert handle.value is not None
        return CmId(self, handle.value)

    def adopt(self, event: CmEvent) -> CmId:
        """The identifier that a CONNECT_REQUEST brought."""
        return CmId(self, event.id)

    def event(self, wait_s: float = 0.0) -> CmEvent | None:
        """The next event, acknowledged; None when none comes in time."""
        if not self._poll.poll(wait_s * 1000):
            return None
        pointer = ctypes.c_void_p()
        try:
            self.call("rdma_get_cm_event", self._handle, ctypes.byref(pointer))
        except VerbsError as error:
            # The library keeps some events to itself; then there is nothing to read after all.
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return None
            raise
        assert pointer.value is not None
        event = _Event.from_address(pointer.value)
        name = CM_EVENTS[event.event] if event.event < len(CM_EVENTS) else str(event.event)
        conn = event.conn
        data = b""
        if conn.private_data and conn.private_data_len:
            data = ctypes.string_at(conn.private_data, conn.private_data_len)
        found = CmEvent(
            name, event.id or 0, event.status, data, conn.initiator_depth, conn.responder_resources
        )
        self.call("rdma_ack_cm_event", pointer)
        return found

    def close(self) -> None:
        if self._handle:
            self.call("rdma_destroy_event_channel", self._handle)
            self._handle = 0


def cm_error(event: CmEvent, cm: CmId) -> VerbsError:
    """What a CM event that ends a handshake means."""
    remote = cm.remote
    there = "the peer" if remote is None else f"{remote[0]} port {remote[1]}"
    return meaning_of(event.type, event.status, event.private_data, there)
