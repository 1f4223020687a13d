"""The ICRC: beside packets that hardware sent, beside Scapy's computation, and what it must not depend on."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocekit.packets import icrc_columns
from rocekit.wire import build, icrc

# A CNP that a ConnectX-4 Lx sent, with ECN set in the IP header; from the Scapy project's tests.
CONNECTX_CNP = bytes.fromhex(
    "e41d2dab2bc27cfe90643b32080045c2003c718c400040119161"
    "0a0011010a001201000012b700280000"
    "8100ffff400001180000000000000000000000000000000000000000"
    "82fd002a"
)
# A UC SEND that a ConnectX sent to itself, ECT(1) set; from the Scapy project's tests.
CONNECTX_UC = bytes.fromhex(
    "45010040047840004011b4d5c0a80007c0a80007c00012b7002c0000"
    "2460ffff000000d300cf1710"
    "4630818be28935d90e9a95505401be885e500000"
    "78f353f3"
)


def split(packet: bytes) -> tuple[bytes, int]:
    """What an ICRC covers, and the number that the packet carries."""
    return packet[:-4], int.from_bytes(packet[-4:], "little")


def test_a_cnp_of_a_connectx4() -> None:
    covered, sent = split(CONNECTX_CNP[14:])
    assert icrc.icrc(covered, 20) == sent


def test_a_uc_send_of_a_connectx() -> None:
    covered, sent = split(CONNECTX_UC)
    assert icrc.icrc(covered, 20) == sent


def test_every_packet_that_others_captured(others: Path) -> None:
    checked = 0
    for file in sorted(others.glob("*.pcap")):
        data, at = file.read_bytes(), 24
        order = "little" if data[0] == 0xD4 else "big"
        while at < len(data):
            length = int.from_bytes(data[at + 8 : at + 12], order)  # type: ignore[arg-type]
            packet = data[at + 16 + 14 : at + 16 + length]
            at += 16 + length
            if packet[9] == 17 and packet[22:24] == b"\x12\xb7":
                covered, sent = split(packet[: int.from_bytes(packet[2:4], "big")])
                assert icrc.icrc(covered, 20) == sent, f"{file.name}, byte {at}"
                checked += 1
    assert checked > 700


def test_scapy_computes_the_same_over_ipv6() -> None:
    """In a process of its own: two sets of layers for one port do not mix."""
    script = """
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw
from scapy.contrib.roce import BTH
for n in (0, 4, 64, 1024):
    p = IPv6(src="2001:db8::1", dst="fd00:9::2", tc=137, hlim=3, fl=0x54321)
    p = p / UDP(sport=50000, dport=4791, chksum=0)
    p = p / BTH(opcode=0x04, dqpn=0xabcdef, psn=0x123456, fecn=1, icrc=None) / Raw(bytes(range(256)) * 4)
    p[Raw].load = p[Raw].load[:n] + bytes(4)  # it overwrites the last four bytes
    print(bytes(p).hex())
