"""One side of a scenario while it runs: its connections, waiting for completions, its measurements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rocekit.endpoint import (
    Completion,
    Connection,
    Deadline,
    Disconnected,
    Endpoint,
    QpOptions,
    RecvWr,
    Region,
    SendWr,
    Sge,
    SharedReceives,
    Target,
    is_receive,
)
from rocekit.endpoint.errors import RefusedPost
from rocekit.errors import VerbsError
from rocekit.scenarios.plan import Plan, Remote

_GOODBYE_S = 10.0  # all is done and checked; an unanswered DREQ is worth no longer wait


class PeerLink:
    """One connection of a scenario: its QP, both sides' memory, and which WRs are done.

    A wr_id is used once on a link, for a send or a receive.
    """

    def __init__(self, connection: Connection, region: Region, peer: Remote | None = None) -> None:
        self.connection = connection
        self.region = region
        self.peer = peer
        self.received: deque[Completion] = deque()
        self._next_id = 0
        self._places: dict[int, int] = {}
        self._sending: deque[int] = deque()

    @property
    def unsent(self) -> int:
        """Posted sends that have not completed."""
        return len(self._sending)

    def wr(
        self,
        opcode: str,
        offset: int,
        length: int,
        *,
        remote: int | None = None,
        inline: int = 0,
        signaled: bool = True,
        compare: int | None = None,
        swap_add: int | None = None,
        imm: int | None = None,
        invalidate_rkey: int | None = None,
        more: Sequence[tuple[int, int]] = (),
        to: Target | None = None,
        at: tuple[int, int] | None = None,
    ) -> SendWr:
        """A WR from or to ``offset`` of the region; ``remote`` is an offset into the peer's memory.

        Args:
            more: (offset, length) of further elements of its scatter-gather list.
            to: of a UD request.
            at: (address, rkey) of the peer's, instead of ``remote``.
        """
        parts = ((offset, length), *more)
        made = SendWr(
            self._take_id(),
            opcode,
            tuple(Sge(self.region, start, size) for start, size in parts),
            signaled=signaled,
            inline=0 < sum(size for _, size in parts) <= inline and opcode.startswith(("SEND", "RDMA_WRITE")),
            compare=compare,
            swap_add=swap_add,
            imm=imm,
            invalidate_rkey=invalidate_rkey,
            to=to,
        )
        if at is not None:
            return replace(made, remote_va=at[0], rkey=at[1])
        if remote is None:
            return made
        assert self.peer is not None
        return replace(made, remote_va=self.peer.addr + remote, rkey=self.peer.rkey)

    def send(self, *wrs: SendWr) -> None:
        """Post in one list.

        Raises:
            RefusedPost: the device refused one of them; those before it are posted.
        """
        ids = [wr.wr_id for wr in wrs]
        try:
            self.connection.post_send(*wrs)
        except RefusedPost as refused:
            self._sending.extend(ids[: refused.place])
            raise
        self._sending.extend(ids)

    def receive(self, offset: int, length: int, *, more: Sequence[tuple[int, int]] = ()) -> int:
        """Post a receive; gives its wr_id. ``more`` as in :meth:`wr`."""
        wr_id = self._take_id()
        sges = tuple(Sge(self.region, start, size) for start, size in ((offset, length), *more))
        self._places[wr_id] = offset
        self.connection.post_recv(RecvWr(wr_id, sges))
        return wr_id

    def take(self) -> tuple[Completion, int]:
        """The oldest receive that completed, and the offset that it was posted with."""
        done = self.received.popleft()
        return done, self._places.pop(done.wr_id)

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def completed(self, completion: Completion) -> None:
        """Note a completion. A send's covers the unsignaled sends before it, too."""
        if is_receive(completion):
            self.received.append(completion)
        else:
            while self._sending and self._sending.popleft() != completion.wr_id:
                pass


@dataclass(frozen=True, slots=True)
class Samples:
    """The client's measurements.

    Attributes:
        kind: "latency" or "bandwidth".
        times_ns: of each iteration, for latency; for a ping-pong half the round trip, as in perftest.
        total_ns: from the first post to the last completion.
        moved: bytes of payload, one way.
        operations: WRs that moved them.
        peak_ns: the shortest average time of a message in any part of a stream; 0: unknown.
    """

    kind: str
    times_ns: tuple[int, ...]
    total_ns: int
    moved: int
    operations: int
    peak_ns: float = 0.0


