"""Words for the fields of packets: what each means, tshark's name for it, and the classes of opcodes."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from rocekit.packets import COLUMNS, FIELD_HOMES, HAS
from rocekit.wire import HEADERS, OPCODE_NAMES, OPCODES

#: What every column of a packet means.
MEANINGS: Final = {
    "frame": "The frame's number in its file, from 1, as Wireshark counts.",
    "file": "Which of several captures it is from, from 0.",
    "time_ns": "When it was captured: nanoseconds since 1970, UTC.",
    "ip_version": "4 or 6. The GRH of RoCE v1 counts as 6.",
    "roce_version": "1 (EtherType 0x8915) or 2 (UDP port 4791).",
    "src": "The sender's IP address. With RoCE v1: the GRH's source GID.",
    "dst": "The receiver's IP address. With RoCE v1: the GRH's destination GID.",
    "flow": "A number for each (`src`, `dst`, `dest_qpn`). Only for filters; not printed.",
    "udp_sport": "UDP source port. Switches use it to spread flows over paths. 0 in a filter with RoCE v1.",
    "tclass": "The traffic class byte (IPv4: type of service): `dscp` and `ecn` together.",
    "dscp": "The upper six bits of `tclass`: which class of service the network gives the packet.",
    "ecn": "The lower two bits of `tclass`: 0 not capable of ECN, 1 or 2 capable, 3 congestion experienced.",
    "hop_limit": "Hop limit (IPv4: TTL): each router takes one away.",
    "flow_label": "IPv6 flow label. Null with IPv4 (0 in a filter).",
    "ip_id": "IPv4 identification. Two frames with the same one are copies of one datagram, if the sender "
    "counts it. Null with IPv6 (0 in a filter).",
    "vlan": "VLAN ID of the innermost tag. Null without a tag (−1 in a filter).",
    "priority": "Priority (PCP) of that tag.",
    "encapsulation": "The tags, tunnels and labels around the packet, the outermost first, with outer "
    "addresses. Null without any (0 in a filter).",
    "vni": "Identifier of the innermost virtual network: VNI (VXLAN, Geneve), VSID (NVGRE) or I-SID. Null "
    "without one (−1 in a filter).",
    "opcode": "What the packet is: transport, operation and place in the message, such as `RC_SEND_FIRST`.",
    "has": "Which headers the packet has, as bits. In a filter write the header's name instead.",
    "payload_length": "Bytes of payload, without pad and ICRC, from the lengths in the headers.",
    "icrc": "The invariant CRC as a number. Null if it could not be verified.",
    "icrc_state": "`valid`, `invalid`, or `unchecked` (the capture does not have the whole packet).",
    "truncated": "Whether the snaplen cut the packet.",
    "fragment": "Whether it is the first fragment of an IP datagram. RoCE never fragments.",
    "malformed": "What contradicts the format, in words, or null (0 in a filter).",
    "solicited": "Solicited event: asks the receiver to raise a completion event.",
    "migreq": "Migration state of automatic path migration.",
    "padcount": "Bytes of pad behind the payload: 0 to 3.",
    "version": "Version of the transport header: 0.",
    "pkey": "Partition key.",
    "fecn": "Forward explicit congestion notification of InfiniBand. RoCE v2 marks packets by `ecn` instead.",
    "becn": "Backward explicit congestion notification. RoCE v2 ignores it; NVIDIA's NICs set it in a CNP.",
    "dest_qpn": "The QP the packet goes to. The sender's own QP is not in the header, except in a DETH.",
    "ackreq": "The requester asks for an acknowledgement of this packet.",
    "psn": "Packet sequence number, 24 bits. A response carries the PSN of its request.",
    "ee_context": "End-to-end context of RD.",
    "qkey": "Key that protects a UD QP.",
    "src_qpn": "The sender's QP.",
    "xrc_srqn": "The shared receive queue that an XRC packet goes to.",
    "remote_va": "Virtual address in the responder's memory.",
    "rkey": "Key of the responder's memory region.",
    "dma_length": "Bytes of the whole WRITE or READ.",
    "swap_add": "The value to add (fetch-and-add), or to store if the comparison holds (compare-and-swap).",
    "compare": "The value that compare-and-swap expects.",
    "syndrome": "ACK, RNR NAK or NAK, and its code. 0x00–0x1f: ACK with end-to-end credits (0x1f: without); "
    "0x20–0x3f: RNR NAK with its timer; 0x60–0x64: NAK with its code.",
    "msn": "Message sequence number: how many messages the responder has completed, 24 bits.",
    "original": "The value that the atomic found in memory.",
    "immediate": "32 bits that go to the receiver's completion.",
    "invalidate_rkey": "The key that the receiver shall invalidate.",
    "selectivity": "What a FLUSH covers: 0 a range, 1 the whole memory region.",
    "placement_type": "What a FLUSH guarantees: 1 global visibility, 2 persistence, 3 both.",
}


def _pairs(prefix: str, pairs: str) -> dict[str, str]:
    """tshark's fields by our names, from ``"our_name:their_name …"``."""
    return {ours: prefix + theirs for ours, theirs in (pair.split(":") for pair in pairs.split())}


