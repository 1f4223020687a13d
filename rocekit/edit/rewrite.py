"""Changing addresses, QPNs, PSNs and keys in captured packets, with checksums as valid as before.

A checksum or ICRC that was valid is valid again; one that was wrong stays wrong by the same bits, so that the
packet shows the same fault when it is sent.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Final

from rocekit import wire
from rocekit.edit.outer import Outer, OuterChecksums
from rocekit.wire import BTH, Header
from rocekit.wire import cm as wire_cm
from rocekit.wire.build import DST_MAC, SRC_MAC, ethernet, gid
from rocekit.wire.icrc import icrc
from rocekit.wire.network import ETHERTYPE_IPV4, ETHERTYPE_IPV6, UDP_BYTES, UDP_PROTOCOL, internet_checksum
from rocekit.wire.psn import MASK

Qp = tuple[str | None, int]
"""(address, QPN) of a QP in the capture; None: at any address."""

_MAC_BYTES: Final = 6
_ADDRESSES: Final = {4: (12, 16, 4), 6: (8, 24, 16)}  # source and destination in the IP header; bytes of one
_IPV4_CHECKSUM: Final = 10
_GIDS: Final = (
    *("primary_local_port_gid", "primary_remote_port_gid"),
    *("alternate_local_port_gid", "alternate_remote_port_gid"),
)
_IP_CM_ADDRESSES: Final = ("source_address", "destination_address")
_QPN_OF_SENDER: Final = "local_qpn"
_QPN_OF_RECEIVER: Final = "remote_qpn"


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """Where the headers are in a frame, in bytes from its start.

    Attributes:
        ip: the network header; bth: the BTH; end: the end of the ICRC.
        ip_version: 4 or 6, and 6 for a GRH; roce_version: 1 or 2.
        ethernet: whether the frame starts with an Ethernet header.
        outer: what is before the network header; None: only a link's header and VLAN tags.
    """

    ip: int
    bth: int
    end: int
    ip_version: int
    roce_version: int
    ethernet: bool = True
    outer: Outer | None = None


@dataclass(frozen=True)
class Changes:
    """The new values; all others stay.

    Attributes:
        addresses: by address; macs: by MAC address, in lower case.
        qpns: by :data:`Qp`.
        psns: by how much the PSNs of requests to a QP, and of their responses, move; (None, −1) is every
        other
            QP.
        rkeys: by rkey.
        va: by how much remote addresses move.
        peers: the peer of each QP, both as captured: to find the requests that a response belongs to.
    """

    addresses: Mapping[str, str] = field(default_factory=dict)
    macs: Mapping[str, str] = field(default_factory=dict)
    qpns: Mapping[Qp, int] = field(default_factory=dict)
    psns: Mapping[Qp, int] = field(default_factory=dict)
    rkeys: Mapping[int, int] = field(default_factory=dict)
    va: int = 0
    peers: Mapping[tuple[str, int], tuple[str, int]] = field(default_factory=dict)

    @cached_property
    def _packed(self) -> Mapping[bytes, bytes]:
        """New addresses by old ones, both as in an IP header and as in a GID."""
        packed = {}
        for old, new in self.addresses.items():
            was, becomes = ipaddress.ip_address(old), ipaddress.ip_address(new)
            if was.version != becomes.version:
                raise ValueError(f"{old} cannot become {new}: they are not of the same IP version")
            packed[was.packed] = becomes.packed
            packed[gid(old)] = gid(new)
            packed[was.packed.rjust(16, b"\0")] = becomes.packed.rjust(16, b"\0")
        return MappingProxyType(packed)

    def address(self, packed: bytes) -> bytes:
        return self._packed.get(packed, packed)

    def mac(self, packed: bytes) -> bytes:
        new = self.macs.get(packed.hex(":"))
        return packed if new is None else bytes.fromhex(new.replace(":", ""))

    def qpn(self, ip: str, qpn: int) -> int:
        """The new QPN of a QP at an address; the management QPs keep theirs."""
        if qpn in wire.MAD_QPNS:
            return qpn
        return self.qpns.get((ip, qpn), self.qpns.get((None, qpn), qpn))

    def shift(self, ip: str, qpn: int) -> int:
        """By how much the PSNs of requests to a QP move."""
        if qpn in wire.MAD_QPNS:
            return 0
        for key in ((ip, qpn), (None, qpn), (None, -1)):
            if key in self.psns:
                return self.psns[key]
        return 0

    def check(self) -> None:
        """Raises ValueError if an address cannot become another."""
        assert self._packed is not None


def rewrite(frame: bytes, layout: FrameLayout, changes: Changes) -> bytes:
    """An Ethernet frame with the changes made; addresses change in outer headers too.

    Args:
        frame: a complete frame; one without an Ethernet header gets one.
        layout: of its packet, which is neither truncated nor a fragment.
    """
    data = bytearray(frame)
    checks, outer = _Checks(data, layout), layout.outer
    around = None if outer is None else OuterChecksums(data, outer)
    src, dst = _addresses(data, layout)
    if layout.end - wire.ICRC_BYTES >= layout.bth + BTH.length:
        _transport(data, layout, changes, src, dst)
    first, second, size = _ADDRESSES[layout.ip_version]
    for at in (layout.ip + first, layout.ip + second):
        data[at : at + size] = changes.address(bytes(data[at : at + size]))
    checks.restore(data)
    if outer is not None and around is not None:
        outer.change_addresses(data, changes.address)
        outer.change_macs(data, changes.mac)
        around.restore(data)
    if not layout.ethernet:
        _make_ethernet(data, layout)
    for at in (0, _MAC_BYTES) if outer is None or not outer.ethernet else ():
        data[at : at + _MAC_BYTES] = changes.mac(bytes(data[at : at + _MAC_BYTES]))
    return bytes(data)


def _make_ethernet(data: bytearray, layout: FrameLayout) -> None:
    """Put an Ethernet header in place of another link's, or remove what a capture has before it."""
    outer = layout.outer
    if outer is not None and outer.ethernet is not None:
        del data[layout.end :]  # the capture's card may add to the end, too
        del data[: outer.ethernet]
        return
    end = layout.ip if outer is None else outer.link_end
    version = layout.ip_version if end == layout.ip else data[end] >> 4
    v1 = layout.roce_version == 1 and end == layout.ip
    kind = wire.ROCE_V1_ETHERTYPE if v1 else _ETHERTYPES[version]
    data[:end] = ethernet(kind, src_mac=SRC_MAC, dst_mac=DST_MAC)


