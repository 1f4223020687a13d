"""A requester and a responder with several paths between them, and what a capture of them sees.

Packets are sprayed: each takes one of the paths, and the paths differ in delay, so that packets overtake each
other. The endpoints are as simple as that allows. What was lost and why somebody sent again is the truth.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from talk import US, Talk

#: Where the capture is taken.
AT_REQUESTER, BETWEEN, AT_RESPONDER = "requester", "between", "responder"
PLACES = (AT_REQUESTER, BETWEEN, AT_RESPONDER)
#: The time on the way from a host to the spread of paths, and of the shortest path.
_EDGE_NS, _PATH_NS = 2_000, 4_000
#: The time in which a sender sends a packet.
_SLOT_NS = 350
_OPCODES = {True: "ONLY", False: "MIDDLE"}


@dataclass
class Truth:
    """What happened: PSNs lost, times the requester went back, and why."""

    lost: list[int] = field(default_factory=list)
    went_back: list[tuple[str, int, int]] = field(default_factory=list)
    overtaken: int = 0


class Fabric:
    """Messages of one requester over paths that reorder.

    Args:
        place: where the capture is. ids: whether hosts count their datagrams; else identifications are 0.
        keeps: whether the receiver keeps what comes out of order. goes_back: whether the requester sends all
        again from a NAK's PSN, or that PSN alone. paths_ns: how much longer than the shortest each path is.
        drops: transmissions of requests (responses of READs) that are lost, as (PSN, number from 0), behind a
        capture between, or with ``drop_before`` before it. lost_acks: PSNs whose first ACK is lost.
        patience_ns: how long a receiver that keeps packets waits for one that is missing. timer_ns: the wait
        before the n-th retry. naks: whether the capture has NAKs. ports: how many UDP source ports are used.
        connect: fields of a REQ; without it the capture has no CM messages.
    """

    def __init__(
        self,
        *,
        place: str = BETWEEN,
        ids: bool = False,
        keeps: bool = True,
        goes_back: bool = False,
        paths_ns: tuple[int, ...] = (0, 400, 900, 1_700),
        drops: Collection[tuple[int, int]] = (),
        drop_before: bool = False,
        lost_acks: Collection[int] = (),
        patience_ns: int = 6_000,
        timer_ns: Callable[[int], int] = lambda n: 67_000_000,
        naks: bool = True,
        seed: int = 1,
        ports: int = 1,
        connect: dict[str, Any] | None = None,
    ) -> None:
        self.talk = Talk(mtu=4096)
        if connect is not None:
            self.talk.request(**connect)
            self.talk.reply(starting_psn=10)
            self.talk.cm("RTU", local_comm_id=1, remote_comm_id=2)
        self.place, self.ids, self.keeps, self.goes_back = place, ids, keeps, goes_back
        self.paths_ns, self.drops, self.drop_before = paths_ns, set(drops), drop_before
        self.patience_ns, self.timer_ns, self.naks, self.ports = patience_ns, timer_ns, naks, ports
        self.lost_acks = set(lost_acks)
        self.random = random.Random(seed)
        self.truth = Truth()
        self.seen: list[tuple[int, int, Callable[[], Any]]] = []
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.now = self.talk.now
        self.count = 0
        self.free_ns = {"a": 0, "b": 0}
        self.ident = {"a": 100, "b": 5000}
        self.copies: dict[int, int] = {}

    # ------------------------------------------------------------------ time and network

    def at(self, ns: int, do: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (ns, self.count, do))

    def run(self) -> None:
        while self.queue:
            self.now, _, do = heapq.heappop(self.queue)
            do()

    def capture(self) -> Talk:
        """The capture, when all is over."""
        self.run()
        for ns, _, make in sorted(self.seen, key=lambda s: s[:2]):
            self.talk.now = max(ns, self.talk.now + 1) - US
            make()
        return self.talk

    def transmit(
        self, by: str, psn: int, make: Callable[[int, int], Any], arrive: Callable[[], None], *,
        spread: bool = True, hidden: bool = False, drop: bool = False,
    ) -> None:  # fmt: skip
        """Send a packet: ``make`` appends it to the capture, ``arrive`` is what its receiver does."""
        self.free_ns[by] = sent_ns = max(self.now, self.free_ns[by]) + _SLOT_NS
        self.ident[by] += 1
        ident = self.ident[by] & 0xFFFF if self.ids else 0
        path = self.random.randrange(len(self.paths_ns)) if spread else 0
        extra = self.paths_ns[path] + self.random.randrange(50) if spread else 0
        near_ns, mid_ns = sent_ns + 100, sent_ns + _EDGE_NS + extra // 2
        far_ns = sent_ns + _EDGE_NS * 2 + _PATH_NS + extra
        here = {"a": AT_REQUESTER, "b": AT_RESPONDER}[by]
        ns = mid_ns if self.place == BETWEEN else near_ns if self.place == here else far_ns
        lost_before = drop and (self.drop_before if self.place == BETWEEN else self.place != here)
        if not (lost_before or hidden):
            self.count += 1
            port = 0xC000 + path % self.ports
            self.seen.append((ns, self.count, lambda: make(ident, port)))
        if drop:
            self.truth.lost.append(psn)
        else:
            self.at(far_ns + (1_000 if not spread else 0), arrive)

    def dropped(self, psn: int) -> bool:
        n = self.copies[psn] = self.copies.get(psn, -1) + 1
        return (psn, n) in self.drops

    # ------------------------------------------------------------------ WRITEs

    def writes(self, first: int, packets: int, messages: int, gap_ns: int = 20_000) -> Fabric:
        """WRITEs of ``packets`` packets each, one after the other was acknowledged; ``gap_ns`` in between."""
        end = first + packets * messages
        state: dict[str, Any] = {"acked": first, "next": first, "expected": first, "retry": 0, "epoch": 0}
        kept: set[int] = set()
        asked: set[int] = set()

        def message_of(psn: int) -> int:
            return first + (psn - first) // packets * packets

        def send(psn: int) -> None:
            start = message_of(psn)
            self.transmit(
                "a", psn,
                lambda ident, port: self.talk.write(
                    start, packets, only=[psn], identification=ident, sport=port
                ),
                lambda: arrives(psn), drop=self.dropped(psn),
            )  # fmt: skip

        def send_message() -> None:
            if state["next"] < end:
                start = state["next"]
                state["next"] = start + packets
                for psn in range(start, start + packets):
                    send(psn)
                arm()

        def arm() -> None:
            state["epoch"] += 1
            epoch = state["epoch"]
            busy_ns = max(self.now, self.free_ns["a"])
            self.at(busy_ns + self.timer_ns(state["retry"]), lambda: expires(epoch))

        def expires(epoch: int) -> None:
            if epoch == state["epoch"] and state["acked"] < state["next"]:
                state["retry"] += 1
                self.truth.went_back.append(("timer", state["acked"], self.now))
                for psn in range(state["acked"], state["next"]):
                    send(psn)
                arm()

        def arrives(psn: int) -> None:
            expected = state["expected"]
            if psn < expected:
                if psn % packets == (first - 1) % packets:
                    answer("ACK", expected - 1)
                return
            if psn > expected:
                self.truth.overtaken += self.keeps
                if self.keeps:
                    kept.add(psn)
                    self.at(self.now + self.patience_ns, lambda: misses(expected))
                elif expected not in asked:
                    asked.add(expected)
                    answer("NAK", expected)
                return
            asked.discard(expected)
            kept.add(psn)
            while state["expected"] in kept:
                kept.discard(state["expected"])
                state["expected"] += 1
                if (state["expected"] - first) % packets == 0:
                    answer("ACK", state["expected"] - 1)

        def misses(psn: int) -> None:
            if state["expected"] == psn and psn not in asked and kept:
                asked.add(psn)
                answer("NAK", psn)

        def answer(kind: str, psn: int) -> None:
            hear = (lambda: refused(psn)) if kind == "NAK" else (lambda: acknowledged(psn))
            make = self.talk.nak if kind == "NAK" else self.talk.ack
            self.transmit(
                "b", psn, lambda ident, port: self._aeth(make, psn, ident), hear,
                spread=False, hidden=kind == "NAK" and not self.naks,
                drop=kind == "ACK" and psn in self.lost_acks,
            )  # fmt: skip
            if kind == "ACK":
                self.lost_acks.discard(psn)

        def refused(psn: int) -> None:
            state["acked"] = max(state["acked"], psn)
            self.truth.went_back.append(("nak", psn, self.now))
            for p in range(psn, state["next"]) if self.goes_back else [psn]:
                send(p)
            arm()

        def acknowledged(psn: int) -> None:
            if psn < state["acked"]:
                return
            state["acked"], state["retry"] = psn + 1, 0
            if state["acked"] == state["next"]:
                state["epoch"] += 1
                self.at(self.now + gap_ns, send_message)
            else:
                arm()

        self.at(self.now + 1_000, send_message)
        return self

    def _aeth(self, make: Callable[..., Any], psn: int, ident: int) -> None:
        self.talk.common = {"identification": ident}
        make(psn)
        self.talk.common = {}

    # ------------------------------------------------------------------ READs

    def reads(self, first: int, packets: int, messages: int, gap_ns: int = 20_000) -> Fabric:
        """READs of ``packets`` response packets each, one after the other."""
        state: dict[str, Any] = {"start": first, "expected": first, "epoch": 0, "asked": -1}
        kept: set[int] = set()
        end = first + packets * messages

        def ask(psn: int) -> None:
            start = state["start"]
            state["epoch"] += 1
            epoch = state["epoch"]

            def make(ident: int, port: int) -> None:
                self.talk.common = {"identification": ident}
                self.talk.read(start, packets, skip=psn - start)
                self.talk.common = {}

            self.transmit("a", psn, make, lambda: answers(start, psn, epoch), spread=False)
            self.at(self.now + self.timer_ns(0), lambda: expires(epoch))

        def expires(epoch: int) -> None:
            if epoch == state["epoch"] and state["expected"] < state["start"] + packets:
                self.truth.went_back.append(("timer", state["expected"], self.now))
                ask(state["expected"])

        def answers(start: int, skip_to: int, epoch: int) -> None:
            for psn in range(skip_to, start + packets):
                respond(start, skip_to, psn, epoch)

        def respond(start: int, skip_to: int, psn: int, epoch: int) -> None:
            lost = [p for p in range(start, start + packets) if p != psn]

            def make(ident: int, port: int) -> None:
                self.talk.common = {"identification": ident}
                self.talk.responses(start, packets, skip=skip_to - start, lost=lost)
                self.talk.common = {}

            self.transmit("b", psn, make, lambda: arrives(psn, epoch), drop=self.dropped(psn))

        def arrives(psn: int, epoch: int) -> None:
            expected = state["expected"]
            if psn < expected:
                return
            if psn > expected:
                self.truth.overtaken += 1
                if self.keeps:
                    kept.add(psn)
                    self.at(self.now + self.patience_ns, lambda: misses(expected))
                elif state["asked"] != expected:
                    state["asked"] = expected
                    self.truth.went_back.append(("implied", expected, self.now))
                    ask(expected)
                return
            kept.add(psn)
            while state["expected"] in kept:
                kept.discard(state["expected"])
                state["expected"] += 1
            if state["expected"] == state["start"] + packets:
                state["epoch"] += 1
                state["start"] = state["expected"]
                if state["start"] < end:
                    self.at(self.now + gap_ns, lambda: ask(state["start"]))

        def misses(psn: int) -> None:
            if state["expected"] == psn and state["asked"] != psn and kept:
                state["asked"] = psn
                self.truth.went_back.append(("implied", psn, self.now))
                ask(psn)

        self.at(self.now + 1_000, lambda: ask(first))
        return self
