"""A packet from the device, decoded field by field, and what is wrong with it whatever was expected."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final

from rocekit.conform.values import field_words
from rocekit.wire import (
    BTH,
    DEFAULT_PKEY,
    ICRC_BYTES,
    MAD_QPNS,
    OPCODES,
    ROCE_UDP_PORT,
    Opcode,
    icrc,
)
from rocekit.wire import psn as serial
from rocekit.wire.mad import parse_mad
from rocekit.wire.network import ECN_BITS, UDP_BYTES, UDP_PROTOCOL

_IPV4_BYTES: Final = 20
_IPV6_BYTES: Final = 40
#: Fields that a packet's line shows only where they are not as usual.
_USUAL: Final = {
    "solicited": 0,
    "migreq": None,
    "padcount": None,
    "version": 0,
    "pkey": DEFAULT_PKEY,
    "fecn": 0,
    "becn": None,
    "dest_qpn": None,
    "opcode": None,
    "ackreq": 0,
}
#: Fields of a CM message that its line always shows, and those that are no bit pattern.
_SHOWN_OF_CM: Final = ("local_comm_id", "remote_comm_id", "reason", "ap_status")
_CODES: Final = frozenset({"reason", "ap_status", "message_rejected", "path_mtu_code"})


@dataclass(slots=True)
class SeenPacket:
    """A RoCE packet that the device sent.

    Attributes:
        time_ns: when it came.
        op: what its opcode means, None for one without a meaning.
        fields: of the BTH and the headers behind it, by ``wire``'s names; also ecn, dscp, ttl, sport.
        payload: without the pad.
        cm: the CM message in it, or "".
        cm_fields: the message's fields.
        faults: what no right packet has, in words.
    """

    time_ns: int
    data: bytes
    op: Opcode | None
    fields: dict[str, int]
    payload: bytes
    source: str
    cm: str = ""
    cm_fields: dict[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The opcode's name, or its number; CM_REQ and so on for a CM message."""
        if self.cm:
            return f"CM_{self.cm}"
        return self.op.name if self.op is not None else f"opcode {self.fields['opcode']:#04x}"

    @property
    def response(self) -> bool:
        return self.op is not None and self.op.response


def read_packet(data: bytes, time_ns: int) -> SeenPacket | None:
    """Decode an IP packet; None if it is no RoCE packet."""
    if len(data) < _IPV4_BYTES:
        return None
    version = data[0] >> 4
    if version == 4:
        start = (data[0] & 15) * 4
        end = int.from_bytes(data[2:4], "big")
        tclass, ttl, protocol, source = data[1], data[8], data[9], data[12:16]
        if data[6] & 0x3F or data[7]:
            return None
    elif version == 6 and len(data) >= _IPV6_BYTES:
        start = _IPV6_BYTES
        end = start + int.from_bytes(data[4:6], "big")
        tclass, ttl, protocol, source = (data[0] & 15) << 4 | data[1] >> 4, data[7], data[6], data[8:24]
    else:
        return None
    transport = start + UDP_BYTES
    end = min(end, len(data))
    if protocol != UDP_PROTOCOL or end < transport + BTH.length + ICRC_BYTES:
        return None
    if int.from_bytes(data[start + 2 : start + 4], "big") != ROCE_UDP_PORT:
        return None
    bth = {name: int(value) for name, value in BTH.unpack(data[transport:]).items()}
    op = OPCODES.get(bth["opcode"])
    faults = []
    at = transport + BTH.length
    stop = end - ICRC_BYTES
    fields = dict(bth)
    for header in op.headers if op is not None else ():
        if at + header.length > stop:
            faults.append(f"it ends within its {header.name}")
            break
        fields |= {name: int(value) for name, value in header.unpack(data[at:]).items()}
        at += header.length
    if int.from_bytes(data[stop:end], "little") != icrc.icrc(data[:stop], start):
        faults.append("its ICRC is wrong")
    pad = fields["padcount"]
    if (stop - at) % 4 or pad > stop - at:
        faults.append("its payload and pad are no multiple of four bytes")
        pad = min(pad, max(0, stop - at))
    if any(data[stop - pad : stop]):
        faults.append("its pad is not zero")
    if fields["version"]:
        faults.append(f"its header version is {fields['version']}")
    if op is None:
        faults.append("its opcode has no meaning")
    elif not op.payload and stop - pad > at:
        faults.append(f"it has {stop - pad - at} bytes of payload, which its opcode has not")
    fields |= {
        "ecn": tclass & 3,
        "dscp": tclass >> ECN_BITS,
        "ttl": ttl,
        "sport": int.from_bytes(data[start : start + 2], "big"),
    }
    seen = SeenPacket(
        time_ns,
        data,
        op,
        fields,
        data[at : stop - pad],
        str(ipaddress.ip_address(source)),
        faults=tuple(faults),
    )
    if fields["dest_qpn"] in MAD_QPNS:
        mad = parse_mad(seen.payload)
        if mad is not None and mad.cm is not None:
            seen.cm = mad.cm.message
            numbers = {name: value for name, value in mad.cm.fields.items() if isinstance(value, int)}
            seen.cm_fields = numbers | {"transaction_id": mad.transaction_id}
    return seen


def packet_words(seen: SeenPacket, start_psn: int, *, expected: frozenset[str] = frozenset()) -> str:
    """The packet as a drill's line would have it, its PSN from ``start_psn`` on and as it is.

    Args:
        expected: fields to show whatever their value.
    """
    psn = seen.fields["psn"]
    parts = [seen.name if seen.cm else f"{seen.name} psn {serial.diff(psn, start_psn)} ({psn})"]
    for name, value in seen.fields.items():
        if seen.cm and name not in expected:
            continue
        usual = _USUAL.get(name, -1)
        if name in ("psn", "ecn", "dscp", "ttl", "sport") and name not in expected:
            continue
        if name == "psn":
            continue
        if name in expected or name not in _USUAL or (usual is not None and value != usual):
            parts.append(f"{name} {field_words(name, value)}")
    for name, value in seen.cm_fields.items():
        if name in expected or name in _SHOWN_OF_CM:
            parts.append(f"{name} {value}" if name in _CODES else f"{name} {value:#x}")
    if not seen.cm and (seen.op is None or seen.op.payload):
        parts.append(f"{len(seen.payload)} bytes")
    parts += [f"but {fault}" for fault in seen.faults]
    return ", ".join(parts)