_ETHERTYPES: Final = {4: ETHERTYPE_IPV4, 6: ETHERTYPE_IPV6}


def _addresses(data: bytearray, layout: FrameLayout) -> tuple[str, str]:
    """Source and destination as text; an IPv4-mapped GID as IPv4."""
    first, second, size = _ADDRESSES[layout.ip_version]
    return _text(data[layout.ip + first : layout.ip + first + size]), _text(
        data[layout.ip + second : layout.ip + second + size]
    )


def _text(packed: bytes | bytearray) -> str:
    address = ipaddress.ip_address(bytes(packed))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _transport(data: bytearray, layout: FrameLayout, changes: Changes, src: str, dst: str) -> None:
    """Change the BTH, the headers after it, and a CM message in its payload."""
    limit = layout.end - wire.ICRC_BYTES
    opcode = wire.OPCODES.get(data[layout.bth])
    dest_qpn = _get(data, layout.bth, BTH, "dest_qpn")
    _put(data, layout.bth, BTH, "dest_qpn", changes.qpn(dst, dest_qpn))
    if opcode is None:
        return
    if opcode.response:
        # A response has the PSN of its request, which went to the QP that sends the response.
        asked = changes.peers.get((dst, dest_qpn))
        shift = changes.shift(*asked) if asked is not None else changes.shift("", -1)
    else:
        shift = changes.shift(dst, dest_qpn)
    if opcode.value != wire.CNP_OPCODE:
        psn = _get(data, layout.bth, BTH, "psn")
        _put(data, layout.bth, BTH, "psn", psn + shift & MASK)
    at = layout.bth + BTH.length
    for header in opcode.headers:
        if at + header.length > limit:
            return
        _change(data, at, header, "src_qpn", lambda n: changes.qpn(src, n))
        for name in ("rkey", "invalidate_rkey"):
            _change(data, at, header, name, lambda n: changes.rkeys.get(n, n))
        _change(data, at, header, "remote_va", lambda n: n + changes.va & (1 << 64) - 1)
        at += header.length
    if opcode.transport == "UD" and dest_qpn in wire.MAD_QPNS:
        _mad(data, at, limit, changes, src, dst)


def _mad(data: bytearray, at: int, limit: int, changes: Changes, src: str, dst: str) -> None:
    """Change QPNs, starting PSNs and addresses in a CM message (12.6, A11)."""
    if at + wire_cm.MAD_BYTES > limit or _get(data, at, wire_cm.MAD, "mgmt_class") != wire_cm.MGMT_CLASS_CM:
        return
    number = _get(data, at, wire_cm.MAD, "attribute_id")
    name = next((n for n, i in wire_cm.CM_ATTRIBUTE_IDS.items() if i == number), None)
    if name is None:
        return
    at += wire_cm.MAD.length
    message = wire_cm.CM_MESSAGES[name]
    if _QPN_OF_SENDER in message.by_name:
        own = _get(data, at, message, _QPN_OF_SENDER)
        # The first PSN that the receiver sends to that QP (12.6.5).
        _change(data, at, message, "starting_psn", lambda n: n + changes.shift(src, own) & MASK)
        _put(data, at, message, _QPN_OF_SENDER, changes.qpn(src, own))
    _change(data, at, message, _QPN_OF_RECEIVER, lambda n: changes.qpn(dst, n))
    for gid_name in _GIDS:
        _change(data, at, message, gid_name, lambda n: _moved(n, changes))
    if name == "REQ" and wire_cm.ip_service(_get(data, at, message, "service_id")) is not None:
        private = at + message.by_name["private_data"].offset // 8
        for address in _IP_CM_ADDRESSES:
            _change(data, private, wire_cm.IP_CM, address, lambda n: _moved(n, changes))


