# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""The clean lane: requests in order and their responses, as numbers, without an object for each transfer.

What is in order (IBA Vol. 1, 9.7.2 and 9.7.5) stands here, from the top to the bottom:

* ``CleanLane.takes``: which packets of which directions it takes;
* ``_request``: the next PSN, with which a SEND or WRITE begins, goes on or ends, or a READ is asked for;
* ``_ack``: an ACK of what was sent, which completes the messages that it covers;
* ``_data``: the next response of the oldest READ, which acknowledges what was sent before it, too;
* ``enter`` and ``leave``: when a direction is clean, and how it is handed to the state machine.

All else goes to ``requests``; with ``Tracker(clean_lane=False)`` all packets do, with the same result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.packets.rows import COMPILED
from rocekit.track.lane.clean_side import BEGINS, NONE, CleanSide, is_clean
from rocekit.track.lane.fetching import MANY, fetch, fetch_counts
from rocekit.track.lane.leaving_rows import LeavingRows
from rocekit.track.lane.opcode_meanings import (
    BEGINS_MESSAGE,
    ENDS_MESSAGE,
    HAS_IETH,
    HAS_IMMDT,
    HAS_RETH,
    IS_ACK,
    IS_DATA,
    IS_OF,
    IS_READ,
    meaning,
)
from rocekit.track.lane.row_layout import (
    ANNOUNCED,
    BYTES,
    EXTRA,
    FIRST_PSN,
    HAS_IMMEDIATE,
    HAS_INVALIDATE,
    IS_A_READ,
    IS_ACKED,
    IS_ENDED,
    LAST_FRAME,
    LAST_NS,
    NEXT,
    OPCODE_MASK,
    PACKETS,
    WHAT,
)  # fmt: skip
from rocekit.track.lane.transfer_rows import TransferRows, table
from rocekit.track.ledger import WINDOW
from rocekit.track.progress import RESYNC
from rocekit.wire import SYNDROME_KIND
from rocekit.wire.network import ECN_CE
from rocekit.wire.psn import HALF, MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.ledger import Sink
    from rocekit.track.requests import Requests
    from rocekit.track.transfers import Transfer

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

_SAYS_ACK: Final = wire.ACK
#: The interpreter's lock is let go of after so many rows: for a few it would take as long as they do.
_SHORT: Final = 64

if not cython.compiled:  # else it is in the .pxd file, where it works without the interpreter's lock

    def _take_of(lane: CleanLane, sides: list[CleanSide | None], r: Rows, i: int) -> bool:
        """Take the packet at row ``i``, of a flow that one of ``sides`` sends."""
        return lane._take(sides[r.flow[i]], r, i)


