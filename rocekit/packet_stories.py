"""What each packet is in its story: whose request or answer, which transfer, which time round, and why again.

An analysis knows connections and transfers; this lays what it knows back onto the packets, as columns of
the same length. Nothing is judged anew: a PSN is unwrapped as the tracker unwrapped it, what came again and
why stands in the transfers' events.

    stories = packet_stories(analysis)
    stories.packets.frame[stories.round > 1]

Everything here is per column; only events, which are few, are gone through one by one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.arrays import starts
from rocekit.packets import ICRC_INVALID, Packets
from rocekit.psn import HALF, MASK, MODULO
from rocekit.several import merge
from rocekit.transfers import FRAME_BITS, Event

if TYPE_CHECKING:
    from rocekit.analysis import Analysis
    from rocekit.connections import Connection
    from rocekit.exchanges import CmRecord
    from rocekit.transfers import Transfer

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROLES: Final = ("other", "request", "response", "ack", "nak", "rnr_nak", "datagram", "cnp", "cm", "ignored")
OTHER, REQUEST, RESPONSE, ACK, NAK, RNR_NAK, DATAGRAM, CNP, CM, IGNORED = range(len(ROLES))
CAUSES: Final = ("", "nak", "rnr", "timeout", "implied_nak", "asked_again")
NO_CAUSE, AFTER_NAK, AFTER_RNR, AFTER_TIMEOUT, AFTER_IMPLIED_NAK, ASKED_AGAIN = range(len(CAUSES))

_ADDRESS_BITS: Final = 20
_QPN_BITS: Final = 24
_PSN_SPACE: Final = 44  # bits of an unwrapped PSN, beside the number of its PSN space in one integer
_OWN: Final = frozenset({"nak", "rnr_nak", "repeat", "response_repeat", "late", "duplicate"})
_GAPS: Final = frozenset({"hole", "response_hole", "jump"})


def _role_table() -> NDArray[np.int8]:
    roles = np.full(257, OTHER, np.int8)
    for value, opcode in wire.OPCODES.items():
        if opcode.transport == "RD":
            continue
        if opcode.transport == "CNP":
            roles[value] = CNP
        elif opcode.transport == "UD":
            roles[value] = DATAGRAM
        elif opcode.operation == "ACK":
            roles[value] = ACK
        else:
            roles[value] = RESPONSE if opcode.response else REQUEST
    return roles


_ROLE_OF: Final = _role_table()
_IS_READ: Final = np.array([operation == "READ" for operation in wire.OPERATION] + [False])
_NAK_ROLE: Final = {wire.NAK: NAK, wire.RNR_NAK: RNR_NAK}


@dataclass(slots=True)
class PacketStories:
    """Columns, one value a packet of ``packets``; −1 where there is none.

    Attributes:
        packets: the packets as the analysis took them: of several captures each packet once, in the order of
            the aligned clocks.
        connection: the connection's id.
        sender: 0 if its ``a`` sent the packet, 1 if its ``b`` did.
        asker: the side whose requests it is about: a request's own, of an answer the other.
        transfer: the id of the transfer that holds the packet's PSN.
        psn: the PSN unwrapped, as transfers have it.
        role: what it is, an index of ``ROLES``. ``ignored`` is a packet that no receiver heeds: malformed, or
            its ICRC is wrong.
        round: 1 for a packet sent the first time, 2 for its first repeat; also 2 where the capture never saw
            the first. Copies made by the network have their original's. 0 where nothing is sent in rounds.
        before: the row of the same packet the last time it was sent.
        duplicate: whether the network doubled it.
        cause: why it was sent again, an index of ``CAUSES``.
        cause_row: the row of the NAK, RNR NAK, answer or repeated request that caused it.
        event: the place in ``events`` of what befell it: a refusal, a repeat, being late or doubled.
        gap: the place in ``events`` of the hole that this packet showed by passing over it.
        events: the events of all transfers and connections.
    """

    packets: Packets
    connection: NDArray[np.int32]
    sender: NDArray[np.int8]
    asker: NDArray[np.int8]
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
    analysis: Analysis = field(repr=False)
    cm: dict[int, CmRecord] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.packets)

    @property
    def reference(self) -> Ints:
        """Each packet's frame reference (see ``transfers.frame_name``)."""
        return _references(self.packets)

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
        """Each packet's frame number in one of the captures; 0 where that one did not show it."""
        seen = self.analysis.capture.sightings
        return self.packets.frame if seen is None else seen.frames[:, file]

    def rows_of(self, references: NDArray[np.int64] | list[int]) -> Ints:
        """The rows of frames (frame references); −1 for a frame that holds no packet."""
        wanted, seen = np.asarray(references, np.int64), self.analysis.capture.sightings
        if seen is None:
            return _Finder(self.reference).rows(wanted)
        row, file = np.nonzero(seen.frames)
        at = _Finder(seen.frames[row, file] + (file << FRAME_BITS)).rows(wanted)
        return np.where(at >= 0, row[at], -1)


