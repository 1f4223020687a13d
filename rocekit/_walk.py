"""The loops that touch every record of a capture: find where each one begins, copy each one out.

They are kept apart, small and free of NumPy, so that they can be compiled (Cython, pure-Python mode) and run
the same uncompiled. Everything but the record's place is gathered from there in bulk by the caller.
"""

from __future__ import annotations

from struct import Struct

_PCAP_LENGTH = {False: Struct("<I"), True: Struct(">I")}
_BLOCK_HEAD = {False: Struct("<II"), True: Struct(">II")}
_BLOCK_TAIL = {False: Struct("<I"), True: Struct(">I")}
_RING_NEXT = Struct("=I")

PCAP_RECORD = 16  # bytes of a record header: seconds, fraction, captured length, wire length
ENHANCED_PACKET = 6  # block type
ENHANCED_PACKET_LEAST = 32  # an enhanced packet block around no bytes


def walk_pcap(
    buffer: memoryview, start: int, end: int, big_endian: bool, largest: int, out: memoryview, room: int
) -> tuple[int, int]:
    """Writes the place of each whole pcap record in ``buffer[start:end]`` to ``out``, up to ``room`` of them.

    Stops before a record that is not whole, or that claims more than ``largest`` bytes.
    Returns how many were found and where the walk stopped.
    """
    length = _PCAP_LENGTH[big_endian].unpack_from
    last = end - PCAP_RECORD
    place = start
    count = 0
    while place <= last and count < room:
        caplen = length(buffer, place + 8)[0]
        after = place + PCAP_RECORD + caplen
        if caplen > largest or after > end:
            break
        out[count] = place
        count += 1
        place = after
    return count, place


def walk_enhanced(
    buffer: memoryview, start: int, end: int, big_endian: bool, out: memoryview, count: int, room: int
) -> tuple[int, int]:
    """Writes the place of each enhanced packet block from ``start`` on to ``out[count:room]``.

    Stops before a block that is of another type, not whole, or whose two lengths differ or are impossible.
    Returns the new count and where the walk stopped.
    """
    head = _BLOCK_HEAD[big_endian].unpack_from
    tail = _BLOCK_TAIL[big_endian].unpack_from
    last = end - ENHANCED_PACKET_LEAST
    place = start
    while place <= last and count < room:
        kind, total = head(buffer, place)
        after = place + total
        if kind != ENHANCED_PACKET or total < ENHANCED_PACKET_LEAST or total & 3 or after > end:
            break
        if tail(buffer, after - 4)[0] != total:
            break
        out[count] = place
        count += 1
        place = after
    return count, place


def walk_ring(buffer: memoryview, start: int, packets: int, out: memoryview, count: int) -> int:
    """Writes the place of each of ``packets`` headers of a TPACKET_V3 block to ``out`` from ``count`` on.

    Each header's first word is the distance to the next. Returns the new count.
    """
    step = _RING_NEXT.unpack_from
    place = start
    for _ in range(packets):
        out[count] = place
        count += 1
        place += step(buffer, place)[0]
    return count


def copy_frames(
    source: memoryview, offset: list[int], length: list[int], target: memoryview, place: list[int]
) -> None:
    """Copies ``source[offset:offset + length]`` to ``target[place:]`` for each frame."""
    for index in range(len(offset)):
        begin = offset[index]
        size = length[index]
        to = place[index]
        target[to : to + size] = source[begin : begin + size]
