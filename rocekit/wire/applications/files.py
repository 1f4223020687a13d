"""File systems and object stores: RPC-over-RDMA (NFS, Gluster), SMB Direct, LNet (Lustre), Ceph.

Layouts: RPC-over-RDMA version 1: RFC 8166 (Gluster's transport has the same header), its private data:
RFC 8797, RPC: RFC 5531; SMB Direct: MS-SMBD 2.2; LNet: o2iblnd-idl.h; Ceph: the banner of its messenger
(msgr.h).
"""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import Final

from rocekit.wire.applications.said import MAGIC, SHAPE, FirstMessage, Said, Ulp, zeros

RPC: Final = "RPC-over-RDMA"
NFS: Final = "NFS/RDMA"
GLUSTER: Final = "Gluster"
SMB: Final = "SMB Direct"
LNET: Final = "LNet"
CEPH: Final = "Ceph"

# --------------------------------------------------------------------------- RPC-over-RDMA

_RPC_MAGIC: Final = 0xF6AB0E18
_RPC_CM: Final = struct.Struct(">I4B")
_NFS_PROGRAMS: Final = MappingProxyType(
    {100003: "NFS", 100005: "MOUNT", 100021: "NLM", 100024: "NSM", 100227: "NFSACL", 400122: "NFS callback"}
)
_NFS_CALLBACK: Final = 0x4000_0000  # RFC 5661: callback programs are of the transient range
_GLUSTER_PROGRAMS: Final = MappingProxyType(
    {
        14398633: "handshake",
        34123456: "portmap",
        52743234: "callback",
        1298437: "file operations",
        1238433: "management",
        1239873: "management handshake",
        1238437: "friends",
        1238463: "CLI",
        4867634: "brick",
        123451501: "dump",
    }
)
_RDMA_MSG: Final = 0
_ONE: Final = bytes([0, 0, 0, 1])  # the version
_LEAST_RPC: Final = 40  # header, three empty lists, the first three words of a call or reply
_CALL, _REPLY = 0, 1
_MOST_CREDITS, _MOST_CHUNKS = 0xFFFF, 16
_READ_CHUNK, _SEGMENT = 5, 4  # words: position, handle, length, offset of two; without the position


def _rpc_private(data: bytes) -> Said | None:
    if len(data) < _RPC_CM.size:
        return None
    magic, version, flags, sends, receives = _RPC_CM.unpack_from(data)
    if magic != _RPC_MAGIC or version != 1 or not zeros(data, _RPC_CM.size):
        return None
    details = {
        "send_size": (sends + 1) * 1024,
        "receive_size": (receives + 1) * 1024,
        "remote_invalidation": flags & 1,
    }
    words = f"inline up to {details['send_size']:,} bytes sent, {details['receive_size']:,} received"
    return Said(RPC, MAGIC, f"{words}{', remote invalidation' if flags & 1 else ''}", details)


