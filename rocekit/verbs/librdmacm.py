"""librdmacm through ctypes: its structures, its functions, and socket addresses.

The structures are those of ``rdma/rdma_cma.h`` and ``infiniband/verbs.h`` (ABI of librdmacm.so.1 on 64-bit
machines). They are read; only the connection parameters are built here.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import ipaddress
import socket
import struct
from collections.abc import Callable
from typing import Any

from rocekit.endpoint.errors import errno_text
from rocekit.errors import VerbsError


class GlobalRoute(ctypes.Structure):
    _fields_ = [
        ("dgid", ctypes.c_uint8 * 16),
        ("flow_label", ctypes.c_uint32),
        ("sgid_index", ctypes.c_uint8),
        ("hop_limit", ctypes.c_uint8),
        ("traffic_class", ctypes.c_uint8),
        ("_pad", ctypes.c_uint8),
    ]


class AhAttr(ctypes.Structure):
    _fields_ = [
        ("grh", GlobalRoute),
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
        ("ah_attr", AhAttr),
        ("alt_ah_attr", AhAttr),
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


class ConnParameters(ctypes.Structure):
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


class EventStruct(ctypes.Structure):
    # The parameters are a union of which the connection's are the part read here.
    _fields_ = [
        ("id", ctypes.c_void_p),
        ("listen_id", ctypes.c_void_p),
        ("event", ctypes.c_uint32),
        ("status", ctypes.c_int32),
        ("conn", ConnParameters),
    ]


_Sockaddr = ctypes.c_uint8 * 128  # struct sockaddr_storage


class IdStruct(ctypes.Structure):
    _fields_ = [
        ("verbs", ctypes.c_void_p),
        ("channel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("qp", ctypes.c_void_p),
        ("src_addr", _Sockaddr),
        ("dst_addr", _Sockaddr),
    ]


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
        VerbsError: it is not installed, or the kernel lacks rdma_ucm.
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
