"""What a RoCE packet becomes in Scapy, and what Scapy's layers become on the wire."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_cases import MACS, NETWORKS, OPCODES, chain, values_for
from scapy.config import conf
from scapy.layers.inet import IP, UDP, IPOption_Router_Alert
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Padding, Raw
from scapy.utils import PcapReader

from rocekit import wire
from rocekit.layers import (
    AETH,
    BTH,
    DETH,
    GRH,
    LAYERS,
    RETH,
    AtomicAckETH,
    CNPPadding,
    ImmDt,
    roce,
)
from rocekit.wire.build import build_frame, build_ip_cm, build_mad
from rocekit.wire.scapy_cm import CM_LAYERS, IP_CM, MAD


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Scapy turns what a layer raises into Raw; here it must come to light."""
    before = conf.debug_dissector
    conf.debug_dissector = True
    yield
    conf.debug_dissector = before


# --- every opcode, over every network


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", OPCODES)
def test_an_opcode_makes_its_chain_and_is_read_back(name: str, network: str) -> None:
    opcode = wire.OPCODES[wire.OPCODE_NAMES[name]]
    values = values_for(opcode)
    payload = b"eleven byte" if opcode.payload and name != "CNP" else b""
    built = bytes(NETWORKS[network]() / roce(name, payload, **values))
    packet = Ether(built)

    behind = ["CNPPadding"] if name == "CNP" else ["Raw"] if payload else []
    assert chain(packet) == ["BTH", *(h.name for h in opcode.headers), *behind]
    for header in (wire.BTH, *opcode.headers):
        layer = packet[LAYERS[header.name]]
        for f in header.fields:
            if f.name in values:
                assert getattr(layer, f.name) == values[f.name], f.name
    assert packet[BTH].opcode == opcode.value
    assert packet[BTH].padcount == (1 if payload else 0)
    if payload:
        assert packet[Raw].load == payload
    assert packet[BTH].icrc_state == "valid"
    assert bytes(packet) == built


