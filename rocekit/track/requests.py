# cython: boundscheck=False
"""The tracking state machine: one side's requests and the responses to them (IBA Vol. 1, 9.7.5 and 9.7.6).

It is put together from parts, each of which is given those that it needs:

* ``Progress``: the PSNs reached; ``Recent``: what was sent and answered lately;
* ``Ledger``: which transfer holds a PSN; ``Outcomes``: when a transfer is over;
* ``Assembly``: packets to messages; ``Responses``: ACKs, NAKs and data that come back;
* ``Troubles``, from the first one on: ``Passes``, ``Causes`` and ``Repeats``.

Here stands what each packet meets first: where the PSNs start, what is in order, and what is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.track.assembly import Assembly
from rocekit.track.events import happened
from rocekit.track.ledger import Ledger
from rocekit.track.outcomes import Outcomes
from rocekit.track.progress import RESYNC
from rocekit.track.recent import Recent
from rocekit.track.repeats import troubles_of
from rocekit.track.responses import Responses
from rocekit.track.transfers import INCOMPLETE
from rocekit.wire import OPERATION
from rocekit.wire.psn import HALF, MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.bulk import Chain
    from rocekit.track.connections import Connection
    from rocekit.track.ledger import Sink
    from rocekit.track.progress import Held, Progress
    from rocekit.track.repeats import Troubles

#: Requests kept back at the start of an RC flow whose starting PSN is not known, until a response fixes it.
PROBATION: Final = 512


class Requests:
    """The requests of one side of a connection, and their responses.

    Args:
        connection: whose side it is.
        side: 0 for ``a``, 1 for ``b``.
        sink: takes the transfers as they begin and end.
        progress: how far they have come.

    Attributes:
        clean: what the clean lane has of this side; in_lane: whether that is on, so that its latest transfers
        are no objects (see ``clean_lane``).
    """

    def make_parts(self) -> None:
        """A constructor's arguments take long, and a flood has many sides."""
        self.ledger = Ledger.__new__(Ledger)
        self.outcomes = Outcomes.__new__(Outcomes)
        self.assembly = Assembly.__new__(Assembly)
        self.responses = Responses.__new__(Responses)

    def set_up(self, connection: Connection, side: int, sink: Sink, progress: Progress) -> None:
        """From now on these are the requests of this side, and nothing of one before."""
        self.connection = connection
        self.progress = progress
        self.recent = recent = Recent()
        ledger, outcomes, assembly = self.ledger, self.outcomes, self.assembly
        ledger.set_up(connection, side, sink, progress)
        outcomes.set_up(ledger, progress, recent)
        assembly.set_up(ledger, progress, recent, outcomes)
        self.responses.set_up(ledger, progress, recent, outcomes, assembly)
        self.clean: Any = None
        self.in_lane = False

    def _leave_lane(self) -> None:
        """Something else than what is in order comes: from here on all transfers are objects."""
        self.clean.leave()

    def start(self, psn: int) -> None:
        """Fix the starting PSN (from the CM exchange or the journal)."""
        if not self.progress.started:
            self.progress.start(psn)
            if self.progress.held:
                self._release(psn)

    def _hold(self, r: Rows, i: int) -> None:
        self.progress.hold((r, i, None), 1)
        if self.progress.holds >= PROBATION:
            self._release(None)

    def _lowest(self, held: Sequence[Held], near: int) -> int:
        """The lowest PSN of held packets, unwrapped around ``near``."""
        lowest = near
        for r, i, chain in held:
            p = near + ((r.psn[i] - near + HALF) & MASK) - HALF
            if chain is not None and p + chain.count > near + HALF:
                p = near - HALF  # the chain goes on there
            if p < lowest:
                lowest = p
        return lowest

    def _release(self, psn: int | None) -> None:
        """Start at ``psn`` (24 bits) or at the lowest PSN held, and take what was held."""
        held, self.progress.held = self.progress.held, ()
        self.progress.holds = 0
        r, i, _ = held[0]
        near = r.psn[i]
        lowest = self._lowest(held, near)
        if psn is None:
            first = lowest
        else:
            first = near + ((psn - near + HALF) & MASK) - HALF
            if not lowest - RESYNC < first <= lowest:
                first = lowest
        while first < 0:  # unwrapped PSNs stay positive
            first += MASK + 1
        self.progress.start(first)
        for r, i, chain in held:
            if chain is None:
                self.request(r, i)
            elif not self.chained(chain):
                for _, rows, place in chain.places():
                    self.request(rows, place)

    def chained(self, chain: Chain) -> bool:
        """Take packets that go on with a message; False if they are to be taken one by one."""
        if self.in_lane:
            self._leave_lane()
        progress, packets = self.progress, chain.packets
        r, i = packets.rows(chain.first), packets.row(chain.first)
        if progress.started:
            mtu = self.connection.path_mtu
            if mtu is None or r.psn[i] != progress.expected & MASK or r.payload_length[i] != mtu:
                return False
            if self.room(r.opcode[i]) < chain.count:
                return False
            self.go_on(chain, r.payload_length[i])
            return True
        if not progress.reliable or progress.holds + chain.count >= PROBATION:
            return False
        progress.hold((r, i, chain), chain.count)
        return True

    def request(self, r: Rows, i: int) -> None:
        """Take the request at row ``i``."""
        if self.in_lane:
            self._leave_lane()
        progress = self.progress
        if not progress.started:
            if progress.reliable:
                self._hold(r, i)
                return
            self.start(r.psn[i])
        expected = progress.expected
        p = expected + ((r.psn[i] - expected + HALF) & MASK) - HALF
        if self.ledger.open_read is not None and self.assembly.size_by_part(r, i, p):
            expected = progress.expected
        if p == expected and p == progress.high:
            self._goes_on(p)
            self.assembly.assemble(r, i, p)
        elif self._out_of_order(r, i, p):
            return
        if self.ledger.troubles is not None and OPERATION[r.opcode[i]] == "READ":
            self._note_step(r, i, p)
        self.recent.sent(r, i, p)

    def _goes_on(self, p: int) -> None:
        """The new packet ``p`` is the next one: what was sent again is over."""
        troubles: Troubles | None = self.ledger.troubles
        if troubles is not None:
            troubles.repeats.over(p)

    def _note_step(self, r: Rows, i: int, p: int) -> None:
        """The READ request with PSN ``p`` comes, in the order in which its requester sent it."""
        troubles: Troubles = self.ledger.troubles
        steps = troubles.read_steps
        if steps is None:
            from rocekit.track.gaps.read_steps import ReadSteps

            troubles.read_steps = steps = ReadSteps()
            self.connection.has_read_steps(self.ledger.side, steps)
        steps.take(p, r.dma_length[i], r.remote_va[i], self.recent.last_tx_ns, r.time_ns[i])

    def respond(self, r: Rows, i: int) -> None:
        """Take the response at row ``i``."""
        if self.in_lane:
            self._leave_lane()
        progress = self.progress
        operation = OPERATION[r.opcode[i]]
        if not progress.started and not self._started_by(r, i, operation):
            self.responses.count_refusal(r, i, operation)
            return
        expected = progress.expected
        p = expected + ((r.psn[i] - expected + HALF) & MASK) - HALF
        if -RESYNC <= p - progress.high <= RESYNC:
            self.responses.take(r, i, p, operation)
        else:
            self.responses.count_refusal(r, i, operation)

    def room(self, opcode: int) -> int:
        """How many full packets of this opcode simply go on with the message being built (see ``bulk``)."""
        return self.assembly.room(opcode)

    def _out_of_order(self, r: Rows, i: int, p: int) -> bool:
        """Take a packet that is not the next; gives whether its own repeat overtook it."""
        # Without abs(), of which Cython makes two objects.
        if not -RESYNC <= p - self.progress.high <= RESYNC:
            self._restart(r, i, p)
            return False
        troubles = troubles_of(self.ledger, self.progress, self.recent)
        repeats = troubles.repeats
        if p >= self.progress.high:
            repeats.over(p)
            self.assembly.beyond(r, i, p)
            return False
        if p < self.progress.expected:
            transfer = self.ledger.find(p)
            seen = p >= self.progress.begin and not (transfer is not None and transfer.lacks(p))
            # Delayed, and of no transfer; but a copy is seen.
            if p < self.progress.begin and self.recent.sent_psn(p) == p:
                seen = not self.progress.reliable or repeats.is_duplicate(r, i, p)
        else:
            transfer = None
            seen = p in self.assembly.ahead
        if seen and repeats.is_duplicate(r, i, p):
            repeats.copied(r, i, p)
            # A copy of a packet that was sent again since is not the last one.
            return self.progress.reliable and r.ip_id[i] != self.recent.sent_id(p)
        if seen and not self.progress.reliable:
            self._restart(r, i, p)
            return False
        if self.progress.reliable:
            if self.recent.is_late(r, i, p, seen) and (seen or not repeats.is_of_run(r.ip_id[i])):
                repeats.note("late", r, i, p)
                troubles.passes.fill(p)
                if seen:
                    return True
            else:
                if self.progress.cut_psn >= 0:
                    self.responses.sent_again(p, seen)
                repeats.take(r, i, p, seen, transfer)
        if seen:
            return False
        if p == self.progress.expected:
            self.assembly.assemble(r, i, p)
            self.assembly.drain()
        elif p > self.progress.expected:
            self.assembly.put_ahead(r, i, p)
        elif transfer is not None:
            if transfer.lacks(p):
                transfer.missing.remove(p)
            if not (transfer.started and transfer.ended):
                transfer.packets += 1
                transfer.bytes += r.payload_length[i]
            self.ledger.touch(transfer, r, i)
        return False

    def go_on(self, chain: Chain, payload: int) -> None:
        """Take a chain of packets of ``payload`` bytes each, which go on with the message being built."""
        transfer = self.ledger.building
        assert transfer is not None
        p = self.progress.expected
        self._goes_on(p)
        packets, packet = chain.packets, chain.first
        latest = packet
        for n in range(chain.count):
            if n:
                packet = packets.after(packet)
            time_ns = packets.time_ns(packet)
            if time_ns >= packets.time_ns(latest):
                latest = packet
            if time_ns < transfer.first_ns:
                transfer.first_ns, transfer.first_frame = time_ns, packets.frame(packet)
            self.recent.sent_as(packets.ip_id(packet), time_ns, p)
            p += 1
        transfer.bytes += chain.count * payload
        transfer.packets += chain.count
        self.ledger.touch_at(transfer, packets.time_ns(latest), packets.frame(latest))
        transfer.last_psn = p - 1
        self.progress.expected = self.progress.high = p

    def _started_by(self, r: Rows, i: int, operation: str) -> bool:
        """Whether this response fixes the starting PSN; READ responses need no request for that."""
        psn = r.psn[i]
        if not self.progress.held:
            if operation != "READ_RESPONSE":
                return False
            self.start(psn)
            return True
        first, row, _ = self.progress.held[0]
        near = first.psn[row]
        p = near + ((psn - near + HALF) & MASK) - HALF
        lowest = self._lowest(self.progress.held, near)
        refused = operation == "ACK" and wire.syndrome_kind(r.syndrome[i]) != wire.ACK
        if p >= lowest:
            self._release(None)
        elif refused and lowest - p < PROBATION * 8:
            self._release(psn)
        return self.progress.started

    def _restart(self, r: Rows, i: int, p: int) -> None:
        """The PSN is far away, or UC is back: the QP was used again, or the capture has a huge hole."""
        self.finalise()
        high = self.progress.high
        jump = happened("jump", r.time_ns[i], r.frame[i], high, p, abs(p - high))
        self.connection.note_jump(jump)
        while p < 0:
            p += MASK + 1
        self.ledger.clear()
        self.assembly.clear()
        self.progress.start(p)
        troubles_of(self.ledger, self.progress, self.recent).begin_anew()
        self.assembly.assemble(r, i, p)

    def finalise(self) -> None:
        """The capture ends here: close what is open."""
        if self.in_lane:
            self._leave_lane()
        ledger, assembly, overtaken = self.ledger, self.assembly, self.recent.overtaken
        if not self.progress.started and self.progress.held:
            self._release(None)
        self.connection.note_end(ledger.side, overtaken, self._recovery())
        if assembly.ahead:
            assembly.skip(assembly.highest() + 1)
        ledger.open_read = None
        if ledger.building is not None:
            transfer, ledger.building = ledger.building, None
            transfer.status = INCOMPLETE
        self.outcomes.finish()
        if ledger.pending:
            ledger.give_up_pending()

    def _recovery(self) -> str | None:
        """How lost packets came again in the end (see ``Passes.recovery``), and which the capture missed."""
        troubles: Troubles | None = self.ledger.troubles
        if troubles is None:
            return None
        passes, connection = troubles.passes, self.connection
        troubles.repeats.repeat_ends()
        passes.vote(self.progress.acked)
        selective = passes.is_selective()
        if not selective:  # else the responder keeps what came, and nobody sends it again
            connection.missed_copies += passes.missed
        if selective and connection.missed:  # the capture may have missed what was sent again
            return connection.recoveries[self.ledger.side]
        return passes.recovery


def requests_of(connection: Connection, side: int, sink: Sink, progress: Progress) -> Requests:
    """A side's state machine."""
    requests: Requests = Requests.__new__(Requests)
    requests.make_parts()
    requests.set_up(connection, side, sink, progress)
    return requests
