"""The TCP exchanges of NCCL, its structs as the C compiler lays them out (ctypes), and captures with them."""

from __future__ import annotations

import ctypes
import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capture_bytes import Frame
from handmade import checksum

from rocekit.wire.build import build_frame

#: What stood on the stack before, in fields that NCCL does not set.
JUNK = bytes.fromhex("7fffdeadbeef55aa") * 1024
NOTHING = bytes(8192)
MAGIC = 0x564AB9F2FC4B9D6C


def _gid(ip: str) -> bytes:
    address = ipaddress.ip_address(ip)
    return address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed


def _record(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(name, (ctypes.LittleEndianStructure,), {"_fields_": list(fields)})


U8, U32, I32, U64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64
GID = _record("Gid", ("prefix", U64), ("id", U64))
ECE = _record("Ece", ("vendor", U32), ("options", U32), ("mask", U32))
_END = (("spn", U64), ("iid", U64), ("mtu", U32), ("rkey", U32), ("address", U64))
ONE = _record("One", ("lid", U32), ("port", U8), ("qpn", U32 * 1), *_END)
MANY = _record("Many", ("lid", U32), ("port", U8), ("qpn", U32 * 128), *_END)
LINKED = _record("Linked", ("lid", U32), ("port", U8), ("link", U8), ("qpn", U32 * 128), *_END)
WITH_ECE = _record(
    "WithEce", ("lid", U32), ("port", U8), ("link", U8), ("qpn", U32 * 128), ("ece", ECE * 128),
    ("supported", I32 * 128), *_END,
)  # fmt: skip
QP = _record("Qp", ("qpn", U32), ("ece", ECE), ("supported", I32), ("device", I32))
_DEVICE = (("lid", U32), ("port", U8), ("mtu", U32), ("link", U8))
OLD_DEVICE = _record("Old", *_DEVICE, ("spn", U64), ("iid", U64), ("rkey", U32), ("remote", GID))
DEVICE = _record("Device", *_DEVICE, ("gid", GID), ("rkey", U32), ("remote", GID))


def _metadata(devices: int, name: int, spare: int, device: Any, *end: tuple[str, Any]) -> Any:
    return _record(
        "Metadata", ("qps", QP * 128), ("spare", QP * spare), ("devices", device * devices),
        ("name", ctypes.c_char * (name * devices + devices)), ("address", U64), ("count", I32), *end,
    )  # fmt: skip


_CLASS = (("tc", I32), ("sl", I32))
VERSIONS: dict[str, Any] = {
    "2.9": ONE,
    "2.11": MANY,
    "2.15": LINKED,
    "2.18": LINKED,
    "2.19": WITH_ECE,
    "2.20": _metadata(2, 64, 0, OLD_DEVICE),
    "2.23": _metadata(2, 64, 0, DEVICE),
    "2.24": _metadata(4, 64, 0, DEVICE),
    "2.26": _metadata(4, 64, 0, DEVICE, *_CLASS),
    "2.28": _metadata(4, 80, 0, DEVICE, *_CLASS),
    "2.29.7": _metadata(4, 80, 4, DEVICE, *_CLASS),
    "2.30": _metadata(8, 80, 16, DEVICE, *_CLASS),
}
WITHOUT_HELLO = ("2.9", "2.11", "2.15")
WITH_LISTS = {"2.24": 4, "2.26": 4, "2.28": 4, "2.29.7": 4, "2.30": 8}


def made(version: str, ips: Sequence[str], qpns: Sequence[int], before: bytes = NOTHING) -> bytes:
    """The struct of an end with these devices and QPs, in memory that held ``before``."""
    kind = VERSIONS[version]
    new = kind.from_buffer_copy(before)
    if version in WITH_LISTS:
        ctypes.memset(ctypes.byref(new), 0, ctypes.sizeof(new))
    if not hasattr(kind, "qps"):
        prefix, identity = struct.unpack("<QQ", _gid(ips[0]))
        new.lid, new.port, new.mtu, new.rkey, new.address = 0, 1, 3, 0x1234, 0x7F0000001000
        new.spn, new.iid = prefix, identity
        if hasattr(kind, "link"):
            new.link = 2
        for n, qpn in enumerate(qpns):
            new.qpn[n] = qpn
        return bytes(new)
    for n, qpn in enumerate(qpns):
        new.qps[n].qpn, new.qps[n].device, new.qps[n].supported = qpn, n % len(ips), 1
        new.qps[n].ece.vendor = 0x15B3
    for device, ip in zip(new.devices, ips, strict=False):
        prefix, identity = struct.unpack("<QQ", _gid(ip))
        device.lid, device.port, device.mtu, device.link, device.rkey = 0, 1, 5, 2, 0x4321
        if hasattr(device, "gid"):
            device.gid.prefix, device.gid.id = prefix, identity
        else:
            device.spn, device.iid = prefix, identity
    ctypes.memset(ctypes.byref(new, kind.name.offset), 0, kind.name.size)  # strncpy fills with zeros
    new.name, new.address, new.count = b"mlx5_0+mlx5_1", 0x7F0000002000, len(ips)
    return bytes(new)


@dataclass
class End:
    """An end of the TCP connection."""

    ip: str
    port: int
    next: int


def hello(version: str) -> bytes:
    return b"" if version in WITHOUT_HELLO else struct.pack("<QI", MAGIC, 4)


def device_list(version: str, devices: int) -> bytes:
    places = WITH_LISTS.get(version)
    if places is None:
        return b""
    numbers = [devices, *range(devices)]
    return struct.pack(f"<{1 + places}i", *numbers, *[0] * (places - devices)) + bytes(places == 8)


def segment(source: End, target: End, data: bytes, flags: int = 0x18, vlan: bool = False) -> bytes:
    """A TCP segment in an Ethernet frame; the source's next sequence number moves on."""
    addresses = [ipaddress.ip_address(end.ip) for end in (source, target)]
    head = struct.pack(
        ">HHIIBBHHH", source.port, target.port, source.next, target.next, 0x80, flags, 500, 0, 0
    )
    tcp = head + b"\1\1\x08\x0a" + b"TIMESTMP" + data
    source.next = (source.next + len(data) + bool(flags & 2)) & 0xFFFFFFFF
    if addresses[0].version == 6:
        ip = struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + addresses[0].packed + addresses[1].packed
    else:
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 5, 0x4000, 64, 6, 0)
        ip += addresses[0].packed + addresses[1].packed
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    kind = b"\x86\xdd" if addresses[0].version == 6 else b"\x08\x00"
    tag = b"\x81\x00\x00\x05" if vlan else b""
    return b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01" + tag + kind + ip + tcp


