"""Several captures of the same traffic as one sequence: packets seen twice are found, clocks aligned.

Two captures have the same packet if all that no switch changes is equal (addresses, QPN, opcode, PSN, IP
identification, ICRC) and it is the k-th such packet in both; times do not count. The packets that both have
bound the offset of their clocks: those from one host pass one capture point first, those of the opposite
direction the other, so the true offset lies between the time differences of the two directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import ICRC_INVALID, ICRC_UNCHECKED
from rocekit.packets.flow_numbers import MIXER

if TYPE_CHECKING:
    from rocekit.packets import Packets

_IDENTITY: Final = (
    *("src", "dst", "dest_qpn", "opcode", "psn", "ip_id", "payload_length", "syndrome", "msn"),
)
_OTHER_MIXER: Final = 0xD6E8_FEB8_6659_FD93
UNSEEN: Final = -1 << 62
#: Equal packets further apart than this are different ones: no path is so much longer than another.
_NEAR_NS: Final = 20_000_000


@dataclass(frozen=True, slots=True)
class Alignment:
    """A capture's clock against the first capture's.

    Attributes:
        offset_ns: this capture's time − the first one's; 0 if they may share a clock.
        bound_ns: how far the true offset may be from it; None if the captures have no packets in common, or
            only of one direction.
        common: packets that this capture has in common with another.
    """

    file: int
    offset_ns: int
    bound_ns: int | None
    common: int

    def to_dict(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Merged:
    """One sequence out of several captures.

    Attributes:
        order: indices into the concatenated packets, each packet once, in the order of aligned times.
        time_ns: their aligned times.
        copies: packets left out because another capture has them.
        seen_ns: by packet and capture, the aligned time at which the capture has it, or ``UNSEEN``.
        frames: by packet and capture, its frame number there, or 0.
    """

    order: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    copies: int
    alignments: list[Alignment]
    seen_ns: NDArray[np.int64]
    frames: NDArray[np.int64]


def identities(packets: Packets, *, by_icrc: bool = True) -> NDArray[np.uint64]:
    """A 64-bit identity of each packet, the same in every capture; a corrupted copy has another one."""
    columns = [packets[name] for name in _IDENTITY]
    if by_icrc:
        columns += [packets.icrc, packets.icrc_state == ICRC_INVALID]
    value = np.zeros(len(packets), np.uint64)
    for column in columns:
        value = (value ^ column.astype(np.int64).view(np.uint64)) * np.uint64(MIXER)
        value ^= value >> np.uint64(29)
    return value


def _has_icrcs(packets: Packets) -> bool:
    """Whether all ICRCs are captured, and most are right."""
    wrong = int((packets.icrc_state == ICRC_INVALID).sum())
    return not (packets.icrc_state == ICRC_UNCHECKED).any() and wrong * 2 <= len(packets)


def _occurrences(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each element, how many equal ones come before it."""
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    starts = np.flatnonzero(np.r_[True, sorted_keys[1:] != sorted_keys[:-1]])
    lengths = np.diff(np.r_[starts, len(keys)])
    count = np.empty(len(keys), np.int64)
    count[order] = np.arange(len(keys)) - np.repeat(starts, lengths)
    return count


def _keys(identity: NDArray[np.uint64], occurrence: NDArray[np.int64]) -> NDArray[np.uint64]:
    return identity ^ occurrence.view(np.uint64) * np.uint64(_OTHER_MIXER)


def merge(parts: Sequence[Packets]) -> Merged:
    """Merge the packets of several captures; ``parts[i]`` are capture ``i``'s, all of one decoder."""
    by_icrc = all(_has_icrcs(packets) for packets in parts)
    identity = [identities(packets, by_icrc=by_icrc) for packets in parts]
    occurrence = [_occurrences(i) for i in identity]
    uneven = _uneven(identity)
    keys = [_keys(i, o) for i, o in zip(identity, occurrence, strict=True)]
    even = [~np.isin(i, uneven) for i in identity] if len(uneven) else None
    alignments = _align(parts, keys, even)
    if len(uneven):
        _match_by_time(parts, identity, occurrence, uneven, alignments)
        keys = [_keys(i, o) for i, o in zip(identity, occurrence, strict=True)]
    aligned = [p.time_ns - a.offset_ns for p, a in zip(parts, alignments, strict=True)]
    times, every = np.concatenate(aligned), np.concatenate(keys)
    by_time = np.lexsort((np.arange(len(every)), times))
    _, first, number = np.unique(every[by_time], return_index=True, return_inverse=True)
    ranks = np.argsort(np.argsort(first, kind="stable"), kind="stable")
    order = by_time[np.sort(first)]
    row = np.empty(len(every), np.int64)
    row[by_time] = ranks[number]
    file = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    seen = np.full((len(order), len(parts)), UNSEEN, np.int64)
    seen[row, file] = times
    frames = np.zeros((len(order), len(parts)), np.int64)
    frames[row, file] = np.concatenate([p.frame for p in parts])
    return Merged(order, times[order], len(every) - len(order), alignments, seen, frames)


