"""The state machines of both sides of all connections: awake, or at rest (see ``rest``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocekit.track.assembly import ends
from rocekit.track.connections import NEITHER_KNOWN
from rocekit.track.ledger import Sink, opened
from rocekit.track.progress import Progress, unstarted
from rocekit.track.requests import requests_of
from rocekit.track.rest.sides import PackedSide, woken
from rocekit.wire import ENDS, OPERATION, STARTS
from rocekit.wire.network import ECN_CE
from rocekit.wire.packet_kinds import KINDS, REQUEST, RESPONSE

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.bulk import Chain
    from rocekit.track.connections import Connection
    from rocekit.track.pairs.waiting import Flow, Waiting
    from rocekit.track.requests import Requests

#: Operations whose message is over when its packets are there: neither bytes nor PSNs are to come back.
_SENT_WHOLE: Final = frozenset({"SEND", "WRITE"})


class SideTable(Sink):
    """The requests of each side, and the responses to them, once it has sent one or got one."""

    def __init__(self) -> None:
        # Of connection n: a at 2n, b at 2n + 1.
        # One that has sent or got a single packet, and is kept for the end or rests, is a batch and a row.
        self._sides: list[Requests | PackedSide | tuple[Rows, int] | None] = []
        # A state machine for sides of which the capture has one packet: one is over before the next begins.
        self._spare: Requests | None = None
        self._turnarounds: dict[tuple[str | None, str | None], tuple[int, int]] = {}

    def shortest(
        self, hosts: tuple[str | None, str | None], turnaround_ns: int, timed: int
    ) -> tuple[int, int]:
        known_ns, of = self._turnarounds.get(hosts, (0, 0))
        if turnaround_ns and (not known_ns or turnaround_ns < known_ns or timed > of):
            known_ns = turnaround_ns if not known_ns or turnaround_ns < known_ns else known_ns
            self._turnarounds[hosts] = known_ns, max(of, timed)
        return known_ns, max(of, timed)

    def _count(self, connection: Connection, r: Rows, i: int) -> None:
        """Count the packet at row ``i`` as one of its connection."""
        connection.packets += 1
        if r.ecn[i] == ECN_CE:
            connection.ce_marked += 1
        connection.used(r.time_ns[i])

    def _dispatch(self, flow: Flow, connection: Connection, r: Rows, i: int, kind: int) -> None:
        """Track the packet at row ``i``, which is one of its flow's connection."""
        raise NotImplementedError

    def _replay_chain(self, flow: Flow, connection: Connection, chain: Chain) -> bool:
        """Track packets that were chained while they waited; False if they are to be tracked one by one."""
        raise NotImplementedError

    def _awake(self, connection: Connection, side: int) -> Requests | None:
        """The requests of a side, which may have been at rest; None: it has sent none."""
        found: Any = self._sides[2 * connection.id + side]
        if isinstance(found, PackedSide):
            found = self._sides[2 * connection.id + side] = woken(found, connection, side, self)
        elif isinstance(found, tuple):
            r, i = found
            requests = self._requests(connection, side)
            if KINDS[r.opcode[i]] == REQUEST:
                requests.request(r, i)
            else:
                requests.respond(r, i)
            return requests
        awake: Requests | None = found
        return awake

    def _side(self, connection: Connection, side: int) -> Requests:
        """The requests of a side, to which a packet belongs."""
        return self._awake(connection, side) or self._requests(connection, side)

    def _requests(self, connection: Connection, side: int) -> Requests:
        requests = requests_of(connection, side, self, unstarted(connection.transport != "UC"))
        self._sides[2 * connection.id + side] = requests
        connection.has_progress(side, requests.progress)
        if connection.negotiated is not NEITHER_KNOWN:
            psn = connection.negotiated[side].starting_psn
            if psn is not None:
                requests.start(psn)
        return requests

    def _keeps_alone(self, flow: Flow, waiting: Waiting) -> bool:
        """Whether the only packet of a connection begins no transfer here, and is kept for the end."""
        _, _, r, i, chain = waiting
        connection, side = flow.connection, flow.side
        if connection is None or connection.transport == "UC" or chain is not None:
            return False
        opcode = r.opcode[i]
        if KINDS[opcode] == RESPONSE and OPERATION[opcode] != "READ_RESPONSE":
            side = 1 - side
        elif KINDS[opcode] != REQUEST:
            return False
        self._sides[2 * connection.id + side] = r, i
        return True

    def _end(self, connection: Connection) -> None:
        """Nothing more comes on a connection: close what is open."""
        for side in (0, 1):
            found: Any = self._sides[2 * connection.id + side]
            if found is None:
                continue
            if isinstance(found, tuple):
                self._end_alone(connection, side, found[0], found[1])
                self._sides[2 * connection.id + side] = None
                continue
            rested = isinstance(found, PackedSide)
            requests = self._awake(connection, side)
            if requests is not None:
                requests.finalise()
            if requests is not None and rested:  # many may end at once: one after the other
                self.settled(requests.ledger.window)
                self._sides[2 * connection.id + side] = None

    def _end_alone(self, connection: Connection, side: int, r: Rows, i: int) -> None:
        """End a side of which the capture has the packet at row ``i`` only: a flood has many."""
        progress = unstarted(True)
        connection.has_progress(side, progress)
        opcode = r.opcode[i]
        if KINDS[opcode] == REQUEST and STARTS[opcode] and ENDS[opcode] and OPERATION[opcode] in _SENT_WHOLE:
            self._end_message(connection, side, r, i, progress)
            return
        requests = self._spare
        if requests is None:
            requests = self._spare = requests_of(connection, side, self, progress)
        else:
            requests.set_up(connection, side, self, progress)
        if KINDS[r.opcode[i]] == REQUEST:
            requests.start(r.psn[i])
            requests.request(r, i)
        else:
            requests.respond(r, i)
        requests.finalise()

    def _end_message(self, connection: Connection, side: int, r: Rows, i: int, progress: Progress) -> None:
        """End a side that sent one message of one packet, which nothing responded to.

        The state machine comes to the same.
        """
        psn, opcode = r.psn[i], r.opcode[i]
        progress.start(psn)
        progress.expected = progress.high = psn + 1
        transfer = opened(self, connection, side, r, i, psn, OPERATION[opcode])
        self.began(transfer)
        transfer.packets, transfer.bytes = 1, r.payload_length[i]
        ends(connection, transfer, r, i)
        if transfer.announced >= 0 and OPERATION[opcode] == "READ":
            transfer.bytes = transfer.announced
        self.ended(transfer)
