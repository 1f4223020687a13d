"""Block storage: NVMe-oF, iSER, SRP, RTRS.

Layouts: NVMe-oF 1.1, 7.3.6.3 and 3.3 (Linux: nvme-rdma.h, nvme.h); iSER: IBA annex A12 and RFC 7145 (iser.h);
SRP: INCITS T10 SRP (srp.h); RTRS: rtrs-pri.h.
"""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import Final

from rocekit.wire.applications.said import LOOSE, MAGIC, SHAPE, FirstMessage, Said, Ulp, text_of, zeros

NVME: Final = "NVMe-oF"
ISER: Final = "iSER"
SRP: Final = "SRP"
RTRS: Final = "RTRS"

# --------------------------------------------------------------------------- NVMe-oF

_NVME_REQ: Final = struct.Struct("<5H")  # recfmt, qid, hrqsize, hsqsize, cntlid; 22 reserved bytes follow
_NVME_SHORT: Final = struct.Struct("<2H")  # REP: recfmt, crqsize; REJ: recfmt, status
_NVME_BYTES: Final = 32
NVME_STATUSES: Final = MappingProxyType(
    {
        1: "invalid private data length",
        2: "invalid record format",
        3: "invalid queue ID",
        4: "invalid host send queue size",
        5: "invalid host receive queue size",
        6: "no resources",
        7: "invalid IRD",
        8: "invalid ORD",
        9: "invalid controller ID",
    }
)
_SQE_BYTES: Final = 64
_FABRICS, _CONNECT, _SGL = 0x7F, 0x01, 0x40
_NQN_AT, _NQN_BYTES = _SQE_BYTES + 256, 256  # subsystem NQN in the data of Connect, behind the capsule


def _queue(number: int) -> str:
    return "admin queue" if number == 0 else f"queue {number}"


def _nvme_request(data: bytes) -> Said | None:
    if len(data) < _NVME_BYTES or not zeros(data, _NVME_REQ.size):
        return None
    record, queue, receives, sends, controller = _NVME_REQ.unpack_from(data)
    if record or not receives or not sends:
        return None
    details = {"qid": queue, "hrqsize": receives, "hsqsize": sends, "cntlid": controller}
    words = f"{_queue(queue)}, host receive queue {receives}, host send queue {sends}"
    if controller:
        words += f", controller {controller}"
    return Said(NVME, LOOSE, words, details, _queue(queue))


def _nvme_reply(data: bytes) -> Said | None:
    if len(data) < _NVME_BYTES or not zeros(data, _NVME_SHORT.size):
        return None
    record, receives = _NVME_SHORT.unpack_from(data)
    if record or not receives:
        return None
    return Said(NVME, LOOSE, f"controller receive queue {receives}", {"crqsize": receives})


def _nvme_reject(data: bytes) -> Said | None:
    if len(data) < _NVME_SHORT.size or not zeros(data, _NVME_SHORT.size):
        return None
    record, status = _NVME_SHORT.unpack_from(data)
    if record or status not in NVME_STATUSES:
        return None
    return Said(NVME, LOOSE, f"“{NVME_STATUSES[status]}”", {"reject_status": status})


def _nvme_capsule(message: FirstMessage) -> Said | None:
    """The Connect command, the first one on each queue."""
    data = message.data
    if len(data) < _SQE_BYTES or (data[0], data[1], data[4]) != (_FABRICS, _SGL, _CONNECT):
        return None
    record, queue, size = struct.unpack_from("<3H", data, 40)
    if record or not size or data[47] or not zeros(data, 5, 24) or not zeros(data, 52, _SQE_BYTES):
        return None
    details: dict[str, int | str] = {"qid": queue, "sqsize": size}
    words = f"Connect of {_queue(queue)}, {size + 1} entries"
    name = text_of(data[_NQN_AT : _NQN_AT + _NQN_BYTES])
    if name is not None and name.startswith("nqn."):
        details["subsystem"] = name
        words += f", {name}"
    return Said(NVME, MAGIC, words, details, _queue(queue))


# --------------------------------------------------------------------------- iSER