class _Words:
    """Reads 32-bit numbers one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._ended = data, 0, False

    def has_ended(self) -> bool:
        """Whether more was asked for than there is."""
        return self._ended

    def take(self, count: int = 1) -> int:
        """The first of the next ``count`` numbers."""
        start, self._at = self._at, self._at + 4 * count
        if self._at > len(self._data):
            self._ended = True
            return -1
        return int.from_bytes(self._data[start : start + 4], "big")

    def skip_list(self, size: int, counted: bool) -> bool:
        """Skip the items of an XDR list, each behind a 1; a 0 ends it. Returns whether it is one."""
        for _ in range(_MOST_CHUNKS):
            more = self.take()
            if more not in (0, 1):
                return False
            if not more:
                return True
            self._chunk(size, counted)
        return False

    def skip_optional(self) -> bool:
        """Skip a reply chunk, if there is one."""
        more = self.take()
        if more == 1:
            self._chunk(_SEGMENT, True)
        return more in (0, 1)

    def _chunk(self, size: int, counted: bool) -> None:
        count = self.take() if counted else 1
        if 0 < count <= _MOST_CHUNKS:
            self.take(size * count)
        elif count:
            self._ended = True


def _rpc_message(message: FirstMessage) -> Said | None:
    """An RPC call or reply with the header of RPC-over-RDMA before it: both have the same XID."""
    if len(message.data) < _LEAST_RPC or message.data[4:8] != _ONE:
        return None
    words = _Words(message.data)
    xid, _, credit, kind = words.take(), words.take(), words.take(), words.take()
    if not xid or not 0 < credit <= _MOST_CREDITS or kind != _RDMA_MSG:
        return None
    chunks = words.skip_list(_READ_CHUNK, False) and words.skip_list(_SEGMENT, True) and words.skip_optional()
    if not chunks or words.take() != xid:
        return None
    direction, first = words.take(), words.take()  # of a call: RPC's version; of a reply: its status
    if words.has_ended() or (direction, first) not in ((_CALL, 2), (_REPLY, 0), (_REPLY, 1)):
        return None
    if direction == _REPLY:
        return Said(RPC, MAGIC, "RPC reply", {"credits": credit})
    program, release, _ = words.take(), words.take(), words.take()
    if words.has_ended():
        return None
    details = {"rpc_program": program, "rpc_version": release, "credits": credit}
    if program in _GLUSTER_PROGRAMS:
        return Said(GLUSTER, MAGIC, f"RPC of Gluster's {_GLUSTER_PROGRAMS[program]}", details)
    name = _NFS_PROGRAMS.get(program)
    if name is not None:
        return Said(NFS, MAGIC, f"RPC of {name} version {release}", details, f"{name} version {release}")
    return Said(RPC, MAGIC, f"RPC of program {program} version {release}", details)


# --------------------------------------------------------------------------- SMB Direct

_VERSION: Final = 0x0100
_SMB_REQUEST: Final = struct.Struct("<4H3I")
_SMB_RESPONSE: Final = struct.Struct("<6H5I")
_SMB_DATA: Final = struct.Struct("<4H3I")
_LEAST_SIZE, _LEAST_FRAGMENTED = 128, 131_072  # MS-SMBD 2.2.1
_SMB_HEADS: Final = (b"\xfeSMB", b"\xfdSMB", b"\xfcSMB")
_DATA_AT: Final = 24


def _smb_message(message: FirstMessage) -> Said | None:
    if not message.only and message.length <= _SMB_RESPONSE.size:
        return None
    if message.length == _SMB_REQUEST.size == len(message.data):
        return _smb_request(message.data)
    if message.length == _SMB_RESPONSE.size == len(message.data):
        return _smb_response(message.data)
    data = message.data
    if len(data) < _DATA_AT + 4 or data[_DATA_AT : _DATA_AT + 4] not in _SMB_HEADS:
        return None
    _, _, flags, reserved, _, offset, length = struct.unpack_from("<4H3I", data)
    if flags > 1 or reserved or offset != _DATA_AT or not length:
        return None
    return Said(SMB, MAGIC, "SMB message")


def _smb_request(data: bytes) -> Said | None:
    low, high, reserved, credits, sends, receives, fragmented = _SMB_REQUEST.unpack(data)
    if (low, high, reserved) != (_VERSION, _VERSION, 0) or not credits:
        return None
    if min(sends, receives) < _LEAST_SIZE or fragmented < _LEAST_FRAGMENTED:
        return None
    details = {"credits_requested": credits, "max_receive_size": receives, "max_fragmented_size": fragmented}
    words = f"negotiate: {credits} credits asked for, receives up to {receives:,} bytes"
    return Said(SMB, SHAPE, words, details)


def _smb_response(data: bytes) -> Said | None:
    low, high, chosen, reserved, credits, granted, status, largest, sends, receives, fragmented = (
        _SMB_RESPONSE.unpack(data)
    )
    if (low, high, chosen, reserved) != (_VERSION, _VERSION, _VERSION, 0) or not credits or status:
        return None
    if min(sends, receives) < _LEAST_SIZE or fragmented < _LEAST_FRAGMENTED:
        return None
    details = {"credits_granted": granted, "max_read_write_size": largest}
    words = f"negotiate response: {granted} credits granted, READ and WRITE up to {largest:,} bytes"
    return Said(SMB, SHAPE, words, details)


# --------------------------------------------------------------------------- LNet

_LNET_MAGIC: Final = 0x0BE91B91
_LNET: Final = "IHBBII4Q"  # magic, version, type, credits, bytes, checksum, NIDs and stamps of both
_LNET_BYTES: Final = struct.calcsize(f"<{_LNET}")
_LNET_PARAMS: Final = "HHI"  # queue depth, fragments, message size
_LNET_REJ: Final = "IHB"
_LNET_TYPES: Final = MappingProxyType(
    {
        0xC0: "connection request",
        0xC1: "connection acknowledgement",
        0xD0: "NOOP",
        0xD1: "IMMEDIATE",
        0xD2: "PUT_REQ",
        0xD3: "PUT_NAK",
        0xD4: "PUT_ACK",
        0xD5: "PUT_DONE",
        0xD6: "GET_REQ",
        0xD7: "GET_DONE",
    }
)
_LNET_MAGICS: Final = MappingProxyType({struct.pack(f"{order}I", _LNET_MAGIC): order for order in "<>"})
_LNET_CONNECTS: Final = (0xC0, 0xC1)
_LNET_VERSIONS: Final = (0x11, 0x12)
_LNET_REASONS: Final = MappingProxyType(
    {
        1: "connection race lost",
        2: "no resources",
        3: "fatal",
        4: "incompatible version",
        5: "stale peer",
        6: "RDMA fragments differ",
        7: "message queue sizes differ",
        8: "invalid service ID",
        9: "not ready yet",
    }
)
_NET_TYPES: Final = MappingProxyType({2: "tcp", 5: "o2ib"})


def _order(data: bytes) -> str | None:
    """The sender's byte order, which its magic shows; None without the magic."""
    return _LNET_MAGICS.get(data[:4])


