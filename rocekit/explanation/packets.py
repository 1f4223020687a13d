"""What each packet is: its sender, role, transfer, which time it was sent, and why it was sent again.

An analysis has connections and transfers; this puts what it knows on the packets, as columns of the same
length. Nothing is decided here: a PSN is unwrapped as by the tracker, and the transfers' events say what was
sent again and why.

    stories = packet_stories(analysis)
    stories.packets.frame[stories.round > 1]

All work is done by column; only events, which are few, are processed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.explanation.packets_draft import (
    ACK,
    ACK_OR_NAK,
    AFTER_IMPLIED_NAK,
    AFTER_MISSED_NAK,
    AFTER_NAK,
    AFTER_RNR,
    AFTER_TIMEOUT,
    ASKED_AGAIN,
    CAUSES,
    CM,
    CNP,
    DATAGRAM,
    IGNORED,
    NAK,
    NO_CAUSE,
    OTHER,
    REQUEST,
    RESPONSE,
    RNR_NAK,
    ROLES,
    Bools,
    Draft,
    Finder,
    Ints,
    references,
)
from rocekit.explanation.packets_places import find_places
from rocekit.explanation.packets_rounds import find_rounds
from rocekit.files.frame_names import FRAME_BITS
from rocekit.packets import Packets
from rocekit.packets.merging.merge import merge
from rocekit.packets.merging.outline import Outlines
from rocekit.track.events import Event

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.track.cm_exchanges import CmRecord
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

__all__ = [
    "ACK",
    "ACK_OR_NAK",
    "AFTER_IMPLIED_NAK",
    "AFTER_MISSED_NAK",
    "AFTER_NAK",
    "AFTER_RNR",
    "AFTER_TIMEOUT",
    "ASKED_AGAIN",
    "CAUSES",
    "CM",
    "CNP",
    "DATAGRAM",
    "IGNORED",
    "NAK",
    "NO_CAUSE",
    "OTHER",
    "REQUEST",
    "RESPONSE",
    "RNR_NAK",
    "ROLES",
    "Bools",
    "Ints",
    "PacketStories",
    "packet_stories",
    "tracked_packets",
]


#: The columns of ``PacketStories``, beside those of its packets.
_COLUMNS: Final = (
    *("connection", "sender", "requester", "transfer", "psn", "role", "round"),
    *("before", "duplicate", "cause", "cause_row", "event", "gap"),
)


@dataclass(slots=True)
class PacketStories:
    """What each packet is, as columns with one value for each packet; −1 means none.

    Attributes:
        packets: the packets as the analysis read them: of several captures each packet once, in the order of
            the aligned clocks.
        connection: the connection's id.
        sender: 0 if its ``a`` sent the packet, 1 if its ``b`` did.
        requester: the side that is requester: the sender of a request, the receiver of a response.
        transfer: the id of the transfer that contains the packet's PSN.
        psn: the PSN unwrapped, as transfers have it.
        role: what it is, an index of ``ROLES``. ``ignored`` is a packet that receivers drop: malformed, or
            with a wrong ICRC.
        round: 1 for a packet sent the first time, 2 for the second time, also where the first is not in the
            capture. One that came twice, and is no repeat, has the number of its original.
            0 for ACKs, NAKs and others.
        before: the row of the same packet when it was sent before.
        duplicate: whether it came before and no repeat is known; the event's ``copied`` tells whether its
            IPv4 identification proves that it was sent once.
        cause: why it was sent again, an index of ``CAUSES``.
        cause_row: the row of the NAK, RNR NAK, response or repeated request that caused it.
        event: the index in ``events`` of what happened to it: NAK, repeat, reordered, came twice.
        gap: the index in ``events`` of the hole before this packet.
        events: the events of all transfers and connections.
    """

    packets: Packets
    connection: NDArray[np.int32]
    sender: NDArray[np.int8]
    requester: NDArray[np.int8]
    transfer: NDArray[np.int32]
    psn: Ints
    role: NDArray[np.int8]
    round: NDArray[np.int32]
    before: Ints
    duplicate: Bools
    cause: NDArray[np.int8]
    cause_row: Ints
    event: NDArray[np.int32]
    gap: NDArray[np.int32]
    events: list[Event]
    analysis: Results = field(repr=False)
    cm: dict[int, CmRecord] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.packets)

    def some(self, rows: slice) -> PacketStories:
        """The stories of some of the packets; rows and events still name those of all packets."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return replace(self, packets=self.packets.where(rows), **columns)

    @property
    def reference(self) -> Ints:
        """Each packet's frame reference (see ``frame_names.frame_name``)."""
        return references(self.packets)

    def transfer_of(self, row: int) -> Transfer | None:
        """The transfer that a packet belongs to."""
        number = int(self.transfer[row])
        return None if number < 0 else self.analysis.transfers[number]

    def connection_of(self, row: int) -> Connection | None:
        """The connection that a packet belongs to."""
        number = int(self.connection[row])
        return None if number < 0 else self.analysis.connections[number]

    def wr_id(self, row: int) -> int | None:
        """The wr_id of the work request behind a packet; None without a journal."""
        transfer = self.transfer_of(row)
        return None if transfer is None or transfer.wr is None else transfer.wr.wr_id

    def frames_of(self, file: int) -> Ints:
        """Each packet's frame number in one of the captures; 0 if it is not in it."""
        seen = self.analysis.capture.sightings
        return self.packets.frame if seen is None else seen.frames[file].whole()

    def rows_of(self, references: NDArray[np.int64] | list[int]) -> Ints:
        """The rows of frames (frame references); −1 for a frame without a RoCE packet."""
        wanted, seen = np.asarray(references, np.int64), self.analysis.capture.sightings
        if seen is None:
            return Finder(self.reference).rows(wanted)
        frames = np.stack([column.whole() for column in seen.frames], axis=1)
        row, file = np.nonzero(frames)
        at = Finder(frames[row, file] + (file << FRAME_BITS)).rows(wanted)
        return np.where(at >= 0, row[at], -1)


