"""What else than RoCE is in a capture: EtherTypes, IP protocols and UDP ports by name (IEEE, IANA)."""

from __future__ import annotations

from typing import Final

from rocekit.wire.network import ETHERTYPE_ARP

ETHERTYPES: Final = {
    ETHERTYPE_ARP: "ARP",
    0x6558: "Ethernet inside Ethernet",
    0x8035: "RARP",
    0x8100: "VLAN",
    0x8808: "PAUSE or PFC",
    0x8809: "LACP and other slow protocols",
    0x8847: "MPLS",
    0x8848: "MPLS",
    0x8863: "PPPoE",
    0x8864: "PPPoE",
    0x888E: "802.1X",
    0x88CC: "LLDP",
    0x88E5: "MACsec",
    0x88E7: "provider backbone bridging",
    0x88F7: "PTP",
    0x8906: "FCoE",
    0x8914: "FCoE initialization",
    0x8915: "RoCE v1 without a BTH",
    0x8926: "VN-Tag",
    0x893F: "802.1BR E-Tag",
    0x894F: "NSH",
    0x9000: "loopback test",
}
#: An EtherType field below this is a length (IEEE 802.3): an LLC frame follows.
LEAST_ETHERTYPE: Final = 0x0600

IP_PROTOCOLS: Final = {
    1: "ICMP",
    2: "IGMP",
    4: "IPv4 in IP",
    6: "TCP",
    33: "DCCP",
    41: "IPv6 in IP",
    46: "RSVP",
    47: "GRE",
    50: "IPsec ESP",
    51: "IPsec AH",
    58: "ICMPv6",
    59: "IPv6 without a next header",
    88: "EIGRP",
    89: "OSPF",
    103: "PIM",
    108: "IP compression",
    112: "VRRP",
    132: "SCTP",
    136: "UDP-Lite",
    137: "MPLS in IP",
    143: "Ethernet in IP",
}
#: RFC 4861: the ICMPv6 messages of neighbour discovery.
FIRST_NEIGHBOUR_DISCOVERY, LAST_NEIGHBOUR_DISCOVERY = 133, 137
NEIGHBOUR_DISCOVERY: Final = "IPv6 neighbour discovery"

UDP_PORTS: Final = {
    53: "DNS",
    67: "DHCP",
    68: "DHCP",
    69: "TFTP",
    123: "NTP",
    137: "NetBIOS",
    138: "NetBIOS",
    161: "SNMP",
    162: "SNMP",
    319: "PTP",
    320: "PTP",
    443: "QUIC",
    500: "IKE",
    514: "syslog",
    546: "DHCPv6",
    547: "DHCPv6",
    1900: "SSDP",
    2049: "NFS",
    2055: "NetFlow",
    2152: "GTP-U",
    3784: "BFD",
    4500: "IPsec behind NAT",
    4739: "IPFIX",
    4754: "GRE in UDP",
    4789: "VXLAN",
    4790: "VXLAN-GPE",
    4793: "UDP 4793 (Ultra Ethernet)",
    5353: "mDNS",
    5355: "LLMNR",
    6081: "Geneve",
    6343: "sFlow",
    6635: "MPLS in UDP",
    8472: "VXLAN",
    51820: "WireGuard",
}
#: Services that send UDP from their own port: an answer may go to port 4791 if a client happens to use it.
SERVICE_PORTS: Final = tuple(port for port in UDP_PORTS if port < 1024)

#: Protocols that carry whole frames or packets of others, in which RoCE may be.
TUNNELS: Final = frozenset(
    {
        *(
            "Ethernet inside Ethernet",
            "MPLS",
            "PPPoE",
            "provider backbone bridging",
            "VN-Tag",
            "802.1BR E-Tag",
        ),
        *("NSH", "IPv4 in IP", "IPv6 in IP", "GRE", "IPsec AH", "MPLS in IP"),
        *("Ethernet in IP", "GTP-U", "GRE in UDP", "VXLAN", "VXLAN-GPE", "Geneve", "MPLS in UDP"),
    }
)
#: Protocols whose content is encrypted.
ENCRYPTED: Final = frozenset({"MACsec", "IPsec ESP", "IPsec behind NAT"})
