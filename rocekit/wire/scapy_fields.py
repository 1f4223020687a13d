"""Scapy fields made of `wire`'s layouts."""

from __future__ import annotations

import difflib
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from scapy.config import conf
from scapy.fields import BitEnumField, BitField, Field, StrFixedLenField, XBitField
from scapy.packet import Packet

from rocekit import wire
from rocekit.wire import cm as wire_cm
from rocekit.wire.network import MAPPED_PREFIX

_ADDRESS_BITS: Final = 128
#: Names that read better in hexadecimal.
_HEX: Final = (
    "key",
    "qpn",
    "guid",
    "_va",
    "comm_id",
    "service_id",
    "transaction_id",
    "request_id",
    "attribute_id",
)

#: Numbers that have names, by header and field.
_ENUMS: Final[Mapping[tuple[str, str], Mapping[int, str]]] = {
    ("BTH", "opcode"): {o.value: o.name for o in wire.OPCODES.values()},
    ("FETH", "placement_type"): wire.PLACEMENT_TYPES,
    ("FETH", "selectivity"): wire.SELECTIVITY,
    ("MAD", "mgmt_class"): wire_cm.MGMT_CLASSES,
    ("REQ", "transport_service_type"): wire_cm.CM_TRANSPORTS,
    ("MRA", "message_mraed"): wire_cm.CM_ANSWERED,
    ("REJ", "message_rejected"): wire_cm.CM_ANSWERED,
    ("REJ", "reason"): wire_cm.REJ_REASONS,
    ("SIDR_REP", "sidr_status"): wire_cm.SIDR_STATUSES,
}


def raw_when_short(length: int) -> Any:
    """A Scapy ``dispatch_hook``: bytes that are too few for the layer become Raw; truncation never raises."""

    def dispatch_hook(cls: type[Packet], _pkt: bytes = b"", *args: Any, **kargs: Any) -> type[Packet]:
        return conf.raw_layer if _pkt and len(_pkt) < length else cls

    return classmethod(dispatch_hook)


class AddressField(Field):  # type: ignore[misc, unused-ignore]  # no types in Scapy's metaclass
    """Sixteen bytes shown as an IPv6 address. An IPv4 address may be given; it is put last.

    Args:
        prefix: the twelve bytes before an IPv4 address: a GID's are those of ``::ffff:0:0/96`` (A17), zeros
            in the IP CM header (A11.3).
        dotted: whether an address of this packet is an IPv4 one and shown as such.
    """

    __slots__ = ["dotted", "prefix"]

    def __init__(
        self,
        name: str,
        default: str = "::",
        prefix: bytes = MAPPED_PREFIX,
        dotted: Callable[[Packet], bool] = lambda pkt: False,
    ) -> None:
        super().__init__(name, default, "16s")
        self.prefix, self.dotted = prefix, dotted

    def i2m(self, pkt: Packet | None, x: Any) -> bytes:
        if x is None:
            return bytes(16)
        if isinstance(x, bytes):
            return x.rjust(16, b"\0")
        if ":" in x:
            return socket.inet_pton(socket.AF_INET6, x)
        return self.prefix + socket.inet_pton(socket.AF_INET, x)

    def m2i(self, pkt: Packet | None, x: bytes) -> str:
        if pkt is not None and x[:12] == self.prefix and self.dotted(pkt):
            return socket.inet_ntop(socket.AF_INET, x[12:])
        return socket.inet_ntop(socket.AF_INET6, x)

    def any2i(self, pkt: Packet | None, x: Any) -> Any:
        """Takes text, or sixteen bytes. Raises OSError for text that is not an address."""
        return x if x is None else self.m2i(pkt, self.i2m(pkt, x))


class SyndromeField(BitField):  # type: ignore[misc, unused-ignore]
    """The AETH's syndrome, shown in words."""

    def i2repr(self, pkt: Packet, x: Any) -> str:
        return f"{x:#04x} ({wire.syndrome_name(x)})" if isinstance(x, int) else repr(x)


class NamedField(BitEnumField):  # type: ignore[misc, unused-ignore]
    """A number that has names. Raises ValueError, which says what was meant, for a name that there is not."""

    def any2i_one(self, pkt: Packet | None, x: Any) -> Any:
        if isinstance(x, str) and x not in self.s2i:
            near = difflib.get_close_matches(x.upper(), [name for name in self.s2i if name], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{x!r} is no {self.name}{hint}")
        return super().any2i_one(pkt, x)


def fields_of(header: wire.Header, **defaults: Any) -> list[Any]:
    """The Scapy fields of a header, with reserved ones; zero by default, or as in ``defaults``."""
    return [_field(header, f, defaults.get(f.name, 0)) for f in header.fields]


def _field(header: wire.Header, f: wire.Field, default: Any) -> Any:
    enum = _ENUMS.get((header.name, f.name))
    if f.bits == _ADDRESS_BITS:
        return AddressField(f.name, default or "::")
    if f.is_bytes:
        return StrFixedLenField(f.name, default or b"", f.bits // 8)
    if enum is not None:
        return NamedField(f.name, default, f.bits, dict(enum))
    if f.name == "syndrome":
        return SyndromeField(f.name, default, f.bits)
    return (XBitField if f.name.endswith(_HEX) else BitField)(f.name, default, f.bits)