def packet_stories(analysis: Results, packets: Packets | None = None) -> PacketStories:
    """What each packet of an analysis is: its role, transfer, which time it was sent, and why again.

    Args:
        packets: those of the analysis; None reads them again.

    Raises:
        ValueError: the analysis did not keep all transfers, or was not made from captures.
    """
    if analysis.left_out.total():
        raise ValueError("packet stories need all transfers: analyse without plain")
    if analysis.evidence is None:
        raise ValueError("packet stories need an analysis of captures")
    d = Draft(analysis, tracked_packets(analysis) if packets is None else packets)
    find_places(d)
    find_rounds(d)
    own = np.isin(d.role, (REQUEST, DATAGRAM, CNP))
    requester = np.where(d.sender < 0, -1, np.where(own, d.sender, 1 - d.sender)).astype(np.int8)
    return PacketStories(
        d.packets, d.connection, d.sender, requester, d.transfer, d.psn, d.role, d.round,
        d.before, d.duplicate, d.cause, d.cause_row, d.event, d.gap, d.events,
        d.analysis, d.cm,
    )  # fmt: skip


def tracked_packets(analysis: Results) -> Packets:
    """The packets as the analysis read them: each once, in order, on the aligned clocks."""
    orders = analysis.capture.orders
    if not analysis.capture.several and not orders and (narrow := analysis.read_narrow()) is not None:
        return narrow
    packets = analysis.read_packets()
    if not analysis.capture.several:
        return orders[0].of(packets) if orders else packets
    parts = [packets.where(packets.file == file) for file in range(len(analysis.capture.files))]
    parts = [orders[file].of(part) if file in orders else part for file, part in enumerate(parts)]
    merged = merge(Outlines.of(parts), one_clock=analysis.capture.doubled is not None)
    return merged.packets(parts)
