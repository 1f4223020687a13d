"""Captures with the structure of real ones and something wrong in them: frames, pcap, pcapng, compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import struct
from dataclasses import dataclass
from typing import Any

from capture_bytes import Frame, block, option, pcap, section

from rocekit.wire import OPCODES, RETH
from rocekit.wire.build import build_frame, build_ip_cm, build_mad
from rocekit.wire.cm import CM_MESSAGES

START_NS = 1_700_000_000_000_000_000
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
HOSTS_6 = ("fd00::1", "fd00::2")
TEXTS = (
    "",
    "x",
    "\x1b[2J",
    "\u202eevil",
    "a\nb",
    "=1+1",
    "<script>",
    "\ud800",
    "é" * 300,
    "10.0.0.1",
    "\0",
    "'\"",
)
NUMBERS: tuple[int, ...] = (
    0,
    1,
    2,
    255,
    4096,
    1 << 23,
    (1 << 24) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
)
NUMBERS += ((1 << 64) - 1, 1 << 64, -1, -(1 << 31), -(1 << 63))
RC = [o.name for o in OPCODES.values() if o.transport == "RC"]
ALL = [o.name for o in OPCODES.values()]


@dataclass(frozen=True)
class HostileInput:
    """A file that someone else made: its kind (whose commands read it), the end of its name, its bytes."""

    kind: str
    suffix: str
    data: bytes


# ---------------------------------------------------------------------- frames


def packet(rng: random.Random, psn: int, opcode: str, reverse: bool, v6: bool = False) -> bytes:
    """A frame with right checksums; what its headers say may be anything."""
    both = (HOSTS_6 if v6 else HOSTS)[:2]
    src, dst = both[::-1] if reverse else both
    known = next(o for o in OPCODES.values() if o.name == opcode)
    fields: dict[str, Any] = {"dest_qpn": 0x11 if reverse else 0x12}
    has = {f.name for h in known.headers for f in h.fields}
    if RETH in known.headers:
        fields |= {
            "remote_va": 0x1000,
            "rkey": 7,
            "dma_length": rng.choice((0, 64, 1024, 4096, 1 << 31, 2**32 - 1)),
        }
    if "syndrome" in has:
        fields |= {
            "syndrome": rng.choice((0x1F, 0, 0x60, 0x61, 0x62, 0x63, 0x20, 0x3F, 0x80, 0xFF)),
            "msn": psn & 0xFF,
        }
    if "src_qpn" in has:
        fields["src_qpn"] = 0x12 if reverse else 0x11
    if rng.random() < 0.1:
        fields["dest_qpn"] = rng.choice((0, 1, 2, 0xFFFFFF, rng.getrandbits(24)))
    if rng.random() < 0.3:
        fields["ackreq"] = 1
    payload = bytes(rng.choice((0, 1, 4, 64, 1024))) if known.payload else b""
    if opcode == "UD_SEND_ONLY" and rng.random() < 0.6:
        fields["dest_qpn"], fields["src_qpn"] = 1, 1
        payload = management(rng, src, dst)
    around: dict[str, Any] = {"ecn": rng.choice((0, 2, 3)), "dscp": rng.choice((0, 26))}
    if not v6:
        around["identification"] = psn & 0xFFFF if rng.random() < 0.8 else rng.choice((0, 7))
    if rng.random() < 0.05:
        around["vlan"] = rng.choice((0, 5, (5, 6)))
    if rng.random() < 0.03:
        around["roce_version"] = 1
        around.pop("identification", None)
    return build_frame(opcode, src=src, dst=dst, psn=psn & 0xFFFFFF, payload=payload, **around, **fields)


def management(rng: random.Random, src: str, dst: str) -> bytes:
    """A CM message with some fields that mean something."""
    name = rng.choice(list(CM_MESSAGES))
    fields: dict[str, Any] = {}
    for f in CM_MESSAGES[name].fields:
        if f.reserved or f.is_bytes or rng.random() < 0.5:
            continue
        fields[f.name] = rng.choice((0, 1, 0x11, 0x12, rng.getrandbits(f.bits))) & (1 << f.bits) - 1
    if name == "REQ":
        fields |= {"service_id": 0x0106_4853, "private_data": build_ip_cm(src, dst, 4_000)}
    return build_mad(name, rng.choice((1, 2, rng.getrandbits(64))), **fields)


def frames(rng: random.Random) -> list[Frame]:
    """A conversation: runs of messages, with what a network and hostile hosts do to them."""
    now, psn, found = START_NS, rng.choice((0, 100, 0xFFFFF0)), []
    v6, names = rng.random() < 0.1, rng.choice((RC, RC, ALL))
    style = rng.randrange(4)
    back = 0
    for _ in range(rng.choice((1, 3, 10, 40))):
        now += (
            rng.choice((0, 100, 1_000, 1_000_000, 200_000_000))
            if rng.random() < 0.98
            else rng.randrange(-(10**9), 10**9)
        )
        reverse, opcode, number = rng.random() < 0.4, rng.choice(names), psn
        if style == 0:  # SENDs and their ACKs
            reverse, opcode = (True, "RC_ACKNOWLEDGE") if rng.random() < 0.3 else (False, "RC_SEND_ONLY")
        elif style == 1:  # WRITEs
            place = rng.choice(("FIRST", "MIDDLE", "LAST", "ONLY"))
            reverse, opcode = (
                (True, "RC_ACKNOWLEDGE") if rng.random() < 0.2 else (False, f"RC_RDMA_WRITE_{place}")
            )
        elif style == 2:  # READs
            place = rng.choice(("FIRST", "MIDDLE", "LAST", "ONLY"))
            reverse = rng.random() < 0.7
            opcode = f"RC_RDMA_READ_RESPONSE_{place}" if reverse else "RC_RDMA_READ_REQUEST"
        if rng.random() < 0.15:
            number = psn - rng.choice((1, 2, 8, 64, 1 << 16, 1 << 23))
        elif rng.random() < 0.1:
            psn += rng.choice((1, 2, 70, 1 << 16, 1 << 22))
            number = psn
        data = packet(rng, number, opcode, reverse, v6)
        if not reverse and number == psn:
            psn += 1
        found.append(Frame(changed(rng, data) if rng.random() < 0.15 else data, max(0, now)))
        if rng.random() < 0.05 and back < 5:
            back += 1
            found.append(found[rng.randrange(len(found))])
        if rng.random() < 0.05:
            cut = rng.randrange(len(data))
            found.append(Frame(data[:cut], max(0, now), rng.choice((len(data), cut, 0, 65535))))
    if rng.random() < 0.1:
        rng.shuffle(found)
    return found


def changed(rng: random.Random, data: bytes) -> bytes:
    """A few bytes replaced, mostly in headers."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        out[rng.randrange(min(len(out), 90))] = rng.choice((0, 0xFF, 0x80, rng.randrange(256)))
    return bytes(out)


