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
from scapy.config import conf
from scapy.layers.inet import IP, UDP, IPOption_Router_Alert
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import NoPayload, Padding, Raw
from scapy.utils import PcapReader, wrpcap

from rocekit import wire, wire_cm
from rocekit.build import build_frame, build_ip_cm, build_mad
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
from rocekit.layers_cm import CM_LAYERS, CM_REJ, CM_REP, CM_REQ, CM_SIDR_REQ, IP_CM, MAD

MACS = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
NETWORKS = {
    "IPv4": lambda: Ether(**MACS) / IP(src="10.0.0.1", dst="10.0.0.2", tos=0x89, ttl=9) / UDP(sport=50001),
    "IPv6": lambda: Ether(**MACS) / IPv6(src="fd00::1", dst="fd00::2", tc=2, fl=0x12345) / UDP(sport=50001),
    "RoCE v1": lambda: Ether(**MACS) / GRH(sgid="fe80::1", dgid="10.0.0.2", tclass=9, flow_label=0x54321),
}
OPCODES = [o.name for o in wire.OPCODES.values()]


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Scapy turns what a layer raises into Raw; here it must come to light."""
    before = conf.debug_dissector
    conf.debug_dissector = True
    yield
    conf.debug_dissector = before


def chain(packet: Any) -> list[str]:
    """Names of the layers from the BTH up."""
    layer, names = packet[BTH], []
    while not isinstance(layer, NoPayload):
        names.append(type(layer).__name__)
        layer = layer.payload
    return names


def values_for(opcode: wire.Opcode) -> dict[str, Any]:
    """Different bits for every field of an opcode's headers."""
    values: dict[str, Any] = {}
    for header in (wire.BTH, *opcode.headers):
        for i, f in enumerate(header.fields):
            if f.name not in ("opcode", "padcount", "version") and not f.reserved:
                values[f.name] = (0xA5C3_96E1_7B2D_48F5 * (i + 3)) >> 7 & (1 << f.bits) - 1
    return values


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


# --- MADs


