"""What can stand around a RoCE packet: links, tags, tunnels and labels, a row each.

A row says how long a header is, where the number of the next layer stands, and what that number means. A new
encapsulation is a row here, its number in the mapping of the layer below, and a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rocekit.wire import ROCE_V1_ETHERTYPE
from rocekit.wire.network import (
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    IPV6_BYTES,
    UDP_BYTES,
    UDP_PROTOCOL,
    VLAN_ETHERTYPES,
)

NOTHING: Final = ""  #: the kind after which nothing is read


#: RFC 9602: the prefix for segment identifiers of SRv6.
SID_PREFIX: Final = 0x5F00
SEGMENT_ROUTING: Final = 4  # IANA: the routing type of RFC 8754


def is_segment(address: int) -> bool:
    """Whether an IPv6 address is an identifier of SRv6, which says which way a packet goes, not to whom.

    Hosts' addresses do not end in 32 zeros; those of segments do: their rest holds more segments, or nothing.
    """
    return address >> 112 == SID_PREFIX or address & 0xFFFF_FFFF == 0


class Layer(NamedTuple):
    """How one kind of header is read.

    Attributes:
        kind: its name here.
        length: its least bytes; ``grows`` gives the bytes more by the value of its byte ``grows_at``, and −1
            if this value is not of such a header.
        next_at, next_bytes: where the number of the next layer stands; no bytes: ``then`` follows.
        also_at, also_mask: a flag that is the bit above that number.
        numbers: the kind of the next layer by its number; ``then`` for any other.
        value_at, value_shift, value_mask: of its big-endian word at ``value_at``: its identifier.
        apart: whether traffic with another value, or between other outer addresses, is other traffic.
        mirror: a copy made by a switch: what is around it says nothing of the traffic.
        text: its name for people; ``{}`` is the value. Empty: not named.
    """

    kind: str
    length: int
    next_at: int = 0
    next_bytes: int = 0
    numbers: Mapping[int, str] | None = None
    then: str = NOTHING
    grows_at: int = 0
    grows: Callable[[int], int] | None = None
    also_at: int = 0
    also_mask: int = 0
    value_at: int = 0
    value_shift: int = 0
    value_mask: int = 0
    apart: bool = False
    mirror: bool = False
    text: str = ""

    @property
    def space(self) -> int:
        """How many numbers the next layer can have."""
        return (1 << 8 * self.next_bytes) * (2 if self.also_mask else 1)


# RFC 2784: C brings a checksum; RFC 2890: K brings a key, S a sequence number; R was RFC 1701's.
GRE_CHECKSUM, GRE_ROUTING, GRE_KEY, GRE_SEQUENCE = 0x80, 0x40, 0x20, 0x10
#: RFC 7637, 3.2: a key is a VSID of 24 bits and a FlowID of 8. VSIDs below this one are reserved.
NVGRE_LEAST_VSID: Final = 0x1000

_ETHERTYPES: Final = {
    ETHERTYPE_IPV4: "ipv4",
    ETHERTYPE_IPV6: "ipv6",
    ROCE_V1_ETHERTYPE: "grh",
    **dict.fromkeys(VLAN_ETHERTYPES, "vlan"),
    0x6558: "ethernet",  # RFC 1701: transparent Ethernet bridging
    0x8847: "mpls",
    0x8848: "mpls",
    0x8864: "pppoe",
    0x88E7: "pbb",
    0x8926: "vn-tag",
    0x893F: "e-tag",
    0x894F: "nsh",
}
# Bit 16 is GRE's S: ERSPAN I, which has no header of its own, comes without sequence numbers.
_GRE: Final = {
    **_ETHERTYPES,
    **{number | 1 << 16: kind for number, kind in _ETHERTYPES.items()},
    0x88BE: "erspan-1",
    1 << 16 | 0x88BE: "erspan-2",
    0x22EB: "erspan-3",
    1 << 16 | 0x22EB: "erspan-3",
}
_PROTOCOLS: Final = {
    0: "options",
    4: "ipv4",
    UDP_PROTOCOL: "udp",
    41: "ipv6",
    43: "routing",
    47: "gre",
    51: "authentication",
    60: "options",
    97: "etherip",
    135: "options",
    137: "mpls",
    139: "options",
    140: "options",
    143: "ethernet",
}
#: IANA's port numbers; 8472 is VXLAN's in Linux without ``dstport``.
_PORTS: Final = {4789: "vxlan", 8472: "vxlan", 4790: "vxlan-gpe", 6081: "geneve", 6635: "mpls"}
_PPP: Final = {0x0021: "ipv4", 0x0057: "ipv6", 0x0281: "mpls"}
_NSH: Final = {1: "ipv4", 2: "ipv6", 3: "ethernet", 5: "mpls"}
# Bit 8 is the P flag; without it VXLAN-GPE carries Ethernet, as VXLAN does.
_GPE: Final = {
    **dict.fromkeys(range(256), "ethernet"),
    **{1 << 8 | number: kind for number, kind in _NSH.items()},
    1 << 8 | 4: "nsh",
}
_VERSIONS: Final = {**dict.fromkeys(range(0x40, 0x50), "ipv4"), **dict.fromkeys(range(0x60, 0x70), "ipv6")}
_BOTTOM: Final = {number: "below-mpls" if number & 1 else "mpls" for number in range(256)}
_PPI: Final = {1: "ethernet", 12: "ip", 14: "ip", 101: "ip", 113: "sll"}
# Endace's record types; the highest bit says that extension headers follow.
_ERF_ETHERNET: Final = (2, 11, 16, 20)
_ERF: Final = {
    **dict.fromkeys(_ERF_ETHERNET, "erf-ethernet"),
    **{0x80 | kind: "erf-more" for kind in _ERF_ETHERNET},
    **dict.fromkeys((22, 23), "ip"),
    **dict.fromkeys((0x80 | 22, 0x80 | 23), "erf-ip-more"),
}

_24_BITS: Final = 0xFFFFFF


def _gre_grows(flags: int) -> int:
    if flags & GRE_ROUTING:
        return -1
    return 4 * (flags & (GRE_CHECKSUM | GRE_KEY | GRE_SEQUENCE)).bit_count()


LAYERS: Final = (
    Layer("", 0),
    # Links
    Layer("ethernet", 14, 12, 2, _ETHERTYPES),
    Layer("sll", 16, 14, 2, _ETHERTYPES),
    Layer("sll2", 20, 0, 2, _ETHERTYPES),
    Layer("ip", 0, 0, 1, _VERSIONS),
    Layer("loopback", 4, then="ip"),
    Layer("ppi", 0, 4, 1, _PPI, grows_at=2, grows=lambda low: low if low >= 8 else -1),
    Layer("erf", 16, 8, 1, _ERF),
    Layer("erf-more", 8, 0, 1, {**dict.fromkeys(range(128), "erf-ethernet")}, then="erf-more"),
    Layer("erf-ip-more", 8, 0, 1, {**dict.fromkeys(range(128), "ip")}, then="erf-ip-more"),
    Layer("erf-ethernet", 2, then="ethernet"),
    # Where a RoCE packet begins, if UDP and BTH follow; else one more layer
    Layer("ipv4", 0, 9, 1, _PROTOCOLS, grows=lambda first: first % 16 * 4 if 0x45 <= first < 0x50 else -1),
    Layer("ipv6", IPV6_BYTES, 6, 1, _PROTOCOLS, grows=lambda first: 0 if first >> 4 == 6 else -1),
    Layer("grh", IPV6_BYTES),
    Layer("options", 8, 0, 1, _PROTOCOLS, grows_at=1, grows=lambda eights: 8 * eights),
    Layer("routing", 8, 0, 1, _PROTOCOLS, grows_at=1, grows=lambda eights: 8 * eights),
    Layer("authentication", 8, 0, 1, _PROTOCOLS, grows_at=1, grows=lambda fours: 4 * fours),
    Layer("udp", UDP_BYTES, 2, 2, _PORTS),
    # Tags and labels
    Layer("vlan", 4, 2, 2, _ETHERTYPES, value_shift=16, value_mask=0xFFF, apart=True, text="VLAN {}"),
    Layer("vn-tag", 6, 4, 2, _ETHERTYPES, text="VN-Tag"),
    Layer("e-tag", 8, 6, 2, _ETHERTYPES, text="E-Tag"),
    Layer("pbb", 4, then="ethernet", value_mask=_24_BITS, apart=True, text="PBB I-SID {}"),
    Layer("mpls", 4, 2, 1, _BOTTOM, value_shift=12, value_mask=0xFFFFF, text="MPLS {}"),
    Layer("below-mpls", 0),  # what follows is guessed from its bytes: see ``packets.walk``
    Layer("control-word", 4, then="ethernet", text="control word"),
    Layer("pppoe", 8, 6, 2, _PPP, value_mask=0xFFFF, apart=True, text="PPPoE session {}",
          grows=lambda version: 0 if version == 0x11 else -1),
    # Tunnels
    Layer("vxlan", 8, then="ethernet", value_at=4, value_shift=8, value_mask=_24_BITS, apart=True,
          text="VXLAN VNI {}", grows=lambda flags: 0 if flags & 8 else -1),
    Layer("vxlan-gpe", 8, 3, 1, _GPE, value_at=4, value_shift=8, value_mask=_24_BITS, apart=True,
          text="VXLAN-GPE VNI {}", also_mask=4),
    Layer("geneve", 8, 2, 2, _ETHERTYPES, value_at=4, value_shift=8, value_mask=_24_BITS, apart=True,
          text="Geneve VNI {}", grows=lambda first: 4 * first if first < 0x40 else -1),
    Layer("gre", 4, 2, 2, _GRE, also_mask=GRE_SEQUENCE, apart=True, text="GRE", grows=_gre_grows),
    Layer("erspan-1", 0, then="ethernet", mirror=True, text="ERSPAN I"),
    Layer("erspan-2", 8, then="ethernet", mirror=True, value_mask=0x3FF, text="ERSPAN II session {}"),
    # The frame type says what follows; the last bit says that a subheader of 8 bytes stands before it.
    Layer("erspan-3", 12, 10, 1, {n: "ip" if n >> 2 & 31 == 2 else "ethernet" for n in range(256)},
          mirror=True, value_mask=0x3FF, text="ERSPAN III session {}",
          grows_at=11, grows=lambda flags: 8 * (flags & 1)),
    Layer("etherip", 2, then="ethernet", text="EtherIP", grows=lambda first: 0 if first >> 4 == 3 else -1),
    Layer("nsh", 0, 3, 1, _NSH, text="NSH", grows_at=1,
          grows=lambda low: 4 * (low & 63) if low & 63 >= 2 else -1),
)  # fmt: skip

#: The number of each kind: its place in ``LAYERS``.
KINDS: Final[Mapping[str, int]] = {layer.kind: number for number, layer in enumerate(LAYERS)}

#: The outermost layer, by link type (see ``files.frames``).
LINKS: Final[Mapping[int, str]] = {
    0: "loopback",
    1: "ethernet",
    101: "ip",
    108: "loopback",
    113: "sll",
    192: "ppi",
    197: "erf",
    228: "ip",
    229: "ip",
    276: "sll2",
}

#: UDP ports and IP protocols behind which a RoCE packet may be, for filters.
TUNNEL_PORTS: Final = tuple(_PORTS)
TUNNEL_PROTOCOLS: Final = tuple(
    n for n, kind in _PROTOCOLS.items() if kind not in ("udp", "options", "routing", "authentication")
)
TUNNEL_ETHERTYPES: Final = tuple(
    n for n, kind in _ETHERTYPES.items() if kind not in ("ipv4", "ipv6", "grh", "vlan", "ethernet")
)
