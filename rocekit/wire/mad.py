"""Management datagrams, and the communication manager's messages inside them (IBA Vol. 1, 12.6 and 13.4).

Layouts are in :mod:`rocekit.wire.cm`. Of input that ends early, the whole fields are read; no input raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.wire import PATH_MTU_BYTES, Header
from rocekit.wire.cm import (
    CM_ANSWERED,
    CM_ATTRIBUTES,
    CM_CLASS_VERSION,
    CM_TRANSPORTS,
    ECE_VENDORS,
    IP_CM,
    IP_PROTOCOLS,
    MAD,
    MGMT_CLASS_CM,
    MGMT_CLASSES,
    REJ_REASONS,
    SIDR_STATUSES,
    ip_service,
)
from rocekit.wire.network import MAPPED, address_text
from rocekit.wire.places import number_at, numbers_of

# Private data in words takes a table of applications, which few captures need: it is loaded when asked.
if TYPE_CHECKING:
    from rocekit.wire.applications.said import Said

Value = int | str | bytes
_GID_BITS: Final = 128
_GID_BYTES: Final = 16
#: Where what a message does not have would be.
_NOWHERE: Final = (0, 0)
#: Of the common header: base version, class, class version, attribute ID and modifier (as in ``MAD``).
_KINDS: Final = Struct(">BBB13xH2xI").unpack_from


class CmMessage(NamedTuple):
    """A message of the communication manager; its bytes are read when somebody asks.

    Args:
        layout: one of ``wire.cm.CM_MESSAGES``.
        data: the message, behind the MAD header, or as much of it as there is.
        options: the MAD's attribute modifier, which has the options of ECE.
    """

    layout: Header
    data: bytes
    options: int = 0

    @property
    def message(self) -> str:
        """``REQ``, ``MRA``, ``REJ``, ``REP``, ``RTU``, ``DREQ``, ``DREP``, ``SIDR_REQ``, ``SIDR_REP``,
        ``LAP`` or ``APR``.
        """
        return self.layout.name

    @property
    def truncated(self) -> bool:
        """Whether the input ended before the message did; then fields may be missing."""
        return len(self.data) < self.layout.length

    @property
    def fields(self) -> Mapping[str, Value]:
        """By the names of ``wire.cm``; GIDs as textual IP addresses (IPv4-mapped ones as IPv4), runs of bytes
        as bytes. ``private_data`` is the consumer's own, without the IP addressing, which is in ``ip_cm``.
        ``additional_info`` is cut to the length that the message gives.
        """
        fields = _partly(self.layout, self.data)
        if "private_data" in fields:
            fields["private_data"] = self.private_data
        for name in ("rejected_info_length", "additional_info_length"):
            length, info = fields.get(name), fields.get("additional_info")
            if isinstance(length, int) and isinstance(info, bytes):
                fields["additional_info"] = info[:length]
        return MappingProxyType(fields)

    @property
    def ip_cm(self) -> Mapping[str, int | str] | None:
        """The RDMA IP CM service's addressing in a REQ or SIDR_REQ (annex A11): ``protocol``,
        ``source_port``, ``destination_port``, ``source_address``, ``destination_address``, ``ip_version``,
        ``major_version``, ``minor_version``; None for other service IDs.
        """
        service = self.number("service_id")
        protocol_port = None if service is None else ip_service(service)
        return None if protocol_port is None else _ip_cm(protocol_port, self._private_bytes())

    @property
    def ece(self) -> tuple[int, int] | None:
        """Vendor ID and options of Enhanced Connection Establishment in a REQ or REP; None without them."""
        parts = [self.number(name) for name in ("vendor_id_high", "vendor_id_mid", "vendor_id_low")]
        vendor = self.number("vendor_id")
        if None not in parts:  # a REQ has the ID in one piece, a REP in three
            vendor = int.from_bytes(bytes(part for part in parts if part is not None), "big")
        return (vendor, self.options) if vendor else None

    def number(self, name: str) -> int | None:
        """A numeric field; None if the message does not have it or is cut before it."""
        place = self.layout.numbers.get(name)
        if place is None:
            return None
        return number_at(place, self.data)

    def several(self, names: tuple[str, ...]) -> list[int | None]:
        """``number`` of each name."""
        return numbers_of(self.layout.numbers, names, self.data)

    def gid(self, name: str) -> bytes | None:
        """The bytes of a GID; None if the message does not have it or is cut before its end."""
        first, end = self.layout.runs.get(name, _NOWHERE)
        return self.data[first:end] if end - first == _GID_BYTES and end <= len(self.data) else None

    def address(self, name: str) -> str | None:
        """A GID as an IP address; None if the message does not have it or is cut before its end."""
        gid = self.gid(name)
        return None if gid is None else _address(gid)

    def _private_bytes(self) -> bytes:
        """The private data with the IP addressing; what there is of it."""
        first, end = self.layout.runs.get("private_data", _NOWHERE)
        return self.data[first:end]

    @property
    def lacks_addresses(self) -> bool:
        """Whether the input ended inside the IP addressing; then no byte of the private data is there."""
        service = self.number("service_id")
        cut = self.truncated and len(self._private_bytes()) < IP_CM.length
        return cut and service is not None and ip_service(service) is not None

    @property
    def private_data(self) -> bytes:
        private = self._private_bytes()
        if self.ip_cm is not None:
            return private[IP_CM.length :]
        return b"" if self.lacks_addresses else private

    @property
    def reason(self) -> str | None:
        """The reason of a REJ or the status of a SIDR_REP, in words; None for other messages."""
        if self.message == "REJ" and (code := self.number("reason")) is not None:
            return REJ_REASONS.get(code, f"reserved reason {code}")
        if self.message == "SIDR_REP" and (code := self.number("sidr_status")) is not None:
            return SIDR_STATUSES.get(code, f"reserved status {code}")
        return None

    @property
    def path_mtu(self) -> int | None:
        """The path MTU of a REQ in bytes."""
        code = self.number("path_mtu_code")
        return None if code is None else PATH_MTU_BYTES.get(code)

    @property
    def port(self) -> int | None:
        """The TCP port of a REQ's service ID; None for other service IDs and messages without one."""
        service = self.number("service_id")
        own = None if service is None else ip_service(service)
        if own is None:
            return None
        from rocekit.wire.applications import port_of

        return port_of(own)

    def said(self, port: int | None = None) -> Said | None:
        """What the private data says of the application.

        Args:
            port: of the REQ's service ID, for messages that do not name it.
        """
        if not self._private_bytes().strip(b"\0"):
            return None
        from rocekit.wire.applications import in_private_data
        from rocekit.wire.applications.said import MAGIC

        own = self.port
        said = in_private_data(self.message, self.private_data, port if own is None else own)
        return None if said is None or (self.truncated and said.sure != MAGIC) else said

    def private_words(self, port: int | None = None) -> str | None:
        """The private data in words; None if it is of no known application."""
        from rocekit.wire.applications import in_words

        said = self.said(port)
        return None if said is None else in_words(said, port if self.port is None else self.port)

    def to_dict(self, port: int | None = None) -> dict[str, object]:
        """For JSON: bytes as hexadecimal without their trailing zeros, codes also in words."""
        out: dict[str, object] = {"message": self.message}
        out.update((name, _plain(value)) for name, value in self.fields.items())
        if self.ip_cm is not None:
            out["ip_cm"] = dict(self.ip_cm)
        if self.path_mtu is not None:
            out["path_mtu"] = self.path_mtu
        if self.reason is not None:
            out["reason_text"] = self.reason
        if (words := self.private_words(port)) is not None:
            out["private_data_text"] = words
        if self.ece is not None:
            out["ece"] = {"vendor_id": self.ece[0], "options": self.ece[1]}
        if self.truncated:
            out["truncated"] = True
        return out

    def summary(self, port: int | None = None) -> str:
        """The message in one line, for people."""
        parts = [f"CM {self.message}"]
        if self.ip_cm is not None:
            ip = self.ip_cm
            parts.append(f"{ip['source_address']}:{ip['source_port']} →")
            parts.append(f"{ip['destination_address']}:{ip['destination_port']}")
        elif (service := self.number("service_id")) is not None:
            own = ip_service(service) if self.lacks_addresses else None
            parts.append(f"service ID {service:#x}" if own is None else f"to port {own[1]}")
        for name, word, form in _SUMMARY:
            value = self.number(name)
            if value is not None:
                parts.append(f"{word} {value:{form}}")
        if self.path_mtu is not None:
            parts.append(f"MTU {self.path_mtu}")
        transport = self.number("transport_service_type")
        if transport is not None:
            parts.append(CM_TRANSPORTS[transport])
        answered = self.number("message_rejected")
        if answered is not None:
            parts.append(f"to {CM_ANSWERED.get(answered, answered)}")
        if self.reason is not None:
            parts.append(f"“{self.reason}”")
        if self.ece is not None:
            vendor, options = self.ece
            owner = f" ({ECE_VENDORS[vendor]})" if vendor in ECE_VENDORS else ""
            parts.append(f"ECE vendor {vendor:#x}{owner} options {options:#x}")
        data = self.private_data.rstrip(b"\0")
        if (words := self.private_words(port)) is not None:
            parts.append(f"private data of {words}")
        elif data:
            parts.append(f"private data {data[:16].hex()}{'…' if len(data) > 16 else ''}")
        return " ".join(parts)


