# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""The loops over every record of a capture: find where each record starts, and copy frames.

They are small and without NumPy, so that they can be compiled (see setup.py). The caller reads everything
else of the records in bulk. It also makes sure that ``buffer`` and ``out`` are long enough for the numbers
beside them: compiled, nothing checks that.
"""

from __future__ import annotations

import sys

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

PCAP_RECORD = 16  # bytes of a record header: seconds, fraction, captured length, wire length
PCAP_COLUMNS = 5  # of what ``walk_pcap`` writes
ENHANCED_PACKET = 6  # block type
ENHANCED_PACKET_LEAST = 32  # an enhanced packet block around no bytes

# The same as C numbers, where compiled.
_RECORD = PCAP_RECORD
_ENHANCED = ENHANCED_PACKET
_ENHANCED_LEAST = ENHANCED_PACKET_LEAST
# So many records before it is read, a record's header is asked for.
_AHEAD = 4


def _word(first: int, second: int, third: int, fourth: int, big_endian: bool) -> int:
    """The 32-bit number of four bytes."""
    # The types are wide: compiled, a shifted byte would be a C int, its highest bit the sign.
    if big_endian:
        return first << 24 | second << 16 | third << 8 | fourth
    return fourth << 24 | third << 16 | second << 8 | first


def walk_pcap(
    buffer: memoryview, start: int, end: int, big_endian: bool, largest: int, out: memoryview, room: int
) -> tuple[int, int]:
    """Write what the headers of the whole pcap records in ``buffer[start:end]`` say to ``out``.

    It has ``PCAP_COLUMNS`` columns of ``room`` numbers, one behind the other: where each record's frame
    starts, its seconds, their fraction, its captured length and its length on the wire. Stops before a record
    that is not whole, or whose header says more than ``largest`` bytes. Returns how many were found and where
    it stopped.
    """
    last = end - _RECORD
    place = start
    count = 0
    with cython.nogil:
        while place <= last and count < room:
            caplen = _word_at(buffer, place + 8, big_endian)
            after = place + _RECORD + caplen
            if caplen > largest or after > end:
                break
            out[count] = place + _RECORD
            out[room + count] = _word_at(buffer, place, big_endian)
            out[2 * room + count] = _word_at(buffer, place + 4, big_endian)
            out[3 * room + count] = caplen
            out[4 * room + count] = _word_at(buffer, place + 12, big_endian)
            count += 1
            if cython.compiled:
                # If the next records are as long. Each header says where the next one is, so the processor
                # cannot ask for them by itself, and would wait for one after the other.
                ahead = after + _AHEAD * (after - place)
                if ahead < end:
                    prefetch(cython.address(buffer[ahead]))  # type: ignore  # noqa: F821
            place = after
    return count, place


def _word_at(buffer: memoryview, place: int, big_endian: bool) -> int:
    return _word(buffer[place], buffer[place + 1], buffer[place + 2], buffer[place + 3], big_endian)


def walk_enhanced(
    buffer: memoryview, start: int, end: int, big_endian: bool, out: memoryview, count: int, room: int
) -> tuple[int, int]:
    """Write the places of the enhanced packet blocks from ``start`` on to ``out[count:room]``.

    Stops before a block that is of another type, not whole, or whose two lengths differ or are impossible.
    Returns the new count and where it stopped.
    """
    last = end - _ENHANCED_LEAST
    place = start
    while place <= last and count < room:
        total = _word(buffer[place + 4], buffer[place + 5], buffer[place + 6], buffer[place + 7], big_endian)
        after = place + total
        if (
            _word(buffer[place], buffer[place + 1], buffer[place + 2], buffer[place + 3], big_endian)
            != _ENHANCED
            or total < _ENHANCED_LEAST
        ):
            break
        if (
            total & 3
            or after > end
            or _word(buffer[after - 4], buffer[after - 3], buffer[after - 2], buffer[after - 1], big_endian)
            != total
        ):
            break
        out[count] = place
        count += 1
        place = after
    return count, place


def walk_ring(buffer: memoryview, start: int, packets: int, out: memoryview, count: int) -> int:
    """Write the places of ``packets`` headers of a TPACKET_V3 block to ``out``, from ``count`` on.

    Each header's first word is the distance to the next. Returns the new count.
    """
    big_endian = sys.byteorder == "big"
    place = start
    for _ in range(packets):
        out[count] = place
        count += 1
        place += _word(buffer[place], buffer[place + 1], buffer[place + 2], buffer[place + 3], big_endian)
    return count


def copy_frames(
    source: memoryview, offset: list[int], length: list[int], target: memoryview, place: list[int]
) -> None:
    """Copy ``source[offset:offset + length]`` to ``target[place:]`` for each frame."""
    for index in range(len(offset)):
        begin = offset[index]
        size = length[index]
        to = place[index]
        target[to : to + size] = source[begin : begin + size]
