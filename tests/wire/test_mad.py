"""What MADs and CM messages say, made from the layouts and seen in captures that others made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from handmade import Net, batch_of, ethernet, transport
from hypothesis import given
from hypothesis import strategies as st

from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.packets.mads import find_mads
from rocekit.wire import OPCODE_NAMES
from rocekit.wire.cm import CM_ATTRIBUTE_IDS, CM_MESSAGES, IP_CM, MAD, MAD_BYTES
from rocekit.wire.mad import CmMessage, Mad, parse_mad

UD_SEND = OPCODE_NAMES["UD_SEND_ONLY"]
TCP_7471 = 0x0000_0000_0106_0000 | 7471  # annex A11: protocol 6, port 7471


def mad(message: str, **fields: int | bytes) -> bytes:
    """A CM MAD of 256 bytes."""
    head = MAD.pack(
        base_version=1,
        mgmt_class=7,
        class_version=2,
        method=3,
        transaction_id=0x1122334455667788,
        attribute_id=CM_ATTRIBUTE_IDS[message],
    )
    return head + CM_MESSAGES[message].pack(**fields)


def cm(data: bytes) -> CmMessage:
    parsed = parse_mad(data)
    assert parsed is not None
    assert parsed.cm is not None
    return parsed.cm


@given(st.sampled_from(sorted(CM_MESSAGES)), st.data())
def test_every_field_of_every_message_comes_back(message: str, data: st.DataObject) -> None:
    numbers = {
        f.name: data.draw(st.integers(0, 2**f.bits - 1))
        for f in CM_MESSAGES[message].fields
        if not f.reserved and not f.is_bytes
    }
    numbers["service_id"] = 5  # no IP service: its private data would be read as addresses
    fields = {name: value for name, value in numbers.items() if name in CM_MESSAGES[message].by_name}
    packed = mad(message, **fields)
    assert len(packed) == MAD_BYTES
    read = cm(packed)
    assert read.message == message
    assert {name: read.fields[name] for name in fields} == fields
    assert not read.truncated


def test_a_mad_says_whose_transaction_it_is() -> None:
    parsed = parse_mad(mad("RTU", local_comm_id=1, remote_comm_id=2))
    assert parsed is not None
    assert (parsed.transaction_id, parsed.mgmt_class) == (0x1122334455667788, "ComMgt")


def ip_cm_data(version: int, source: bytes, destination: bytes, rest: bytes) -> bytes:
    header = IP_CM.pack(
        ip_version=version,
        source_port=40000,
        source_address=source.rjust(16, b"\0"),
        destination_address=destination.rjust(16, b"\0"),
    )
    return header + rest


@pytest.mark.parametrize("message", ["REQ", "SIDR_REQ"])
def test_the_ip_addressing_is_taken_off_the_consumer_s_private_data(message: str) -> None:
    data = ip_cm_data(4, bytes([10, 9, 0, 1]), bytes([10, 9, 0, 2]), b"hello")
    read = cm(mad(message, service_id=TCP_7471, private_data=data))
    assert read.ip_cm is not None
    assert dict(read.ip_cm) == {
        "protocol": "TCP",
        "major_version": 0,
        "minor_version": 0,
        "ip_version": 4,
        "source_port": 40000,
        "source_address": "10.9.0.1",
        "destination_address": "10.9.0.2",
        "destination_port": 7471,
    }
    assert read.private_data.rstrip(b"\0") == b"hello"


def test_ipv6_addressing() -> None:
    source, destination = (
        bytes.fromhex("fd000009" + "00" * 11 + "01"),
        bytes.fromhex("fd000009" + "00" * 11 + "02"),
    )
    read = cm(mad("REQ", service_id=TCP_7471, private_data=ip_cm_data(6, source, destination, b"")))
    assert read.ip_cm is not None
    assert (read.ip_cm["source_address"], read.ip_cm["destination_address"]) == ("fd00:9::1", "fd00:9::2")


def test_private_data_of_a_service_that_is_no_ip_service_is_all_the_consumer_s() -> None:
    read = cm(mad("REQ", service_id=0x1000_0000_0000_0001, private_data=bytes(36) + b"x"))
    assert read.ip_cm is None
    assert len(read.private_data) == 92
    assert read.private_data[36:37] == b"x"


def test_an_ipv4_mapped_gid_is_shown_as_ipv4() -> None:
    gid = bytes(10) + b"\xff\xff" + bytes([10, 9, 0, 1])
    link_local = b"\xfe\x80" + bytes(13) + b"\x01"
    read = cm(mad("REQ", primary_local_port_gid=gid, primary_remote_port_gid=link_local))
    assert read.fields["primary_local_port_gid"] == "10.9.0.1"
    assert read.fields["primary_remote_port_gid"] == "fe80::1"


def test_a_rejection_gives_its_reason_in_words_and_only_the_information_it_counts() -> None:
    read = cm(mad("REJ", reason=28, rejected_info_length=3, additional_info=b"abcdef", private_data=b"no"))
    assert read.reason is not None
    assert "consumer reject" in read.reason
    assert read.fields["additional_info"] == b"abc"
    assert "consumer reject" in read.summary()


def test_the_path_mtu_is_bytes() -> None:
    assert cm(mad("REQ", path_mtu_code=3)).path_mtu == 1024
    assert cm(mad("REQ", path_mtu_code=9)).path_mtu is None


@pytest.mark.parametrize("message", sorted(CM_MESSAGES))
def test_a_message_cut_anywhere_gives_the_fields_that_are_whole(message: str) -> None:
    layout = CM_MESSAGES[message]
    ones = {f.name: (1 << f.bits) - 1 for f in layout.fields if not f.is_bytes and not f.reserved}
    whole = mad(message, **(ones | ({"service_id": 5} if "service_id" in ones else {})))
    for cut in range(len(whole)):
        parsed = parse_mad(whole[:cut])
        if cut < MAD.length:
            assert parsed is None
            continue
        assert parsed is not None
        assert parsed.cm is not None
        assert parsed.cm.truncated
        have = (cut - MAD.length) * 8
        for name in ones:
            field = layout.by_name[name]
            assert (name in parsed.cm.fields) == (field.offset + field.bits <= have)
        parsed.cm.summary()
        json.dumps(parsed.to_dict())


@given(st.binary(max_size=300))
def test_no_bytes_whatever_raise(data: bytes) -> None:
    for start in (b"", b"\x01\x07\x02\x03", mad("REQ")[:24], mad("SIDR_REQ", service_id=TCP_7471)[:40]):
        parsed = parse_mad(start + data)
        if isinstance(parsed, Mad):
            parsed.summary()
            json.dumps(parsed.to_dict())


def test_what_is_no_cm_message_is_still_a_mad() -> None:
    subnet = MAD.pack(base_version=1, mgmt_class=0x03, class_version=2, method=0x12, attribute_id=0x35)
    parsed = parse_mad(subnet + bytes(232))
    assert parsed is not None
    assert parsed.cm is None
    assert parsed.mgmt_class == "SubnAdm"
    assert parse_mad(bytes(256)) is None


def test_only_datagrams_to_queue_pairs_0_and_1_are_mads() -> None:
    body = mad("RTU", local_comm_id=7)
    frames = [ethernet(Net().wrap(transport(UD_SEND, body, dest_qpn=qpn, src_qpn=1))) for qpn in (1, 2, 0)]
    frames.append(ethernet(Net().wrap(transport(OPCODE_NAMES["RC_SEND_ONLY"], body, dest_qpn=1))))
    packets = Decoder().decode(batch_of(frames))
    assert [row for row, _ in find_mads(packets)] == [0, 2]


def messages(path: Path) -> list[tuple[int, CmMessage]]:
    decoder, found = Decoder(), []
    with open_capture(path) as capture:
        for batch in capture:
            packets = decoder.decode(batch)
            found += [(int(packets.frame[row]), m.cm) for row, m in find_mads(packets) if m.cm is not None]
    return found


def test_a_connection_s_whole_life_as_rping_made_it(others: Path) -> None:
    found = messages(others / "rping.pcap")
    assert [m.message for _, m in found] == ["REQ", "REP", "RTU", "DREQ", "DREP"]
    req, rep = found[0][1], found[1][1]
    assert req.ip_cm is not None
    assert (req.ip_cm["source_address"], req.ip_cm["destination_address"]) == ("10.1.16.62", "10.1.16.61")
    assert req.fields["local_comm_id"] == rep.fields["remote_comm_id"]
    # 12.6.5, 12.6.8: a starting PSN is where the *remote* node begins to send, to the QPN in the same
    # message.
    decoder = Decoder()
    with open_capture(others / "rping.pcap") as capture:
        packets = decoder.decode(next(iter(capture)))
    for message in (req, rep):
        there = packets.where(packets.dest_qpn == message.fields["local_qpn"])
        requests = there.where(there.ackreq == 1)
        assert requests.psn[0] == message.fields["starting_psn"]


def test_disconnects_that_cross(others: Path) -> None:
    found = messages(others / "rdma_cm.pcap")
    assert [m.message for _, m in found].count("DREQ") == 3
    assert [m.message for _, m in found].count("DREP") == 3
    assert [frame for frame, m in found if m.message == "REQ"] == [1, 24]


def test_a_message_gives_one_field_as_all_its_fields_do() -> None:
    """Whole and cut at every byte: nothing but what is there."""
    whole = mad("REQ", local_comm_id=7, local_qpn=0xABCDEF, starting_psn=0x123456, service_id=0x10612B7)
    for cut in range(24, len(whole) + 1):
        parsed = parse_mad(whole[:cut])
        assert parsed is not None
        message = parsed.cm
        assert message is not None
        fields = message.fields
        for name in message.layout.by_name:
            value = fields.get(name)
            assert message.number(name) == (value if isinstance(value, int) else None), (cut, name)
            assert message.address(name) == (value if isinstance(value, str) else None), (cut, name)
        assert fields.get("private_data", b"") == message.private_data
