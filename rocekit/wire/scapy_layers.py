"""Scapy layers for RoCE: GRH, BTH and every header that may follow it. `layers_cm` has MADs and CM messages.

    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether
    from rocekit.wire.scapy_layers import BTH, RETH, roce

    to_peer = Ether() / IP(dst="10.0.0.2") / UDP(sport=50000)
    to_peer / BTH(opcode="RC_RDMA_WRITE_ONLY", dest_qpn=17, psn=5) / RETH(dma_length=3) / b"abc"
    to_peer / roce("RC_ACKNOWLEDGE", dest_qpn=17, psn=5, msn=1)

Fields come from `wire`. Building adds the headers that the opcode needs and the stack lacks, the pad and its
count, the ICRC over IPv4, IPv6 or the GRH, the UDP port and a UDP checksum of 0. Dissecting follows the
opcode and splits off the pad and the ICRC; `BTH.icrc_state` says whether the ICRC is right. A dissected
packet builds to the same bytes. ``del pkt[BTH].icrc`` makes the next build compute the ICRC,
``del pkt[BTH].padcount, pkt[BTH].pad`` the pad, after a change of the payload.

Importing this module binds UDP port 4791 and EtherType 0x8915 before all other bindings: these layers are
chosen whether ``scapy.contrib.roce`` was loaded before, is loaded later, or not at all.
"""

from __future__ import annotations

from typing import Any, Final

from scapy.fields import Field
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import SNAP, CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw, bind_top_down

from rocekit import wire
from rocekit.wire import cm as wire_cm
from rocekit.wire import icrc as _icrc
from rocekit.wire.build import LEAST_SOURCE_PORT
from rocekit.wire.network import UDP_BYTES
from rocekit.wire.scapy_cm import MAD
from rocekit.wire.scapy_fields import fields_of, raw_when_short

#: The values of `BTH.icrc_state`.
ICRC_VALID, ICRC_INVALID, ICRC_UNCHECKED = "valid", "invalid", "unchecked"


_Metaclass: Any = type(Packet)


class _Aside(Field):  # type: ignore[type-arg, unused-ignore]
    """A field without bytes in the BTH: they follow the payload, or it says how to build."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, None]:
        return s, None

    def addfield(self, pkt: Packet, s: bytes, val: Any) -> bytes:
        return s

    def i2repr(self, pkt: Packet, x: Any) -> str:
        return f"{x:#010x}" if self.name == "icrc" and isinstance(x, int) else repr(x)


class _Transport(Packet):
    """The BTH and the headers behind it: the BTH's opcode says which layer is next (9.2.1)."""

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        depth, layer = 0, self
        while not isinstance(layer, BTH):
            depth, layer = depth + 1, layer.underlayer
            if layer is None:
                return super().guess_payload_class(payload)
        opcode = wire.OPCODES.get(layer.opcode)
        if opcode is None:
            return super().guess_payload_class(payload)
        if depth < len(opcode.headers):
            return LAYERS[opcode.headers[depth].name]
        if opcode.value == wire.CNP_OPCODE:
            return CNPPadding
        if opcode.transport == "UD" and layer.dest_qpn in wire.MAD_QPNS:
            return MAD
        return super().guess_payload_class(payload)