def packet_stories(analysis: Analysis, packets: Packets | None = None) -> PacketStories:
    """What every packet of an analysis is.

    Args:
        packets: those of the analysis, where they are at hand; else they are read anew.

    Raises:
        ValueError: the analysis did not keep all transfers, or was not made from captures.
    """
    if analysis.left_out.total():
        raise ValueError("the packets' stories need all transfers: analyse without plain")
    if analysis.evidence is None:
        raise ValueError("there are no captures to tell of")
    return _Builder(analysis, tracked_packets(analysis) if packets is None else packets).build()


def tracked_packets(analysis: Analysis) -> Packets:
    """The packets as the analysis took them: each once, in order, on the aligned clocks."""
    packets = analysis.packets
    if not analysis.capture.several:
        return packets
    files = range(len(analysis.capture.files))
    merged = merge([packets.where(packets.file == file) for file in files])
    return packets.where(merged.order).at(merged.time_ns)


def _references(packets: Packets) -> Ints:
    references: Ints = packets.frame + (packets.file.astype(np.int64) << FRAME_BITS)
    return references


class _Finder:
    """From frame references to rows, whatever the order of the rows."""

    def __init__(self, references: Ints) -> None:
        self._order = np.argsort(references, kind="stable")
        self._sorted = references[self._order]

    def rows(self, references: Ints) -> Ints:
        if not len(self._sorted):
            return np.full(len(references), -1, np.int64)
        at = np.minimum(np.searchsorted(self._sorted, references), len(self._sorted) - 1)
        return np.where(self._sorted[at] == references, self._order[at], -1)