@pytest.mark.parametrize("qpn", wire.MAD_QPNS)
@pytest.mark.parametrize("message", wire_cm.CM_MESSAGES)
def test_a_cm_message_on_qp_0_or_1_is_read_and_built_again(message: str, qpn: int) -> None:
    fields = {
        f.name: 0x5A5A_5A5A_5A5A_5A5A & (1 << f.bits) - 1
        for f in wire_cm.CM_MESSAGES[message].fields
        if not f.is_bytes and not f.reserved
    }
    payload = build_mad(message, 0x1122334455667788, private_data=b"private", **fields)
    frame = build_frame("UD_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=qpn, payload=payload)
    packet = Ether(frame)
    assert chain(packet) == ["BTH", "DETH", "MAD", f"CM_{message}"]
    assert packet[MAD].transaction_id == 0x1122334455667788
    layer = packet[CM_LAYERS[message]]
    assert {name: getattr(layer, name) for name in fields} == fields
    assert bytes(layer.private_data).startswith(b"private")
    assert bytes(packet) == frame
    rebuilt = MAD(transaction_id=0x1122334455667788) / CM_LAYERS[message](private_data=b"private", **fields)
    assert bytes(rebuilt) == payload


def test_ud_payload_on_other_qps_is_not_a_mad() -> None:
    frame = build_frame(
        "UD_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=2, payload=build_mad("REQ", 1)
    )
    assert chain(Ether(frame)) == ["BTH", "DETH", "Raw"]


def test_a_mad_that_is_not_cm_keeps_its_bytes() -> None:
    packet = IP(
        bytes(IP() / UDP() / roce("UD_SEND_ONLY", MAD(mgmt_class=3, attribute_id=0x38) / Raw(bytes(232))))
    )
    assert chain(packet) == ["BTH", "DETH", "MAD", "Raw"]


@pytest.mark.parametrize("message", [CM_REQ, CM_SIDR_REQ])
@pytest.mark.parametrize(("src", "dst"), [("10.9.0.1", "10.9.0.2"), ("fd00:9::1", "fd00:9::2")])
def test_private_data_of_an_rdma_cm_service_starts_with_addresses(message: Any, src: str, dst: str) -> None:
    version = 6 if ":" in src else 4
    header = IP_CM(ip_version=version, source_port=4321, source_address=src, destination_address=dst)
    mad = bytes(MAD() / message(service_id=0x0106_4853, private_data=header / b"mine"))
    assert len(mad) == 256
    assert build_ip_cm(src, dst, 4321, b"mine") in mad
    read = MAD(mad)[IP_CM]
    assert (read.ip_version, read.source_port) == (version, 4321)
    assert (read.source_address, read.destination_address) == (src, dst)
    assert read[Raw].load.rstrip(b"\0") == b"mine"
    assert bytes(MAD(mad)) == mad


def test_private_data_of_another_service_is_the_programs_own() -> None:
    mad = MAD(bytes(MAD() / CM_REQ(service_id=0x1234, private_data=build_ip_cm("10.9.0.1", "10.9.0.2", 1))))
    assert IP_CM not in mad


def test_changing_an_address_inside_private_data_changes_the_bytes() -> None:
    read = MAD(bytes(MAD() / CM_REQ(service_id=0x0106_4853, private_data=IP_CM(source_address="10.9.0.1"))))
    read[IP_CM].source_address = "10.9.0.7"
    assert bytes([10, 9, 0, 7]) in bytes(read)


def test_a_cm_mad_goes_to_qp_1_with_its_well_known_key() -> None:
    packet = roce("UD_SEND_ONLY", MAD() / CM_REQ())
    assert (packet[BTH].dest_qpn, packet[DETH].src_qpn, packet[DETH].qkey) == (1, 1, 0x8001_0000)


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


# --- tshark

IGNORED = ("rpcordma", "nvme-rdma", "smb_direct", "iser", "tftp")
FIELDS = {
    "opcode": "infiniband.bth.opcode",
    "solicited": "infiniband.bth.se",
    "migreq": "infiniband.bth.m",
    "padcount": "infiniband.bth.padcnt",
    "version": "infiniband.bth.tver",
    "pkey": "infiniband.bth.p_key",
    "dest_qpn": "infiniband.bth.destqp",
    "ackreq": "infiniband.bth.a",
    "psn": "infiniband.bth.psn",
    "remote_va": "infiniband.reth.va",
    "rkey": "infiniband.reth.r_key",
    "dma_length": "infiniband.reth.dmalen",
    "swap_add": "infiniband.atomiceth.swapdt",
    "compare": "infiniband.atomiceth.cmpdt",
    "syndrome": "infiniband.aeth.syndrome",
    "msn": "infiniband.aeth.msn",
    "original": "infiniband.atomicacketh.origremdt",
    "immediate": "infiniband.immdt",
    "invalidate_rkey": "infiniband.ieth",
    "qkey": "infiniband.deth.q_key",
    "src_qpn": "infiniband.deth.srcqp",
    "icrc": "infiniband.invariant.crc",
}


#: Shown by tshark as bytes.
AS_BYTES = ("infiniband.immdt", "infiniband.ieth")


def number(text: str, field: str = "") -> int:
    if text in ("True", "False"):
        return int(text == "True")
    return int(text, 16 if field in AS_BYTES else 0)


def ask(tshark: str, file: Path, fields: list[str]) -> list[dict[str, str]]:
    """The fields of each frame, as tshark reads them."""
    command = [tshark, "-n", "-r", str(file), "-T", "fields", "-E", "occurrence=f"]
    for protocol in IGNORED:
        command += ["--disable-protocol", protocol]
    for field in fields:
        command += ["-e", field]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return [dict(zip(fields, line.split("\t"), strict=True)) for line in out.splitlines()]


@pytest.mark.parametrize("network", NETWORKS)
def test_tshark_reads_the_same_fields(network: str, tshark: str, tmp_path: Path) -> None:
    # What tshark 4.0 takes for something else: RD, XRC, CNP, and annex A19.
    known = [
        o
        for o in wire.OPCODES.values()
        if o.transport in ("RC", "UC", "UD") and o.operation not in ("FLUSH", "ATOMIC_WRITE")
    ]
    packets = []
    for opcode in known:
        payload = b"p" * 45 if opcode.payload else b""
        packets.append(Ether(bytes(NETWORKS[network]() / roce(opcode.value, payload, **values_for(opcode)))))
    wrpcap(str(tmp_path / "made.pcap"), packets)
    rows = ask(tshark, tmp_path / "made.pcap", list(FIELDS.values()))
    assert len(rows) == len(known)
    compared = 0
    for opcode, packet, row in zip(known, packets, rows, strict=True):
        for header in (wire.BTH, *opcode.headers):
            for f in header.fields:
                if f.name in FIELDS:
                    ours = getattr(packet[LAYERS[header.name]], f.name)
                    assert number(row[FIELDS[f.name]], FIELDS[f.name]) == ours, (opcode.name, f.name)
                    compared += 1
        big = int.from_bytes(packet[BTH].icrc.to_bytes(4, "little"), "big")
        assert number(row[FIELDS["icrc"]]) == big
    assert compared > 300


CM_FIELDS: dict[str, dict[str, int | str]] = {
    "REQ": {
        "infiniband.cm.req": 0x01020304,
        "infiniband.cm.req.localqpn": 0x112233,
        "infiniband.cm.req.startpsn": 0x445566,
        "infiniband.cm.req.retrcount": 5,
        "infiniband.cm.req.rnrretrcount": 6,
        "infiniband.cm.req.pppmtu": 3,
        "infiniband.cm.req.responderres": 7,
        "infiniband.cm.req.initdepth": 9,
        "infiniband.cm.req.localcaguid": 0x0102030405060708,
        "infiniband.cm.req.serviceid.dport": 18515,
        "infiniband.cm.req.ip_cm.sport": 54321,
        "infiniband.cm.req.ip_cm.sip4": "10.9.0.1",
        "infiniband.cm.req.ip_cm.dip4": "10.9.0.2",
    },
    "REP": {
        "infiniband.cm.rep": 0x0A0B0C0D,
        "infiniband.cm.rep.remotecommid": 0x01020304,
        "infiniband.cm.rep.localqpn": 0x332211,
        "infiniband.cm.rep.startpsn": 0x665544,
        "infiniband.cm.rep.respres": 4,
        "infiniband.cm.rep.initdepth": 3,
        "infiniband.cm.rep.tgtackdelay": 15,
        "infiniband.cm.rep.rnrretrcount": 7,
    },
    "REJ": {"infiniband.cm.rej.reason": 28, "infiniband.cm.rej.msgrej": 1},
    "RTU": {"infiniband.cm.rtu.localcommid": 0x01020304, "infiniband.cm.rtu.remotecommid": 0x0A0B0C0D},
    "DREQ": {"infiniband.cm.dreq.localcommid": 0x01020304, "infiniband.cm.dreq.remotecommid": 0x0A0B0C0D},
    "DREP": {"infiniband.cm.drsp.localcommid": 0x01020304, "infiniband.cm.drsp.remotecommid": 0x0A0B0C0D},
}
COMMS = {"local_comm_id": 0x01020304, "remote_comm_id": 0x0A0B0C0D}


def test_tshark_reads_the_same_cm_messages(tshark: str, tmp_path: Path) -> None:
    address = IP_CM(source_port=54321, source_address="10.9.0.1", destination_address="10.9.0.2")
    messages = {
        "REQ": CM_REQ(
            local_comm_id=0x01020304,
            service_id=0x0106_4853,
            local_ca_guid=0x0102030405060708,
            local_qpn=0x112233,
            starting_psn=0x445566,
            retry_count=5,
            rnr_retry_count=6,
            path_mtu_code=3,
            responder_resources=7,
            initiator_depth=9,
            private_data=address / b"program's own",
        ),
        "REP": CM_REP(
            local_comm_id=0x0A0B0C0D,
            remote_comm_id=0x01020304,
            local_qpn=0x332211,
            starting_psn=0x665544,
            responder_resources=4,
            initiator_depth=3,
            target_ack_delay=15,
            rnr_retry_count=7,
        ),
        "REJ": CM_REJ(message_rejected="REP", reason=wire_cm.REJ_CONSUMER, **COMMS),
        **{name: CM_LAYERS[name](**COMMS) for name in ("RTU", "DREQ", "DREP")},
    }
    packets = [
        NETWORKS["IPv4"]() / roce("UD_SEND_ONLY", MAD(transaction_id=77 + i) / message)
        for i, message in enumerate(messages.values())
    ]
    wrpcap(str(tmp_path / "cm.pcap"), [Ether(bytes(p)) for p in packets])
    common = ["infiniband.mad.transactionid", "infiniband.mad.mgmtclass", "infiniband.mad.method"]
    attribute = "infiniband.mad.attributeid"
    fields = [*common, attribute, *(f for asked in CM_FIELDS.values() for f in asked)]
    rows = ask(tshark, tmp_path / "cm.pcap", fields)
    for i, (name, row) in enumerate(zip(messages, rows, strict=True)):
        assert [number(row[f]) for f in common] == [77 + i, wire_cm.MGMT_CLASS_CM, wire_cm.METHOD_SEND]
        assert number(row[attribute]) == wire_cm.CM_ATTRIBUTE_IDS[name]
        for field, value in CM_FIELDS[name].items():
            theirs: Any = row[field] if isinstance(value, str) else number(row[field])
            assert theirs == value, field


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
    assert [type(l).__module__ for l in (packet["BTH"], packet["AETH"])] == ["rocekit.layers"] * 2, packet
    assert packet["BTH"].icrc_state == "valid" and bytes(packet) == frame
assert type(packet["GRH"]).__module__ == "rocekit.layers"
"""
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def test_importing_the_layers_does_not_import_all_of_scapy() -> None:
    script = "import sys, rocekit.layers; sys.exit('scapy.all' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)
