"""Synthetic packets as bytes: one frame for each opcode and length is built, copied, and filled by columns.

The ICRC is linear over bits: changing a byte changes it by an amount that depends only on the change and on
how many bytes follow. So a frame's ICRC is its template's, changed by a looked-up amount for each byte in
which the two differ.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.craft.traffic import Traffic
from rocekit.craft.traffic_columns import Columns, Ints, qpn
from rocekit.files.growing import GrowingFile
from rocekit.files.new_file import not_written
from rocekit.files.outputs import name_of
from rocekit.standard_output import standard_output
from rocekit.wire import BTH, ICRC_BYTES
from rocekit.wire.build import LEAST_SOURCE_PORT, build_frame
from rocekit.wire.byte_rows import scatter
from rocekit.wire.network import IPV4_BYTES, IPV6_BYTES, UDP_BYTES

Bytes = NDArray[np.uint8]

LEAST_SNAPLEN: Final = 64
#: Packets turned into bytes at once: their frames are in memory.
_CHUNK: Final = 1 << 14
_WHOLE: Final = 262_144
_ETHERNET, _VLAN_TAG = 14, 4
_IP_BYTES: Final = {4: IPV4_BYTES, 6: IPV6_BYTES}
_SPORTS: Final = (1 << 16) - LEAST_SOURCE_PORT
_RKEY: Final = 0x1000


@cache
def host(number: int, ip_version: int) -> str:
    """The address of a host, from 0."""
    if ip_version == 4:
        return str(IPv4Address((10 << 24) + number + 1))
    return str(IPv6Address((0xFD00 << 112) + number + 1))


@cache
def _crc_table() -> NDArray[np.uint32]:
    zero = zlib.crc32(b"\0")
    return np.array([zlib.crc32(bytes([v])) ^ zero for v in range(256)], np.uint32)


def _amounts(following: list[int]) -> dict[int, NDArray[np.uint32]]:
    """The change of the CRC for each of the 256 changes of a byte, by the number of bytes that follow it."""
    table, found = _crc_table(), {}
    amount = table.copy()
    for distance in range(max(following) + 1):
        if distance in following:
            found[distance] = amount.copy()
        amount = (amount >> 8) ^ table[amount & 0xFF]
    return found


@dataclass(slots=True)
class _Template:
    """The record of one kind of packet: its bytes, where its fields are, how they change the ICRC."""

    record: Bytes
    frame: Bytes
    fields: dict[str, tuple[int, int]]  # column: (place in the frame, bytes)
    amounts: dict[int, NDArray[np.uint32]]  # by place in the frame


class FrameWriter:
    """Writes the packets of :func:`rocekit.craft.traffic_rounds.rounds` as a pcap or pcapng file.

    Raises:
        ValueError: ``snaplen`` is too small for an analysis.
        CaptureError: the file cannot be written.
    """

    def __init__(self, target: str | Path | BinaryIO, traffic: Traffic, snaplen: int | None = None) -> None:
        if snaplen is not None and snaplen < LEAST_SNAPLEN:
            raise ValueError(f"snaplen must be at least {LEAST_SNAPLEN}")
        self._traffic = traffic
        self._snaplen = _WHOLE if snaplen is None else snaplen
        self._link = _ETHERNET + (_VLAN_TAG if traffic.vlan is not None else 0)
        self._ip = _IP_BYTES[traffic.ip_version]
        rng = np.random.default_rng(traffic.seed)
        self._payload = rng.integers(0, 256, traffic.mtu, np.uint8).tobytes()
        self._templates: dict[tuple[int, int], _Template] = {}
        self.bytes = 0
        self._file: Any = target
        self._name = name_of(target)
        self._growing: GrowingFile | None = None
        if target == "-":
            self._file = standard_output()
        elif isinstance(target, str | Path):
            self._growing = GrowingFile(target)
            self._file = self._growing.file
        self._pcapng = self._name.endswith(".pcapng")
        if self._pcapng:
            from rocekit.files.pcapng_write import PcapngWriter

            PcapngWriter(self, snaplen=self._snaplen)  # type: ignore[arg-type]  # its head only
        else:
            self._put(Struct("<IHHiIII").pack(0xA1B23C4D, 2, 4, 0, 0, self._snaplen, 1))

    def write(self, packets: Columns | bytes) -> None:
        """Write packets, later than all before (or bytes as they are)."""
        if isinstance(packets, bytes | memoryview):
            self._put(packets)
            return
        for start in range(0, len(packets), _CHUNK):
            self._put(self._records(packets.take(slice(start, start + _CHUNK))).data)

    def _put(self, data: Any) -> None:
        view = memoryview(data)
        self.bytes += len(view)
        try:
            while len(view):
                view = view[self._file.write(view) :]
        except OSError as error:
            if self._growing is not None:
                raise self._growing.failed(error) from None
            raise not_written(error, self._name) from None

    def close(self) -> None:
        if self._growing is not None:
            self._growing.close()

    def __enter__(self) -> FrameWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ bytes

    def _records(self, packets: Columns) -> Bytes:
        kind = packets.opcode << 16 | packets.payload
        parts = []
        size = np.empty(len(packets), np.int64)
        for key in np.unique(kind).tolist():
            rows = np.flatnonzero(kind == key)
            records = self._fill(self._template(key >> 16, key & 0xFFFF), packets.take(rows))
            size[rows] = records.shape[1]
            parts.append((rows, records))
        after = np.cumsum(size)
        place = after - size
        out = np.empty(int(after[-1]), np.uint8)
        for rows, records in parts:
            scatter(out, place[rows], records)
        return out

    def _template(self, opcode: int, payload: int) -> _Template:
        template = self._templates.get((opcode, payload))
        if template is None:
            template = self._templates[opcode, payload] = self._make(opcode, payload)
        return template

    def _make(self, opcode: int, payload: int) -> _Template:
        traffic = self._traffic
        known = wire.OPCODES[opcode]
        frame = build_frame(
            opcode,
            src=host(0, traffic.ip_version),
            dst=host(0, traffic.ip_version),
            payload=self._payload[:payload],
            vlan=traffic.vlan,
            ackreq=int(known.ends and not known.response),
        )
        udp = self._link + self._ip
        bth = udp + UDP_BYTES
        fields = {"sport": (udp, 2)}
        start = bth
        for header in (BTH, *known.headers):
            for f in header.fields:
                if f.offset % 8 == 0 and f.bits % 8 == 0:
                    fields.setdefault(f.name, (start + f.offset // 8, f.bits // 8))
            start += header.length
        end = {4: (16, 20), 6: (24, 40)}[traffic.ip_version]  # where source and destination end
        fields |= {"src": (self._link + end[0] - 3, 3), "dst": (self._link + end[1] - 3, 3)}
        if traffic.ip_version == 4:
            fields["ip_id"] = (self._link + 4, 2)
        wanted = ("sport", "src", "dst", "ip_id", "dest_qpn", "psn", "remote_va", "rkey", "dma_length")
        fields = {name: fields[name] for name in (*wanted, "syndrome", "msn") if name in fields}
        places = [at + i for at, width in fields.values() for i in range(width)]
        behind = {place: len(frame) - ICRC_BYTES - 1 - place for place in places}
        amounts = _amounts(list(behind.values()))
        return _Template(
            self._record(frame),
            np.frombuffer(frame, np.uint8),
            fields,
            {place: amounts[distance] for place, distance in behind.items()},
        )

    def _record(self, frame: bytes) -> Bytes:
        """A record with a frame, without its time."""
        kept = frame[: self._snaplen]
        if self._pcapng:
            total = 32 + len(kept) + -len(kept) % 4
            head = Struct("<IIIIIII").pack(6, total, 0, 0, 0, len(kept), len(frame))
            record = head + kept + bytes(-len(kept) % 4) + Struct("<I").pack(total)
        else:
            record = Struct("<IIII").pack(0, 0, len(kept), len(frame)) + kept
        return np.frombuffer(record, np.uint8)

    def _fill(self, template: _Template, packets: Columns) -> Bytes:
        """The template's record once for each packet, with the packet's own fields."""
        n, traffic = len(packets), self._traffic
        records = np.empty((n, len(template.record)), np.uint8)
        records[:] = template.record
        if self._pcapng:
            stamp = np.stack([packets.time_ns >> 32, packets.time_ns & 0xFFFF_FFFF], axis=1)
            records[:, 12:20] = stamp.astype("<u4").view(np.uint8)
            head = 28
        else:
            stamp = np.stack(np.divmod(packets.time_ns, 1_000_000_000), axis=1)
            records[:, 0:8] = stamp.astype("<u4").view(np.uint8)
            head = 16
        frame = records[:, head:]
        kept = min(self._snaplen, len(template.frame))
        crc = np.full(n, int.from_bytes(template.frame[-ICRC_BYTES:].tobytes(), "little"), np.uint32)
        for name, values in self._values(packets).items():
            if name not in template.fields:
                continue
            at, width = template.fields[name]
            octets = values.astype(">u8").view(np.uint8).reshape(n, 8)[:, 8 - width :]
            for i in range(width):
                place, octet = at + i, octets[:, i]
                crc ^= template.amounts[place][octet ^ template.frame[place]]
                if place < kept:
                    frame[:, place] = octet
        whole = len(template.frame) - kept
        if whole < ICRC_BYTES:
            tail = crc.astype("<u4").view(np.uint8).reshape(n, ICRC_BYTES)
            frame[:, kept + whole - ICRC_BYTES : kept] = tail[:, : ICRC_BYTES - whole]
        ip = self._link
        # The ICRC leaves out the traffic class and IPv4's checksum.
        if traffic.ip_version == 4:
            frame[:, ip + 1] |= packets.ecn.astype(np.uint8)
            frame[:, ip + 10 : ip + 12] = _checksum(frame[:, ip : ip + 20])
        else:
            frame[:, ip + 1] |= (packets.ecn << 4).astype(np.uint8)
        return records

    def _values(self, packets: Columns) -> dict[str, Ints]:
        traffic = self._traffic
        here = packets.pair % (traffic.hosts // 2) * 2
        values = {
            "src": here + packets.from_b + 1,
            "dst": here + ~packets.from_b + 1,
            "sport": LEAST_SOURCE_PORT + packets.pair % _SPORTS,
            "dest_qpn": qpn(packets.pair, ~packets.from_b, traffic.pairs),
            "psn": packets.psn,
            "remote_va": packets.remote_va,
            "rkey": _RKEY + packets.pair,
            "dma_length": packets.dma_length,
            "syndrome": packets.syndrome,
            "msn": packets.msn,
            "ip_id": packets.ip_id,
        }
        return {name: np.asarray(column, np.int64) for name, column in values.items()}


def _checksum(headers: Bytes) -> Bytes:
    """The IPv4 header checksums of headers of 20 bytes."""
    words = np.ascontiguousarray(headers).view(">u2").astype(np.uint32)
    words[:, 5] = 0
    total = words.sum(axis=1)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).astype(">u2").view(np.uint8).reshape(len(headers), 2)