_SUMMARY: Final = (
    ("local_qpn", "QPN", "#x"),
    ("remote_qpn", "remote QPN", "#x"),
    ("starting_psn", "PSN", "d"),
    ("responder_resources", "responder resources", "d"),
    ("initiator_depth", "initiator depth", "d"),
    ("retry_count", "retries", "d"),
    ("rnr_retry_count", "RNR retries", "d"),
    ("reason", "reason", "d"),
    ("sidr_status", "status", "d"),
)


class Mad(NamedTuple):
    """A management datagram.

    Attributes:
        header: the bytes of the common header.
        cm: the message in a MAD of the communication manager, else None.
    """

    header: bytes
    cm: CmMessage | None

    @property
    def fields(self) -> Mapping[str, int]:
        """The common header's, by the names of ``wire.cm.MAD``."""
        return {name: value for name, value in MAD.unpack(self.header).items() if isinstance(value, int)}

    @property
    def mgmt_class(self) -> str:
        """The management class by name."""
        code = self.fields["mgmt_class"]
        return MGMT_CLASSES.get(code, f"class {code:#04x}")

    @property
    def transaction_id(self) -> int:
        first, last, _, _ = MAD.numbers["transaction_id"]
        return int.from_bytes(self.header[first:last], "big")

    def to_dict(self, port: int | None = None) -> dict[str, object]:
        """For JSON; ``port``: as for :meth:`CmMessage.said`."""
        return {**self.fields, "cm": None if self.cm is None else self.cm.to_dict(port)}

    def summary(self, port: int | None = None) -> str:
        """The datagram in one line, for people; ``port``: as for :meth:`CmMessage.said`."""
        if self.cm is not None:
            return self.cm.summary(port)
        method, attribute = self.fields["method"], self.fields["attribute_id"]
        return f"MAD {self.mgmt_class} method {method:#x} attribute {attribute:#06x}"