class CleanLane:
    """The clean lane of a tracker.

    Args:
        sink: takes the transfers that become objects.
        wanted: False: it takes no packet.
        reports: whether somebody hears of each transfer as it ends.
        shows: whether somebody looks at the transfers between two batches.

    Attributes:
        rows: the transfers that are no objects.
    """

    def __init__(self, sink: Sink, wanted: bool, reports: bool, shows: bool) -> None:
        self._sink = sink
        self.wanted, self.reports, self.shows = wanted, reports, shows
        self.rows = TransferRows()
        self._leaving = LeavingRows(self.rows, sink)
        self._sides: list[CleanSide | None] = []  # by the number of the flow that the side sends
        self._touched: list[CleanSide] = []
        self._batch: Rows | None = None
        self._fetched = 0
        self._meanings: Any = table(256)
        self._kinds: Any = table(256)
        for value in range(256):
            self._meanings[value], self._kinds[value] = meaning(value), SYNDROME_KIND[value]

    # ------------------------------------------------------------------ what is in order

    def begin(self, r: Rows, flows: int) -> None:
        """A batch, in which flows have numbers below ``flows``."""
        self._batch = r
        self._fetched = 0 if COMPILED and flows > MANY else len(r)
        if flows > len(self._sides):
            self._sides += [None] * (2 * flows - len(self._sides))

    def takes(self, r: Rows, start: int, end: int) -> int:
        """Take the rows from ``start`` on that are in order; gives the first that is not, or ``end``.

        Most are taken without the interpreter's lock, so that the next batch is decoded meanwhile.
        """
        few = min(start + _SHORT, end)
        i = self._stretch(r, start, few)
        if few <= i < end:
            with cython.nogil:
                i = self._stretch(r, i, end)
        return i

    def _stretch(self, r: Rows, start: int, end: int) -> int:
        i = start
        while i < end:
            if i >= self._fetched:
                with cython.gil:
                    self._fetched = fetch(self._sides, self.rows.words, r, i)
            if not _take_of(self, self._sides, r, i):
                break
            i += 1
        return i

    def _take(self, side: CleanSide | None, r: Rows, i: int) -> bool:
        """Take the packet at row ``i``, which ``side`` sends, if it is in order."""
        if side is None:
            return False
        what = self._meanings[r.opcode[i]]
        if what == IS_ACK:
            if side.other is None or not side.other.on or not self._ack(side.other, r, i):
                return False
        elif what & IS_OF == IS_DATA:
            if side.other is None or not side.other.on or not self._data(side.other, self.rows, r, i, what):
                return False
        elif what == 0 or not side.on or not self._request(side, self.rows, r, i, what):
            return False
        if side.packets == 0:
            with cython.gil:
                self._touched.append(side)
        side.packets += 1
        side.at = i
        if r.ecn[i] == ECN_CE:
            side.connection.ce_marked += 1
        return True

    def _request(self, side: CleanSide, rows: TransferRows, r: Rows, i: int, what: int) -> bool:
        """Take a request that has the next PSN, and is the next packet of its message."""
        payload = r.payload_length[i]
        p, at, psns = side.progress.expected, side.building, 1
        if r.psn[i] != p & MASK or (payload != side.mtu and not what & ENDS_MESSAGE):
            return False
        if what & BEGINS_MESSAGE:
            if what & IS_OF == IS_READ:
                with cython.gil:
                    psns = side.connection.psns_of_read(r.dma_length[i]) if side.reliable else 0
            if at >= 0 or not 0 < psns <= HALF:
                return False
            if side.count + side.before >= 2 * WINDOW:
                with cython.gil:
                    has_room = self._leaving.drop_oldest(side)
                if not has_room:
                    return False
            at = self._open(side, r, i, what)
        else:
            if at < 0 or (self._meanings[rows.words[at + WHAT] & OPCODE_MASK] ^ what) & IS_OF:
                return False
            announced = rows.words[at + ANNOUNCED]
            if announced >= 0 and (p - rows.words[at + FIRST_PSN]) * side.mtu >= announced:
                return False  # past the end of a WRITE
            if r.time_ns[i] < rows.words[at + LAST_NS]:
                return False
            rows.words[at + PACKETS] += 1
            rows.words[at + BYTES] += payload
            rows.words[at + LAST_NS], rows.words[at + LAST_FRAME] = r.time_ns[i], r.frame[i]
        if what & IS_OF == IS_READ:
            rows.words[at + WHAT] |= IS_A_READ
            rows.words[at + PACKETS], rows.words[at + EXTRA] = psns, p
            side.reading = at if side.reading < 0 else side.reading
        if what & ENDS_MESSAGE:
            side.building = NONE
            self._close(side, rows, at, r, i, what)
        else:
            side.building = at
        side.progress.expected = side.progress.high = p + psns
        side.recent.sent(r, i, p)
        return True

    def _open(self, side: CleanSide, r: Rows, i: int, what: int) -> int:
        """A message begins: give its row."""
        at = self.rows.begin(self._sink.numbered, side.progress.expected, r, i, what & HAS_RETH != 0)
        self._sink.numbered += 1
        self._append(side, at)
        side.transfers += 1
        return at

    def _append(self, side: CleanSide, at: int) -> None:
        """A row becomes the side's newest."""
        if side.last >= 0:
            self.rows.words[side.last + NEXT] = at
        else:
            side.first = at
        side.last = at
        side.open = at if side.open < 0 else side.open
        side.count += 1

    def _close(self, side: CleanSide, rows: TransferRows, at: int, r: Rows, i: int, what: int) -> bool:
        """The packet at row ``i`` ends its message."""
        rows.words[at + WHAT] |= IS_ENDED
        if what & IS_OF == IS_READ:  # its responses may be missing; all of a WRITE is here
            rows.words[at + BYTES] = rows.words[at + ANNOUNCED]
        side.measure(r.payload_length[i])
        if what & (HAS_IMMDT | HAS_IETH):
            with cython.gil:
                if what & HAS_IMMDT:
                    rows.note_extra(at, HAS_IMMEDIATE, r.lesser("immediate")[i])
                else:
                    rows.note_extra(at, HAS_INVALIDATE, r.lesser("invalidate_rkey")[i])
        if self.reports and not side.reliable:
            with cython.gil:
                self._leaving.report(side, at, self.shows)
        return True

    def _ack(self, side: CleanSide, r: Rows, i: int) -> bool:
        """Take an ACK of requests that the side has sent."""
        if not side.counts_acks or r.msn[i] < 0 or self._kinds[r.syndrome[i]] != _SAYS_ACK:
            return False
        time_ns, frame = r.time_ns[i], r.frame[i]
        p = side.progress.expected + ((r.psn[i] - side.progress.expected + HALF) & MASK) - HALF
        if not side.progress.expected - RESYNC <= p < side.progress.expected:
            return False
        if side.reading >= 0 and p >= self.rows.words[side.reading + FIRST_PSN]:
            return False  # it skips the responses of a READ
        side.recent.answered(p, time_ns)
        side.requests.responses.note_ack(p, r.msn[i], r.ip_id[i], frame)
        side.recent.covered(p + 1, time_ns, r.msn[i])
        self._cover(side, self.rows, p, time_ns, frame)
        return True

    def _data(self, side: CleanSide, rows: TransferRows, r: Rows, i: int, what: int) -> bool:
        """Take the next response of the READ whose responses the side waits for."""
        at, time_ns, frame = side.reading, r.time_ns[i], r.frame[i]
        p = side.progress.expected + ((r.psn[i] - side.progress.expected + HALF) & MASK) - HALF
        if not side.counts_acks or side.requests.responses.again is not None:
            return False
        if not side.progress.expected - RESYNC <= p < side.progress.expected:
            return False
        if r.payload_length[i] != side.mtu and not what & ENDS_MESSAGE:
            return False
        if at < 0 or p < rows.words[at + FIRST_PSN]:
            with cython.gil:
                return side.reads_on(r, i, p)
        ends = p == rows.last_psn(at)
        if p != rows.words[at + EXTRA] or (what & ENDS_MESSAGE != 0) != ends:
            return False
        side.recent.covered(p, time_ns, -1)  # it has no MSN
        if p == rows.words[at + FIRST_PSN]:
            self._cover(side, rows, p - 1, time_ns, frame)
        side.recent.answered(p, time_ns)
        side.recent.responded(p, r.ip_id[i])
        if time_ns >= rows.words[at + LAST_NS]:
            rows.words[at + LAST_NS], rows.words[at + LAST_FRAME] = time_ns, frame
        rows.words[at + EXTRA] = p + 1
        if ends:
            side.measure(r.payload_length[i])
            # As many bytes as came, which need not be as many as were asked for.
            rows.words[at + BYTES] = (p - rows.words[at + FIRST_PSN]) * side.mtu + r.payload_length[i]
            self._complete(side, at, time_ns, frame)
            self._cover(side, rows, p, time_ns, frame)
            while at >= 0 and rows.words[at + WHAT] & (IS_A_READ | IS_ACKED) != IS_A_READ:
                at = rows.words[at + NEXT]
            side.reading = at
        return True

    def _complete(self, side: CleanSide, at: int, time_ns: int, frame: int) -> bool:
        """A response completes a transfer."""
        self.rows.complete(at, time_ns, frame)
        if self.reports:
            with cython.gil:
                self._leaving.report(side, at, self.shows)
        return True

    def _cover(self, side: CleanSide, rows: TransferRows, p: int, time_ns: int, frame: int) -> bool:
        """A response acknowledges all requests up to PSN ``p``."""
        if p < side.progress.acked:
            return False
        side.progress.acked, side.progress.acked_ns, side.progress.acked_frame = p + 1, time_ns, frame
        if side.objects_open:
            with cython.gil:
                side.requests.outcomes.settle()
                side.objects_open = side.requests.outcomes.is_open()
        at = NONE if side.objects_open else side.open
        while at >= 0 and rows.words[at + WHAT] & IS_ENDED and rows.last_psn(at) <= p:
            if not rows.words[at + WHAT] & IS_ACKED:
                self._complete(side, at, time_ns, frame)
            at = side.open = rows.words[at + NEXT]
        return True

    # ------------------------------------------------------------------ in and out

    def send_on(self, flow: int, side: CleanSide | None) -> None:
        """The packets of a flow are those that ``side`` sends; None: they go to the state machine.

        A flow without packets has a number below 0.
        """
        if 0 <= flow < len(self._sides) and self._sides[flow] is not side:
            self._sides[flow] = side

    def forget_flows(self) -> None:
        """Flows get new numbers."""
        self._sides = []

    def knows(self, opcode: int) -> bool:
        """Whether such packets can be in order here; what follows others is often like them."""
        return self._meanings[opcode] & IS_OF != 0

    def enter(self, side: CleanSide, requests: Requests) -> None:
        """The state machine has taken a request of a side, or a response to one: the next may be in order."""
        if not is_clean(requests):
            return
        ledger, outcomes = requests.ledger, requests.outcomes
        building = ledger.building
        if building is not None:
            ledger.window.pop()
            if side.reliable:
                outcomes.unacked.pop()
            ledger.building = None
            at = side.building = self.rows.new()
            self.rows.fill(at, building, BEGINS[building.operation])
            self._append(side, at)
        side.on = requests.in_lane = True
        side.requests, requests.clean = requests, side
        side.progress, side.recent = requests.progress, requests.recent
        side.before, side.objects_open = len(ledger.window), outcomes.is_open()
        side.largest = side.connection.largest_payload
        troubles = ledger.troubles
        side.counts_acks = side.reliable and (troubles is None or troubles.repeats.unanswered is None)

    def leave(self, side: CleanSide) -> None:
        """The state machine goes on with a side."""
        for transfer in self.hand_over(side):
            self._sink.made(transfer)

    def hand_over(self, side: CleanSide) -> list[Transfer]:
        """The state machine gets a side; gives those of its transfers that nobody has heard of as objects."""
        self.flush(side)
        return self._leaving.hand_over(side)

    def end(self, side: CleanSide) -> None:
        """Nothing more comes, so that a summary needs no objects of what is over."""
        self.flush(side)
        self._leaving.end(side)

    def flush(self, side: CleanSide) -> None:
        """Count the packets of both directions at their connection."""
        connection, other, at = side.connection, side.other, -1
        if side.packets:
            at = side.at
            connection.packets += side.packets
            connection.transfers += side.transfers
            side.packets = side.transfers = 0
        if other is not None and other.packets:
            at = max(at, other.at)
            connection.packets += other.packets
            connection.transfers += other.transfers
            other.packets = other.transfers = 0
        if at >= 0 and self._batch is not None:
            connection.used(self._batch.time_ns[at])

    def over(self) -> None:
        """The batch is over."""
        fetched = 0 if COMPILED else len(self._touched)
        for n, side in enumerate(self._touched):
            if n >= fetched:
                fetched = fetch_counts(self._touched, n)
            self.flush(side)
            if self.shows:
                for seen in (side, side.other):
                    if seen is not None and seen.on:
                        self.leave(seen)
        self._touched.clear()
        self._batch = None
