"""What is redacted tells nothing of addresses, keys and data, and everything else as before."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import numpy as np
import pytest
from amount import examples
from handmade import batch_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tcp_segment import _sum16, tcp_frame

from rocekit import wire
from rocekit.decode import Decoder, Packets
from rocekit.edit.redact import Redactor
from rocekit.edit.redact_frames import redact_batch
from rocekit.edit.redact_mad import redact_mad, redact_offer
from rocekit.files.frames import (
    LINKTYPE_ETHERNET,
    LINKTYPE_LINUX_SLL,
    LINKTYPE_LINUX_SLL2,
    LINKTYPE_RAW,
    FrameBatch,
)
from rocekit.packets.locations import Locations
from rocekit.wire.build import build_frame, build_ip_cm, build_mad
from rocekit.wire.mad import parse_mad

SECRET = b"for tests only, always the same."
OPCODES = [o for o in wire.OPCODES.values() if o.transport != "CNP"]


def redactor() -> Redactor:
    return Redactor(SECRET)


def windows(data: bytes, width: int = 8) -> Iterator[bytes]:
    """The runs of bytes in which something is said."""
    for i in range(len(data) - width + 1):
        run = data[i : i + width]
        if len(set(run)) > 4:
            yield run


# ---------------------------------------------------------------------- any frame


@dataclass(frozen=True)
class Sample:
    """A frame and what must not be found in its redaction."""

    data: bytes
    linktype: int
    wirelen: int
    secrets: tuple[bytes, ...]
    turned: bool  #: a bit of it, so that its headers may be taken for others


def sample(rng: random.Random) -> Sample:
    """A packet with random everything, on any link, whole or cut, sound or damaged."""
    opcode = rng.choice(OPCODES)
    version = rng.choice((1, 2, 2, 2))
    ipv6 = rng.random() < 0.4
    src, dst = (_address(rng, ipv6) for _ in "ab")
    macs = [bytes([rng.randrange(0, 256) & 0xFE]) + rng.randbytes(5) for _ in "ab"]
    payload = rng.randbytes(rng.choice((0, 1, 30, 100))) if opcode.payload else b""
    fields: dict[str, Any] = {"dest_qpn": rng.getrandbits(24), "psn": rng.getrandbits(24)}
    secrets: list[bytes] = [*macs, *windows(payload), ip_address(src).packed, ip_address(dst).packed]
    for header in opcode.headers:
        for name, bits in (
            ("remote_va", 64),
            ("rkey", 32),
            ("swap_add", 64),
            ("compare", 64),
            ("original", 64),
            ("immediate", 32),
            ("invalidate_rkey", 32),
            ("qkey", 32),
        ):
            if name in header.by_name:
                fields[name] = rng.getrandbits(bits) | 1 << (bits - 1)
                secrets.append(fields[name].to_bytes(bits // 8, "big"))
    options: dict[str, Any] = {}
    if version == 2 and not ipv6 and rng.random() < 0.2:
        options["ip_options"] = rng.randbytes(12)
        secrets += windows(options["ip_options"])
    if version == 2 and ipv6 and rng.random() < 0.2:
        extension = rng.randbytes(22)
        options["ipv6_extensions"] = [(60, b"\2" + extension)]
        secrets += windows(extension)
    if rng.random() < 0.2:
        options["icrc"] = rng.getrandbits(32)
    frame = build_frame(
        opcode.name, src=src, dst=dst, payload=payload, roce_version=version, src_mac=macs[0].hex(":"),
        dst_mac=macs[1].hex(":"), vlan=rng.choice((None, 7, (8, 9))), **options, **fields,
    )  # fmt: skip
    linktype = rng.choice(
        (LINKTYPE_ETHERNET, LINKTYPE_ETHERNET, LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2, LINKTYPE_RAW)
    )
    if linktype != LINKTYPE_ETHERNET and b"\x81\x00" not in frame[12:14] and frame[12:14] != b"\x88\xa8":
        kind, packet = frame[12:14], frame[14:]
        frame = {
            LINKTYPE_LINUX_SLL: struct.pack(">HHH", 0, 1, 6) + macs[0] + b"\0\0" + kind + packet,
            LINKTYPE_LINUX_SLL2: kind + struct.pack(">HIHBB", 0, 3, 1, 0, 6) + macs[0] + b"\0\0" + packet,
            LINKTYPE_RAW: packet,
        }[linktype]
    else:
        linktype = LINKTYPE_ETHERNET
    if rng.random() < 0.2:
        trailer = rng.randbytes(8)
        frame += trailer
        secrets += windows(trailer)
    turned = rng.random() < 0.2
    if turned:
        at = rng.randrange(len(frame) * 8)
        flipped = int.from_bytes(frame, "big") ^ 1 << at
        frame = flipped.to_bytes(len(frame), "big")
    wirelen = len(frame)
    if rng.random() < 0.2:
        frame = frame[: rng.randrange(len(frame) + 1)]
    return Sample(frame, linktype, wirelen, tuple(secrets), turned)


def _address(rng: random.Random, ipv6: bool) -> str:
    if ipv6:
        return str(ip_address(b"\x26" + rng.randbytes(15)))
    return str(ip_address(bytes([rng.randrange(11, 126)]) + rng.randbytes(3)))


def decoded(batch: FrameBatch) -> tuple[Packets, Locations]:
    decoder = Decoder()
    return decoder.decode(batch), decoder.network


def both(samples: list[Sample], *, believed: bool = False) -> tuple[FrameBatch, Packets, FrameBatch, Packets]:
    """A batch and its packets, as captured and redacted."""
    batch = batch_of(
        [s.data for s in samples],
        wirelen=[s.wirelen for s in samples],
        linktype=[s.linktype for s in samples],
    )
    before, network = decoded(batch)
    doubtful = np.zeros(len(before), np.bool_) if believed else None
    redacted = redact_batch(batch, before, network, [], redactor(), doubtful)
    return batch, before, redacted, Decoder().decode(redacted)


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 1 << 60))
def test_no_address_key_or_payload_is_left_in_any_frame(seed: int) -> None:
    rng = random.Random(seed)
    samples = [sample(rng) for _ in range(20)]
    batch, _, redacted, _ = both(samples)
    assert redacted.buffer is not batch.buffer
    for i, one in enumerate(samples):
        new = redacted.frame(i)
        assert len(new) == len(one.data)
        for secret in one.secrets:
            # Of a packet that is cut as well, nothing tells that it is damaged.
            if len(secret) == 4 and one.turned and len(one.data) < one.wirelen:
                continue
            assert secret not in new, (one.data.hex(), new.hex(), secret.hex())


KEPT = (
    *(
        "frame",
        "time_ns",
        "ip_version",
        "roce_version",
        "udp_sport",
        "tclass",
        "hop_limit",
        "flow_label",
        "ip_id",
    ),
    *(
        "vlan",
        "priority",
        "opcode",
        "has",
        "payload_length",
        "icrc_state",
        "truncated",
        "malformed",
        "fragment",
    ),
    *("psn", "dest_qpn", "ackreq", "padcount", "migreq", "syndrome", "msn", "dma_length", "src_qpn", "pkey"),
)


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 1 << 60))
def test_everything_else_is_as_it_was_and_what_was_wrong_is_wrong(seed: int) -> None:
    rng = random.Random(seed)
    samples = [sample(rng) for _ in range(20)]
    _, before, _, after = both(samples, believed=True)
    assert len(before) == len(after)
    for name in KEPT:
        if name != "pkey":  # a bit turned in it makes it one of another partition
            assert before[name].tolist() == after[name].tolist(), name


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 1 << 60), wrong=st.booleans(), ipv6=st.booleans())
def test_a_udp_checksum_is_made_right_again_or_stays_wrong(seed: int, wrong: bool, ipv6: bool) -> None:
    rng = random.Random(seed)
    src, dst = (_address(rng, ipv6) for _ in "ab")
    frame = bytearray(build_frame("RC_SEND_ONLY", src=src, dst=dst, payload=rng.randbytes(21), dest_qpn=5))
    udp = 14 + (40 if ipv6 else 20)
    frame[udp + 6 : udp + 8] = (_udp_sum(frame, ipv6) ^ (0x1234 if wrong else 0)).to_bytes(2, "big")
    batch = batch_of([bytes(frame)])
    new = bytearray(redact_batch(batch, *decoded(batch), [], redactor()).frame(0))
    sent = int.from_bytes(new[udp + 6 : udp + 8], "big")
    assert sent != 0
    assert (sent == _udp_sum(new, ipv6)) is not wrong


def _udp_sum(frame: bytearray, ipv6: bool) -> int:
    """By RFC 768's own words, word for word."""
    udp = 14 + (40 if ipv6 else 20)
    addresses = frame[22:54] if ipv6 else frame[26:34]
    segment = frame[udp : udp + 6] + b"\0\0" + frame[udp + 8 :]
    words = (
        bytes(addresses) + struct.pack(">HH", 17, len(segment)) + bytes(segment) + b"\0" * (len(segment) & 1)
    )
    total = sum(struct.unpack(f">{len(words) // 2}H", words))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total or 0xFFFF


