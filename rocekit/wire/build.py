"""RoCE packets as bytes, built without Scapy: fast enough to make millions.

What the caller does not give is as a correct sender has it: partition key 0xFFFF, pad to four bytes, UDP
checksum 0, lengths and the ICRC computed. What the caller gives is taken as it is: a wrong pad count or a
wrong ICRC can be made.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from rocekit.wire import (
    BTH,
    CNP_OPCODE,
    CNP_RESERVED_BYTES,
    DEFAULT_PKEY,
    GRH,
    GRH_NEXT_BTH,
    ICRC_BYTES,
    ONLY,
    OPCODE_NAMES,
    OPCODES,
    RETH,
    ROCE_UDP_PORT,
    ROCE_V1_ETHERTYPE,
)
from rocekit.wire import icrc as _icrc
from rocekit.wire.cm import (
    CM_ATTRIBUTE_IDS,
    CM_CLASS_VERSION,
    CM_MESSAGES,
    IP_CM,
    MAD,
    METHOD_SEND,
    MGMT_CLASS_CM,
)
from rocekit.wire.network import (
    DOT1AD,
    DOT1Q,
    ECN_BITS,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    IPV4_BYTES,
    MAPPED_PREFIX,
    UDP_BYTES,
    UDP_PROTOCOL,
)

SRC_MAC: Final = "02:00:00:00:00:01"
DST_MAC: Final = "02:00:00:00:00:02"
LEAST_SOURCE_PORT: Final = (
    0xC000  # A17.3.2.1: the port is the sender's choice; the first of the dynamic ports
)
DONT_FRAGMENT: Final = 0x4000

#: Opcodes with an RETH whose message is the packet's own payload.
_WHOLE_WRITES: Final = frozenset(
    o.value for o in OPCODES.values() if o.payload and o.position == ONLY and RETH in o.headers
)


#: Leaves room for an IPv4 header with all options in its total length.
_MOST_UDP_BYTES: Final = 65_535 - 60
#: How many bits each number around the transport packet has.
_NETWORK_BITS: Final = MappingProxyType(
    {"sport": 16, "dport": 16, "ttl": 8, "dscp": 6, "ecn": 2, "identification": 16, "fragment": 16}
    | {"flow_label": 20, "icrc": 32}
)


def opcode_value(opcode: int | str) -> int:
    """The value of an opcode given as a number or as a name such as ``RC_SEND_ONLY``.

    Raises:
        ValueError: no opcode has that name, or the number does not fit a byte.
    """
    if isinstance(opcode, str):
        try:
            return OPCODE_NAMES[opcode]
        except KeyError:
            raise ValueError(f"no opcode is called {opcode}") from None
    if not 0 <= opcode <= 0xFF:
        raise ValueError(f"an opcode is one byte, got {opcode}")
    return opcode


@lru_cache(maxsize=1024)
def gid(address: str) -> bytes:
    """The sixteen bytes of a GID written as IPv6 or IPv4 address (IPv4 as ``::ffff:a.b.c.d``, A17.4.1.1)."""
    ip = ipaddress.ip_address(address)
    return MAPPED_PREFIX + ip.packed if ip.version == 4 else ip.packed


@lru_cache(maxsize=512)
def _layout(opcode: int) -> tuple[int, MappingProxyType[str, tuple[int, int]]]:
    """Bytes of the BTH and the headers behind it, and each field's (shift, limit) in them as one number."""
    known = OPCODES.get(opcode)
    headers = (BTH, *known.headers) if known else (BTH,)
    length = sum(h.length for h in headers)
    places: dict[str, tuple[int, int]] = {}
    start = 0
    for header in headers:
        for f in header.fields:
            places.setdefault(f.name, (length * 8 - start - f.offset - f.bits, 1 << f.bits))
        start += header.length * 8
    return length, MappingProxyType(places)


def build_transport(opcode: int | str, payload: bytes = b"", **fields: int) -> bytes:
    """From the BTH to the last pad byte, without the ICRC.

    Args:
        opcode: its name or value. For an opcode that ``wire`` does not know, only the BTH is made.
        payload: what follows the headers; zeros pad it to a multiple of four bytes. A CNP without payload
            gets its sixteen reserved bytes, and has BECN set.
        fields: fields of the BTH and of the headers that the opcode asks for, by ``wire``'s names.
            ``padcount`` given here changes the field, not the pad. If one packet is the whole message,
            ``dma_length`` is the payload's length.

    Raises:
        ValueError: an unknown opcode name, a field that this opcode lacks, or a value that does not fit.
    """
    value = opcode_value(opcode)
    if value == CNP_OPCODE:
        payload = payload or bytes(CNP_RESERVED_BYTES)
        fields = {"becn": 1, **fields}
    elif payload and value in _WHOLE_WRITES:
        fields = {"dma_length": len(payload), **fields}
    length, places = _layout(value)
    pad = -len(payload) & 3
    whole = value << places["opcode"][0]
    if pad and "padcount" not in fields:
        whole |= pad << places["padcount"][0]
    if "pkey" not in fields:
        whole |= DEFAULT_PKEY << places["pkey"][0]
    for name, number in fields.items():
        try:
            shift, limit = places[name]
        except KeyError:
            raise ValueError(
                f"{OPCODES[value].name if value in OPCODES else value} has no field {name}"
            ) from None
        if not 0 <= number < limit:
            raise ValueError(f"{name} takes values under {limit:#x}, got {number}")
        whole |= number << shift
    return whole.to_bytes(length, "big") + payload + b"\0\0\0"[:pad]