def parse_mad(payload: bytes | memoryview) -> Mad | None:
    """The MAD at the start of ``payload`` (which follows the DETH of a packet to QP 0 or 1).

    Returns:
        None if the payload is shorter than the common header (24 bytes) or of an unknown base version.
    """
    data = bytes(payload)
    if len(data) < MAD.length:
        return None
    header = data[: MAD.length]
    version, kind, class_version, attribute, modifier = _KINDS(header)
    if version != 1:  # 13.4.2
        return None
    layout = CM_ATTRIBUTES.get(attribute)
    cm = None
    if layout is not None and kind == MGMT_CLASS_CM and class_version == CM_CLASS_VERSION:
        cm = CmMessage(layout, data[MAD.length : MAD.length + layout.length], modifier)
    return Mad(header, cm)


def _ip_cm(protocol_port: tuple[int, int], private: bytes) -> Mapping[str, int | str] | None:
    if len(private) < IP_CM.length:
        return None
    raw = IP_CM.unpack(private)
    if raw["ip_version"] not in (4, 6):
        return None
    protocol, port = protocol_port
    ip_cm: dict[str, int | str] = {"protocol": IP_PROTOCOLS.get(protocol, f"protocol {protocol}")}
    for name, value in raw.items():
        # A11.3: an IPv4 address is the last four of its sixteen bytes.
        ip_cm[name] = _address(value, raw["ip_version"] == 4) if isinstance(value, bytes) else value
    ip_cm["destination_port"] = port
    return MappingProxyType(ip_cm)


def _partly(layout: Header, data: bytes) -> dict[str, Value]:
    """The whole fields in ``data``, and the first bytes of a run of bytes that is cut."""
    have = len(data) * 8
    fields: dict[str, Value] = {}
    for name, value in layout.unpack(data.ljust(layout.length, b"\0")).items():
        field = layout.by_name[name]
        if field.offset + field.bits <= have:
            fields[name] = _address(value) if isinstance(value, bytes) and field.bits == _GID_BITS else value
        elif isinstance(value, bytes) and field.bits != _GID_BITS and field.offset < have:
            fields[name] = value[: (have - field.offset) // 8]
    return fields


def _address(value: bytes, ipv4: bool = False) -> str:
    low = int.from_bytes(value[8:], "big")
    if ipv4:
        low |= MAPPED << 32
    return address_text(int.from_bytes(value[:8], "big"), low)


def _plain(value: Value) -> int | str:
    return value.rstrip(b"\0").hex() if isinstance(value, bytes) else value