# ---------------------------------------------------------------------- MADs, texts, other frames

GUID, QKEY = 0x1122334455667788, 0x0BADCAFE


def test_a_cm_request_keeps_what_connects_and_loses_who_and_what() -> None:
    own = bytes(range(100, 140))
    raw = build_mad(
        "REQ", 77, local_comm_id=5, local_qpn=0x11, starting_psn=99, service_id=0x0106_1234,
        local_ca_guid=GUID, local_qkey=QKEY, path_mtu_code=3,
        primary_local_port_gid=bytes(10) + b"\xff\xff" + bytes((10, 1, 2, 3)),
        primary_remote_port_gid=ip_address("fd00:9::2").packed,
        private_data=build_ip_cm("10.1.2.3", "10.1.2.4", 40_000, own),
    )  # fmt: skip
    r = redactor()
    new = redact_mad(raw, r)
    assert len(new) == len(raw)
    before, after = parse_mad(raw), parse_mad(new)
    assert before is not None
    assert before.cm is not None
    assert after is not None
    assert after.cm is not None
    assert after.fields == before.fields
    for name in ("local_comm_id", "local_qpn", "starting_psn", "service_id", "path_mtu_code"):
        assert after.cm.number(name) == before.cm.number(name)
    assert after.cm.ip_cm is not None
    assert after.cm.ip_cm["source_address"] == after.cm.fields["primary_local_port_gid"] == r.ips["10.1.2.3"]
    assert after.cm.ip_cm["source_port"] == 40_000
    assert after.cm.fields["primary_remote_port_gid"] == r.ips["fd00:9::2"]
    assert after.cm.number("local_ca_guid") == r.guid(GUID) != GUID
    assert after.cm.number("local_qkey") == r.key(QKEY) != QKEY
    assert after.cm.private_data.rstrip(b"\0") == r.data(own)
    for secret in (own, GUID.to_bytes(8, "big"), bytes((10, 1, 2, 3)), ip_address("fd00:9::2").packed):
        assert secret not in new