def _uneven(identity: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Identities that captures have different numbers of packets of: counting cannot match those packets."""
    values, number = np.unique(np.concatenate(identity), return_inverse=True)
    file = np.repeat(np.arange(len(identity)), [len(i) for i in identity])
    counts = np.bincount(number * len(identity) + file, minlength=len(values) * len(identity))
    counts = counts.reshape(-1, len(identity))
    most = counts.max(axis=1, initial=0)
    found: NDArray[np.uint64] = values[((counts != most[:, None]) & (counts > 0)).any(axis=1)]
    return found


def _match_by_time(
    parts: Sequence[Packets],
    identity: list[NDArray[np.uint64]],
    occurrence: list[NDArray[np.int64]],
    uneven: NDArray[np.uint64],
    alignments: list[Alignment],
) -> None:
    """Number the packets with identities of ``_uneven`` by time; only for them do times decide.

    The capture with most of them gives the numbers; a packet of another capture gets the number of the
    nearest one in time, unless it is further away than ``_NEAR_NS``.
    """
    places: dict[int, dict[int, list[int]]] = {}
    for file, own in enumerate(identity):
        for i in np.flatnonzero(np.isin(own, uneven)).tolist():
            places.setdefault(int(own[i]), {}).setdefault(file, []).append(i)
    for by_file in places.values():
        base = max(by_file, key=lambda f: (len(by_file[f]), -f))
        times = [int(parts[base].time_ns[i]) - alignments[base].offset_ns for i in by_file[base]]
        for file, rows in by_file.items():
            if file == base:
                continue
            free = list(range(len(times)))
            for extra, i in enumerate(rows):
                at = int(parts[file].time_ns[i]) - alignments[file].offset_ns
                nearest = min(free, key=lambda k: abs(times[k] - at), default=None)
                if nearest is None or abs(times[nearest] - at) > _NEAR_NS:
                    occurrence[file][i] = len(times) + (file << 32) + extra
                else:
                    occurrence[file][i] = nearest
                    free = [k for k in free if k > nearest]


def _align(
    parts: Sequence[Packets], keys: list[NDArray[np.uint64]], even: list[NDArray[np.bool_]] | None
) -> list[Alignment]:
    """Offsets relative to the first capture, directly or through others with common packets.

    ``even`` leaves out packets that counting cannot match, unless there are no others.
    """
    found: dict[int, Alignment] = {0: Alignment(0, 0, 0, 0)}
    while len(found) < len(parts):
        best: Alignment | None = None
        for known in list(found.values()):
            for file in range(len(parts)):
                if file in found:
                    continue
                link = _pair(parts, keys, (known.file, file), even) or _pair(parts, keys, (known.file, file))
                if link is not None and (best is None or link[2] > best.common):
                    bound = None if link[1] is None or known.bound_ns is None else known.bound_ns + link[1]
                    best = Alignment(file, known.offset_ns + link[0], bound, link[2])
        if best is None:  # nothing in common: the clock is taken as it is
            file = next(i for i in range(len(parts)) if i not in found)
            best = Alignment(file, 0, None, 0)
        found[best.file] = best
    return [found[i] for i in range(len(parts))]


def _pair(
    parts: Sequence[Packets],
    keys: list[NDArray[np.uint64]],
    files: tuple[int, int],
    even: list[NDArray[np.bool_]] | None = None,
) -> tuple[int, int | None, int] | None:
    """(offset of the second file against the first, its bound, packets in common); None: none in common."""
    rows = [np.arange(len(keys[f])) if even is None else np.flatnonzero(even[f]) for f in files]
    own, other = keys[files[0]][rows[0]], keys[files[1]][rows[1]]
    _, in_a, in_b = np.intersect1d(own, other, assume_unique=False, return_indices=True)
    if not len(in_a):
        return None
    in_a, in_b = rows[0][in_a], rows[1][in_b]
    a, b = (parts[f] for f in files)
    ahead = b.time_ns[in_b] - a.time_ns[in_a]
    sources = a.src[in_a]
    medians = [int(np.median(ahead[sources == source])) for source in np.unique(sources)]
    low, high = min(medians), max(medians)
    if low <= 0 <= high and high - low < 1_000_000_000:
        offset = 0
    else:
        offset = (low + high) // 2
    return offset, (high - low + 1) // 2 if len(medians) > 1 else None, len(in_a)
