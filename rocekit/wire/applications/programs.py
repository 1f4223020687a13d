"""Sockets, communication libraries and test programs: RDS, rsockets, UCX, NCCL, rping, perftest, rocekit.

Layouts: RDS: net/rds/ib.h; rsockets: librdmacm's rsocket.c; UCX: uct_rdmacm_priv_data_hdr and
ucp_wireup_sockaddr_data; NCCL: ncclIbSendFifo of its IB transport; rping: librdmacm's rping.c; perftest:
the version that its two ends exchange first.
"""

from __future__ import annotations

import re
import struct
from types import MappingProxyType
from typing import Final

from rocekit.wire.applications.said import HINT, LOOSE, MAGIC, SHAPE, FirstMessage, Said, Ulp, text_of, zeros
from rocekit.wire.memory_messages import NCCL_BYTES, RPING_TEXT

RDS: Final = "RDS"
RSOCKETS: Final = "rsockets"
UCX: Final = "UCX"
NCCL: Final = "NCCL"
RPING: Final = "rping"
PERFTEST: Final = "perftest"
VERBS_EXAMPLES: Final = "libibverbs' examples"
CM_EXAMPLES: Final = "librdmacm's examples"
ROCEKIT: Final = "rocekit"

# --------------------------------------------------------------------------- RDS

_RDS: Final = struct.Struct(">BBHBBHQI")  # version, minors supported, ToS, sequence acknowledged, credits
_RDS_VERSIONS, _MOST_MINOR, _MINORS = (3, 4), 2, 0xF


