"""What a go-back-N responder makes of the requests that reach it (IBA Vol. 1, 9.7.1; rxe's check_psn)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.counters import meanings
from rocekit.wire.psn import MASK, diff

if TYPE_CHECKING:
    from rocekit.counters.meanings import Meaning
    from rocekit.track.connections import Connection

_SEQUENCE: Final = wire.make_syndrome(wire.NAK, wire.NAK_SEQUENCE_ERROR)
_MISFIT: Final = "the device's responses do not fit the requests in the capture"
#: Why packets that reached a QP are perhaps not counted.
IN_ERROR: Final = "packets for a QP in the error state are not counted"


class ResponderSide:
    """Follows the PSN that one QP expects. A packet that is refused for want of a receive does not move it.

    Attributes:
        times: by meaning, when the counter goes up.
        flaws: (meaning, why it is not certain).
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._expected: int | None = None
        self._nak_sent = False
        self._naks: set[int] = set()
        self._refused: set[int] = set()
        self._fatal: set[int] = set()
        self._dead = False
        self._unanswered = False
        self._times: dict[Meaning, list[int]] = {
            meanings.GAPS: [],
            meanings.DUPLICATES: [],
            meanings.RECEIVES: [],
        }
        self.flaws: dict[tuple[Meaning | None, str], None] = {}  # an ordered set

    @property
    def times(self) -> dict[Meaning, NDArray[np.int64]]:
        return {meaning: np.array(times, np.int64) for meaning, times in self._times.items()}

    def prepare(self, own: list[bool], opcodes: list[int], psns: list[int], syndromes: list[int]) -> None:
        """Find the requests that the responder answered with an RNR NAK or a fatal NAK, and the PSN that it
        expects at first.
        """
        latest: dict[int, int] = {}
        first: int | None = None
        answered = False
        for i, mine in enumerate(own):
            opcode = wire.OPCODES.get(opcodes[i])
            if opcode is None:
                continue
            if not mine and not opcode.response:
                latest[psns[i]] = i
                first = psns[i] if first is None else first
            elif mine and opcode.response and not answered:
                answered = True
                if opcode.operation == "ACK" and syndromes[i] == _SEQUENCE and first is not None:
                    # The first request was lost, and this NAK names it.
                    self._expected = psns[i] if diff(psns[i], first) < 0 else first
            if mine and opcode.operation == "ACK" and psns[i] in latest:
                kind = wire.syndrome_kind(syndromes[i])
                if kind == wire.RNR_NAK:
                    self._refused.add(latest[psns[i]])
                elif kind == wire.NAK and syndromes[i] != _SEQUENCE:
                    self._fatal.add(latest[psns[i]])

    def feed(
        self, i: int, mine: bool, time_ns: int, value: int, psn: int, syndrome: int, length: int, ip_id: int
    ) -> None:
        """The next packet: a request to the QP, or a response from it (``mine``)."""
        opcode = wire.OPCODES.get(value)
        if opcode is None or opcode.transport != "RC":
            return
        if self._dead:
            if not mine:  # the QP is in the error state
                self.flaws[meanings.PACKETS_RECEIVED, IN_ERROR] = None
            return
        if mine:
            if opcode.response:
                self._unanswered = False
                self._respond(opcode.operation, psn, syndrome)
        elif not opcode.response:
            self._unanswered = True
            self._request(i, time_ns, opcode, psn, length)

    def finish(self) -> None:
        """The capture has ended."""
        if self._unanswered and not self._dead:
            gone = "the last requests were not answered: the QP may have been gone"
            self.flaws |= {(None, gone): None, (meanings.PACKETS_RECEIVED, gone): None}

    def _request(self, i: int, time_ns: int, opcode: wire.Opcode, psn: int, length: int) -> None:
        if self._expected is None:
            self._expected = psn
        ahead = diff(psn, self._expected)
        if ahead < 0:
            self._times[meanings.DUPLICATES].append(time_ns)
        elif ahead > 0:
            # One NAK a gap, and none more until it is closed.
            if not self._nak_sent:
                self._nak_sent = True
                self._naks.add(self._expected)
                self._times[meanings.GAPS].append(time_ns)
        else:
            self._nak_sent = False
            self._dead = i in self._fatal
            if i in self._refused or self._dead:
                return
            span = self._connection.psns_of_read(length) if opcode.operation == "READ" else 1
            if not span:
                self.flaws[None, "the path MTU is unknown, and so the PSNs that a READ takes"] = None
            self._expected = psn + max(1, span) & MASK
            immediate = any(header.name == "ImmDt" for header in opcode.headers)
            if opcode.ends and (opcode.operation == "SEND" or immediate):
                self._times[meanings.RECEIVES].append(time_ns)

    def _respond(self, operation: str, psn: int, syndrome: int) -> None:
        kind = wire.syndrome_kind(syndrome) if operation == "ACK" else wire.ACK
        if kind == wire.NAK and syndrome != _SEQUENCE:
            self._dead = True
        elif kind == wire.NAK:
            if self._expected is not None and psn != self._expected and psn not in self._naks:
                self.flaws[None, _MISFIT] = None
            if self._expected is None or psn not in self._naks:
                self._expected, self._nak_sent = psn, True
                self._naks.add(psn)
        elif kind == wire.ACK and self._expected is not None and diff(psn, self._expected) >= 0:
            self.flaws[None, _MISFIT] = None
            self._expected = psn + 1 & MASK