class ScenarioRun:
    """One side of a scenario while it runs.

    Args:
        options: of its QPs.
        timeout_s: the run fails if nothing happens for so long.

    Attributes:
        shared: the receive queue that all its QPs share, if they do.
        notes: lines that are printed below what was measured.
        details: the same for JSON.
        stamps: (link, timestamp) of completions that an extended CQ gave.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        plan: Plan,
        links: list[PeerLink],
        *,
        timeout_s: float,
        options: QpOptions | None = None,
        shared: SharedReceives | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.plan = plan
        self.links = links
        self.options = options or QpOptions()
        self.inline_size = self.options.inline_size
        self.timeout_s = timeout_s
        self.shared = shared
        self.notes: list[str] = []
        self.details: dict[str, Any] = {}
        self.stamps: list[tuple[PeerLink, int]] = []
        self.done = 0
        """Finished iterations, over all links; an error message has this number."""
        self._by_qpn = {link.connection.qpn: link for link in links}

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until the condition holds.

        Raises:
            Disconnected, VerbsError: the peer went away, a WR failed, nothing happened for too long.
        """
        deadline = Deadline(self.timeout_s)
        while not condition():
            if self._poll():
                deadline = Deadline(self.timeout_s)
                continue
            try:
                self.endpoint.look_around(deadline)
            except Disconnected:
                # The peer may have ended well: completions before its disconnect was noticed still count.
                while self._poll():
                    pass
                if not condition():
                    raise

    def _poll(self) -> bool:
        found = self.endpoint.poll()
        for completion in found:
            if completion.status != "SUCCESS":
                self.endpoint.fail(completion)
            link = self._by_qpn.get(completion.qpn)
            if link is not None:
                link.completed(completion)
                if completion.timestamp is not None:
                    self.stamps.append((link, completion.timestamp))
        return bool(found)

    def within(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Poll until the condition holds, at most so long; whether it does. For messages that may be lost."""
        limit = Deadline(seconds)
        while not condition():
            if limit.passed():
                return False
            if not self._poll():
                self.endpoint.look_around(Deadline(self.timeout_s))
        return True

    def flush(self) -> None:
        """Wait until every send has completed."""
        self.until(lambda: not any(link.unsent for link in self.links))

    def goodbye(self) -> None:
        """Disconnect, at the client's end."""
        for link in self.links:
            link.connection.say_goodbye()
        for link in self.links:
            link.connection.disconnect(Deadline(min(self.timeout_s, _GOODBYE_S)))

    def await_goodbye(self, patience_s: float) -> None:
        """Wait, at the server's end, until the client has disconnected and the last sends are acknowledged.

        Only then the server answers the client's DREQ: until it does, the client's QP stays to send ACKs.

        Raises:
            VerbsError: the client does not disconnect, or sends stayed unacknowledged.
        """
        self._await_disconnect(self.links, Deadline(patience_s))
        # The client disconnects all its links when it is done with all.
        last = Deadline(self.timeout_s)
        while any(link.unsent for link in self.links):
            if self._poll():
                continue
            if last.passed():
                left = sum(link.unsent for link in self.links)
                raise VerbsError(f"{left} sends were never acknowledged")
            self.endpoint.pause(last.left())
        for link in self.links:
            self._await_disconnect([link], last)
            link.connection.disconnect(last)

    def _await_disconnect(self, links: list[PeerLink], deadline: Deadline) -> None:
        """Wait until the client has disconnected one of the links."""
        while not any(link.connection.disconnected for link in links):
            if self._poll():
                continue
            # After the poll, which may read the DREQ from the wire: no pause while its event is unread.
            self.endpoint.gone(expected=True)
            if any(link.connection.disconnected for link in links):
                return
            if deadline.passed():
                raise VerbsError(f"the client did not disconnect within {deadline.seconds:g} s (--timeout)")
            self.endpoint.pause(deadline.left())
