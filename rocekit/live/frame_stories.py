"""What each packet of a live interface is, in words, as far as is known when it comes, for Wireshark.

``rocekit annotate`` tells the same of a file, and knows more: what happened later. Here a packet is told of
once, by what the tracker has found until the end of its batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit.explanation.event_steps import event_step, message_again
from rocekit.explanation.packet_words import acknowledgement_words, part_words
from rocekit.explanation.packets_draft import (
    ACK,
    ACK_OR_NAK,
    CM,
    CNP,
    DATAGRAM,
    IGNORED,
    NAK,
    REQUEST,
    RESPONSE,
    RNR_NAK,
    packet_roles,
)
from rocekit.files.frame_names import FRAME_MASK
from rocekit.findings.cause_words import ASKED_AGAIN, repeat_cause
from rocekit.flows.sent_by import FlowKeys, senders
from rocekit.packets import ICRC_INVALID
from rocekit.packets.decoder import LEFT_OUT, Decoder
from rocekit.packets.hold_back import LiveOrder
from rocekit.packets.malformed import MALFORMED
from rocekit.track.tracker import Tracker
from rocekit.track.transfers import ACKED, SENT
from rocekit.wire import MAD_QPNS
from rocekit.wire.psn import HALF, MASK
from rocekit.wire.words import duration, plural, qpn, size

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch
    from rocekit.flows.scopes import FlowKey
    from rocekit.packets import Packets
    from rocekit.track.cm_exchanges import CmRecord
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

#: Transfers of one side of a connection that are remembered: an older one's packets have no transfer.
_REMEMBERED: Final = 4096
#: Repeats of one side that are remembered, because they may go on.
_EVENTS: Final = 32
#: Ends of transfers that one packet tells of, one by one.
_ENDS_TOLD: Final = 3
#: Events that a packet's own words do not say already.
_TOLD: Final = frozenset({"hole", "response_hole", "response_late", "late", "duplicate", "missed"})
_AGAIN: Final = frozenset({"repeat", "response_repeat"})


class _Way:
    """The latest transfers that one side of a connection requested, in order of their PSNs."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.transfers: list[Transfer] = []

    def add(self, transfer: Transfer) -> None:
        if self.firsts and transfer.first_psn < self.firsts[-1]:
            at = bisect_right(self.firsts, transfer.first_psn)
            if self.transfers[-1].last_psn - transfer.first_psn > HALF or at == 0:
                self.firsts.clear()  # its PSNs start again
                self.transfers.clear()
                at = 0
        else:
            at = len(self.firsts)
        self.firsts.insert(at, transfer.first_psn)
        self.transfers.insert(at, transfer)
        if len(self.firsts) > _REMEMBERED:
            del self.firsts[: _REMEMBERED // 2], self.transfers[: _REMEMBERED // 2]

    def near(self, psn: int) -> int:
        """A PSN of 24 bits, unwrapped as the transfers' are; −1 if there is none to go by."""
        if not self.transfers:
            return -1
        base = self.transfers[-1].last_psn
        return base + ((psn - base + HALF) & MASK) - HALF

    def find(self, psn: int, frame: int) -> Transfer | None:
        """The transfer with an unwrapped PSN, if it had begun by that frame."""
        at = bisect_right(self.firsts, psn) - 1
        if at < 0:
            return None
        transfer = self.transfers[at]
        return transfer if psn <= transfer.last_psn and transfer.first_frame & FRAME_MASK <= frame else None


class FrameStories:
    """Takes the batches of one interface in order, and says of each frame what it is.

    Attributes:
        holds: whether packets of the latest batch wait for others that were sent before them; their frames
            have no words yet.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(foreign=LEFT_OUT)
        self._order = LiveOrder()
        self._new: list[Connection] = []
        self._changed: list[tuple[Transfer, Event]] = []
        self._ended: list[Transfer] = []
        self._messages: list[CmRecord] = []
        self._tracker = Tracker(
            on_end=self._ended.append,
            on_change=self._note_event,
            on_connection=self._new.append,
            on_cm=self._messages.append,
        )
        self._keys = FlowKeys()
        self._by_key: dict[FlowKey, list[Connection]] = defaultdict(list)
        self._unindexed: list[Connection] = []
        self._introduced: set[int] = set()
        self._ways: dict[int, _Way] = defaultdict(_Way)
        self._again = _Again()
        self._datagrams: dict[int, Transfer] = {}
        self._told: dict[int, list[str]] = {}

    @property
    def holds(self) -> bool:
        return self._order.holds

    def _note_event(self, transfer: Transfer, event: Event | None) -> None:
        if event is not None:
            self._changed.append((transfer, event))

    def take(self, batch: FrameBatch) -> None:
        """Take the next frames."""
        packets = self._decoder.decode(batch)
        for part in self._order.take(packets):
            self._feed(part)

    def rest(self) -> None:
        """Nothing came for a moment: what is held is in order."""
        for part in self._order.rest():
            self._feed(part)

    def of(self, batch: FrameBatch) -> list[list[str]]:
        """The words for each frame of a batch, none for what is no RoCE packet; asked once for each."""
        return [self._told.pop(number, []) for number in batch.number.tolist()]

    def _feed(self, packets: Packets) -> None:
        if not len(packets):
            return
        self._tracker.feed(packets, self._order.mads)
        self._keys.feed(packets)
        # The tracker keeps what it reports for an analysis at the end, which there is not.
        for transfer in self._tracker.transfers:
            if transfer.connection.transport == "UD":
                self._datagrams[transfer.first_frame & FRAME_MASK] = transfer
            else:
                self._ways[2 * transfer.connection.id + transfer.side].add(transfer)
        self._tracker.transfers.clear()
        self._tracker.malformed.clear()
        self._tracker.bad_icrc.clear()
        for number, words in self._words(packets):
            self._told[number] = words
        self._datagrams.clear()
        self._changed.clear()
        self._ended.clear()
        self._messages.clear()

    # ------------------------------------------------------------------ whose a packet is

    def _senders(self, packets: Packets, roles: Any) -> list[int]:
        """For each packet, ``2 × connection + side`` of its sender; −1 if it belongs to none yet."""
        waiting, self._unindexed = [*self._unindexed, *self._new], []
        self._new.clear()
        for connection in waiting:
            for side in (0, 1):
                here, there, to, scope = connection.way_key(side)
                if here is None or there is None or to is None:
                    continue
                known = self._by_key[here, there, to, scope]
                if connection not in known:
                    known.append(connection)
            if None in connection.qpns:
                self._unindexed.append(connection)
        names = self._keys.names()
        present = np.unique(packets.flow).tolist()
        found: dict[int, Connection] = {}
        for flow in present:
            key = names[flow]
            for connection in () if key is None else self._by_key.get(key, ()):
                found[connection.id] = connection
        source = np.where(roles == DATAGRAM, packets.src_qpn, -1)
        return senders(packets.flow, source, packets.time_ns, names, found.values()).tolist()

    # ------------------------------------------------------------------ words

    def _words(self, packets: Packets) -> Iterator[tuple[int, list[str]]]:
        roles = packet_roles(packets)
        wrong = (packets.icrc_state == ICRC_INVALID) & (not self._tracker.icrc_ignored)
        roles[(packets.malformed != 0) | (packets.opcode < 0) | wrong] = IGNORED
        roles[(roles == DATAGRAM) & np.isin(packets.dest_qpn, MAD_QPNS)] = CM
        sent_by = self._senders(packets, roles)
        for transfer, event in self._changed:
            self._again.add(transfer, event)
        beside = self._beside()
        completed: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in self._ended:
            frame = transfer.last_frame if transfer.acked_frame is None else transfer.acked_frame
            completed[frame & FRAME_MASK].append(transfer)
        messages = {record.frame & FRAME_MASK: record for record in self._messages}
        connections = self._tracker.connections
        columns = zip(
            packets.frame.tolist(),
            roles.tolist(),
            sent_by,
            packets.psn.tolist(),
            packets.syndromes().tolist(),
            packets.malformed.tolist(),
            packets.payload_length.tolist(),
            packets.dst.tolist(),
            packets.dest_qpn.tolist(),
            strict=True,
        )
        for frame, role, end, psn, syndrome, malformed, payload, to, to_qpn in columns:
            connection = connections[end >> 1] if end >= 0 else None
            ended = completed.get(frame, ())
            if role == IGNORED:
                words = MALFORMED.get(malformed) or "wrong ICRC: the receiver drops it"
            elif role == CM:
                words = _management(messages.get(frame))
            elif role == CNP:
                words = f"CNP: asks {packets.addresses[to]} {qpn(to_qpn)} to send slower"
            elif role == DATAGRAM:
                own = self._datagrams.get(frame)
                words = "" if own is None else f"transfer {own.id}, PSN {psn}; datagram of {size(payload)}"
            elif connection is None:
                words = ""
            else:
                words = self._of_pair(connection, end & 1, role, psn, syndrome, frame, ended)
            if words and connection is not None:
                words += f", connection {connection.id}"
            lines = [words] if words else []
            if connection is not None and connection.id not in self._introduced:
                self._introduced.add(connection.id)
                ends = f"{connection.named(0)} ⇄ {connection.named(1)}"
                lines.append(f"connection {connection.id}: {connection.transport} {ends}")
            lines += beside.get(frame, ())
            lines += [_end_words(transfer) for transfer in ended[:_ENDS_TOLD]]
            if len(ended) > _ENDS_TOLD:
                lines.append(f"{plural(len(ended) - _ENDS_TOLD, 'more transfer')} end here")
            if lines:
                yield frame, lines

    def _of_pair(
        self,
        connection: Connection,
        side: int,
        role: int,
        psn: int,
        syndrome: int,
        frame: int,
        ended: Any,
    ) -> str:
        """A packet between two QPs that are a pair, or of one that only one direction shows."""
        requester = side if role == REQUEST else 1 - side
        way = self._ways.get(2 * connection.id + requester)
        place = -1 if way is None else way.near(psn)
        transfer = None if way is None else way.find(place, frame)
        name = None if transfer is None else f"transfer {transfer.id}"
        if role in (ACK, NAK, RNR_NAK, ACK_OR_NAK):
            done = [f"transfer {t.id}" for t in ended if t.acked_frame is not None] if role == ACK else []
            return acknowledgement_words(role, syndrome, psn, name, done)
        if role not in (REQUEST, RESPONSE):
            return ""
        if transfer is None:
            return f"PSN {psn}, of no message known so far"
        head = f"{name}, PSN {psn}{self._again.words(connection, requester, role, place, frame, transfer)}"
        return f"{head}; {part_words(transfer, place, role == RESPONSE)}"

    def _beside(self) -> dict[int, list[str]]:
        """What happened to transfers, by the frame that shows it."""
        beside: dict[int, list[str]] = defaultdict(list)
        seen: set[int] = set()
        for transfer, event in self._changed:
            if event.kind in _TOLD and id(event) not in seen:
                seen.add(id(event))
                step = event_step(transfer, event)
                beside[event.frame & FRAME_MASK].append(f"transfer {transfer.id}: {step.what} {step.detail}")
        return beside


class _Again:
    """Which packets were sent again, and why, by the latest events, which grow as packets come."""

    def __init__(self) -> None:
        self._by_way: dict[int, deque[Event]] = defaultdict(lambda: deque(maxlen=_EVENTS))

    def add(self, transfer: Transfer, event: Event) -> None:
        """Note a repeat; others, and one that is known, are left out."""
        own = self._by_way[2 * transfer.connection.id + transfer.side]
        if event.kind in _AGAIN and not any(event is known for known in own):
            own.append(event)

    def words(
        self, connection: Connection, side: int, role: int, psn: int, frame: int, transfer: Transfer
    ) -> str:
        """`` again, after the NAK``; empty for a packet that was sent the first time."""
        for event in self._by_way.get(2 * connection.id + side, ()):
            if (event.kind == "repeat") != (role == REQUEST) or not event.psn <= psn <= event.last_psn:
                continue
            last = event.last_frame or event.frame
            if event.frame & FRAME_MASK <= frame <= last & FRAME_MASK:
                if event.kind == "response_repeat":
                    return f" again, {ASKED_AGAIN}"
                return f" again, {repeat_cause(event, connection, side, transfer)}"
        return ""


def _management(record: CmRecord | None) -> str:
    if record is None:
        return ""
    return f"CM {record.message}{message_again(record, ', sent again: its response was late or lost')}"


def _end_words(transfer: Transfer) -> str:
    """How a transfer ended."""
    status = "" if transfer.status in (ACKED, SENT) else f", {transfer.status}"
    counts = (
        (transfer.retransmitted_packets, "packet sent again", "packets sent again"),
        (transfer.naks, "NAK", "NAKs"),
        (transfer.rnr_naks, "RNR NAK", "RNR NAKs"),
        (transfer.timeouts, "timeout", "timeouts"),
    )
    troubles = "".join(f", {n:,} {one if n == 1 else many}" for n, one, many in counts if n)
    if transfer.operation == "SEND" and transfer.connection.transport == "UD":
        return f"transfer {transfer.id}{status or ' sent'}"
    what = f"{transfer.operation} of {size(transfer.bytes)}"
    return f"transfer {transfer.id}: {what} in {duration(transfer.duration_ns)}{status}{troubles}"
