"""Batches of frames, notes of what could not be read, and link types: what all readers of frames share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.errors import CaptureError
from rocekit.wire.encapsulations import LINKS

# Link types that can carry RoCE, by their LINKTYPE_ numbers (https://www.tcpdump.org/linktypes.html).
LINKTYPE_NULL = 0
LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101
LINKTYPE_LOOP = 108
LINKTYPE_LINUX_SLL = 113
LINKTYPE_PPI = 192
LINKTYPE_ERF = 197
LINKTYPE_IPV4 = 228
LINKTYPE_IPV6 = 229
LINKTYPE_LINUX_SLL2 = 276

SUPPORTED_LINKTYPES = frozenset(LINKS)

SECTION_HEADER = 0x0A0D0D0A
"""Type of the block with which pcapng begins; reads the same in both byte orders."""

USUAL_LINKTYPES = (
    *(LINKTYPE_ETHERNET, LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2),
    *(LINKTYPE_RAW, LINKTYPE_IPV4, LINKTYPE_IPV6),
)
"""Links that begin with a network's own header, or with IP."""

# DLT_RAW has other numbers on other systems, and some programs write them into files unmapped.
_FOLDED = {12: LINKTYPE_RAW, 14: LINKTYPE_RAW}

_REFUSED = {
    9: "PPP",
    105: "802.11",
    127: "802.11 with radiotap",
    189: "USB",
    195: "802.15.4",
    220: "USB",
    227: "SocketCAN",
    247: "native InfiniBand",
    249: "USB",
    253: "Netlink",
}
_ADVICE = {
    247: "these are packets of an InfiniBand fabric, not RoCE; Wireshark reads them",
}

LARGEST_FRAME = 262144
"""The most bytes of a frame that libpcap and Wireshark accept."""

MAX_DAMAGE_KEPT = 1000
"""Damages kept with their words; more are only counted."""

DAMAGE_LIMIT = 10_000
"""After so many damages, a stream is not searched for readable records any more."""

RESYNC_STEP = 4096
"""Bytes searched at once, at first, for the next record after damage: most damage is small."""

RESYNC_LIMIT = 16 << 20
"""Bytes searched for the next record after damage."""


class Damage(NamedTuple):
    """A place where a capture could not be read.

    Args:
        offset: the byte in the file (in the uncompressed stream where the file is compressed).
        message: what is wrong there, and what the reader did.
    """

    offset: int
    message: str

    def __str__(self) -> str:
        return f"byte {self.offset}: {self.message}"


class DamageLog(list[Damage]):
    """The damages of one capture, in file order; ``total`` counts them all, the list is bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def note(self, offset: int, message: str) -> None:
        self.total += 1
        if len(self) < MAX_DAMAGE_KEPT:
            self.append(Damage(offset, message))

    def end(self, name: str) -> None:
        """End a command with an error if a part of the capture could not be read.

        Raises:
            CaptureError: a part of the capture called ``name`` could not be read.
        """
        if self:
            more = f", and {self.total - 1:,} more places are damaged" if self.total > 1 else ""
            raise CaptureError(f"{self[0].message}{more}", file=name, offset=self[0].offset)


class CapturePart(NamedTuple):
    """One of several parts of a capture (see ``joined``), counted from 1."""

    number: int
    of: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FrameBatch:
    """Some frames of one capture, in file order, as columns of one length.

    Args:
        file: the capture's place among the captures analysed together, from 0.
        buffer: bytes (uint8); the source may use them again once the next batch is asked for.
        offset: where each frame's captured bytes start in ``buffer`` (int64).
        caplen: captured bytes (int64).
        wirelen: bytes the frame had on the wire (int64).
        time_ns: nanoseconds since the epoch (int64).
        number: 1-based frame number in its file, as Wireshark counts (int64).
        linktype: LINKTYPE number, one of ``SUPPORTED_LINKTYPES`` (uint16).
        part: only the RoCE packets in this part of the capture are wanted; None: all.
    """

    file: int
    buffer: NDArray[np.uint8]
    offset: NDArray[np.int64]
    caplen: NDArray[np.int64]
    wirelen: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    number: NDArray[np.int64]
    linktype: NDArray[np.uint16]
    part: CapturePart | None = None

    def __len__(self) -> int:
        return len(self.offset)

    def frame(self, index: int) -> bytes:
        """The captured bytes of one frame of the batch."""
        start = int(self.offset[index])
        return self.buffer[start : start + int(self.caplen[index])].tobytes()

    def frames(self) -> Iterator[bytes]:
        """The captured bytes of every frame; for small things and tests."""
        return (self.frame(index) for index in range(len(self)))

    def copied(self) -> FrameBatch:
        """The batch with bytes of its own: its source uses the buffer again."""
        spans = zip(self.offset.tolist(), self.caplen.tolist(), strict=True)
        pieces = [self.buffer[start : start + length] for start, length in spans]
        return FrameBatch(
            self.file,
            np.concatenate(pieces) if pieces else np.empty(0, np.uint8),
            np.cumsum(self.caplen) - self.caplen,
            self.caplen.copy(),
            self.wirelen.copy(),
            self.time_ns.copy(),
            self.number.copy(),
            self.linktype.copy(),
            self.part,
        )


def empty_batch(file: int = 0) -> FrameBatch:
    """A batch without frames: nothing arrived, but the caller can do what is due."""
    none = np.empty(0, np.int64)
    return FrameBatch(file, np.empty(0, np.uint8), none, none, none, none, none, np.empty(0, np.uint16))


def fold_linktype(raw: int) -> int:
    """The LINKTYPE of a file's link-type word: without the FCS bits above it, and raw IP under one number."""
    linktype = raw & 0xFFFF
    return _FOLDED.get(linktype, linktype)


def linktype_name(linktype: int) -> str:
    """``link type 9 (PPP)``, or the number alone."""
    return f"link type {linktype} ({_REFUSED[linktype]})" if linktype in _REFUSED else f"link type {linktype}"


def unsupported_linktype(linktype: int, file: str) -> CaptureError:
    """The error for a link type that cannot be read: names it and says what to do."""
    advice = _ADVICE.get(linktype, "capture on an Ethernet interface, or on 'any'")
    return CaptureError(
        f"{linktype_name(linktype)} is none that rocekit reads "
        f"(Ethernet, Linux cooked v1 and v2, raw IP, BSD loopback, PPI, ERF): {advice}",
        file=file,
    )
