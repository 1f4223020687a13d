"""What a go-back-N requester does, and makes of the responses that reach it (rxe's completer)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.counters import meanings
from rocekit.counters.responder import IN_ERROR
from rocekit.wire.psn import MASK, diff

if TYPE_CHECKING:
    from rocekit.counters.meanings import Meaning
    from rocekit.track.connections import Connection

_SEQUENCE: Final = wire.make_syndrome(wire.NAK, wire.NAK_SEQUENCE_ERROR)
_FLUSHED: Final = "SENDs without an acknowledgement may have been flushed"
_READING: Final = frozenset({"READ", *wire.ATOMICS})


class RequesterSide:
    """Follows what one QP has sent, and the oldest PSN that it has no acknowledgement of.

    Attributes:
        times: by meaning, when the counter goes up.
        flaws: (meaning, why it is not certain).
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dead = False  # in the error state
        self._next: int | None = None  # behind the packet sent last
        self._end = 0  # behind the highest packet sent
        self._open = 0  # the oldest PSN without an acknowledgement
        self._rnr: int | None = None  # the PSN of an RNR NAK that it has not gone back for yet
        self._before: tuple[int, int] = (-1, -1)
        self._reads: deque[tuple[int, int]] = deque()
        self._sends: deque[int] = deque()
        self._times: dict[Meaning, list[int]] = {
            meanings.GO_BACKS: [],
            meanings.NAKS_ACKNOWLEDGING: [],
            meanings.RNR_RECEIVED: [],
            meanings.SENDS: [],
        }
        self.flaws: dict[tuple[Meaning | None, str], None] = {}  # an ordered set

    @property
    def times(self) -> dict[Meaning, NDArray[np.int64]]:
        return {meaning: np.array(times, np.int64) for meaning, times in self._times.items()}

    def feed(
        self, mine: bool, time_ns: int, value: int, psn: int, syndrome: int, length: int, ip_id: int
    ) -> None:
        """The next packet: a request from the QP (``mine``), or a response to it."""
        opcode = wire.OPCODES.get(value)
        if opcode is None or opcode.transport != "RC":
            return
        if self._dead:
            if not mine:
                self.flaws[meanings.PACKETS_RECEIVED, IN_ERROR] = None
        elif mine and not opcode.response:
            if ip_id and (psn, ip_id) == self._before:
                return  # doubled by the network
            self._before = psn, ip_id
            self._request(time_ns, opcode, psn, length)
        elif not mine and opcode.response and self._next is not None:
            self._response(time_ns, opcode.operation, psn, syndrome)

    def _request(self, time_ns: int, opcode: wire.Opcode, psn: int, length: int) -> None:
        span = self._connection.psns_of_read(length) if opcode.operation == "READ" else 1
        if not span:
            self.flaws[None, "the path MTU is unknown, and so the PSNs that a READ takes"] = None
        behind = psn + max(1, span) & MASK
        if self._next is None:
            self._end = self._open = psn
        elif diff(psn, self._next) < 0:
            if self._rnr == psn:
                self._rnr = None
            else:
                self._times[meanings.GO_BACKS].append(time_ns)
        self._next = behind
        if diff(behind, self._end) > 0:
            self._end = behind
            if opcode.operation in _READING:
                self._reads.append((psn, behind))
            if opcode.operation == "SEND" and opcode.ends:
                self._sends.append(psn)

    def _response(self, time_ns: int, operation: str, psn: int, syndrome: int) -> None:
        ahead = diff(psn, self._open)
        if operation != "ACK":
            # The responses of a READ are taken in order only.
            if ahead == 0 or (ahead > 0 and not self._waits_for_read()):
                self._acknowledge(psn + 1, time_ns)
            return
        kind = wire.syndrome_kind(syndrome)
        if ahead < 0 or (kind == wire.ACK and self._passes_read(psn)):
            return
        if kind == wire.ACK:
            self._acknowledge(psn + 1, time_ns)
        elif kind == wire.RNR_NAK:
            self._times[meanings.RNR_RECEIVED].append(time_ns)
            self._acknowledge(psn, time_ns)
            self._rnr = psn
        elif syndrome != _SEQUENCE:
            self._dead = True
            self.flaws[meanings.SENDS, _FLUSHED] = None
        else:
            if self._rnr is not None:
                # One repeat then answers both, and only the NAK counts.
                self.flaws[meanings.GO_BACKS, "a NAK came in the wait after an RNR NAK"] = None
            if ahead > 0 and not self._passes_read(psn - 1):
                self._times[meanings.NAKS_ACKNOWLEDGING].append(time_ns)
                self._acknowledge(psn, time_ns)

    def _first_read(self) -> tuple[int, int] | None:
        """The PSNs of the oldest READ or atomic without all of its responses."""
        while self._reads and diff(self._reads[0][1], self._open) <= 0:
            self._reads.popleft()
        return self._reads[0] if self._reads else None

    def _waits_for_read(self) -> bool:
        read = self._first_read()
        return read is not None and diff(self._open, read[0]) >= 0

    def _passes_read(self, psn: int) -> bool:
        """Whether an acknowledgement of a PSN skips the responses of a READ, and so implies a NAK."""
        read = self._first_read()
        return read is not None and diff(psn, read[0]) >= 0

    def _acknowledge(self, until: int, time_ns: int) -> None:
        self._open = until & MASK
        while self._sends and diff(self._open, self._sends[0]) > 0:
            self._sends.popleft()
            self._times[meanings.SENDS].append(time_ns)

    def finish(self) -> None:
        """The capture has ended."""
        gave_up = "whether and when a requester gave up is not in the packets"
        if self._times[meanings.GO_BACKS] or (self._next is not None and diff(self._end, self._open) > 0):
            self.flaws[meanings.GAVE_UP, gave_up] = None
        if self._times[meanings.RNR_RECEIVED]:
            self.flaws[meanings.RNR_GAVE_UP, gave_up] = None
        if self._sends:
            self.flaws[meanings.SENDS, _FLUSHED] = None
