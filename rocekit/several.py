"""Several captures of the same traffic: frames seen twice are recognised, clocks aligned, one sequence made.

A packet is recognised by what no switch changes (addresses, QPN, opcode, PSN, IP identification, ICRC) and by
being the k-th of its kind: never by its time. What both captures saw bounds the offset of their clocks: a
packet from one host reaches one capture point before the other, and packets the other way the other way
round, so that the true offset lies between the two directions' differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rocekit.decode import Packets

_IDENTITY: Final = (
    *("src", "dst", "dest_qpn", "opcode", "psn", "ip_id", "payload_length", "icrc", "syndrome", "msn"),
)
_MIXER: Final = 0x9E37_79B9_7F4A_7C15
_OTHER_MIXER: Final = 0xD6E8_FEB8_6659_FD93


@dataclass(frozen=True, slots=True)
class Alignment:
    """A capture's clock against the first capture's.

    Attributes:
        offset_ns: this capture's time − the first one's, 0 where they share a clock as far as can be told.
        bound_ns: how far the truth may lie from it; None where packets in one direction only, or none, are
        common.
        common: packets that this capture shares with another.
    """

    file: int
    offset_ns: int
    bound_ns: int | None
    common: int


@dataclass(frozen=True, slots=True)
class Merged:
    """One sequence out of several captures.

    Attributes:
        order: indices into the concatenated packets, each packet once, in the order of aligned times.
        time_ns: their aligned times.
        copies: packets left out because another capture has them.
    """

    order: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    copies: int
    alignments: list[Alignment]


def identities(packets: Packets) -> NDArray[np.uint64]:
    """A 64-bit identity a packet, the same wherever it is captured."""
    value = np.zeros(len(packets), np.uint64)
    for name in _IDENTITY:
        column = packets[name].astype(np.int64).view(np.uint64)
        value = (value ^ column) * np.uint64(_MIXER)
        value ^= value >> np.uint64(29)
    return value


def _occurrences(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each element, how many equal ones come before it."""
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    starts = np.flatnonzero(np.r_[True, sorted_keys[1:] != sorted_keys[:-1]])
    lengths = np.diff(np.r_[starts, len(keys)])
    count = np.empty(len(keys), np.int64)
    count[order] = np.arange(len(keys)) - np.repeat(starts, lengths)
    return count


def merge(parts: Sequence[Packets]) -> Merged:
    """Put the packets of several captures together, ``parts[i]`` those of capture ``i``, of one decoder."""
    keys = []
    for packets in parts:
        identity = identities(packets)
        keys.append(identity ^ _occurrences(identity).view(np.uint64) * np.uint64(_OTHER_MIXER))
    alignments = _align(parts, keys)
    times = np.concatenate([p.time_ns - a.offset_ns for p, a in zip(parts, alignments, strict=True)])
    every = np.concatenate(keys)
    by_time = np.lexsort((np.arange(len(every)), times))
    _, first = np.unique(every[by_time], return_index=True)
    order = by_time[np.sort(first)]
    return Merged(order, times[order], len(every) - len(order), alignments)


def _align(parts: Sequence[Packets], keys: list[NDArray[np.uint64]]) -> list[Alignment]:
    """Offsets relative to the first capture, along whatever chains of common packets there are."""
    found: dict[int, Alignment] = {0: Alignment(0, 0, 0, 0)}
    while len(found) < len(parts):
        best: Alignment | None = None
        for known in list(found.values()):
            for file in range(len(parts)):
                if file in found:
                    continue
                link = _pair(parts[known.file], keys[known.file], parts[file], keys[file])
                if link is not None and (best is None or link[2] > best.common):
                    bound = None if link[1] is None or known.bound_ns is None else known.bound_ns + link[1]
                    best = Alignment(file, known.offset_ns + link[0], bound, link[2])
        if best is None:  # nothing in common: their own clocks are all there is
            file = next(i for i in range(len(parts)) if i not in found)
            best = Alignment(file, 0, None, 0)
        found[best.file] = best
    return [found[i] for i in range(len(parts))]


def _pair(
    a: Packets, a_keys: NDArray[np.uint64], b: Packets, b_keys: NDArray[np.uint64]
) -> tuple[int, int | None, int] | None:
    """(offset of ``b`` against ``a``, its bound, packets in common), or None without any."""
    _, in_a, in_b = np.intersect1d(a_keys, b_keys, assume_unique=False, return_indices=True)
    if not len(in_a):
        return None
    ahead = b.time_ns[in_b] - a.time_ns[in_a]
    sources = a.src[in_a]
    medians = [int(np.median(ahead[sources == source])) for source in np.unique(sources)]
    low, high = min(medians), max(medians)
    if low <= 0 <= high and high - low < 1_000_000_000:
        offset = 0
    else:
        offset = (low + high) // 2
    return offset, (high - low + 1) // 2 if len(medians) > 1 else None, len(in_a)