class _Builder:
    """The columns, made in the order in which each needs the ones before."""

    def __init__(self, analysis: Analysis, packets: Packets) -> None:
        n = len(packets)
        self.analysis = analysis
        self.packets = packets
        self.finder = _Finder(_references(packets))
        self.connection = np.full(n, -1, np.int32)
        self.sender = np.full(n, -1, np.int8)
        self.transfer = np.full(n, -1, np.int32)
        self.psn = np.full(n, -1, np.int64)
        self.round = np.zeros(n, np.int32)
        self.before = np.full(n, -1, np.int64)
        self.duplicate = np.zeros(n, np.bool_)
        self.cause = np.zeros(n, np.int8)
        self.cause_row = np.full(n, -1, np.int64)
        self.event = np.full(n, -1, np.int32)
        self.gap = np.full(n, -1, np.int32)
        self.events: list[Event] = []
        self.cm: dict[int, CmRecord] = {}
        self.role = _ROLE_OF[packets.opcode].copy()
        for kind, role in _NAK_ROLE.items():
            self.role[(self.role == ACK) & (packets.syndrome >> 5 & 3 == kind)] = role
        self.is_read = _IS_READ[packets.opcode] & (self.role == REQUEST)
        self.space = np.full(n, -1, np.int64)
        self._by_space = np.empty(0, np.int64)  # rows, those of a PSN space together and in order

    def build(self) -> PacketStories:
        self._place()
        self._leave_out()
        self._management()
        self._unwrap()
        self._find_transfers()
        self._datagrams()
        self._attach_events()
        self._count_rounds()
        self._find_causes()
        asks = np.isin(self.role, (REQUEST, DATAGRAM, CNP))
        asker = np.where(self.sender < 0, -1, np.where(asks, self.sender, 1 - self.sender)).astype(np.int8)
        return PacketStories(
            self.packets, self.connection, self.sender, asker, self.transfer, self.psn, self.role, self.round,
            self.before, self.duplicate, self.cause, self.cause_row, self.event, self.gap, self.events,
            self.analysis, self.cm,
        )  # fmt: skip

    # ------------------------------------------------------------------ connections

    def _place(self) -> None:
        """Give each packet its connection and its sender's side, by addresses and QPNs, and by time."""
        p = self.packets
        number = {ip: i for i, ip in enumerate(p.addresses)}
        pairs: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for c in self.analysis.connections:
            if c.first_ns is None:
                continue
            for side in (0, 1):
                here, there = number.get(c.ips[side] or ""), number.get(c.ips[1 - side] or "")
                to, own = c.qpns[1 - side], c.qpns[side]
                if here is None or there is None or to is None:
                    continue
                sender = own if c.transport == "UD" and own is not None else 0
                flow = (here << _ADDRESS_BITS | there) << _QPN_BITS | to
                pairs[flow, sender].append((c.first_ns, c.id, side))
        if not len(p):
            return
        src, dst = p.src.astype(np.int64), p.dst.astype(np.int64)
        key = (src << _ADDRESS_BITS | dst) << _QPN_BITS | p.dest_qpn
        source = np.where(self.role == DATAGRAM, p.src_qpn, 0)
        order = np.lexsort((np.arange(len(p)), source, key))
        k, s = key[order], source[order]
        change = np.flatnonzero((k[1:] != k[:-1]) | (s[1:] != s[:-1])) + 1
        for rows in np.split(order, change):
            found = sorted(pairs.get((int(key[rows[0]]), int(source[rows[0]])), ()))
            if not found:
                continue
            if len(found) == 1:
                self.connection[rows], self.sender[rows] = found[0][1:]
                continue
            begins = np.array([first for first, _, _ in found])
            which = np.maximum(np.searchsorted(begins, p.time_ns[rows], "right") - 1, 0)
            self.connection[rows] = np.array([c for _, c, _ in found])[which]
            self.sender[rows] = np.array([side for _, _, side in found])[which]

    def _leave_out(self) -> None:
        """Packets that no receiver heeds are in no transfer, unless the tracker chose to believe them."""
        p = self.packets
        wrong = p.icrc_state == ICRC_INVALID
        evidence = self.analysis.evidence
        if evidence is not None and evidence.icrc_ignored and wrong.any():
            believed = np.array([c.bad_icrc_count == 0 for c in self.analysis.connections] + [False])
            wrong &= ~believed[self.connection]
        self.role[(p.malformed != 0) | (p.opcode < 0) | wrong] = IGNORED

    def _management(self) -> None:
        """The CM's messages, and the connections that they made."""
        self.role[(self.role == DATAGRAM) & np.isin(self.packets.dest_qpn, wire.MAD_QPNS)] = CM
        records = list(self.analysis.cm)
        rows = self.finder.rows(np.array([r.frame for r in records], np.int64))
        for record, row in zip(records, rows.tolist(), strict=True):
            if row < 0:
                continue
            self.cm[row] = record
            if record.connection is not None:
                self.connection[row] = record.connection.id
                self.sender[row] = int(record.connection.ips[0] != record.src)

    # ------------------------------------------------------------------ PSNs and transfers

    def _unwrap(self) -> None:
        """Unwrap PSNs along each PSN space, a requester's: its requests and what answers them."""
        rows = np.flatnonzero(
            (self.connection >= 0) & np.isin(self.role, (REQUEST, RESPONSE, ACK, NAK, RNR_NAK))
        )
        if not len(rows):
            return
        asker = np.where(self.role[rows] == REQUEST, self.sender[rows], 1 - self.sender[rows])
        self.space[rows] = self.connection[rows].astype(np.int64) * 2 + asker
        rows = self._by_space = rows[np.argsort(self.space[rows], kind="stable")]
        raw, space = self.packets.psn[rows], self.space[rows]
        begins = starts(space)
        step = np.zeros(len(rows), np.int64)
        step[1:] = ((raw[1:] - raw[:-1] + HALF) & MASK) - HALF
        step[begins] = 0
        along = np.cumsum(step)
        length = np.diff(np.r_[begins, len(rows)])
        base = np.array([self._begin(int(space[b]), int(raw[b])) for b in begins.tolist()], np.int64)
        self.psn[rows] = along + np.repeat(base - along[begins], length)
        self._align(rows, begins)

    def _begin(self, space: int, raw: int) -> int:
        """The first PSN of a space, unwrapped as its tracker began."""
        requests = self.analysis.connections[space >> 1].requests[space & 1]
        near = raw if requests is None or not requests.started else requests.begin
        return near + ((raw - near + HALF) & MASK) - HALF

    def _align(self, rows: Ints, begins: Ints) -> None:
        """Where the tracker counts from elsewhere (it began anew), follow it: its transfers tell."""
        transfers = [t for t in self.analysis.transfers if t.connection.transport != "UD"]
        if not transfers:
            return
        at = self.finder.rows(np.array([t.first_frame for t in transfers], np.int64))
        told = np.array([t.first_psn for t in transfers], np.int64)
        space = np.array([t.connection.id * 2 + t.side for t in transfers], np.int64)
        good = (at >= 0) & (self.space[at] == space)
        at, told = at[good], told[good]
        off = (told - self.psn[at] + HALF) // MODULO * MODULO
        if not off.any():
            return
        offset = np.zeros(len(self.packets), np.int64)
        known = np.zeros(len(self.packets), np.bool_)
        offset[at], known[at] = off, True
        offset, known = offset[rows], known[rows]
        place = np.where(known, np.arange(len(rows)), -1)
        run = np.repeat(np.arange(len(begins)), np.diff(np.r_[begins, len(rows)]))
        last = np.maximum.accumulate(place)
        first = np.full(len(begins), -1, np.int64)
        hits = np.flatnonzero(known)
        first[run[hits[::-1]]] = hits[::-1]
        last = np.where(last >= begins[run], last, first[run])
        self.psn[rows] += np.where(last >= 0, offset[last], 0)

    def _find_transfers(self) -> None:
        """The transfer that holds each packet's PSN. Where PSNs begin anew, rows and transfers part."""
        transfers = [t for t in self.analysis.transfers if t.connection.transport != "UD"]
        if not transfers:
            return
        space = np.array([t.connection.id * 2 + t.side for t in transfers], np.int64)
        first = np.array([t.first_psn for t in transfers], np.int64)
        last = np.array([t.last_psn for t in transfers], np.int64)
        number = np.array([t.id for t in transfers], np.int64)
        seen = self.finder.rows(np.array([t.first_frame for t in transfers], np.int64))
        order = np.lexsort((number, space))
        space, first, last, number, seen = (x[order] for x in (space, first, last, number, seen))
        again = np.zeros(len(space), np.bool_)
        again[1:] = (space[1:] == space[:-1]) & (first[1:] < first[:-1])
        life = np.cumsum(again | np.r_[True, space[1:] != space[:-1]])
        rows = np.flatnonzero(self.space >= 0)
        # Lives of all spaces in one line: by space, and in it by the row where each begins.
        opens = np.flatnonzero(np.r_[True, life[1:] != life[:-1]])
        begun = np.where(again[opens], np.maximum(seen[opens], 0), 0)
        n = len(self.packets) + 1
        which = np.searchsorted(space[opens] * n + begun, self.space[rows] * n + rows, "right") - 1
        own = (which >= 0) & (space[opens[which]] == self.space[rows])
        rows, which = rows[own], which[own]
        key = (life - 1 << _PSN_SPACE) + first
        by_psn = np.argsort(key, kind="stable")
        at = np.searchsorted(key[by_psn], (which << _PSN_SPACE) + self.psn[rows], "right") - 1
        held = by_psn[np.maximum(at, 0)]
        inside = (at >= 0) & (life[held] - 1 == which) & (self.psn[rows] <= last[held])
        self.transfer[rows[inside]] = number[held[inside]]

    def _datagrams(self) -> None:
        """UD: a packet is a transfer, and known by its frame."""
        rows = (self.role == DATAGRAM) & (self.connection >= 0)
        if not rows.any():
            return
        self.psn[rows] = self.packets.psn[rows]
        frames = [
            (frame, t.id)
            for t in self.analysis.transfers
            if t.connection.transport == "UD"
            for frame in (t.first_frame, *(e.frame for e in t.events))
        ]
        told = np.array(frames, np.int64).reshape(-1, 2)
        at = self.finder.rows(told[:, 0])
        self.transfer[at[at >= 0]] = told[at >= 0, 1]

    # ------------------------------------------------------------------ events, rounds, causes

    def _attach_events(self) -> None:
        """Lay every event onto the packets it is made of."""
        spaces: list[int] = []
        for transfer in self.analysis.transfers:
            for event in transfer.events:
                self.events.append(event)
                spaces.append(transfer.connection.id * 2 + transfer.side)
        for connection in self.analysis.connections:
            for event in (*connection.stray_events, *connection.jumps):
                self.events.append(event)
                spaces.append(connection.id * 2 + event.side)
        if not self.events:
            return
        row = self.finder.rows(np.array([e.frame for e in self.events], np.int64))
        last = self.finder.rows(np.array([e.last_frame or e.frame for e in self.events], np.int64))
        spaces_in_order = self.space[self._by_space]
        for i, (event, at, end) in enumerate(zip(self.events, row.tolist(), last.tolist(), strict=True)):
            if at < 0:
                continue
            if event.kind in _GAPS:
                self.gap[at] = i
            elif event.kind in _OWN:
                self.event[at] = i
                self.duplicate[at] |= event.kind == "duplicate"
                if event.count > 1 and end > at:
                    low, high = np.searchsorted(spaces_in_order, (spaces[i], spaces[i] + 1))
                    self._spread(i, event, self._by_space[low:high], at, end)

    def _spread(self, i: int, event: Event, mine: Ints, at: int, end: int) -> None:
        """An event of several packets, from row ``at`` to row ``end`` of its PSN space's rows."""
        rows = mine[np.searchsorted(mine, at) : np.searchsorted(mine, end, "right")]
        role = RESPONSE if event.kind == "response_repeat" else REQUEST
        psn = self.psn[rows]
        fits = (self.role[rows] == role) & (psn >= event.psn) & (psn <= event.last_psn)
        rows = rows[fits & ~self.duplicate[rows]]
        self.event[rows] = i

    def _kind_is(self, *kinds: str) -> Bools:
        table = np.array([e.kind in kinds for e in self.events] + [False])
        return table[self.event]

    def _count_rounds(self) -> None:
        """Which time each PSN is sent; a READ request counts by its READ, from wherever it asks anew."""
        rows = np.flatnonzero(
            ((self.space >= 0) & np.isin(self.role, (REQUEST, RESPONSE)))
            | ((self.role == DATAGRAM) & (self.transfer >= 0))
        )
        if not len(rows):
            return
        psn = self.psn[rows].copy()
        reads = self.is_read[rows] & (self.transfer[rows] >= 0)
        if reads.any():
            firsts = np.array([t.first_psn for t in self.analysis.transfers], np.int64)
            psn[reads] = firsts[self.transfer[rows[reads]]]
        space = np.where(
            self.role[rows] == DATAGRAM, -1 - self.transfer[rows].astype(np.int64), self.space[rows]
        )
        response = self.role[rows] == RESPONSE
        order = np.lexsort((rows, psn, response, space))
        r, key = rows[order], np.stack([space[order], response[order], psn[order]])
        fresh = np.r_[True, (key[:, 1:] != key[:, :-1]).any(axis=0)]
        begins = np.flatnonzero(fresh)
        run = np.cumsum(fresh) - 1
        self.before[r[1:][~fresh[1:]]] = r[:-1][~fresh[1:]]
        # An original that comes behind its repeat is the first transmission all the same.
        late = self._kind_is("late")[r] & ~fresh
        sent = np.cumsum(~(self.duplicate[r] | late))
        count = sent - np.r_[0, sent][begins][run]
        # What comes a second time without a first in the capture was lost before it.
        unseen = self._kind_is("repeat", "response_repeat")[r[begins]]
        self.round[r] = np.where(late, 1, np.maximum(count, 1) + unseen[run])

    def _find_causes(self) -> None:
        """What made a packet come again."""
        codes = {name: code for code, name in enumerate(CAUSES)}
        of_event = np.array([codes.get(e.cause or "", 0) for e in self.events] + [0], np.int8)
        repeats = self._kind_is("repeat")
        self.cause[repeats] = of_event[self.event[repeats]]
        self.cause[self._kind_is("response_repeat")] = ASKED_AGAIN
        self._cause_of_runs()
        self._cause_of_responses()

    def _cause_of_runs(self) -> None:
        """A go-back's cause: the last refusal, or answer, in front of its first packet."""
        openings: dict[tuple[int, int], int] = {}
        for code, roles in (
            (AFTER_NAK, (NAK,)),
            (AFTER_RNR, (RNR_NAK,)),
            (AFTER_IMPLIED_NAK, (ACK, RESPONSE)),
        ):
            again = np.flatnonzero((self.cause == code) & (self.space >= 0))
            if not len(again):
                continue
            runs = self._runs(again)
            told = np.flatnonzero((self.space >= 0) & np.isin(self.role, roles))
            n = len(self.packets) + 1
            key = np.sort(self.space[told] * n + told)
            for row, run in zip(again.tolist(), runs, strict=True):
                if run in openings:
                    self.cause_row[row] = openings[run]
                    continue
                space = int(self.space[row])
                at = int(np.searchsorted(key, space * n + row)) - 1
                found = int(key[at] - space * n) if at >= 0 and key[at] >= space * n else -1
                openings[run] = self.cause_row[row] = found

    def _runs(self, rows: Ints) -> list[tuple[int, int]]:
        """(PSN space, number of the go-back) of each row."""
        numbers = np.array([e.run for e in self.events] + [0], np.int64)[self.event[rows]]
        return list(zip(self.space[rows].tolist(), numbers.tolist(), strict=True))

    def _cause_of_responses(self) -> None:
        """A response comes again because its READ was asked again."""
        again = np.flatnonzero((self.cause == ASKED_AGAIN) & (self.transfer >= 0))
        if not len(again):
            return
        asked = np.flatnonzero((self.role == REQUEST) & (self.transfer >= 0))
        n = len(self.packets) + 1
        key = np.sort(self.transfer[asked].astype(np.int64) * n + asked)
        own = self.transfer[again].astype(np.int64) * n
        at = np.searchsorted(key, own + again) - 1
        found = np.where(at >= 0, key[np.maximum(at, 0)] - own, -1)
        self.cause_row[again] = np.where(found >= 0, found, -1)