@settings(max_examples=examples(60))
@given(length=st.integers(0, 256), seed=st.integers(0, 1 << 30))
def test_of_a_mad_cut_anywhere_or_of_another_class_nothing_is_left_over(length: int, seed: int) -> None:
    rng = random.Random(seed)
    raw = bytearray(build_mad("REQ", 77, service_id=0x0106_1234) if seed % 3 else rng.randbytes(256))
    raw[24:] = rng.randbytes(232)
    if seed % 3 == 1:
        raw[32:37] = b"\0\0\0\0\1"  # an IP service
    new = redact_mad(bytes(raw[:length]), redactor())
    assert len(new) == length
    for secret in windows(bytes(raw[24 + 152 : length])):  # private data from the IP addresses on
        assert secret not in new


PERFTEST = (
    b"0000:0001:00001d:533a2f:00000e1c:00005e135cf9b000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:01:10:3e:"
)
PINGPONG = b"0000:000021:59dfd7:00000000000000000000ffff0a01103e"


@pytest.mark.parametrize("text", [PERFTEST, PINGPONG])
def test_of_a_handshake_in_text_the_offer_stays_readable_with_other_keys(text: bytes) -> None:
    from rocekit.track.pairs.handshake import parse_offer

    r = redactor()
    new = redact_offer(b"secret! " + text + b" more secrets", r)
    before, after = parse_offer(text), parse_offer(new)
    assert len(new) == len(text) + 21
    assert before is not None
    assert after is not None
    assert (after.qpn, after.psn) == (before.qpn, before.psn)
    assert after.ip == r.ips[before.ip]
    if before.rkey is not None and before.remote_va is not None:
        assert after.rkey == r.key(before.rkey)
        assert after.remote_va == r.address(before.remote_va)
    assert b"secret" not in new