def _rds(data: bytes) -> Said | None:
    for addresses in (8, 32):  # of IPv4, of IPv6
        if len(data) < addresses + _RDS.size or not zeros(data, addresses + _RDS.size):
            continue
        major, minor, mask, service, reserved, _, _, credit = _RDS.unpack_from(data, addresses)
        if major not in _RDS_VERSIONS or minor > _MOST_MINOR or not 0 < mask <= _MINORS or reserved:
            continue
        if zeros(data, 0, addresses // 2) or zeros(data, addresses // 2, addresses):
            continue
        details = {"version": f"{major}.{minor}", "tos": service, "credits": credit}
        words = f"version {major}.{minor}"
        return Said(RDS, LOOSE, f"{words}, {f'{credit} credits' if credit else 'no flow control'}", details)
    return None


# --------------------------------------------------------------------------- rsockets

_RS: Final = struct.Struct(">BBH3sBQIIQII")
_RS_FLAGS, _RS_SGES = 0x03, 2


def _rsocket(data: bytes) -> Said | None:
    if len(data) < _RS.size or not zeros(data, _RS.size):
        return None
    version, flags, credit, gap, _, sgl, _, sges, buffer, _, length = _RS.unpack_from(data)
    if version != 1 or not flags or flags & ~_RS_FLAGS or any(gap) or not credit:
        return None
    if sges != _RS_SGES or not sgl or not buffer or not length:
        return None
    words = f"{credit} credits, buffer of {length:,} bytes"
    return Said(RSOCKETS, SHAPE, words, {"credits": credit, "buffer_bytes": length})


# --------------------------------------------------------------------------- UCX

_UCX_HEADER, _UCX_LEAST, _UCX_MOST = 2, 12, 54
_UCX_ERROR_MODES, _UCX_CM_ADDRESS = 2, 2


def _ucx(data: bytes) -> Said | None:
    length = data[0] if data else 0
    if not _UCX_LEAST <= length <= min(_UCX_MOST, len(data) - _UCX_HEADER) or data[1]:
        return None
    if not zeros(data, _UCX_HEADER + length) or zeros(data, 13, _UCX_HEADER + length):
        return None
    if data[10] > _UCX_ERROR_MODES or data[11] != _UCX_CM_ADDRESS or data[12]:
        return None
    return Said(UCX, HINT, f"worker address of {length - 11} bytes", {"length": length})


# --------------------------------------------------------------------------- NCCL

#: 64 bytes: address, size, rkeys of so many devices, requests, tag, index, padding. Entries of 2.19 and older
#: have 32 bytes, and are not known.
_NCCL: Final = (
    (struct.Struct("<QQ8IIIQ0s"), 8),  # 2.30
    (struct.Struct("<QQ4IIIQ16s"), 4),  # 2.24 to 2.29
    (struct.Struct("<QI2III4sQ24s"), 2),  # 2.20 to 2.23
)
_NCCL_REQUESTS = 8
_NCCL_MOST_INDEX: Final = 1 << 40


def _nccl(message: FirstMessage) -> Said | None:
    """A receiver's announcement that its buffers are ready: a WRITE into the sender's FIFO."""
    if not message.only or not len(message.data) == message.length == NCCL_BYTES:
        return None
    for layout, devices in _NCCL:
        values = layout.unpack(message.data)
        address, size, rkeys = values[0], values[1], values[2 : 2 + devices]
        count, index, gap = values[2 + devices], values[-2], values[-1]
        unused = rkeys[rkeys.index(0) :] if 0 in rkeys else ()
        if not address or not size or not rkeys[0] or any(unused) or any(gap):
            continue
        if not 0 < count <= _NCCL_REQUESTS:
            continue
        if 0 < index < _NCCL_MOST_INDEX:
            return Said(NCCL, HINT, f"buffer {index} ready", {"index": index})
    return None


# --------------------------------------------------------------------------- programs

_PING: Final = re.compile(RPING_TEXT + rb"(\d{1,10}): ")
_PING_INFO: Final = struct.Struct(">QII")
_MOST_ADDRESS, _MOST_PING = 1 << 57, 64 * 1024
_PERFTEST_VERSION: Final = re.compile(rb"(\d{1,2}\.\d{1,3})\0+")
_VERSION_BYTES: Final = 16
_ROCEKIT_PLAN, _ROCEKIT_FAILURES = b"rcki", b"rckf"


def _rping(message: FirstMessage) -> Said | None:
    if message.operation != "SEND":
        return None if _PING.match(message.data) is None else Said(RPING, MAGIC, "its text")
    if not message.only or len(message.data) != _PING_INFO.size or message.length != _PING_INFO.size:
        return None
    address, rkey, length = _PING_INFO.unpack(message.data)
    if not 0 < address < _MOST_ADDRESS or not rkey or not 0 < length <= _MOST_PING:
        return None
    return Said(RPING, LOOSE, f"buffer of {length:,} bytes", {"bytes": length})


def _perftest(message: FirstMessage) -> Said | None:
    if not message.only or message.length != _VERSION_BYTES:
        return None
    match = _PERFTEST_VERSION.fullmatch(message.data)
    if match is None:
        return None
    version = match[1].decode()
    return Said(PERFTEST, SHAPE, f"version {version}", {"version": version}, f"version {version}")


def _rocekit_request(data: bytes) -> Said | None:
    if data.startswith(_ROCEKIT_FAILURES) and zeros(data, 5):
        return Said(ROCEKIT, MAGIC, "scenario failures", {"scenario": "failures"}, "scenario failures")
    scenario = text_of(data[4:20]) if data.startswith(_ROCEKIT_PLAN) else None
    if scenario is None:
        return None
    return Said(ROCEKIT, MAGIC, f"scenario {scenario}", {"scenario": scenario}, f"scenario {scenario}")


def _rocekit_reply(data: bytes) -> Said | None:
    if not data.startswith((_ROCEKIT_PLAN, _ROCEKIT_FAILURES)):
        return None
    return Said(ROCEKIT, MAGIC, "address of the server's memory")


PROGRAMS: Final = (
    Ulp(RDS, frozenset({18634, 16385}), MappingProxyType({"REQ": _rds, "REP": _rds}), always_asks=True),
    Ulp(RSOCKETS, private_data=MappingProxyType({"REQ": _rsocket, "REP": _rsocket}), always_asks=True),
    Ulp(UCX, private_data=MappingProxyType({"REQ": _ucx, "REP": _ucx})),
    Ulp(NCCL, message=_nccl, operations=("WRITE",)),
    Ulp(
        RPING,
        frozenset({7174}),
        message=_rping,
        operations=("SEND", "WRITE", "READ_RESPONSE"),
        never_asks=True,
        opens=True,
    ),
    Ulp(PERFTEST, frozenset({18515}), message=_perftest, never_asks=True, opens=True),
    Ulp(CM_EXAMPLES, frozenset({7471}), never_asks=True),
    Ulp(ROCEKIT, private_data=MappingProxyType({"REQ": _rocekit_request, "REP": _rocekit_reply})),
)