def exchange(
    version: str,
    structs: tuple[bytes, bytes],
    *,
    hosts: tuple[str, str] = ("192.168.0.1", "192.168.0.2"),
    devices: tuple[int, int] = (1, 1),
    ports: tuple[int, int] = (40000, 45678),
    size: int = 1448,
    starts: tuple[int, int] = (0xFFFFFF00, 77),
    syn: bool = True,
    vlan: bool = False,
) -> list[bytes]:
    """The frames of one exchange, the end that connects first."""
    a, b = End(hosts[0], ports[0], starts[0]), End(hosts[1], ports[1], starts[1])
    frames: list[bytes] = []

    def say(source: End, target: End, data: bytes) -> None:
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        frames.extend(segment(source, target, piece, vlan=vlan) for piece in pieces)
        if data:
            frames.append(segment(target, source, b"", 0x10, vlan=vlan))

    if syn:
        frames += [segment(a, b, b"", 2, vlan=vlan), segment(b, a, b"", 0x12, vlan=vlan)]
        frames.append(segment(a, b, b"", 0x10, vlan=vlan))
    greeting = hello(version)
    say(a, b, greeting[:8])
    say(a, b, greeting[8:])
    say(a, b, device_list(version, devices[0]))
    say(b, a, device_list(version, devices[1]))
    say(a, b, structs[0])
    say(b, a, structs[1])
    if greeting:
        say(a, b, struct.pack("<i", 1))
    return frames


def in_step(pairs: Sequence[tuple[tuple[str, int], tuple[str, int]]], rounds: int = 6) -> list[bytes]:
    """Flows of QPs that start at PSN 0, use one source port and are answered alike: nothing pairs them."""
    frames = []
    for psn in range(rounds):
        for (here, _), (there, qpn) in pairs:
            frames.append(
                build_frame(
                    "RC_SEND_ONLY", payload=bytes(64), src=here, dst=there, dest_qpn=qpn, psn=psn,
                    sport=50000, ackreq=1,
                )
            )  # fmt: skip
        for (here, qpn), (there, _) in reversed(pairs):
            frames.append(
                build_frame(
                    "RC_ACKNOWLEDGE", src=there, dst=here, dest_qpn=qpn, psn=psn, sport=50000, syndrome=0
                )
            )
    return frames


def timed(frames: Sequence[bytes], snaplen: int = 65535) -> list[Frame]:
    start = 1_700_000_000_000_000_000
    return [Frame(f[:snaplen], start + 10_000 * n, len(f)) for n, f in enumerate(frames)]
