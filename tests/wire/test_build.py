"""Frames built without Scapy, read by Scapy; what an honest sender fills in, and what may be made wrong."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether

from rocekit import wire
from rocekit.layers import BTH, GRH
from rocekit.wire import cm as wire_cm
from rocekit.wire.build import build_frame, build_ip_cm, build_mad, build_packet, build_transport, gid

ADDRESSES = st.tuples(st.ip_addresses(v=4).map(str), st.ip_addresses(v=4).map(str))


@given(ADDRESSES, st.integers(0, 63), st.integers(0, 3), st.integers(0, 255), st.binary(max_size=64))
def test_the_ip_and_udp_headers_are_what_scapy_would_send(
    addresses: tuple[str, str], dscp: int, ecn: int, ttl: int, payload: bytes
) -> None:
    src, dst = addresses
    packet = build_packet("RC_SEND_ONLY", src=src, dst=dst, dscp=dscp, ecn=ecn, ttl=ttl, payload=payload)
    again = IP(packet)
    assert (again.src, again.dst, again.tos, again.ttl) == (src, dst, dscp << 2 | ecn, ttl)
    assert again.len == len(packet)
    assert again[UDP].len == len(packet) - 20
    del again.chksum, again.len, again[UDP].len
    assert bytes(again) == packet


def test_ipv6_with_an_extension_header() -> None:
    packet = IPv6(
        build_packet(
            "RC_SEND_ONLY",
            src="fd00::1",
            dst="fd00::2",
            dscp=46,
            ecn=1,
            ttl=7,
            flow_label=0xABCDE,
            payload=b"abcd",
            ipv6_extensions=[(60, bytes([0, 1, 4, 0, 0, 0, 0]))],  # destination options: one PadN
        )
    )
    assert (packet.tc, packet.hlim, packet.fl, packet.nh) == (46 << 2 | 1, 7, 0xABCDE, 60)
    assert packet[IPv6ExtHdrDestOpt].nh == 17
    assert packet[BTH].icrc_state == "valid"


def test_vlan_tags_stand_outermost_first() -> None:
    plain = build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2")
    one = Ether(build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", vlan=5, priority=3))
    assert (one[Dot1Q].vlan, one[Dot1Q].prio, one[Dot1Q].type) == (5, 3, 0x0800)
    two = Ether(build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", vlan=(7, 5)))
    assert (two.type, two[Dot1AD].vlan, two[Dot1Q].vlan) == (0x88A8, 7, 5)
    assert bytes(one[IP]) == bytes(two[IP]) == plain[14:]


def test_roce_v1_carries_gids() -> None:
    packet = Ether(build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="fe80::2", roce_version=1, ttl=9, dscp=1))
    assert (packet.type, packet[GRH].hop_limit, packet[GRH].tclass) == (0x8915, 9, 4)
    assert (packet[GRH].sgid, packet[GRH].dgid) == ("::ffff:10.0.0.1", "fe80::2")
    assert gid("10.0.0.1") == ipaddress.ip_address("::ffff:10.0.0.1").packed


def test_what_the_caller_does_not_say_is_what_an_honest_sender_sends() -> None:
    bth = wire.BTH.unpack(build_transport("RC_SEND_ONLY", b"12345"))
    assert (bth["pkey"], bth["padcount"], bth["psn"]) == (0xFFFF, 3, 0)
    write = build_transport("RC_RDMA_WRITE_ONLY", b"12345")
    assert wire.RETH.unpack(write[12:])["dma_length"] == 5
    first = build_transport("RC_RDMA_WRITE_FIRST", bytes(1024))
    assert wire.RETH.unpack(first[12:])["dma_length"] == 0, "only the caller knows the message's length"
    cnp = build_transport("CNP")
    assert (wire.BTH.unpack(cnp)["becn"], len(cnp)) == (1, 12 + 16)


def test_a_pad_count_and_an_icrc_can_be_made_wrong() -> None:
    packet = IP(
        build_packet("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", payload=b"abcd", padcount=2, icrc=5)
    )
    assert (packet[BTH].padcount, packet[BTH].icrc, packet[BTH].icrc_state) == (2, 5, "invalid")


@pytest.mark.parametrize(
    ("opcode", "fields", "says"),
    [
        ("RC_NOTHING", {}, "no opcode is called RC_NOTHING"),
        (256, {}, "an opcode is one byte"),
        ("RC_SEND_ONLY", {"rkey": 1}, "RC_SEND_ONLY has no field rkey"),
        ("RC_SEND_ONLY", {"psn": 1 << 24}, "psn takes values under 0x1000000"),
        ("RC_SEND_ONLY", {"psn": -1}, "psn takes values under 0x1000000"),
    ],
)
def test_what_cannot_be_sent_is_refused(opcode: int | str, fields: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build_transport(opcode, b"", **fields)


def test_addresses_of_two_ip_versions_do_not_meet() -> None:
    with pytest.raises(ValueError, match="not of one IP version"):
        build_packet("RC_SEND_ONLY", src="10.0.0.1", dst="fd00::2")


def test_a_cm_mad_is_256_bytes_with_its_attribute_id() -> None:
    mad = build_mad("REQ", 5, local_qpn=17, private_data=build_ip_cm("10.0.0.1", "10.0.0.2", 9, b"abc"))
    assert len(mad) == 256
    head = wire_cm.MAD.unpack(mad)
    assert (head["attribute_id"], head["transaction_id"], head["mgmt_class"]) == (0x10, 5, 7)
    assert mad[24 + 140 + 36 :].startswith(b"abc")
    with pytest.raises(ValueError, match="no CM message is called HELLO"):
        build_mad("HELLO", 1)
