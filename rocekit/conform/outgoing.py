"""Packets that the packet side sends: templates of a drill, built when their values are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rocekit.conform.values import Names, Sum, constant, read_bytes, read_sum, read_syndrome
from rocekit.craft.keys import CM_DEFAULTS, fields_of
from rocekit.craft.values import ValueReader, Wrong
from rocekit.files.yaml import Value
from rocekit.wire import AETH, BTH, DETH, FIRST, ICRC_BYTES, IMMDT, OPCODES, RETH, Opcode, icrc, psns_of
from rocekit.wire import cm as wire_cm
from rocekit.wire.build import build_ip_cm, build_mad, build_packet, gid
from rocekit.wire.network import UDP_BYTES, internet_checksum
from rocekit.wire.psn import MASK

_NETWORK: Final = ("src", "dscp", "ecn", "ttl", "sport", "dport", "identification")
_OWN: Final = ("op", "psn", "absolute_psn", "payload", "icrc", "cut")
_IPV6_BYTES: Final = 40
_READER: Final = ValueReader(0)


@dataclass(frozen=True, slots=True)
class OutgoingPacket:
    """A packet to send.

    Attributes:
        opcode: its value.
        cm: the CM message it carries, or "".
        fields: what the drill gives; sums that may name values.
        psn: relative to the start, or as it is (``absolute``).
        cut: bytes left out at the end of the transport packet, before the ICRC.
    """

    opcode: int
    fields: Mapping[str, Sum | bytes]
    psn: Sum
    absolute: bool = False
    cm: str = ""
    payload: bytes | None = None
    network: Mapping[str, Any] = field(default_factory=dict)
    bad_icrc: bool = False
    cut: int = 0

    @property
    def op(self) -> Opcode | None:
        return OPCODES.get(self.opcode)

    def build(self, names: Names, src: str, dst: str) -> bytes:
        """The IP packet. ``names`` has rq, sq, qpn, peer_qpn, and rkey and addr of the region ``main``.

        Raises:
            UnknownName: it uses a value that nothing has given.
            ValueError: a value does not fit its field.
        """
        op = self.op
        given = {
            key: value if isinstance(value, bytes) else value.value(names)
            for key, value in self.fields.items()
        }
        own = {k: v for k, v in given.items() if isinstance(v, int) and not self._of_mad(k)}
        numbers: dict[str, Any] = _defaults(op, names) | own
        start = 0 if self.absolute else names["sq" if op is not None and op.response else "rq"]
        psn = (start + self.psn.value(names)) & MASK
        payload = self.payload if self.payload is not None else b""
        if self.cm:
            payload = self._mad(given, names, src, dst)
        if op is not None and RETH in op.headers and "dma_length" not in numbers:
            numbers["dma_length"] = len(payload)
        network = {"src": src, "dst": dst, **self.network}
        packet = build_packet(self.opcode, psn=psn, payload=payload, **network, **numbers)
        if self.cut:
            packet = _shortened(packet, self.cut)
        if self.bad_icrc:
            packet = packet[:-1] + bytes([packet[-1] ^ 0xFF])
        return packet

    def psns(self, path_mtu: int, names: Names) -> int:
        """How many PSNs it takes."""
        if self.op is not None and self.op.operation == "READ":
            length = self.fields.get("dma_length")
            return psns_of(length.value(names) if isinstance(length, Sum) else 0, path_mtu)
        return 1

    def _of_mad(self, key: str) -> bool:
        return bool(self.cm) and (key in wire_cm.MAD.by_name or key in wire_cm.CM_MESSAGES[self.cm].by_name)

    def _mad(self, given: Mapping[str, Any], names: Names, src: str, dst: str) -> bytes:
        layout = wire_cm.CM_MESSAGES[self.cm].by_name
        fields: dict[str, Any] = {k: v for k, v in CM_DEFAULTS.items() if k in layout}
        known = {
            "local_comm_id": names["peer_comm_id"],
            "remote_comm_id": names["comm_id"],
            "local_qpn": names["peer_qpn"],
            "remote_qpn": names["qpn"],
            "starting_psn": names["sq"],  # 12.6.5: the first that the other side sends
            # A connection is known by QPN and adapter (12.9.8.3.1): another drill's is none of this one.
            "local_ca_guid": names["peer_comm_id"],
        }
        fields |= {key: value for key, value in known.items() if key in layout}
        if self.cm == "REQ":
            fields |= {
                "path_mtu_code": 3,
                "service_id": 0x0106_0000 | names["port"],
                "primary_local_port_gid": gid(src),
                "primary_remote_port_gid": gid(dst),
                "private_data": build_ip_cm(src, dst, 40_000),
            }
        fields |= {k: v for k, v in given.items() if self._of_mad(k)}
        return build_mad(self.cm, fields.pop("transaction_id", names["transaction_id"]), **fields)


def _defaults(op: Opcode | None, names: Names) -> dict[str, int]:
    """What a right packet of that opcode has, where the drill does not say otherwise."""
    found = {"dest_qpn": names["qpn"]}
    if op is None:
        return found
    if not op.response and op.ends and op.transport == "RC":
        found["ackreq"] = 1
    headers = op.headers
    if AETH in headers:
        found |= {"syndrome": 0x1F, "msn": names["msn"] & MASK}
    has = {f.name for header in headers for f in header.fields}
    for name, known in (("remote_va", "addr"), ("rkey", "rkey"), ("qkey", "qkey"), ("src_qpn", "peer_qpn")):
        if name in has:
            found[name] = names[known]
    if IMMDT in headers:
        found["immediate"] = 0
    if DETH in headers and op.transport == "UD":
        found["ackreq"] = 0
    if "placement_type" in has:
        found["placement_type"] = 1
    return found


def _shortened(packet: bytes, cut: int) -> bytes:
    """The IP packet without the last ``cut`` bytes before its ICRC; lengths and ICRC are of what is left.

    What is too short for an ICRC of its own keeps the old one.
    """
    version = packet[0] >> 4
    start = (packet[0] & 15) * 4 if version == 4 else _IPV6_BYTES
    kept = bytearray(packet[: max(start + UDP_BYTES, len(packet) - ICRC_BYTES - cut)])
    size = len(kept) + ICRC_BYTES
    kept[start + 4 : start + 6] = (size - start).to_bytes(2, "big")
    if version == 4:
        kept[2:4] = size.to_bytes(2, "big")
        kept[10:12] = b"\0\0"
        kept[10:12] = internet_checksum(bytes(kept[:start])).to_bytes(2, "big")
    else:
        kept[4:6] = (size - start).to_bytes(2, "big")
    try:
        end = icrc.icrc_bytes(bytes(kept), start)
    except ValueError:
        end = packet[-ICRC_BYTES:]
    return bytes(kept) + end


def read_outgoing(value: Value) -> OutgoingPacket:
    """The packet that a mapping describes.

    Raises:
        ScenarioError: with file and line.
    """
    content = value.content
    if not isinstance(content, dict) or "op" not in content:
        raise value.wrong("a packet is written as {op: RC_SEND_ONLY, psn: 0, …}")
    op = content["op"].content
    try:
        cm = _READER.cm_message(op)
        opcode = _READER.opcode("UD_SEND_ONLY" if cm else op)
    except Wrong as error:
        raise content["op"].wrong(str(error)) from None
    known = OPCODES.get(opcode)
    headers: tuple[Any, ...] = (BTH, *(known.headers if known is not None else ()))
    if cm:
        headers = (*headers, wire_cm.MAD, wire_cm.CM_MESSAGES[cm])
    names = (*_OWN, *_NETWORK, *(name for name in fields_of(headers) if name != "psn"))
    value.mapping(names, f"{op if isinstance(op, str) else hex(op)}")
    fields: dict[str, Sum | bytes] = (
        {"qkey": constant(wire_cm.GSI_QKEY), "dest_qpn": constant(1)} if cm else {}
    )
    network: dict[str, Any] = {}
    for key, item in content.items():
        if key in _OWN:
            continue
        if key in _NETWORK:
            try:
                network[key] = _READER.network(key, item.content)
            except Wrong as error:
                raise item.wrong(str(error)) from None
        elif key == "syndrome":
            fields[key] = read_syndrome(item)
        elif cm and any(h.by_name[key].is_bytes for h in headers if key in h.by_name):
            fields[key] = gid(str(item.content)) if key.endswith("gid") else read_bytes(item, key)
        else:
            fields[key] = read_sum(item, key)
    if "psn" in content and "absolute_psn" in content:
        raise content["psn"].wrong("either psn, relative to the start, or absolute_psn")
    psn = content.get("psn") or content.get("absolute_psn")
    icrc = content.get("icrc")
    if icrc is not None and icrc.content not in ("good", "bad"):
        raise icrc.wrong(f"icrc is good or bad, not {icrc.content!r}")
    cut = content.get("cut")
    if cut is not None and not (isinstance(cut.content, int) and cut.content > 0):
        raise cut.wrong(f"cut is a number of bytes, not {cut.content!r}")
    payload = content.get("payload")
    return OutgoingPacket(
        opcode,
        fields,
        read_sum(psn, "psn") if psn is not None else constant(0),
        absolute="absolute_psn" in content,
        cm=cm,
        payload=None if payload is None else read_bytes(payload, "payload"),
        network=network,
        bad_icrc=icrc is not None and icrc.content == "bad",
        cut=0 if cut is None else cut.content,
    )


def read_message(value: Value, path_mtu: int) -> tuple[OutgoingPacket, ...]:
    """The packets of a whole message: ``{op: RC_RDMA_WRITE, length: 3000, psn: 0}``.

    Raises:
        ScenarioError: with file and line.
    """
    content = dict(value.content) if isinstance(value.content, dict) else {}
    for key in ("op", "length"):
        if key not in content:
            raise value.wrong("a message is written as {op: RC_SEND, length: 3000, psn: 0, …}")
    length, name = content.pop("length").content, str(content["op"].content)
    if not isinstance(length, int) or length < 0:
        raise value.wrong(f"length is a number of bytes, not {length!r}")
    tail = ""
    for ending in ("_WITH_IMMEDIATE", "_WITH_INVALIDATE"):
        if name.endswith(ending):
            name, tail = name.removesuffix(ending), ending
    count = psns_of(length, path_mtu)
    psn = content.pop("psn", None)
    start = read_sum(psn, "psn") if psn is not None else constant(0)
    found = []
    for i in range(count):
        ends = i == count - 1
        position = "ONLY" if count == 1 else FIRST if i == 0 else "LAST" if ends else "MIDDLE"
        own = dict(content)
        own["op"] = Value(f"{name}_{position}{tail if ends else ''}", value.file, value.line)
        size = length - i * path_mtu if ends else path_mtu
        own["payload"] = Value(f"{size} from {i * path_mtu}", value.file, value.line)
        if i == 0 and "WRITE" in name and "dma_length" not in own:
            own["dma_length"] = Value(length, value.file, value.line)
        if i and "WRITE" in name:
            own = {key: item for key, item in own.items() if key not in ("remote_va", "rkey", "dma_length")}
        packet = read_outgoing(Value(own, value.file, value.line))
        shifted = Sum((*start.terms, (1, i)))
        found.append(
            OutgoingPacket(
                packet.opcode, packet.fields, shifted, payload=packet.payload, network=packet.network
            )
        )
    return tuple(found)