class BTH(_Transport):
    """Base Transport Header (9.2), and the pad and the ICRC at the end of its packet.

    Fields beside those of `wire.BTH`, none of which has bytes in the header:
        pad: the pad bytes; None: as many zeros as the payload needs.
        icrc: the ICRC as a number whose little-endian bytes are sent; None: computed.
        truncated: 1 if the capture has fewer bytes than the lower layers' lengths say (or too few for an
            ICRC); then there is neither pad nor ICRC, and building adds none.
        fill: 1: building adds, as zeros, headers that the opcode needs and the stack lacks. Dissecting sets
            0.
    """

    name = "BTH"
    fields_desc = [  # noqa: RUF012  # Scapy's metaclass wants a list
        *fields_of(wire.BTH, opcode=wire.OPCODE_NAMES["RC_SEND_ONLY"], pkey=wire.DEFAULT_PKEY, padcount=None),
        _Aside("pad", None),
        _Aside("icrc", None),
        _Aside("truncated", 0),
        _Aside("fill", 1),
    ]
    dispatch_hook = raw_when_short(wire.BTH.length)

    def post_dissect(self, s: bytes) -> bytes:
        """Takes the ICRC and the pad off the end of the packet."""
        length = _transport_length(self.underlayer)
        self.fields["fill"] = 0
        if len(s) < wire.ICRC_BYTES or (length is not None and length > wire.BTH.length + len(s)):
            self.fields.update(truncated=1, pad=b"", icrc=None)
            return s
        body, trailer = s[: -wire.ICRC_BYTES], s[-wire.ICRC_BYTES :]
        opcode = wire.OPCODES.get(self.opcode)
        headers = opcode.headers_length - wire.BTH.length if opcode else 0
        # A pad count that reaches into the headers is malformed; then no pad is split off.
        pad = self.padcount if headers + self.padcount <= len(body) else 0
        self.fields.update(truncated=0, pad=body[len(body) - pad :], icrc=int.from_bytes(trailer, "little"))
        # Without the cache, building calls post_build, which puts the two back.
        self.raw_packet_cache = None
        return body[: len(body) - pad]

    def post_build(self, p: bytes, pay: bytes) -> bytes:
        if self.truncated:
            return p + pay
        if self.fill:
            pay = self._filled(pay)
        pad = bytes(-len(pay) & 3) if self.pad is None else self.pad
        if self.padcount is None:
            p = p[:1] + bytes([p[1] | (len(pad) & 3) << 4]) + p[2:]
        body = p + pay + pad
        number = self.icrc if self.icrc is not None else self._icrc_of(body)
        return body + (number or 0).to_bytes(wire.ICRC_BYTES, "little")

    @property
    def icrc_state(self) -> str:
        """``"valid"``, ``"invalid"``, or ``"unchecked"``: truncated, or no IP header or GRH is below."""
        if self.truncated:
            return ICRC_UNCHECKED
        whole = self.do_build()
        right = self._icrc_of(whole[: -wire.ICRC_BYTES])
        if right is None:
            return ICRC_UNCHECKED
        return ICRC_VALID if whole[-wire.ICRC_BYTES :] == right.to_bytes(4, "little") else ICRC_INVALID

    def mysummary(self) -> str:
        opcode = wire.OPCODES.get(self.opcode)
        name = opcode.name if opcode else f"opcode {self.opcode:#04x}"
        return f"BTH {name} QP {self.dest_qpn:#x} PSN {self.psn}"

    def _filled(self, pay: bytes) -> bytes:
        """``pay`` with the headers that the opcode needs and the stack lacks."""
        opcode = wire.OPCODES.get(self.opcode)
        if opcode is None:
            return pay
        if opcode.value == wire.CNP_OPCODE:
            return pay or bytes(wire.CNP_RESERVED_BYTES)
        present = []
        layer = self.payload
        while LAYERS.get(type(layer).__name__) is type(layer):
            present.append(type(layer).__name__)
            layer = layer.payload
        out, at = b"", 0
        for header in opcode.headers:
            if present[:1] == [header.name]:
                present.pop(0)
                out += pay[at : at + header.length]
                at += header.length
            else:
                out += bytes(header.length)
        # Headers that are not the opcode's were stacked on purpose.
        return pay if present else out + pay[at:]

    def _icrc_of(self, body: bytes) -> int | None:
        """The right ICRC of the bytes from BTH to pad; None without an IP header or GRH below."""
        below = []
        layer = self.underlayer
        while layer is not None:
            below.append(layer)
            if isinstance(layer, IP | IPv6 | GRH):
                break
            layer = layer.underlayer
        else:
            return None
        # The lower headers as they will be sent: their lengths count this body and the ICRC.
        chain = Raw(body + bytes(wire.ICRC_BYTES))
        for layer in below:
            bare = type(layer)()
            bare.fields = layer.copy_fields_dict(layer.fields)
            bare.default_fields = layer.copy_fields_dict(layer.default_fields)
            bare.raw_packet_cache = layer.raw_packet_cache
            bare.raw_packet_cache_fields = layer.copy_fields_dict(layer.raw_packet_cache_fields)
            bare.explicit = 1
            bare.add_payload(chain)
            bare.overloaded_fields = layer.overloaded_fields.copy()
            chain = bare
        udp = isinstance(self.underlayer, UDP)
        covered = chain.do_build()[: -wire.ICRC_BYTES]
        network = len(covered) - len(body) - (UDP_BYTES if udp else 0)
        return _icrc.icrc(covered, network, udp=udp)