@pytest.mark.parametrize("name", OPCODES)
def test_the_quick_builder_makes_the_same_frame(name: str) -> None:
    opcode = wire.OPCODES[wire.OPCODE_NAMES[name]]
    values = values_for(opcode)
    payload = b"some payload" if opcode.payload else b""
    ours = Ether(**MACS) / IP(src="10.0.0.1", dst="10.0.0.2", id=0, flags="DF") / UDP(sport=0xC000)
    assert bytes(ours / roce(name, payload, **values)) == build_frame(
        name, src="10.0.0.1", dst="10.0.0.2", payload=payload, **values
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_lengths_count_to_the_end_of_the_icrc(network: str) -> None:
    packet = Ether(bytes(NETWORKS[network]() / roce("RC_SEND_ONLY", b"12345", dest_qpn=7)))
    transport = 12 + 5 + 3 + 4
    if network == "RoCE v1":
        assert (packet.type, packet[GRH].next_hdr, packet[GRH].pay_len) == (0x8915, 0x1B, transport)
        assert packet[GRH].dgid == "::ffff:10.0.0.2"
    else:
        assert (packet[UDP].dport, packet[UDP].len, packet[UDP].chksum) == (4791, 8 + transport, 0)


def test_vlan_tags_do_not_hide_either_version() -> None:
    for inner in (IP() / UDP() / roce("RC_SEND_ONLY", b"ab"), GRH() / roce("RC_SEND_ONLY", b"ab")):
        packet = Ether(bytes(Ether(**MACS) / Dot1Q(vlan=5) / inner))
        assert chain(packet) == ["BTH", "Raw"]
        assert packet[BTH].icrc_state == "valid"


def test_ipv4_options_and_ipv6_extension_headers_are_covered_by_the_icrc() -> None:
    for lower in (IP(options=[IPOption_Router_Alert()]), IPv6(dst="fd00::2") / IPv6ExtHdrDestOpt()):
        built = bytes(Ether(**MACS) / lower / UDP() / roce("RC_SEND_ONLY", b"abcd"))
        assert Ether(built)[BTH].icrc_state == "valid"
    frame = build_frame(
        "RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", payload=b"abcd", ip_options=b"\x94\4\0\0"
    )
    assert Ether(frame)[BTH].icrc_state == "valid"


# --- building


def test_a_stack_written_by_hand_gets_pad_and_icrc() -> None:
    lower = Ether(**MACS) / IP(src="10.0.0.1", dst="10.0.0.2", id=0, flags="DF") / UDP(sport=0xC000)
    packet = lower / BTH(opcode="RC_RDMA_WRITE_ONLY", dest_qpn=17, psn=5) / RETH(dma_length=3) / b"abc"
    assert bytes(packet) == build_frame(
        "RC_RDMA_WRITE_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=17, psn=5, payload=b"abc"
    )
    assert packet[BTH].icrc_state == "valid"


def test_headers_that_the_opcode_asks_for_are_filled_in() -> None:
    built = bytes(IP() / UDP() / BTH(opcode="RC_ATOMIC_ACKNOWLEDGE") / AtomicAckETH(original=9))
    packet = IP(built)
    assert chain(packet) == ["BTH", "AETH", "AtomicAckETH"]
    assert (packet[AETH].syndrome, packet[AtomicAckETH].original) == (0, 9)
    assert chain(IP(bytes(IP() / UDP() / BTH(opcode="CNP")))) == ["BTH", "CNPPadding"]


def test_a_malformed_stack_can_be_made_on_purpose() -> None:
    bare = IP(bytes(IP() / UDP() / BTH(opcode="RC_ACKNOWLEDGE", fill=0)))
    assert chain(bare) == ["BTH"]
    assert bytes(bare) == bytes(IP(bytes(bare)))
    wrong = IP(bytes(IP() / UDP() / BTH(opcode="RC_SEND_ONLY") / AETH(msn=3)))
    assert chain(wrong) == ["BTH", "Raw"], "the opcode says what the bytes are"


def test_a_header_alone_says_what_packet_it_is() -> None:
    assert (IP() / UDP() / BTH() / AETH())[BTH].opcode == wire.OPCODE_NAMES["RC_ACKNOWLEDGE"]
    assert (IP() / UDP() / BTH() / DETH())[BTH].opcode == wire.OPCODE_NAMES["UD_SEND_ONLY"]
    assert (BTH() / CNPPadding()).opcode == wire.CNP_OPCODE


def test_fields_find_their_header_by_name() -> None:
    packet = roce("UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", b"abc", psn=1, rkey=2, immediate=3)
    assert (packet[BTH].psn, packet[RETH].rkey, packet[RETH].dma_length, packet[ImmDt].immediate) == (
        1,
        2,
        3,
        3,
    )
    with pytest.raises(ValueError, match="RC_SEND_ONLY has no field rkey"):
        roce("RC_SEND_ONLY", rkey=1)
    with pytest.raises(ValueError, match="no opcode is called RC_NONE"):
        roce("RC_NONE")


def test_a_cnp_has_becn_set_and_sixteen_bytes_of_nothing() -> None:
    packet = IP(bytes(IP() / UDP() / roce("CNP", dest_qpn=0xD2)))
    assert (packet[BTH].becn, packet[BTH].fecn, packet[UDP].len) == (1, 0, 8 + 12 + 16 + 4)


# --- the ICRC of what was dissected


def test_a_wrong_icrc_is_told_kept_and_can_be_renewed() -> None:
    frame = build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", payload=b"abc", icrc=0x01020304)
    packet = Ether(frame)
    assert packet[BTH].icrc == 0x01020304
    assert packet[BTH].icrc_state == "invalid"
    assert bytes(packet) == frame
    del packet[BTH].icrc
    assert bytes(packet) == build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", payload=b"abc")
    assert packet[BTH].icrc_state == "valid"


def test_a_change_makes_the_icrc_wrong_unless_routers_may_make_it() -> None:
    frame = build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", payload=b"abcd", psn=9)
    packet = Ether(frame)
    packet[IP].ttl, packet[IP].tos, packet[BTH].fecn = 3, 3, 1
    assert packet[BTH].icrc_state == "valid"
    packet[BTH].psn = 10
    assert packet[BTH].icrc_state == "invalid"
    packet[BTH].psn = 9
    packet[Raw].load = b"abce"
    assert packet[BTH].icrc_state == "invalid"


def test_without_a_network_header_below_nothing_can_be_checked() -> None:
    packet = IP(build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", payload=b"abcd")[14:])
    alone = BTH(bytes(packet[BTH]))
    assert alone.icrc == packet[BTH].icrc
    assert alone.icrc_state == "unchecked"
    assert alone[Raw].load == b"abcd"


def test_a_copy_says_the_same() -> None:
    packet = Ether(build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", payload=b"abc", icrc=7))
    assert packet.copy()[BTH].icrc_state == "invalid"
    assert bytes(packet.copy()) == bytes(packet)


# --- what stands behind the packet


@pytest.mark.parametrize("version", [1, 2])
def test_the_trailer_of_a_short_ethernet_frame_is_not_payload(version: int) -> None:
    frame = build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", roce_version=version)
    packet = Ether(frame + b"\xee" * 6)
    assert chain(packet) == ["BTH", "Padding"]
    assert packet[Padding].load == b"\xee" * 6
    assert packet[BTH].icrc_state == "valid"
    assert bytes(packet) == frame + b"\xee" * 6


def test_a_pad_that_is_not_zero_is_kept() -> None:
    frame = bytearray(build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", payload=b"a"))
    frame[-7:-4] = b"xyz"
    packet = Ether(bytes(frame))
    assert (packet[Raw].load, packet[BTH].pad) == (b"a", b"xyz")
    assert bytes(packet) == bytes(frame)


def test_a_pad_count_that_reaches_into_the_headers_takes_nothing() -> None:
    frame = build_frame("RC_ACKNOWLEDGE", src="10.0.0.1", dst="10.0.0.2", msn=5, padcount=3)
    packet = Ether(frame)
    assert (packet[AETH].msn, packet[BTH].pad) == (5, b"")
    assert bytes(packet) == frame


# --- truncated and damaged


def samples() -> list[tuple[bytes, int]]:
    """Frames, and where the first of our layers starts in each."""
    frames = []
    for name in OPCODES:
        opcode = wire.OPCODES[wire.OPCODE_NAMES[name]]
        payload = b"abcde" if opcode.payload else b""
        for src, dst, version, vlan, start in (
            ("10.0.0.1", "10.0.0.2", 2, None, 14 + 20 + 8),
            ("fd00::1", "fd00::2", 2, 7, 18 + 40 + 8),
            ("10.0.0.1", "10.0.0.2", 1, None, 14),
        ):
            frame = build_frame(name, src=src, dst=dst, payload=payload, roce_version=version, vlan=vlan)
            frames.append((frame, start))
    addresses = build_ip_cm("10.0.0.1", "10.0.0.2", 9, b"hi")
    mad = build_mad("REQ", 1, service_id=0x1064853, private_data=addresses)
    frames.append((build_frame("UD_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=1, payload=mad), 42))
    return frames


SAMPLES = samples()


@given(data=st.data())
def test_a_packet_cut_anywhere_is_read_as_far_as_it_goes(data: st.DataObject) -> None:
    frame, start = data.draw(st.sampled_from(SAMPLES))
    cut = frame[
        : data.draw(st.integers(14, len(frame) - 1))
    ]  # Scapy itself raises on half an Ethernet header
    conf.debug_dissector = len(cut) >= start  # and on half an IP header
    packet = Ether(cut)
    assert bytes(packet) == cut
    if BTH in packet:
        assert packet[BTH].icrc_state == "unchecked"
        assert packet[BTH].truncated
    packet.show(dump=True)
    assert packet.summary()


@given(st.data(), st.integers(0, 2**63))
def test_a_packet_with_any_bit_turned_is_still_read(data: st.DataObject, where: int) -> None:
    frame, start = data.draw(st.sampled_from(SAMPLES))
    place = 14 * 8 + where % ((len(frame) - 14) * 8)
    turned = bytearray(frame)
    turned[place // 8] ^= 0x80 >> place % 8
    conf.debug_dissector = place // 8 >= start
    packet = Ether(bytes(turned))
    if BTH in packet:
        assert packet[BTH].icrc_state in ("valid", "invalid", "unchecked")
    packet.show(dump=True)


@given(
    st.sampled_from([*LAYERS.values(), MAD, IP_CM, CNPPadding, *CM_LAYERS.values()]),
    st.binary(min_size=1, max_size=300),
)
def test_no_bytes_make_a_layer_raise(layer: Any, data: bytes) -> None:
    packet = layer(data)
    assert bytes(packet) == data
    packet.show(dump=True)


@given(st.binary(max_size=120))
def test_no_bytes_behind_udp_port_4791_raise(data: bytes) -> None:
    built = bytes(IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=4791, chksum=0) / Raw(data))
    assert bytes(IP(built)) == built


def test_an_unknown_opcode_keeps_its_bytes() -> None:
    frame = build_frame(0xFF, src="10.0.0.1", dst="10.0.0.2", payload=b"abcd")
    packet = Ether(frame)
    assert chain(packet) == ["BTH", "Raw"]
    assert packet[BTH].icrc_state == "valid"
    assert "0xff" in packet.summary()


# --- captures that others made

ROCE_PACKETS = {
    "rping.pcap": 65,
    "rdma_cm.pcap": 96,
    "rdma_write_bw.pcap": 20,
    "rdma_read_bw.pcap": 20,
    "rdma_read_lat.pcap": 10,
    "rdma_send_bw.pcap": 20,
    "rdma_write_lat.pcap": 20,
    "rdma_atomic_bw.pcap": 10,
    "pingpong_rc.pcap": 20,
    "pingpong_uc.pcap": 10,
    "pingpong_ud.pcap": 10,
    "nccl_ring_node0.pcap": 184,
    "nccl_ring_node1.pcap": 184,
    "nccl_ring_node2.pcap": 184,
}


@pytest.mark.parametrize("name", ROCE_PACKETS)
def test_what_others_captured_is_whole_valid_and_rebuilt(name: str, others: Path) -> None:
    seen = 0
    with PcapReader(str(others / name)) as reader:
        for packet in reader:
            if BTH not in packet:
                continue
            seen += 1
            assert packet[BTH].icrc_state == "valid"
            assert packet[BTH].opcode in wire.OPCODES
            assert bytes(packet) == packet.original
            renewed = packet.copy()
            del renewed[BTH].icrc, renewed[BTH].padcount, renewed[BTH].pad
            assert bytes(renewed) == packet.original
    assert seen == ROCE_PACKETS[name]


# --- beside Scapy's own layers


@pytest.mark.parametrize(
    "imports",
    [
        ["scapy.contrib.roce", "rocekit.layers"],
        ["rocekit.layers", "scapy.contrib.roce"],
        ["scapy.all", "scapy.contrib.roce", "rocekit.layers"],
        ["rocekit.layers", "scapy.all", "scapy.contrib.roce"],
    ],
    ids=" ".join,
)
def test_our_layers_win_whoever_came_first(imports: list[str]) -> None:
    v2 = build_frame("RC_ACKNOWLEDGE", src="10.0.0.1", dst="10.0.0.2", sport=53, msn=7)
    v1 = build_frame("RC_ACKNOWLEDGE", src="10.0.0.1", dst="10.0.0.2", roce_version=1, msn=7)
    script = f"""
import importlib
for name in {imports!r}:
    importlib.import_module(name)
from scapy.layers.l2 import Ether
for frame in ({v2!r}, {v1!r}):
    packet = Ether(frame)
    homes = [type(layer).__module__ for layer in (packet["BTH"], packet["AETH"])]
    assert homes == ["rocekit.wire.scapy_layers"] * 2, packet
    assert packet["BTH"].icrc_state == "valid" and bytes(packet) == frame
assert type(packet["GRH"]).__module__ == "rocekit.wire.scapy_layers"
"""
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def test_importing_the_layers_does_not_import_all_of_scapy() -> None:
    script = "import sys, rocekit.layers; sys.exit('scapy.all' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)