_NO_ZBVA, _NO_INVALIDATE = 0x80, 0x40
_ISER_HEADER: Final = 28
_ISCSI_AT: Final = _ISER_HEADER
_ISCSI_TEXT: Final = _ISER_HEADER + 48
_CONTROL: Final = 0x10
_LOGIN, _LOGIN_RESPONSE = 0x43, 0x23


def _iser_cm(data: bytes) -> Said | None:
    flags = data[0] if data else 0
    if not flags or flags & ~(_NO_ZBVA | _NO_INVALIDATE) or not zeros(data, 1):
        return None
    words = [
        word
        for bit, word in ((_NO_ZBVA, "zero-based addresses"), (_NO_INVALIDATE, "SEND with invalidate"))
        if flags & bit
    ]
    return Said(ISER, LOOSE, f"no {' and no '.join(words)}", {"flags": flags})


def _iser_message(message: FirstMessage) -> Said | None:
    """An iSCSI login, the first request or response of a connection."""
    data = message.data
    if len(data) < _ISCSI_TEXT or data[0] != _CONTROL:
        return None
    if not zeros(data, 1, _ISER_HEADER):
        return None
    opcode = data[_ISCSI_AT]
    if opcode not in (_LOGIN, _LOGIN_RESPONSE) or zeros(data, _ISCSI_AT + 8, _ISCSI_AT + 14):  # no ISID
        return None
    details: dict[str, int | str] = {}
    words = "iSCSI login" if opcode == _LOGIN else "iSCSI login response"
    for pair in data[_ISCSI_TEXT:].split(b"\0")[:-1]:
        key, equals, value = pair.partition(b"=")
        name, said = _ISCSI_KEYS.get(key), text_of(value)
        if name is not None and equals and said is not None:
            details[name] = said
            words += f", {name} {said}"
    return Said(ISER, MAGIC, words, details)


_ISCSI_KEYS: Final = MappingProxyType({b"InitiatorName": "initiator", b"TargetName": "target"})

# --------------------------------------------------------------------------- SRP

_FORMATS: Final = 0x0E  # direct, indirect and immediate data buffer descriptors
_FLAGS: Final = 0x83
_LEAST_IU, _MOST_IU = 64, 1 << 20
_LOGIN_REQ, _LOGIN_RSP, _LOGIN_REJ = 0x00, 0xC0, 0xC2
_SRP_IP: Final = struct.Struct(">8sHBBI16s16sH")  # login request where RDMA IP CM leaves 56 bytes
_SRP_IB: Final = struct.Struct(">B7s8sI4sHBBH2s16s16s")
_SRP_RSP: Final = struct.Struct(">B3sI8sIIHB25s")
_SRP_REJ: Final = struct.Struct(">B3sI8s8sH6s")
_SRP_REASONS: Final = MappingProxyType(
    {
        0x10000: "unable to establish a channel",
        0x10001: "insufficient resources",
        0x10002: "IU length too large",
        0x10003: "unable to associate the channel",
        0x10004: "unsupported descriptor format",
        0x10005: "several channels not supported",
        0x10006: "channel limit reached",
    }
)


def _srp_login(length: int, formats: int, flags: int, initiator: bytes, target: bytes) -> Said | None:
    if not _LEAST_IU <= length <= _MOST_IU or not formats or formats & ~_FORMATS or flags & ~_FLAGS:
        return None
    if not any(initiator) or not any(target):
        return None
    details: dict[str, int | str] = {
        "req_it_iu_len": length,
        "initiator": initiator.hex(),
        "target": target.hex(),
    }
    return Said(SRP, SHAPE, f"login of initiator {initiator.hex()}, IUs up to {length} bytes", details)


def _srp_request(data: bytes) -> Said | None:
    if len(data) >= _SRP_IB.size:  # without IP addressing
        opcode, gap0, _, length, gap1, formats, flags, gap2, _, gap3, initiator, target = _SRP_IB.unpack_from(
            data
        )
        gaps = gap0 + gap1 + gap3 + bytes([gap2])
    elif len(data) >= _SRP_IP.size + 6:
        _, formats, flags, opcode, length, initiator, target, offset = _SRP_IP.unpack_from(data)
        gaps = data[_SRP_IP.size :] + bytes([offset > _MOST_IU])
    else:
        return None
    return (
        None if opcode != _LOGIN_REQ or any(gaps) else _srp_login(length, formats, flags, initiator, target)
    )