def _transport_length(under: Packet | None) -> int | None:
    """The bytes from the BTH to the ICRC, by the length in the layer below."""
    if isinstance(under, UDP):
        return None if under.len is None else under.len - UDP_BYTES
    return under.pay_len if isinstance(under, GRH) else None


class GRH(Packet):
    """Global Routing Header (8.3), RoCE v1's network layer (A16)."""

    name = "GRH"
    fields_desc = fields_of(wire.GRH, ipver=6, next_hdr=wire.GRH_NEXT_BTH, hop_limit=64, pay_len=None)
    dispatch_hook = raw_when_short(wire.GRH.length)

    def post_build(self, p: bytes, pay: bytes) -> bytes:
        if self.pay_len is None:
            p = p[:4] + (len(pay) & 0xFFFF).to_bytes(2, "big") + p[6:]
        return p + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return s[: self.pay_len], s[self.pay_len :]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        return BTH if self.next_hdr == wire.GRH_NEXT_BTH else super().guess_payload_class(payload)

    def mysummary(self) -> str:
        return f"GRH {self.sgid} > {self.dgid}"


class CNPPadding(Packet):
    """The sixteen reserved bytes of a congestion notification packet (A17.9.3)."""

    name = "CNPPadding"
    fields_desc = fields_of(wire.Header.of("CNPPadding", "A17.9.3", "resv0:64 resv1:64"))
    dispatch_hook = raw_when_short(wire.CNP_RESERVED_BYTES)


class _Original:
    """Makes ``original`` a field; in every Scapy packet it is a slot for the bytes that it was read from.

    A base class, because Scapy's metaclass takes a class attribute with a field's name for its default.
    """

    __slots__ = ()

    @property
    def original(self) -> Any:
        return self.getfieldval("original")  # type: ignore[attr-defined]

    @original.setter
    def original(self, value: Any) -> None:
        if not isinstance(value, bytes):
            self.setfieldval("original", value)  # type: ignore[attr-defined]


class AtomicAckETH(_Original, _Transport):
    """AtomicAckETH (9.3.5): ``original`` is the value before the atomic."""

    name = wire.ATOMICACKETH.name
    fields_desc = fields_of(wire.ATOMICACKETH)
    dispatch_hook = raw_when_short(wire.ATOMICACKETH.length)


def _header_class(header: wire.Header) -> type[Packet]:
    body: dict[str, Any] = {
        "__doc__": f"{header.name} ({header.section}), {header.length} bytes.",
        "__module__": __name__,
        "name": header.name,
        "fields_desc": fields_of(header),
        "dispatch_hook": raw_when_short(header.length),
    }
    return _Metaclass(header.name, (_Transport,), body)


RDETH = _header_class(wire.RDETH)
DETH = _header_class(wire.DETH)
XRCETH = _header_class(wire.XRCETH)
RETH = _header_class(wire.RETH)
AtomicETH = _header_class(wire.ATOMICETH)
AETH = _header_class(wire.AETH)
ImmDt = _header_class(wire.IMMDT)
IETH = _header_class(wire.IETH)
FETH = _header_class(wire.FETH)