@pytest.mark.parametrize("wrong", [False, True])
def test_a_handshakes_frame_loses_its_addresses_and_keeps_its_checksums(wrong: bool) -> None:
    batch = batch_of([tcp_frame(PERFTEST, wrong=wrong)])
    decoder = Decoder()
    packets = decoder.decode(batch)
    new = redact_batch(batch, packets, decoder.network, decoder.others.tolist(), redactor()).frame(0)
    old = batch.frame(0)
    assert len(new) == len(old)
    for secret in (old[:6], old[6:12], old[26:30], old[30:34], b"0a:01:10:3e", b"5e135cf9b", b"TIMESTMP"):
        assert secret not in new
    assert _sum16(new[14:34]) == 0
    assert (_sum16(new[26:34] + struct.pack(">HH", 6, len(new) - 34) + new[34:]) == 0) is not wrong
    assert b"0000:0001:00001d:533a2f:" in new


def test_of_a_frame_that_was_not_named_nothing_is_left() -> None:
    arp = b"\xff" * 6 + b"\x9a\x01\x02\x03\x04\x05\x08\x06" + bytes(range(46))
    batch = batch_of([arp, tcp_frame(b"GET / HTTP/1.1 password=hunter2")])
    redacted = redact_batch(batch, *decoded(batch), [1], redactor())
    assert redacted.frame(0) == bytes(len(arp))
    assert b"hunter2" not in redacted.frame(1)
    assert decoded(redacted)[1].ethertype.tolist() == [0, 0x0800]


# ---------------------------------------------------------------------- the mapping itself


def test_the_same_becomes_the_same_and_the_different_stays_different() -> None:
    r = redactor()
    assert r.ip("10.0.0.1") == r.ip("::ffff:10.0.0.1") == "198.18.0.1"
    assert r.ip("10.0.0.2") == "198.18.0.2"
    assert r.ip("FD00::0:7") == r.ip("fd00::7") == "2001:db8::1"
    assert r.ip("fe80::1234") == "fe80::1"
    assert r.ip("239.1.2.3") == "233.252.0.1"
    assert r.ip("0.0.0.0") == "0.0.0.0"
    assert r.ip("not an address") == "::"
    macs = {r.mac(number) for number in range(1, 2000)}
    assert len(macs) == 1999
    assert all(mac >> 40 & 3 == 2 for mac in macs)
    assert r.mac(0x0180C2000001) == 0x0180C2000001
    assert r.mac(0xFFFFFFFFFFFF) == 0xFFFFFFFFFFFF
    assert r.mac(0x333300000001) >> 40 & 1
    assert r.pkey(0xFFFF) == 0xFFFF
    assert r.pkey(0x8123) & 0x8000
    assert r.pkey(0x8123) == r.pkey(0x0123) | 0x8000


def test_no_address_stands_for_one_that_is_in_the_capture() -> None:
    r = Redactor(SECRET, taken=["198.18.0.1", "2001:db8::1"])
    assert r.ip("10.0.0.1") == "198.18.0.2"
    assert r.ip("198.18.0.1") == "198.18.0.3"
    assert r.ip("2001:db8::1") == "2001:db8::2"


def test_without_a_secret_nobody_can_make_the_same() -> None:
    assert Redactor().mac(1) != Redactor().mac(1)
    assert Redactor().data(b"x" * 32) != Redactor().data(b"x" * 32)