@lru_cache(maxsize=1024)
def _address(address: str) -> tuple[int, bytes]:
    ip = ipaddress.ip_address(address)
    return ip.version, ip.packed


def _ipv4(
    src: bytes, dst: bytes, tos: int, ttl: int, length: int, ident: int, fragment: int, options: bytes
) -> bytes:
    """An IPv4 header with its checksum; ``length`` counts what follows it."""
    options = options.ljust(-(-len(options) // 4) * 4, b"\0")
    size = IPV4_BYTES + len(options)
    first = struct.pack("!BBHHHBB", 0x40 | size >> 2, tos, size + length, ident, fragment, ttl, UDP_PROTOCOL)
    total = sum(struct.unpack(f"!{(size - 2) // 2}H", first + src + dst + options))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~(total + (total >> 16)) & 0xFFFF
    return first + checksum.to_bytes(2, "big") + src + dst + options


def _ipv6(
    src: bytes,
    dst: bytes,
    tclass: int,
    hops: int,
    length: int,
    flow: int,
    extensions: Sequence[tuple[int, bytes]],
) -> bytes:
    """An IPv6 header and its extension headers, each given as (its type, its bytes from the second on)."""
    kinds = [kind for kind, _ in extensions] + [UDP_PROTOCOL]
    chain = b"".join(
        bytes([following]) + rest for (_, rest), following in zip(extensions, kinds[1:], strict=True)
    )
    first = struct.pack("!IHBB", 6 << 28 | tclass << 20 | flow, len(chain) + length, kinds[0], hops)
    return first + src + dst + chain


def build_packet(
    opcode: int | str,
    *,
    src: str,
    dst: str,
    payload: bytes = b"",
    sport: int = LEAST_SOURCE_PORT,
    dport: int = ROCE_UDP_PORT,
    ttl: int = 64,
    dscp: int = 0,
    ecn: int = 0,
    identification: int = 0,
    fragment: int = DONT_FRAGMENT,
    flow_label: int = 0,
    ip_options: bytes = b"",
    ipv6_extensions: Sequence[tuple[int, bytes]] = (),
    icrc: int | None = None,
    roce_version: int = 2,
    **fields: int,
) -> bytes:
    """A RoCE packet from its network header to the ICRC.

    Args:
        opcode: name or value, as for `build_transport`, which takes ``payload`` and ``fields`` too.
        src: IPv4 or IPv6 address; of both versions in RoCE v1, whose GRH carries GIDs.
        dst: as ``src``, of the same IP version.
        ttl: time to live or hop limit.
        fragment: IPv4's flags and fragment offset, as the 16 bits stand in the header.
        ip_options: IPv4 options, padded to four bytes.
        ipv6_extensions: extension headers in order, each (its type, its bytes from the second on).
        icrc: the number to send instead of the right ICRC (its little-endian bytes go on the wire).
        roce_version: 2 (over UDP) or 1 (over the GRH).

    Raises:
        ValueError: an unknown opcode name or field, a value that does not fit, addresses of
            different IP versions.
    """
    given = sport, dport, ttl, dscp, ecn, identification, fragment, flow_label, 0 if icrc is None else icrc
    for (name, bits), number in zip(_NETWORK_BITS.items(), given, strict=True):
        if number >> bits:
            raise ValueError(f"{name} takes {bits} bits, got {number}")
    transport = build_transport(opcode, payload, **fields)
    tclass = dscp << ECN_BITS | ecn
    if roce_version == 1:
        network = GRH.pack(
            ipver=6,
            tclass=tclass,
            flow_label=flow_label,
            pay_len=len(transport) + ICRC_BYTES,
            next_hdr=GRH_NEXT_BTH,
            hop_limit=ttl,
            sgid=gid(src),
            dgid=gid(dst),
        )
        covered = network + transport
    else:
        version, source = _address(src)
        other, destination = _address(dst)
        if version != other:
            raise ValueError(f"{src} and {dst} are not of one IP version")
        length = UDP_BYTES + len(transport) + ICRC_BYTES
        if length > _MOST_UDP_BYTES:
            raise ValueError(f"a UDP datagram has up to {_MOST_UDP_BYTES:,} bytes, not {length:,}")
        if version == 4:
            network = _ipv4(source, destination, tclass, ttl, length, identification, fragment, ip_options)
        else:
            network = _ipv6(source, destination, tclass, ttl, length, flow_label, ipv6_extensions)
        covered = network + struct.pack("!HHHH", sport, dport, length, 0) + transport
    if icrc is None:
        icrc = _icrc.icrc(covered, len(network), udp=roce_version != 1)
    return covered + icrc.to_bytes(ICRC_BYTES, "little")


@lru_cache(maxsize=1024)
def ethernet(
    ethertype: int,
    *,
    src_mac: str = SRC_MAC,
    dst_mac: str = DST_MAC,
    vlan: int | tuple[int, ...] | None = None,
    priority: int = 0,
) -> bytes:
    """An Ethernet header.

    Args:
        vlan: VLAN ID, or several, outermost first (all but the last tagged 802.1ad), or None.
        priority: the priority code point of every tag.

    Raises:
        ValueError: a VLAN ID or priority that does not fit.
    """
    tags = () if vlan is None else (vlan,) if isinstance(vlan, int) else vlan
    if priority >> 3 or any(tag >> 12 for tag in tags):
        raise ValueError(f"a VLAN tag takes an ID of 12 bits and a priority of 3, got {vlan} and {priority}")
    head = bytes.fromhex(dst_mac.replace(":", "") + src_mac.replace(":", ""))
    for i, tag in enumerate(tags):
        head += struct.pack("!HH", DOT1Q if i == len(tags) - 1 else DOT1AD, priority << 13 | tag)
    return head + ethertype.to_bytes(2, "big")


def build_frame(
    opcode: int | str,
    *,
    src: str,
    dst: str,
    payload: bytes = b"",
    src_mac: str = SRC_MAC,
    dst_mac: str = DST_MAC,
    vlan: int | tuple[int, ...] | None = None,
    priority: int = 0,
    roce_version: int = 2,
    **rest: Any,
) -> bytes:
    """An Ethernet frame (without preamble and FCS) with a RoCE packet in it.

    ``build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=7, psn=3, payload=b"x")``

    Args:
        opcode: see `build_packet`, which takes ``payload``, ``roce_version`` and every other keyword.
        vlan: see `ethernet`, which also takes the MAC addresses and the priority.
    """
    packet = build_packet(opcode, src=src, dst=dst, payload=payload, roce_version=roce_version, **rest)
    kind = (
        ROCE_V1_ETHERTYPE if roce_version == 1 else ETHERTYPE_IPV4 if packet[0] >> 4 == 4 else ETHERTYPE_IPV6
    )
    return ethernet(kind, src_mac=src_mac, dst_mac=dst_mac, vlan=vlan, priority=priority) + packet


def build_ip_cm(src: str, dst: str, source_port: int, data: bytes = b"") -> bytes:
    """Private data of a REQ as rdma_cm sends it: the IP CM header, then the consumer's own data (A11.3)."""
    version, source = _address(src)
    _, destination = _address(dst)
    return (
        IP_CM.pack(
            ip_version=version,
            source_port=source_port,
            source_address=source.rjust(16, b"\0"),
            destination_address=destination.rjust(16, b"\0"),
        )
        + data
    )


def build_mad(message: str, transaction_id: int, **fields: int | bytes) -> bytes:
    """The 256 bytes of a MAD with a CM message, to be the payload of a ``UD_SEND_ONLY`` to QP 1.

    Args:
        message: ``REQ``, ``REP``, …, a key of ``cm.CM_MESSAGES``.
        transaction_id: the MAD's 64-bit transaction ID.
        fields: fields of the message, or of the MAD header, by the names of :mod:`rocekit.wire.cm`; bytes
            shorter than their field are padded with zeros.

    Raises:
        ValueError: no such message or field, or a value that does not fit.
    """
    if message not in CM_MESSAGES:
        raise ValueError(f"no CM message is called {message}")
    head: dict[str, int | bytes] = {
        "base_version": 1,
        "mgmt_class": MGMT_CLASS_CM,
        "class_version": CM_CLASS_VERSION,
        "method": METHOD_SEND,
        "transaction_id": transaction_id,
        "attribute_id": CM_ATTRIBUTE_IDS[message],
    }
    head |= {name: fields.pop(name) for name in tuple(fields) if name in MAD.by_name}
    return MAD.pack(**head) + CM_MESSAGES[message].pack(**fields)