"""
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    ).stdout.split()
    assert len(out) == 4
    for line in out:
        covered, sent = split(bytes.fromhex(line))
        assert icrc.icrc(covered, 40) == sent


#: Bytes of the packet that may change on the way, by network header; UDP's and the BTH's come after it.
VARIANT = {
    "10.0.0.1": {1: 0xFF, 8: 0xFF, 10: 0xFF, 11: 0xFF},
    "fd00::1": {0: 0x0F, 1: 0xFF, 2: 0xFF, 3: 0xFF, 7: 0xFF},
}
PEER = {"10.0.0.1": "10.0.0.2", "fd00::1": "fd00::2"}


def make(src: str, roce_version: int = 2, **options: bytes) -> tuple[bytes, int]:
    packet = build.build_packet(
        "RC_RDMA_WRITE_ONLY",
        src=src,
        dst=PEER[src],
        payload=b"eleven byte",
        roce_version=roce_version,
        dest_qpn=0x11,
        psn=77,
        remote_va=0x1000,
        **options,  # type: ignore[arg-type]
    )
    transport = 12 + 16 + 12 + 4
    return packet, len(packet) - transport - (8 if roce_version == 2 else 0)


CASES = [("10.0.0.1", 2), ("fd00::1", 2), ("fd00::1", 1)]


@pytest.mark.parametrize(("src", "version"), CASES)
@given(data=st.data())
def test_a_changed_bit_changes_the_icrc_unless_the_bit_may_change_on_the_way(
    src: str, version: int, data: st.DataObject
) -> None:
    packet, network = make(src, version)
    udp = version == 2
    mutable = dict(VARIANT[src])
    if udp:
        mutable.update({network + 6: 0xFF, network + 7: 0xFF})
    mutable[network + (8 if udp else 0) + 4] = 0xFF
    bit = data.draw(st.integers(0, (len(packet) - 4) * 8 - 1).filter(lambda b: b >= 4))  # not the IP version
    covered = bytearray(packet[:-4])
    covered[bit // 8] ^= 0x80 >> bit % 8
    may_change = bool(mutable.get(bit // 8, 0) & 0x80 >> bit % 8)
    assert (icrc.icrc(covered, network, udp=udp) == icrc.icrc(packet[:-4], network, udp=udp)) == may_change


@pytest.mark.parametrize(("src", "version"), CASES)
def test_the_wire_carries_the_low_byte_first(src: str, version: int) -> None:
    packet, network = make(src, version)
    assert packet[-4:] == icrc.icrc_bytes(packet[:-4], network, udp=version == 2)
    assert int.from_bytes(packet[-4:], "little") == icrc.icrc(packet[:-4], network, udp=version == 2)


def test_ipv4_options_are_covered_unverified() -> None:
    """No outside source was found for RoCE with IPv4 options (rxe sends none): this says only what we do."""
    packet, network = make("10.0.0.1", ip_options=b"\x94\x04\x00\x00")
    assert network == 24
    head = bytearray(packet[: 24 + 8 + 12])
    for at in (1, 8, 10, 11, 24 + 6, 24 + 7, 24 + 8 + 4):
        head[at] = 0xFF
    right = zlib.crc32(b"\xff" * 8 + head + packet[24 + 8 + 12 : -4])
    assert split(packet)[1] == right


def test_roce_v1_puts_ones_for_the_missing_lrh_unverified() -> None:
    """No RoCE v1 packet of a device was at hand; annex A16 takes 7.8.1's rules for a packet with a GRH."""
    packet, network = make("fd00::1", 1)
    assert network == 40
    head = bytearray(packet[:52])
    head[0] |= 0x0F
    for at in (1, 2, 3, 7, 40 + 4):
        head[at] = 0xFF
    assert split(packet)[1] == zlib.crc32(b"\xff" * 8 + head + packet[52:-4])


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_the_fast_crc_is_zlibs(data: bytes, seed: int) -> None:
    assert icrc.crc32(data, seed) == zlib.crc32(data, seed)


def test_too_few_bytes_for_a_bth_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 40 bytes"):
        icrc.icrc(bytes(39), 20)


# -- many at once
# ---------------------------------------------------------------------------------------


@st.composite
def packet_drawn(draw: st.DrawFn) -> tuple[bytes, int, bool]:
    """(what an ICRC covers, bytes before the BTH, whether UDP is among them), under any network header."""
    version = draw(st.sampled_from([4, 6]))
    longer = 4 * draw(st.integers(0, 10)) if version == 4 else 8 * draw(st.sampled_from([0, 1, 2, 40]))
    udp = draw(st.booleans())
    before = (20 if version == 4 else 40) + longer + (8 if udp else 0)
    rest = draw(st.binary(min_size=before + 12, max_size=before + 12 + 90))
    return bytes([version << 4 | rest[0] & 15]) + rest[1:], before, udp


@pytest.mark.parametrize("way", ["native", "plain"])
@given(st.lists(packet_drawn(), min_size=1, max_size=20))
def test_many_at_once_are_what_each_is_alone(way: str, drawn: list[tuple[bytes, int, bool]]) -> None:
    if way == "native" and icrc_columns.native is None:
        pytest.skip("the compiled ICRC loop is not built, or there is no isal")
    of = icrc_columns.icrc_columns if way == "native" else icrc_columns._in_place
    lengths = np.array([len(packet) for packet, _, _ in drawn], np.int64)
    buffer = np.frombuffer(bytearray(b"".join(packet for packet, _, _ in drawn)), np.uint8)
    before = buffer.copy()
    end = lengths.cumsum()
    bth = end - lengths + np.array([before_bth for _, before_bth, _ in drawn])
    udp = np.array([over_udp for _, _, over_udp in drawn])
    expected = [icrc.icrc(p, b - (8 if over else 0), udp=over) for p, b, over in drawn]
    assert of(buffer, end - lengths, bth, end, udp).tolist() == expected
    assert (buffer == before).all()


@pytest.mark.parametrize("wrong", ["start", "bth", "end", "length"])
def test_a_packet_outside_the_buffer_is_refused(wrong: str) -> None:
    if icrc_columns.native is None:
        pytest.skip("the compiled ICRC loop is not built, or there is no isal")
    places = {"start": 0, "bth": 28, "end": 60}
    columns = {name: np.array([value], np.int64) for name, value in places.items()}
    buffer = np.zeros(60, np.uint8)
    if wrong == "length":
        columns["end"] = np.array([60, 60], np.int64)
    else:
        columns[wrong][0] = {"start": -1, "bth": 19, "end": 61}[wrong]
    start, bth, end = columns.values()
    with pytest.raises(ValueError, match="outside the buffer"):
        icrc_columns.icrc_columns(buffer, start, bth, end, np.array([True]))