#: tshark's fields by our columns, for each header that has them. They hold the same values.
TSHARK: Final = MappingProxyType(
    {
        "frame": {"frame": "frame.number"},
        "vlan": {"vlan": "vlan.id", "priority": "vlan.priority"},
        "udp": {"udp_sport": "udp.srcport"},
        "ip": _pairs(
            "ip.",
            "ip_version:version src:src dst:dst tclass:dsfield dscp:dsfield.dscp ecn:dsfield.ecn "
            "hop_limit:ttl ip_id:id",
        ),
        "ipv6": _pairs(
            "ipv6.",
            "ip_version:version src:src dst:dst tclass:tclass dscp:tclass.dscp ecn:tclass.ecn "
            "hop_limit:hlim flow_label:flow",
        ),
        "GRH": _pairs(
            "infiniband.grh.", "src:sgid dst:dgid tclass:tclass hop_limit:hoplmt flow_label:flowlabel"
        ),
        "BTH": _pairs(
            "infiniband.bth.",
            "opcode:opcode solicited:se migreq:m padcount:padcnt version:tver pkey:p_key "
            "dest_qpn:destqp ackreq:a psn:psn",
        ),
        "RETH": _pairs("infiniband.reth.", "remote_va:va rkey:r_key dma_length:dmalen"),
        # tshark has one field for the addresses and keys of RETH and AtomicETH.
        "AtomicETH": _pairs("infiniband.atomiceth.", "swap_add:swapdt compare:cmpdt"),
        "AETH": _pairs("infiniband.aeth.", "syndrome:syndrome msn:msn"),
        "DETH": _pairs("infiniband.deth.", "qkey:q_key src_qpn:srcqp"),
        "AtomicAckETH": {"original": "infiniband.atomicacketh.origremdt"},
        "ImmDt": {"immediate": "infiniband.immdt"},
        "IETH": {"invalidate_rkey": "infiniband.ieth"},
    }
)

#: The column of each of tshark's fields, and the header that must be there.
FROM_TSHARK: Final = MappingProxyType(
    {theirs: (ours, header) for header, fields in TSHARK.items() for ours, theirs in fields.items()}
)
#: tshark's names for whole headers.
HEADERS_FROM_TSHARK: Final = MappingProxyType(
    {f"infiniband.{name.lower()}": name for name in HAS if name != "GRH"}
)
#: tshark's fields that are the one or the other of two columns.
EITHER_FROM_TSHARK: Final = MappingProxyType({"ip.addr": "ip", "ipv6.addr": "ipv6"})
#: tshark's fields with other values than our columns: what to write instead.
OTHERWISE: Final = MappingProxyType(
    {
        "frame.time_epoch": "time_ns, in nanoseconds",
        "frame.time_relative": "time_ns, in nanoseconds since 1970",
        "infiniband.invariant.crc": "icrc, whose bytes tshark shows in the other order, or icrc_state",
        "_ws.malformed": "malformed",
        "udp.dstport": "roce_version == 2, whose packets all go to UDP port 4791",
        "infiniband.aeth.syndrome.opcode": "syndrome >> 5",
        "infiniband.aeth.syndrome.error_code": "syndrome, as 0x60 + the code",
    }
)

_CLASSES: Final = {
    "WRITE": ("RDMA_WRITE",),
    "READ": ("RDMA_READ",),
    "READ_RESPONSE": ("READ", "RDMA_READ", "RDMA_READ_RESPONSE"),
    "ATOMIC_ACK": ("ATOMIC",),
    "CMP_SWAP": ("ATOMIC",),
    "FETCH_ADD": ("ATOMIC",),
}


def _opcode_classes() -> dict[str, tuple[int, ...]]:
    classes: dict[str, list[int]] = {}
    for opcode in OPCODES.values():
        stem = opcode.name.removeprefix(f"{opcode.transport}_")
        words = {opcode.transport, opcode.operation, *_CLASSES.get(opcode.operation, ())}
        for word in words | {stem, stem.removeprefix("RDMA_")}:
            classes.setdefault(word, []).append(opcode.value)
    return {word: tuple(values) for word, values in classes.items() if word not in OPCODE_NAMES}


#: Words for several opcodes: of an operation (``WRITE``; ``READ`` has its responses too), of a transport
#: (``UD``), or of one name in every transport (``SEND_ONLY``).
OPCODE_CLASSES: Final = MappingProxyType(_opcode_classes())


def tshark_names(column: str) -> list[str]:
    """All of tshark's fields that are this column."""
    return [fields[column] for fields in TSHARK.values() if column in fields]


def field_table() -> list[tuple[str, str, str, str]]:
    """Each column: its name, the headers that have it, tshark's fields, and what it means."""
    rows = []
    for name in COLUMNS:
        homes = ", ".join(header.name for header, _ in FIELD_HOMES.get(name, ()))
        rows.append((name, homes, ", ".join(tshark_names(name)), MEANINGS[name].replace("`", "")))
    return rows


def completions(beginning: str) -> list[str]:
    """The words of a filter that start so: columns, headers, opcodes and their classes, tshark's fields."""
    words = [*COLUMNS, *HEADERS, *OPCODE_NAMES, *OPCODE_CLASSES]
    if "." in beginning or len(beginning) > 1:
        words += [*FROM_TSHARK, *EITHER_FROM_TSHARK]
    return [word for word in words if word.startswith((beginning, beginning.upper()))]