def _nid(number: int) -> str:
    """An LNet NID: ``10.0.0.1@o2ib``."""
    address, net = number & 0xFFFF_FFFF, number >> 32
    kind, index = net >> 16, net & 0xFFFF
    name = _NET_TYPES.get(kind, f"net{kind}")
    return f"{'.'.join(map(str, address.to_bytes(4, 'big')))}@{name}{index or ''}"


def _lnet(data: bytes) -> Said | None:
    order = _order(data)
    if order is None or len(data) < _LNET_BYTES:
        return None
    _, version, kind, _, _, _, source, _, target, _ = struct.unpack_from(order + _LNET, data)
    if version not in _LNET_VERSIONS or kind not in _LNET_TYPES:
        return None
    details: dict[str, int | str] = {
        "version": f"{version:#x}",
        "src_nid": _nid(source),
        "dst_nid": _nid(target),
    }
    words = f"{_LNET_TYPES[kind]} {details['src_nid']} → {details['dst_nid']}"
    if kind in _LNET_CONNECTS and len(data) >= _LNET_BYTES + struct.calcsize(f"<{_LNET_PARAMS}"):
        depth, fragments, most = struct.unpack_from(order + _LNET_PARAMS, data, _LNET_BYTES)
        details |= {"queue_depth": depth, "max_frags": fragments, "max_msg_size": most}
        words += f", queue depth {depth}, {fragments} fragments, messages up to {most:,} bytes"
    return Said(LNET, MAGIC, words, details)


def _lnet_reject(data: bytes) -> Said | None:
    order = _order(data)
    if order is None or len(data) < struct.calcsize(f"<{_LNET_REJ}"):
        return None
    _, version, why = struct.unpack_from(order + _LNET_REJ, data)
    if version not in _LNET_VERSIONS or why not in _LNET_REASONS:
        return None
    return Said(LNET, MAGIC, f"“{_LNET_REASONS[why]}”", {"reject_reason": why})


def _lnet_message(message: FirstMessage) -> Said | None:
    return _lnet(message.data)


# --------------------------------------------------------------------------- Ceph

_CEPH_BANNERS: Final = MappingProxyType({b"ceph v2\n": "messenger 2", b"ceph v027": "messenger 1"})


def _ceph_message(message: FirstMessage) -> Said | None:
    banner = next((banner for banner in _CEPH_BANNERS if message.data.startswith(banner)), None)
    if banner is None:
        return None
    words = _CEPH_BANNERS[banner]
    return Said(CEPH, MAGIC, f"banner of {words}", {"banner": banner.decode().strip()}, words)


FILES: Final = (
    Ulp(
        NFS,
        frozenset({20049}),
        MappingProxyType({"REQ": _rpc_private, "REP": _rpc_private}),
        _rpc_message,
        opens=True,
    ),
    Ulp(GLUSTER, frozenset({24007, 24008}), message=_rpc_message, opens=True),
    Ulp(SMB, frozenset({445, 5445}), message=_smb_message, opens=True),
    Ulp(
        LNET,
        frozenset({988}),
        MappingProxyType({"REQ": _lnet, "REP": _lnet, "REJ": _lnet_reject}),
        _lnet_message,
        always_asks=True,
    ),
    Ulp(CEPH, frozenset({3300, 6789}), message=_ceph_message, opens=True),
)
