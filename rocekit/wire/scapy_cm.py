"""Scapy layers for management datagrams, the CM messages in them, and the IP CM header of private data.

    roce("UD_SEND_ONLY", MAD(transaction_id=7) / CM_REQ(local_qpn=17, starting_psn=5))

The messages are named ``CM_REQ``, ``CM_MRA``, …. Private data of a REQ or SIDR_REQ is an `IP_CM`, followed by
the program's data, if the service ID is one of the RDMA IP CM service (A11.2); else it is Raw. ``bytes`` of
it are the bytes on the wire, and bytes may be assigned.
"""

from __future__ import annotations

from typing import Any, Final

from scapy.fields import PacketLenField
from scapy.packet import Packet, Raw, bind_top_down

from rocekit.wire import Header
from rocekit.wire import cm as wire_cm
from rocekit.wire.scapy_fields import AddressField, fields_of, raw_when_short


def _is_ipv4(pkt: Packet) -> bool:
    return pkt.ip_version == 4


class IP_CM(Packet):  # type: ignore[misc, unused-ignore]  # no types in Scapy's metaclass
    """The addresses that rdma_cm sends before a REQ's private data (A11.3)."""

    name = "IP_CM"
    fields_desc = [  # noqa: RUF012  # Scapy's metaclass wants a list
        AddressField(f.name, prefix=bytes(12), dotted=_is_ipv4) if isinstance(f, AddressField) else f
        for f in fields_of(wire_cm.IP_CM, ip_version=4)
    ]
    dispatch_hook = raw_when_short(wire_cm.IP_CM.length)

    def mysummary(self) -> str:
        return f"IP_CM {self.source_address}:{self.source_port} > {self.destination_address}"


class _PrivateData(PacketLenField):  # type: ignore[misc, unused-ignore]
    """Private data of a message with a service ID, as a layer (`IP_CM` or Raw); zeros pad it when sent."""

    __slots__ = ["length"]

    def __init__(self, name: str, length: int) -> None:
        super().__init__(name, Raw(b""), Raw, length_from=lambda pkt: length)
        self.length = length

    def m2i(self, pkt: Packet, m: bytes) -> Packet:
        if wire_cm.ip_service(pkt.service_id) is not None and m[:1] == b"\0" and m[1] >> 4 in (4, 6):
            return IP_CM(m)
        return Raw(m)

    def i2m(self, pkt: Packet, i: Any) -> bytes:
        return bytes(i or b"")[: self.length].ljust(self.length, b"\0")

    def any2i(self, pkt: Packet, x: Any) -> Any:
        return Raw(x) if isinstance(x, bytes) else x


class MAD(Packet):  # type: ignore[misc, unused-ignore]
    """Management datagram header (13.4.2), followed by a CM message or Raw."""

    name = "MAD"
    fields_desc = fields_of(
        wire_cm.MAD,
        base_version=1,
        mgmt_class=wire_cm.MGMT_CLASS_CM,
        class_version=wire_cm.CM_CLASS_VERSION,
        method=wire_cm.METHOD_SEND,
    )
    dispatch_hook = raw_when_short(wire_cm.MAD.length)

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        message = wire_cm.CM_ATTRIBUTES.get(self.attribute_id)
        if self.mgmt_class != wire_cm.MGMT_CLASS_CM or message is None:
            return super().guess_payload_class(payload)
        return CM_LAYERS[message.name]


def _message_class(message: Header) -> type[Packet]:
    fields = fields_of(message)
    if "service_id" in message.by_name and "private_data" in message.by_name:
        private = message.by_name["private_data"]
        if message.name.endswith("REQ"):
            fields[-1] = _PrivateData(private.name, private.bits // 8)
    body = {
        "__doc__": f"CM {message.name} ({message.section}).",
        "__module__": __name__,
        "name": f"CM_{message.name}",
        "fields_desc": fields,
        "dispatch_hook": raw_when_short(message.length),
    }
    return type(Packet)(f"CM_{message.name}", (Packet,), body)


CM_REQ = _message_class(wire_cm.REQ)
CM_MRA = _message_class(wire_cm.MRA)
CM_REJ = _message_class(wire_cm.REJ)
CM_REP = _message_class(wire_cm.REP)
CM_RTU = _message_class(wire_cm.RTU)
CM_DREQ = _message_class(wire_cm.DREQ)
CM_DREP = _message_class(wire_cm.DREP)
CM_SIDR_REQ = _message_class(wire_cm.SIDR_REQ)
CM_SIDR_REP = _message_class(wire_cm.SIDR_REP)
CM_LAP = _message_class(wire_cm.LAP)
CM_APR = _message_class(wire_cm.APR)

#: Layer of every CM message, by the name in `wire_cm.CM_MESSAGES`.
CM_LAYERS: Final[dict[str, type[Packet]]] = {
    c.__name__.removeprefix("CM_"): c
    for c in (
        *(CM_REQ, CM_MRA, CM_REJ, CM_REP, CM_RTU, CM_DREQ, CM_DREP),
        *(CM_SIDR_REQ, CM_SIDR_REP, CM_LAP, CM_APR),
    )
}

for _name, _class in CM_LAYERS.items():
    bind_top_down(MAD, _class, mgmt_class=wire_cm.MGMT_CLASS_CM, attribute_id=wire_cm.CM_ATTRIBUTE_IDS[_name])
