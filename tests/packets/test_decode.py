"""What the columns say of frames that were put together by hand, and of captures that others made."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import Net, batch_of, ethernet, roce_v1, transport
from hypothesis import given
from hypothesis import strategies as st

from rocekit.capture import open_capture
from rocekit.decode import (
    HAS,
    ICRC_INVALID,
    ICRC_UNCHECKED,
    ICRC_VALID,
    MALFORMED,
    NO_OPCODE,
    Decoder,
    Packets,
)
from rocekit.files.frames import LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2, LINKTYPE_RAW, FrameBatch
from rocekit.wire import BTH, OPCODE_NAMES, OPCODES, Header

SEND = OPCODE_NAMES["RC_SEND_ONLY"]
WRITE = OPCODE_NAMES["RC_RDMA_WRITE_ONLY"]
ACK = OPCODE_NAMES["RC_ACKNOWLEDGE"]
V6 = Net(version=6, src="fd00:9::1", dst="fd00:9::2")
# RFC 791: three "no operation" options and the end of the list. RFC 8200: a hop-by-hop header of eight bytes
# that pads, destination options of sixteen; each begins with what comes next and its length in eights beyond
# the first.
OPTIONS = Net(options=b"\x01\x01\x01\x00")
EXTENSIONS = replace(
    V6,
    first_extension=0,
    options=bytes.fromhex("3c00010400000000") + bytes.fromhex("1101010c") + bytes(12),
)


def decode(frames: list[bytes] | FrameBatch, **options: Any) -> tuple[Packets, Decoder]:
    decoder = Decoder(**options)
    return decoder.decode(batch_of(frames) if isinstance(frames, list) else frames), decoder


def one(frame: bytes, **how: Any) -> dict[str, Any]:
    packets, _ = decode(batch_of([frame], **how))
    assert len(packets) == 1
    return packets.row(0)


def fields_of(headers: tuple[Header, ...]) -> dict[str, int]:
    """The numeric fields of some headers and their width; a reserved one carries nothing."""
    return {f.name: f.bits for h in headers for f in h.fields if not f.reserved}


@st.composite
def packets_drawn(draw: st.DrawFn) -> tuple[int, bytes, dict[str, int], bytes]:
    """(opcode, payload, header fields, frame) of a sound packet under any opcode and network header."""
    opcode = draw(st.sampled_from(sorted(OPCODES)))
    row = OPCODES[opcode]
    payload = draw(st.binary(max_size=70)) if row.payload else b""
    widths = fields_of((BTH, *row.headers))
    for name in ("opcode", "padcount", "version"):
        del widths[name]
    fields = {name: draw(st.integers(0, 2**bits - 1)) for name, bits in widths.items()}
    body = transport(opcode, payload, **fields)
    net = replace(
        draw(st.sampled_from([Net(), OPTIONS, V6, EXTENSIONS])),
        tclass=draw(st.integers(0, 255)),
        hop_limit=draw(st.integers(0, 255)),
        sport=draw(st.integers(0, 65535)),
    )
    tags = draw(st.lists(st.tuples(st.sampled_from([0x8100, 0x88A8]), st.integers(0, 65535)), max_size=3))
    if draw(st.booleans()):
        frame = ethernet(net.wrap(body), None, *tags)
    else:
        frame = ethernet(roce_v1(body), 0x8915, *tags)
    return opcode, payload, fields, frame + draw(st.binary(max_size=8))


@given(packets_drawn())
def test_every_field_comes_back_as_it_was_sent(drawn: tuple[int, bytes, dict[str, int], bytes]) -> None:
    opcode, payload, fields, frame = drawn
    packets, decoder = decode([frame])
    row = packets.row(0)
    assert row["opcode"] == OPCODES[opcode].name
    assert {name: row[name] for name in fields} == fields
    assert {name: int(packets[name][0]) for name in fields} == fields
    assert row["payload_length"] == len(payload)
    assert packets.payload(0) == payload
    assert row["icrc_state"] == "valid"
    assert row["malformed"] is None
    headers = {"BTH", *(h.name for h in OPCODES[opcode].headers)}
    if row["roce_version"] == 1:
        headers.add("GRH")
    assert {name for name, bit in HAS.items() if packets.has[0] & bit} == headers
    assert decoder.counts.roce_packets == decoder.counts.frames == 1
    assert decoder.counts.bad_icrc == decoder.counts.malformed_packets == 0


@given(st.lists(packets_drawn(), min_size=1, max_size=12))
def test_a_packet_reads_the_same_whatever_stands_beside_it(
    drawn: list[tuple[int, bytes, dict[str, int], bytes]],
) -> None:
    frames = [frame for *_, frame in drawn]
    together, _ = decode(frames)
    for i, frame in enumerate(frames):
        alone, _ = decode([frame])
        expected = alone.row(0) | {"frame": i + 1, "time_ns": together.row(i)["time_ns"]}
        assert together.row(i) == expected


@given(packets_drawn(), st.data())
def test_one_flipped_bit_from_the_bth_on_is_seen(
    drawn: tuple[int, bytes, dict[str, int], bytes], data: st.DataObject
) -> None:
    opcode, payload, _, frame = drawn
    packets, _ = decode([frame])
    body = frame.index(transport(opcode, payload, **drawn[2]))
    length = OPCODES[opcode].headers_length + len(payload) + -len(payload) % 4 + 4
    # The byte of FECN and BECN may change on the way; the pad count moves no byte.
    byte = data.draw(st.integers(0, length - 1).filter(lambda i: i != 4))
    bad = bytearray(frame)
    bad[body + byte] ^= 1 << data.draw(st.integers(0, 7))
    packets, decoder = decode([bytes(bad)])
    assert packets.icrc_state.tolist() == [ICRC_INVALID]
    assert decoder.counts.bad_icrc == 1


@pytest.mark.parametrize("net", [Net(), OPTIONS, V6, EXTENSIONS], ids=["v4", "options", "v6", "extensions"])
def test_what_may_change_on_the_way_does_not_touch_the_icrc(net: Net) -> None:
    body = transport(SEND, b"abcd", psn=9)
    ip = net.ip(8 + len(body) + 4)
    icrc = net.wrap(body)[-4:]
    marked = replace(net, tclass=0xFF, hop_limit=3, flow_label=0xABCDE if net.version == 6 else 0)
    becn = bytearray(transport(SEND, b"abcd", psn=9))
    becn[4] |= 0xC0
    frame = ethernet(marked.wrap(bytes(becn), icrc=icrc))
    row = one(frame)
    assert (row["dscp"], row["ecn"], row["fecn"], row["becn"], row["hop_limit"]) == (63, 3, 1, 1, 3)
    assert row["icrc_state"] == "valid"
    assert ip != marked.ip(8 + len(body) + 4)


def test_the_buffer_is_as_it_was_after_decoding() -> None:
    batch = batch_of([ethernet(Net().wrap(transport(SEND, bytes(20)))), ethernet(V6.wrap(transport(ACK)))])
    before = batch.buffer.copy()
    decode(batch)
    assert np.array_equal(batch.buffer, before)


def test_a_read_only_buffer_is_checked_too() -> None:
    batch = batch_of([ethernet(Net().wrap(transport(SEND, bytes(20))))])
    batch.buffer.flags.writeable = False
    packets, _ = decode(batch)
    assert packets.icrc_state.tolist() == [ICRC_VALID]


def test_ethernet_padding_and_a_check_sequence_are_no_part_of_the_packet() -> None:
    frame = ethernet(Net().wrap(transport(ACK, psn=5, syndrome=31, msn=1)))
    row = one(frame + bytes(60 - len(frame) if len(frame) < 60 else 2) + b"\xde\xad\xbe\xef")
    assert row["payload_length"] == 0
    assert row["icrc_state"] == "valid"
    assert row["malformed"] is None


@pytest.mark.parametrize("pad", [1, 2, 3])
def test_pad_bytes_are_not_payload(pad: int) -> None:
    row = one(ethernet(Net().wrap(transport(SEND, bytes(8 - pad)))))
    assert (row["padcount"], row["payload_length"]) == (pad, 8 - pad)


SLL = bytes(14) + b"\x08\x00"
SLL2 = b"\x08\x00" + bytes(18)


@pytest.mark.parametrize(
    ("head", "linktype"),
    [(SLL, LINKTYPE_LINUX_SLL), (SLL2, LINKTYPE_LINUX_SLL2), (b"", LINKTYPE_RAW)],
    ids=["SLL", "SLL2", "raw"],
)
def test_other_link_types(head: bytes, linktype: int) -> None:
    row = one(head + Net().wrap(transport(SEND, b"abcd")), linktype=linktype)
    assert (row["src"], row["dst"], row["icrc_state"]) == ("10.9.0.1", "10.9.0.2", "valid")


def test_raw_ipv6_is_told_by_its_version() -> None:
    assert one(V6.wrap(transport(SEND)), linktype=LINKTYPE_RAW)["src"] == "fd00:9::1"


def test_the_innermost_vlan_tag_is_the_packet_s() -> None:
    row = one(ethernet(Net().wrap(transport(SEND)), 0x0800, (0x88A8, 0x2064), (0x8100, 0xA00C)))
    assert (row["vlan"], row["priority"]) == (12, 5)


def test_a_vlan_tag_behind_linux_cooked() -> None:
    head = bytes(14) + b"\x81\x00" + b"\x00\x05" + b"\x08\x00"
    assert one(head + Net().wrap(transport(SEND)), linktype=LINKTYPE_LINUX_SLL)["vlan"] == 5


def test_roce_v1_has_gids_and_no_port() -> None:
    row = one(ethernet(roce_v1(transport(SEND, b"abcd")), 0x8915))
    assert (row["roce_version"], row["ip_version"], row["udp_sport"]) == (1, 6, None)
    assert (row["src"], row["dst"]) == ("fe80::1", "fe80::2")


def test_an_ipv4_mapped_gid_is_the_ipv4_address() -> None:
    packets, decoder = decode(
        [
            ethernet(roce_v1(transport(SEND), src="::ffff:10.9.0.1", dst="::ffff:10.9.0.2"), 0x8915),
            ethernet(Net().wrap(transport(SEND))),
        ]
    )
    assert sorted(decoder.addresses) == ["10.9.0.1", "10.9.0.2"]
    assert packets.src[0] == packets.src[1]


def test_addresses_keep_their_numbers_from_batch_to_batch() -> None:
    decoder = Decoder()
    body = transport(SEND)
    first = decoder.decode(batch_of([ethernet(Net(src=f"10.0.0.{i}").wrap(body)) for i in (3, 1, 2)]))
    again = decoder.decode(batch_of([ethernet(Net(src=f"10.0.0.{i}").wrap(body)) for i in (9, 2, 3)]))
    assert [first.addresses[i] for i in first.src] == ["10.0.0.3", "10.0.0.1", "10.0.0.2"]
    assert [again.addresses[i] for i in again.src] == ["10.0.0.9", "10.0.0.2", "10.0.0.3"]
    assert again.src[2] == first.src[0]


def test_parts_that_are_used_up_give_the_rows_that_they_had_together() -> None:
    decoder = Decoder()
    frames = [ethernet(Net(src=f"10.0.0.{n}").wrap(transport(SEND))) for n in range(9)]
    parts = [decoder.decode(batch_of(frames[:4])), decoder.decode(batch_of(frames[4:]))]
    rows = np.array([8, 0, 5])
    expected = list(Packets.concat(parts).where(rows).rows())
    kept = list(parts)
    assert list(Packets.used_up(parts, rows).rows()) == expected
    assert (parts, [len(part) for part in kept]) == ([], [0, 0])


def test_ipv6_addresses_that_are_sought_at_one_place_stay_apart() -> None:
    halves = [(high, high ^ 4) for high in range(3000)]  # alike where their halves are mixed; the table grows
    texts = [str(IPv6Address(high << 64 | low)) for high, low in halves]
    frames = [ethernet(replace(V6, src=text).wrap(transport(SEND))) for text in texts * 2]
    packets, _ = decode(frames)
    assert [packets.addresses[i] for i in packets.src] == texts * 2


# -- cut, malformed, fragmented
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", [Net(), OPTIONS, EXTENSIONS], ids=["v4", "options", "v6"])
def test_a_packet_cut_anywhere_says_so_and_still_knows_its_length(net: Net) -> None:
    body = transport(WRITE, b"payload!", remote_va=1 << 40, rkey=7, dma_length=8, psn=3, dest_qpn=17)
    frame = ethernet(net.wrap(body))
    bth = len(frame) - 4 - len(body)
    frames = [frame[:cut] for cut in range(len(frame))]
    packets, decoder = decode(batch_of(frames, wirelen=[len(frame)] * len(frames)))
    assert decoder.counts.frames == len(frames)
    assert packets.truncated.all()
    assert (packets.icrc_state == ICRC_UNCHECKED).all()
    for row in packets.rows():
        cut = int(row["frame"] or 0) - 1
        if cut >= bth + 12:
            assert (row["opcode"], row["psn"], row["dest_qpn"]) == ("RC_RDMA_WRITE_ONLY", 3, 17)
        else:
            assert row["opcode"] is None
            assert "psn" not in row
        assert row["malformed"] == ("headers cut" if cut < bth + 12 else None)
        if cut >= bth + 28:
            assert (row["rkey"], row["payload_length"]) == (7, 8)
        else:
            assert "rkey" not in row
    # Every cut behind the UDP ports is a row.
    assert packets.frame.tolist() == list(range(bth - 8 + 4 + 1, len(frame) + 1))
    i = len(packets) - 6
    assert packets.payload(i) == b"payload!"[: int(packets.frame[i]) - 1 - bth - 28]


@pytest.mark.parametrize("net", [Net(), OPTIONS, EXTENSIONS], ids=["v4", "options", "v6"])
def test_a_mirror_that_gives_the_cut_length_as_the_sent_one_only_truncates(net: Net) -> None:
    body = transport(WRITE, b"payload!" * 20, remote_va=1 << 40, rkey=7, dma_length=160, psn=3, dest_qpn=17)
    frame = ethernet(net.wrap(body))
    bth = len(frame) - 4 - len(body)
    frames = [frame[:cut] for cut in range(bth + 12, len(frame))]
    packets, decoder = decode(batch_of(frames))
    assert packets.truncated.all()
    assert packets.payload_length.tolist() == [160] * len(frames)
    assert packets.psn.tolist() == [3] * len(frames)
    assert (packets.icrc_state == ICRC_UNCHECKED).all()
    assert decoder.counts.malformed_packets == 0
    assert packets.lacking().tolist() == list(range(16))
    assert packets.dma_length.tolist() == [0] * 16 + [160] * (len(frames) - 16)


@given(st.binary(max_size=120), st.sampled_from([1, 101, 113, 276]), st.integers(0, 200))
def test_no_bytes_whatever_raise(data: bytes, linktype: int, more: int) -> None:
    frames = [data, *(ethernet(data, kind) for kind in (0x0800, 0x86DD, 0x8915, 0x8100, 0x8808))]
    packets, _ = decode(batch_of(frames, wirelen=[len(f) + more for f in frames], linktype=linktype))
    list(packets.rows())


@given(packets_drawn(), st.data())
def test_no_damage_raises(drawn: tuple[int, bytes, dict[str, int], bytes], data: st.DataObject) -> None:
    frame = bytearray(drawn[3])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(12, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    packets, decoder = decode([bytes(frame), bytes(frame[:cut])])
    for i, row in enumerate(packets.rows()):
        assert int(row["payload_length"] or 0) >= len(packets.payload(i))
    assert decoder.counts.frames == 2


def damaged(what: str) -> bytes:
    """A frame whose packet is malformed in the way that ``what`` names."""
    body = transport(SEND, b"abcd")
    if what == "shorter than its headers":
        return ethernet(Net().wrap(transport(WRITE)[:20]))
    if what == "IP length out of bounds":
        packet = bytearray(Net().wrap(body))
        packet[3] += 4
        packet[10:12] = bytes(2)  # a checksum of zero was left to the interface
        return ethernet(bytes(packet))
    if what == "UDP length disagrees with the IP length":
        packet = bytearray(Net().wrap(body))
        packet[25] -= 4
        return ethernet(bytes(packet))
    if what == "pad count exceeds the payload":
        return ethernet(Net().wrap(BTH.pack(opcode=SEND, padcount=3)))
    if what == "unknown opcode":
        return ethernet(Net().wrap(transport(0x1F, b"abcd")))
    if what == "payload behind an opcode that carries none":
        return ethernet(Net().wrap(transport(ACK, b"abcd")))
    if what == "IPv4 header checksum wrong":
        packet = bytearray(Net().wrap(body))
        packet[8] ^= 1
        return ethernet(bytes(packet))
    if what == "GRH version is not 6":
        packet = bytearray(roce_v1(body))
        packet[0] ^= 0x20
        return ethernet(bytes(packet), 0x8915)
    assert what == "unknown transport version"
    return ethernet(Net().wrap(transport(SEND, b"abcd", version=1)))


@pytest.mark.parametrize("what", [words for code, words in MALFORMED.items() if words != "headers cut"])
def test_each_way_of_being_malformed_is_named(what: str) -> None:
    packets, decoder = decode([damaged(what)])
    assert packets.row(0)["malformed"] == what
    assert decoder.counts.malformed_packets == 1
    assert not packets.truncated[0]


def test_an_unknown_opcode_is_kept_as_a_number() -> None:
    packets, _ = decode([damaged("unknown opcode")])
    assert packets.row(0)["opcode"] == 0x1F
    assert packets.icrc_state.tolist() == [ICRC_VALID]


def test_a_checksum_of_zero_waits_for_the_interface() -> None:
    packet = bytearray(Net().wrap(transport(SEND)))
    packet[10:12] = bytes(2)
    assert one(ethernet(bytes(packet)))["malformed"] is None


def test_a_cut_bth_gives_no_opcode_and_no_mistaken_queue_pair() -> None:
    frame = ethernet(Net().wrap(transport(SEND, bytes(8), dest_qpn=5)))
    packets, _ = decode(batch_of([frame[: 14 + 28 + 6]], wirelen=[len(frame)]))
    assert packets.opcode.tolist() == [NO_OPCODE]
    assert packets.has.tolist() == [0]


def test_a_first_fragment_shows_its_headers_and_cannot_be_checked() -> None:
    packet = bytearray(Net(flags=0x2000).wrap(transport(SEND, bytes(256), psn=4)))
    packet = packet[: 20 + 8 + 12 + 100]
    packet[2:4] = len(packet).to_bytes(2, "big")
    packet[10:12] = bytes(2)
    packets, decoder = decode([ethernet(bytes(packet))])
    row = packets.row(0)
    assert (row["fragment"], row["psn"], row["payload_length"]) == (True, 4, 256)
    assert (row["icrc_state"], row["malformed"], row["truncated"]) == ("unchecked", None, False)
    assert decoder.counts.fragments == 1


def test_the_padding_behind_a_short_first_fragment_is_no_bth() -> None:
    packet = Net(flags=0x2000).ip(16) + Net().wrap(transport(SEND, bytes(8), psn=4))[20:36]
    packets, _ = decode([ethernet(packet) + bytes(60 - 14 - len(packet))])
    row = packets.row(0)
    assert (row["opcode"], row["fragment"], row["payload_length"]) == (None, True, 0)
    assert row["malformed"] == "shorter than its headers"


@pytest.mark.parametrize("version", [4, 6])
def test_a_later_fragment_is_counted_and_is_no_packet(version: int) -> None:
    if version == 4:
        frame = ethernet(Net(flags=0x0010).wrap(transport(SEND)))
    else:
        net = replace(V6, first_extension=44, options=bytes.fromhex("11000081") + bytes(4))
        frame = ethernet(net.wrap(transport(SEND)))
    packets, decoder = decode([frame])
    assert len(packets) == 0
    assert (decoder.counts.fragments, decoder.counts.non_roce) == (1, 0)


def test_an_ipv6_first_fragment() -> None:
    net = replace(V6, first_extension=44, options=bytes.fromhex("11000001") + bytes(4))
    row = one(ethernet(net.wrap(transport(SEND, b"abcd", psn=6))))
    assert (row["fragment"], row["psn"], row["icrc_state"]) == (True, 6, "unchecked")


def test_pause_frames_and_strangers_are_counted_apart() -> None:
    pause = ethernet(bytes.fromhex("0001ffff") + bytes(42), 0x8808)
    pfc = ethernet(bytes.fromhex("01010008") + bytes(42), 0x8808, (0x8100, 0))
    arp = ethernet(bytes(28), 0x0806)
    dns = bytearray(Net().wrap(transport(SEND)))
    dns[22:24] = (53).to_bytes(2, "big")
    packets, decoder = decode([pause, arp, ethernet(bytes(dns)), pfc, ethernet(Net().wrap(transport(SEND)))])
    assert packets.frame.tolist() == [5]
    counts = decoder.counts
    assert (counts.frames, counts.roce_packets, counts.pause_frames, counts.non_roce) == (5, 1, 2, 2)


def test_unchecked_means_unchecked() -> None:
    packets, decoder = decode([ethernet(Net().wrap(transport(SEND)))], check_icrc=False)
    assert packets.icrc_state.tolist() == [ICRC_UNCHECKED]
    assert decoder.counts.unchecked_icrc == 1


# -- batches
# ----------------------------------------------------------------------------------------------------------


def test_an_empty_batch_has_every_column() -> None:
    packets, _ = decode(batch_of([]))
    assert len(packets) == len(packets.psn) == len(packets["remote_va"]) == len(packets.dscp) == 0


def test_there_is_no_column_of_another_name() -> None:
    packets, _ = decode(batch_of([]))
    with pytest.raises(AttributeError, match="psnn"):
        _ = packets.psnn
    with pytest.raises(KeyError):
        packets["psnn"]


def test_choosing_and_joining_packets_keeps_rows_together() -> None:
    decoder = Decoder()
    frames = [ethernet(Net(src=f"10.0.0.{i}").wrap(transport(WRITE, psn=i, rkey=i * 3))) for i in range(1, 9)]
    parts = [decoder.decode(batch_of(frames[:5])), decoder.decode(batch_of(frames[5:]))]
    joined = Packets.concat(parts)
    odd = joined.where(joined.psn % 2 == 1)
    assert odd.psn.tolist() == [1, 3, 5, 7]
    assert odd.rkey.tolist() == [3, 9, 15, 21]
    assert [odd.row(i)["src"] for i in range(4)] == ["10.0.0.1", "10.0.0.3", "10.0.0.5", "10.0.0.7"]
    with pytest.raises(ValueError, match="payload"):
        joined.payload(0)
    with pytest.raises(ValueError, match="decoders"):
        Packets.concat([joined, decode(frames)[0]])


# -- outside truth
# ----------------------------------------------------------------------------------------------------

#: File, frames, RoCE packets: the table that came with the captures.
OTHERS = """
rping 65 65 · rdma_cm 96 96 · rdma_write_bw 60 20 · rdma_read_bw 60 20 · rdma_read_lat 38 10 · rdma_send_bw 50
20 · rdma_write_lat 45 20 · rdma_atomic_bw 48 10 · pingpong_rc 31 20 · pingpong_uc 21 10 · pingpong_ud 21 10 ·
nccl_ring_node0 184 184 · nccl_ring_node1 184 184 · nccl_ring_node2 184 184
"""


@pytest.mark.parametrize("row", OTHERS.split("·"), ids=lambda row: row.split()[0])
def test_captures_that_others_made_are_sound_to_the_last_icrc(row: str, others: Path) -> None:
    name, frames, roce = row.split()
    decoder = Decoder()
    with open_capture(others / f"{name}.pcap") as capture:
        for batch in capture:
            packets = decoder.decode(batch)
            assert (packets.icrc_state == ICRC_VALID).all()
    counts = decoder.counts
    assert (counts.frames, counts.roce_packets) == (int(frames), int(roce))
    assert counts.malformed_packets == counts.truncated_packets == counts.fragments == 0