#: Layer of every header of `wire.HEADERS`, by the header's name.
LAYERS: Final[dict[str, Any]] = {
    c.__name__: c
    for c in (BTH, GRH, RDETH, DETH, XRCETH, RETH, AtomicETH, AETH, AtomicAckETH, ImmDt, IETH, FETH)
}


def roce(opcode: int | str, payload: bytes | Packet = b"", **fields: Any) -> Packet:
    """A BTH, the headers that its opcode needs, and the payload, to be put over UDP or a GRH.

    Args:
        opcode: name or value.
        payload: bytes, or a layer such as a MAD.
        fields: fields of any of the headers. By default an RETH's ``dma_length`` is the payload's if the
            message is one packet, a CNP has BECN set, and a MAD goes to QP 1.

    Raises:
        ValueError: no such opcode, or a field that none of its headers has.
    """
    value = wire.OPCODE_NAMES.get(opcode) if isinstance(opcode, str) else opcode
    known = None if value is None else wire.OPCODES.get(value)
    if known is None:
        raise ValueError(f"no opcode is called {opcode}")
    if known.value == wire.CNP_OPCODE:
        fields.setdefault("becn", 1)
    if isinstance(payload, MAD):
        fields.setdefault("dest_qpn", wire.GSI_QPN)
    if known.payload and known.position == wire.ONLY and wire.RETH in known.headers:
        fields.setdefault("dma_length", len(payload))
    fields["opcode"] = known.value
    layers = []
    for name in ("BTH", *(h.name for h in known.headers)):
        cls = LAYERS[name]
        layers.append(cls(**{f.name: fields.pop(f.name) for f in cls.fields_desc if f.name in fields}))
    if fields:
        raise ValueError(f"{known.name} has no field {', '.join(sorted(fields))}")
    stack = layers[0]
    for layer in layers[1:]:
        stack = stack / layer
    return stack / payload if payload else stack


def _bind() -> None:
    """Bind these layers to UDP's port and the EtherType.

    Scapy takes the first binding that fits, so these come first: before ``scapy.contrib.roce``, and before
    services with a port that is the source port of a RoCE flow.
    """
    UDP.payload_guess = [({"dport": wire.ROCE_UDP_PORT}, BTH), *UDP.payload_guess]
    # The ICRC protects the packet, so the UDP checksum is sent as 0 (A17).
    bind_top_down(UDP, BTH, sport=LEAST_SOURCE_PORT, dport=wire.ROCE_UDP_PORT, chksum=0)
    for lower, key in (
        *((Ether, "type"), (Dot1Q, "type"), (Dot1AD, "type"), (SNAP, "code")),
        *((CookedLinux, "proto"), (CookedLinuxV2, "proto")),
    ):
        match = {key: wire.ROCE_V1_ETHERTYPE}
        lower.payload_guess = [(match, GRH), *lower.payload_guess]
        bind_top_down(lower, GRH, **match)
    bind_top_down(GRH, BTH, next_hdr=wire.GRH_NEXT_BTH)
    bind_top_down(DETH, MAD, qkey=wire_cm.GSI_QKEY, src_qpn=wire.GSI_QPN)
    # The most frequent opcode with each header; `roce` and an explicit opcode are exact.
    for upper, opcode in (
        *((AETH, "RC_ACKNOWLEDGE"), (DETH, "UD_SEND_ONLY"), (RETH, "RC_RDMA_WRITE_ONLY")),
        *((AtomicETH, "RC_FETCH_ADD"), (FETH, "RC_FLUSH"), (IETH, "RC_SEND_ONLY_WITH_INVALIDATE")),
        *((ImmDt, "RC_SEND_ONLY_WITH_IMMEDIATE"), (CNPPadding, "CNP")),
    ):
        bind_top_down(BTH, upper, opcode=wire.OPCODE_NAMES[opcode])


_bind()