# ---------------------------------------------------------------------- captures


def capture_pcap(rng: random.Random) -> HostileInput:
    linktype = 1 if rng.random() < 0.9 else rng.choice((0, 101, 113, 127, 228, 247, 276, 147, 65535))
    order, unit = rng.choice("<>"), rng.choice(("us", "ns"))
    data = pcap(frames(rng), order, unit, linktype, rng.choice((65535, 0, 96)))
    return HostileInput("capture", *packed(rng, damaged(rng, data), ".pcap"))


def capture_pcapng(rng: random.Random) -> HostileInput:
    parts = [section()]
    usual = b""
    if rng.random() < 0.5:
        usual += option(9, bytes([rng.choice((9, 6, 0, 127, 128, 0x80 | 63, 255, rng.randrange(256)))]))
    if rng.random() < 0.2:
        usual += option(
            14, struct.pack("<q", rng.choice((0, -1, 1 << 33, -(1 << 62), (1 << 63) - 1, -(1 << 63))))
        )
    if rng.random() < 0.3:
        usual += option(2, rng.choice(TEXTS).encode("utf-8", "surrogatepass"))
    parts.append(block(1, struct.pack("<HHI", 1, 0, 0) + usual))
    for frame in frames(rng):
        at = (
            rng.choice((frame.time_ns, frame.time_ns // 1000, rng.getrandbits(64)))
            if rng.random() < 0.1
            else frame.time_ns // 1000
        )
        head = struct.pack(
            "<IIIII",
            0 if rng.random() < 0.97 else rng.choice(NUMBERS[:6]),
            at >> 32 & 0xFFFFFFFF,
            at & 0xFFFFFFFF,
            len(frame.data),
            frame.on_wire & 0xFFFFFFFF,
        )
        more = b""
        if rng.random() < 0.1:
            more = option(1, rng.choice(TEXTS).encode("utf-8", "surrogatepass")) + option(0, b"")
        parts.append(block(6, head + frame.data + bytes(-len(frame.data) & 3) + more))
        if rng.random() < 0.02:
            parts.append(
                rng.choice(
                    (section(">"), section(), block(5, struct.pack("<III", 7, 0, 0)), block(4, bytes(8)))
                )
            )
        if rng.random() < 0.02:
            parts.append(block(rng.choice((2, 3, 10, 0x80000001, 0xBAD)), rng.randbytes(rng.randrange(24))))
    return HostileInput("capture", *packed(rng, damaged(rng, b"".join(parts)), ".pcapng"))


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The file cut, or with numbers of its structure replaced; most are left as they are."""
    if rng.random() < 0.7 or len(data) < 8:
        return data
    out = bytearray(data)
    how = rng.randrange(3)
    if how == 0:
        return bytes(out[: rng.randrange(len(out))])
    if how == 1:
        at = rng.randrange(0, len(out) - 4) & ~3
        out[at : at + 4] = struct.pack(
            "<I", rng.choice((0, 1, 3, 16, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, rng.getrandbits(32)))
        )
        return bytes(out)
    at = rng.randrange(len(out))
    out[at:at] = rng.randbytes(rng.randrange(1, 40))
    return bytes(out)


def packed(rng: random.Random, data: bytes, suffix: str) -> tuple[str, bytes]:
    """Compressed, at times, and damaged then."""
    if rng.random() < 0.92:
        return suffix, data
    end, how = rng.choice(((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)))
    return suffix + end, damaged(rng, how(data))