def _srp_reply(data: bytes) -> Said | None:
    if len(data) < _SRP_RSP.size:
        return None
    opcode, gap0, credits, _, to_target, to_initiator, formats, flags, gap1 = _SRP_RSP.unpack_from(data)
    if opcode != _LOGIN_RSP or any(gap0 + gap1) or not 0 < credits <= 0xFFFF or flags & ~_FLAGS:
        return None
    if not formats or formats & ~_FORMATS or min(to_target, to_initiator) < _LEAST_IU:
        return None
    details = {"req_lim_delta": credits, "max_it_iu_len": to_target, "max_ti_iu_len": to_initiator}
    return Said(SRP, SHAPE, f"login accepted, {credits} credits, IUs up to {to_target} bytes", details)


def _srp_reject(data: bytes) -> Said | None:
    if len(data) < _SRP_REJ.size:
        return None
    opcode, gap0, reason, _, gap1, _, gap2 = _SRP_REJ.unpack_from(data)
    if opcode != _LOGIN_REJ or reason not in _SRP_REASONS or any(gap0 + gap1 + gap2):
        return None
    return Said(SRP, SHAPE, f"login rejected: “{_SRP_REASONS[reason]}”", {"reject_reason": reason})


# --------------------------------------------------------------------------- RTRS

_RTRS_MAGIC: Final = 0x1BBD
_RTRS_REQ: Final = struct.Struct("<2s5H16s16sB11s")
_RTRS_RSP: Final = struct.Struct("<4H3I36s")


def _rtrs_request(data: bytes) -> Said | None:
    if len(data) < _RTRS_REQ.size:
        return None
    gap0, magic, version, number, count, again, session, paths, first, gap1 = _RTRS_REQ.unpack_from(data)
    if magic != _RTRS_MAGIC or any(gap0 + gap1) or first > 1 or not 1 <= version >> 8 <= 9 or number >= count:
        return None
    details = {
        "version": f"{version >> 8}.{version & 0xFF}",
        "cid": number,
        "cid_num": count,
        "recon_cnt": again,
        "session": session.hex(),
        "paths": paths.hex(),
    }
    words = f"version {details['version']}, connection {number} of {count}"
    if again:
        words += f", reconnected {again} times"
    return Said(RTRS, MAGIC, words, details, f"connection {number} of {count}")


def _rtrs_reply(data: bytes) -> Said | None:
    if len(data) < _RTRS_RSP.size:
        return None
    magic, version, error, depth, most, header, _, gap = _RTRS_RSP.unpack_from(data)
    if magic != _RTRS_MAGIC or any(gap) or not 1 <= version >> 8 <= 9:
        return None
    details = {
        "version": f"{version >> 8}.{version & 0xFF}",
        "errno": error,
        "queue_depth": depth,
        "max_io_size": most,
        "max_hdr_size": header,
    }
    words = f"error {error}" if error else f"queue depth {depth}, I/O up to {most:,} bytes"
    return Said(RTRS, MAGIC, f"version {details['version']}, {words}", details)


STORAGE: Final = (
    Ulp(
        NVME,
        frozenset({4420}),
        MappingProxyType({"REQ": _nvme_request, "REP": _nvme_reply, "REJ": _nvme_reject}),
        _nvme_capsule,
        always_asks=True,
        opens=True,
    ),
    Ulp(
        ISER,
        frozenset({3260, 860}),
        MappingProxyType({"REQ": _iser_cm, "REP": _iser_cm}),
        _iser_message,
        opens=True,
    ),
    Ulp(
        SRP,
        private_data=MappingProxyType({"REQ": _srp_request, "REP": _srp_reply, "REJ": _srp_reject}),
        always_asks=True,
    ),
    Ulp(
        RTRS,
        frozenset({1234}),
        MappingProxyType({"REQ": _rtrs_request, "REP": _rtrs_reply, "REJ": _rtrs_reply}),
        always_asks=True,
    ),
)