def _moved(number: int, changes: Changes) -> int:
    return int.from_bytes(changes.address(number.to_bytes(16, "big")), "big")


# ---------------------------------------------------------------------- bits


def _get(data: bytearray, at: int, header: Header, name: str) -> int:
    f = header.by_name[name]
    last = -(-(f.offset + f.bits) // 8)
    whole = int.from_bytes(data[at + f.offset // 8 : at + last], "big")
    return whole >> last * 8 - f.offset - f.bits & (1 << f.bits) - 1


def _put(data: bytearray, at: int, header: Header, name: str, value: int) -> None:
    f = header.by_name[name]
    first, last = f.offset // 8, -(-(f.offset + f.bits) // 8)
    shift = last * 8 - f.offset - f.bits
    mask = (1 << f.bits) - 1
    whole = int.from_bytes(data[at + first : at + last], "big") & ~(mask << shift)
    data[at + first : at + last] = (whole | (value & mask) << shift).to_bytes(last - first, "big")


def _change(data: bytearray, at: int, header: Header, name: str, change: Callable[[int], int]) -> None:
    """Change a field, if the header has it."""
    if name in header.by_name:
        _put(data, at, header, name, change(_get(data, at, header, name)))


# ---------------------------------------------------------------------- checksums


class _Checks:
    """The bits by which each checksum of a packet is wrong, so that they stay wrong by the same bits."""

    def __init__(self, data: bytearray, layout: FrameLayout) -> None:
        self._layout = layout
        self._ip = self._udp = None
        if layout.ip_version == 4:
            found = int.from_bytes(data[layout.ip + _IPV4_CHECKSUM : layout.ip + _IPV4_CHECKSUM + 2], "big")
            # Zero is a checksum that the interface was to compute.
            self._ip = self._ipv4(data) ^ found if found else 0
        if layout.roce_version == 2 and layout.end >= layout.bth:  # else there is no datagram to add up
            found = int.from_bytes(data[self._udp_at + 6 : self._udp_at + 8], "big")
            self._udp = self._udp_of(data) ^ found if found else None
        self._icrc = None
        if self._has_icrc:
            end = layout.end
            self._icrc = self._icrc_of(data) ^ int.from_bytes(data[end - wire.ICRC_BYTES : end], "little")

    @property
    def _has_icrc(self) -> bool:
        return self._layout.end - wire.ICRC_BYTES >= self._layout.bth + BTH.length

    @property
    def _udp_at(self) -> int:
        return self._layout.bth - UDP_BYTES

    def restore(self, data: bytearray) -> None:
        """Write the checksums of the changed packet."""
        layout = self._layout
        if self._ip is not None:
            self._set(data, layout.ip + _IPV4_CHECKSUM, self._ipv4(data) ^ self._ip)
        if self._icrc is not None:
            right = self._icrc_of(data) ^ self._icrc
            data[layout.end - wire.ICRC_BYTES : layout.end] = right.to_bytes(wire.ICRC_BYTES, "little")
        if self._udp is not None:
            # Zero would mean that there is none.
            self._set(data, self._udp_at + 6, self._udp_of(data) ^ self._udp or 0xFFFF)

    @staticmethod
    def _set(data: bytearray, at: int, value: int) -> None:
        data[at : at + 2] = value.to_bytes(2, "big")

    def _ipv4(self, data: bytearray) -> int:
        at = self._layout.ip
        length = (data[at] & 0x0F) * 4
        header = data[at : at + length]
        return internet_checksum(bytes(header[:_IPV4_CHECKSUM] + header[_IPV4_CHECKSUM + 2 :]))

    def _udp_of(self, data: bytearray) -> int:
        layout, at = self._layout, self._udp_at
        first, _, size = _ADDRESSES[layout.ip_version]
        length = layout.end - at
        pseudo = data[layout.ip + first : layout.ip + first + 2 * size]
        pseudo += length.to_bytes(4, "big") + UDP_PROTOCOL.to_bytes(4, "big")
        body = data[at : at + 6] + data[at + 8 : layout.end]
        return internet_checksum(bytes(pseudo + body)) or 0xFFFF

    def _icrc_of(self, data: bytearray) -> int:
        layout = self._layout
        udp = layout.roce_version == 2
        network = layout.bth - layout.ip - (UDP_BYTES if udp else 0)
        return icrc(data[layout.ip : layout.end - wire.ICRC_BYTES], network, udp=udp)
