"""Plays a drill, without I/O: a generator that yields what is to be done, and is sent what came of it.

A bench does the commands::

    Transmit(data)         send IP packets
    AwaitPacket(until_ns)  the next packet from the device, or None at that time
    LetPass(until_ns)      let time pass; packets that come are kept for the next AwaitPacket
    Call(name, args)       a call of the device's program

and sends a :class:`BenchReply` each time, or throws :class:`~rocekit.conform.device.RefusedError`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final

from rocekit.conform.device import FEATURES, RefusedError, UnfitError, setup_document
from rocekit.conform.drill import (
    NUMBER_BITS,
    CallProgram,
    Drill,
    DrillStep,
    ExpectAcked,
    ExpectCompletions,
    ExpectCounters,
    ExpectEvents,
    ExpectMemory,
    ExpectNothing,
    ExpectPacket,
    ExpectState,
    IgnorePackets,
    RepeatSteps,
    SendPackets,
    resolved,
)
from rocekit.conform.expected import payload_difference
from rocekit.conform.orders import AwaitPacket, BenchReply, Call, Command, LetPass, Transmit
from rocekit.conform.seen import SeenPacket, packet_words, read_packet
from rocekit.conform.values import UnknownName, Wanted
from rocekit.conform.verdict import FAIL, INCONCLUSIVE, NOT_APPLICABLE, PASS, DrillEvent, Verdict
from rocekit.wire import ACK, syndrome_kind
from rocekit.wire import psn as serial

_POLL_NS: Final = 1_000_000
_LONGEST_POLL_NS: Final = 20_000_000
_MISSING: Final = "nothing came"
#: The port that a listener of a drill has.
_CM_PORT: Final = 7_174
#: What the packet side's communication IDs begin with; the end differs from QP to QP.
_COMM_ID: Final = 0xC0DE_0000


class Differs(Exception):
    """The device did not do what a step demands: expected, and what came instead."""

    def __init__(
        self, step: DrillStep, expected: str, came: str, *, slack_ns: int = 0, early_ns: int = 0
    ) -> None:
        super().__init__(expected, came)
        self.step, self.expected, self.came = step, expected, came
        self.slack_ns, self.early_ns = slack_ns, early_ns


Play = Generator[Command, BenchReply, Verdict]
_Part = Generator[Command, BenchReply, None]


class Player:
    """One playing of a drill.

    Args:
        peer_ip: the packet side's address; device_ip: the device's.
        features: what the device has.

    Attributes:
        said: what was sent and came, and what the program did, in order.
    """

    def __init__(self, drill: Drill, peer_ip: str, device_ip: str, features: frozenset[str]) -> None:
        self.drill = drill
        self.said: list[DrillEvent] = []
        self._peer_ip, self._device_ip, self._features = peer_ip, device_ip, features
        self._names: dict[str, int] = {}
        self._now = self._mark = self._began = 0
        self._completions: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []
        self._comm_ids: set[int] = set()
        self._ended: set[int] = set()
        self._counters: dict[str, int] = {}

    def play(self) -> Play:
        """The generator; it returns the verdict."""
        drill = self.drill
        lacks = sorted(drill.needs - self._features)
        if lacks:
            words = ", ".join(f"{FEATURES[name]} ({name})" for name in lacks)
            return Verdict(NOT_APPLICABLE, reason=f"the device lacks {words}")
        step: DrillStep | None = None
        try:
            yield from self._open()
            for step in drill.steps:
                yield from self._do(step)
        except Differs as differs:
            self._say(differs.step.line, "differs", differs.came)
            outcome, reason = FAIL, ""
            if drill.unsure:
                outcome, reason = INCONCLUSIVE, f"unsure: {drill.unsure}"
            return Verdict(
                outcome,
                reason=reason,
                line=differs.step.line,
                step=differs.step.text,
                expected=differs.expected,
                came=differs.came,
                slack_ns=differs.slack_ns,
                early_ns=differs.early_ns,
            )
        except UnfitError as unfit:
            return Verdict(INCONCLUSIVE, reason=str(unfit))
        except RefusedError as refused:
            if step is None:
                return Verdict(NOT_APPLICABLE, reason=f"the device's program cannot be set up: {refused}")
            return Verdict(
                FAIL,
                line=step.line,
                step=step.text,
                expected="the device does it",
                came=f"refused: {refused}",
            )
        return Verdict(PASS)

    def _open(self) -> _Part:
        setup = self.drill.setup
        reply = yield Call("open", {"setup": setup_document(setup), "peer_ip": self._peer_ip})
        self._now = self._mark = self._began = reply.now_ns
        self._names = {
            **reply.result,
            "rq": setup.rq_psn,
            "sq": setup.sq_psn,
            "peer_qpn": setup.peer_qpn,
            "qkey": setup.qkey,
            "msn": 0,
            "i": 0,
            "port": _CM_PORT,
            # A peer's old connections are remembered by these for a while: another drill has others.
            "peer_comm_id": _COMM_ID | reply.result["qpn"] & 0xFFFF,
            "comm_id": 0,
            "transaction_id": 1,
        }
        self._comm_ids.add(self._names["peer_comm_id"])
        if any(isinstance(step, ExpectCounters) for step in self.drill.steps):
            self._counters = (yield Call("counters")).result

    def _do(self, step: DrillStep) -> _Part:
        try:
            yield from _DOERS[type(step)](self, step)
        except UnknownName as unknown:
            known = ", ".join(f"${name}" for name in self._names)
            raise Differs(step, f"a value of ${unknown}", f"nothing gave it one; there is {known}") from None
        except ValueError as error:
            wanted = "a packet that can be built" if isinstance(step, SendPackets) else "values that fit"
            raise Differs(step, wanted, str(error)) from None

    # -- packets

    def _send(self, step: DrillStep) -> _Part:
        assert isinstance(step, SendPackets)
        if step.at is not None:
            yield from self._pass_to(self._mark + step.at.low_ns)
        packets = tuple(packet.build(self._names, self._peer_ip, self._device_ip) for packet in step.packets)
        reply = yield Transmit(packets)
        self._now = self._mark = reply.now_ns
        for data in packets:
            sent = read_packet(data, self._now)
            if sent is not None and "local_comm_id" in sent.cm_fields:
                self._comm_ids.add(sent.cm_fields["local_comm_id"])
            words = f"{len(data)} bytes that are no packet" if sent is None else self._words(sent)
            self._say(step.line, "sent", words)

    def _receive(self, until_ns: int, step: DrillStep) -> Generator[Command, BenchReply, SeenPacket | None]:
        """The next RoCE packet."""
        while True:
            reply = yield AwaitPacket(until_ns)
            self._now = max(self._now, reply.now_ns)
            if reply.result is None:
                return None
            time_ns, data = reply.result
            seen = read_packet(data, time_ns)
            if seen is None or seen.source != self._device_ip or self._of_another_drill(seen):
                continue
            if not seen.response and seen.op is not None and seen.op.ends:
                self._ended.add(seen.fields["psn"])
                self._names["msn"] = len(self._ended)
            self._say(step.line, "came", self._words(seen), seen.time_ns)
            if seen.cm:
                self._learn(seen)
            if seen.cm == "MRA" and not (isinstance(step, ExpectPacket) and step.names_cm("MRA")):
                continue  # 12.6.6: whoever needs time may ask for it, whenever it likes
            return seen

    def _of_another_drill(self, seen: SeenPacket) -> bool:
        """Whether it is a CM message of a connection that an earlier drill left."""
        return seen.cm_fields.get("remote_comm_id", 0) not in {0, *self._comm_ids}

    def _learn(self, seen: SeenPacket) -> None:
        """What a CM message says of the device's side of the connection."""
        fields = seen.cm_fields
        if seen.cm in ("REQ", "REP"):
            self._names |= {"comm_id": fields["local_comm_id"], "rq": fields["starting_psn"]}
        self._names["transaction_id"] = fields["transaction_id"]

    def _expect(self, step: DrillStep) -> _Part:
        assert isinstance(step, ExpectPacket)
        before = self._mark
        expected = self._expected_words(step)
        seen = yield from self._receive(before + step.within_ns, step)
        if seen is None:
            if step.or_nothing:
                self._mark = self._now
                return
            raise Differs(
                step, expected, f"{_MISSING} in {step.within_ns / 1e6:g} ms", slack_ns=step.within_ns // 2
            )
        differences = [packet.differs(seen, self._names) for packet in step.either]
        if all(differences):
            names = frozenset[str]().union(*(packet.names for packet in step.either))
            why = "; ".join(dict.fromkeys(d for d in differences if d)) or "nothing was to come"
            raise Differs(step, expected, f"{self._words(seen, names)}: {why}")
        waited = seen.time_ns - before
        if step.at is not None and not step.at.earliest_ns <= waited <= step.at.latest_ns:
            came = f"it, after {waited / 1e6:.3f} ms"
            raise Differs(step, expected, came, **step.at.missed(waited))
        self._mark = seen.time_ns
        for name, source in step.capture.items():
            if source not in seen.fields and source not in seen.cm_fields:
                raise Differs(step, f"a field {source} to capture", self._words(seen))
            value = seen.cm_fields.get(source, seen.fields.get(source, 0))
            if source == "psn":
                value = serial.diff(value, self._names["rq" if seen.response else "sq"])
            self._names[name] = value

    def _acked(self, step: DrillStep) -> _Part:
        assert isinstance(step, ExpectAcked)
        wanted, before = step.psn.value(self._names), self._mark
        expected = f"an ACK of psn {wanted}"
        while True:
            seen = yield from self._receive(before + step.within_ns, step)
            if seen is None:
                raise Differs(
                    step, expected, f"{_MISSING} in {step.within_ns / 1e6:g} ms", slack_ns=step.within_ns // 2
                )
            psn = serial.diff(seen.fields["psn"], self._names["rq"] & serial.MASK)
            good = (
                not seen.faults
                and seen.name == "RC_ACKNOWLEDGE"
                and seen.fields["dest_qpn"] == self._names["peer_qpn"]
                and syndrome_kind(seen.fields["syndrome"]) == ACK
            )
            if not good or psn > wanted:
                raise Differs(step, expected, self._words(seen))
            self._mark = seen.time_ns
            if psn == wanted:
                break
        msn = seen.fields["msn"]
        if step.msn is not None and not step.msn.test(msn, self._names):
            raise Differs(step, f"{expected} with msn {step.msn.text}", self._words(seen))

    def _nothing(self, step: DrillStep) -> _Part:
        assert isinstance(step, ExpectNothing)
        seen = yield from self._receive(self._mark + step.for_ns, step)
        if seen is not None:
            after = f", after {(seen.time_ns - self._mark) / 1e6:.3f} ms"
            raise Differs(step, f"nothing for {step.for_ns / 1e6:g} ms", self._words(seen) + after)
        self._mark = self._now

    def _ignore(self, step: DrillStep) -> _Part:
        assert isinstance(step, IgnorePackets)
        until = self._mark + step.for_ns
        while (yield from self._receive(until, step)) is not None:
            pass
        self._mark = self._now

    # -- the program

    def _call(self, step: DrillStep) -> _Part:
        assert isinstance(step, CallProgram)
        if step.at is not None:
            yield from self._pass_to(self._mark + step.at.low_ns)
        arguments = resolved(step.arguments, self._names)
        self._check_arguments(step.call, arguments)
        self._say(step.line, "program", step.text)
        try:
            reply = yield Call(step.call, arguments)
        except RefusedError as refused:
            if not step.refused:
                raise
            self._say(step.line, "program", f"refused: {refused}")
            return
        if step.refused:
            raise Differs(step, "the device refuses it", "it was done")
        self._now = reply.now_ns
        self._mark = reply.now_ns
        if isinstance(reply.result, dict):
            self._names |= reply.result
        elif step.named and reply.result is not None:
            self._names[step.named] = reply.result

    def _pass_to(self, until_ns: int) -> _Part:
        reply = yield LetPass(until_ns)
        self._now = reply.now_ns

    def _polled(self, until_ns: int) -> Generator[Command, BenchReply, dict[str, Any] | None]:
        """The next completion."""
        wait = _POLL_NS
        while not self._completions:
            reply = yield Call("poll")
            self._now = reply.now_ns
            for completion in reply.result:
                self._completions.append(completion)
                self._say(0, "completion", words_of(completion))
            if self._completions or self._now >= until_ns:
                break
            yield from self._pass_to(min(until_ns, self._now + wait))
            wait = min(2 * wait, _LONGEST_POLL_NS)
        return self._completions.pop(0) if self._completions else None

    def _completed(self, step: DrillStep) -> _Part:
        assert isinstance(step, ExpectCompletions)
        if not step.completions:
            found = yield from self._polled(self._mark + step.within_ns)
            if found is not None:
                raise Differs(step, f"no completion for {step.within_ns / 1e6:g} ms", words_of(found))
            self._mark = self._now
            return
        before = self._mark
        for wanted in step.completions:
            expected = f"a completion with {wanted_words(wanted)}"
            found = yield from self._polled(before + step.within_ns)
            if found is None:
                raise Differs(
                    step, expected, f"none in {step.within_ns / 1e6:g} ms", slack_ns=step.within_ns // 2
                )
            if not self._fits(found, wanted):
                raise Differs(step, expected, words_of(found))
        waited = self._now - before
        if step.at is not None and not step.at.earliest_ns <= waited <= step.at.latest_ns:
            when = step.text.rpartition("at: ")[2]
            came = f"it, after {waited / 1e6:.3f} ms"
            raise Differs(step, f"{expected}, at {when}", came, **step.at.missed(waited))

    def _told(self, until_ns: int) -> Generator[Command, BenchReply, dict[str, Any] | None]:
        """The next event."""
        wait = _POLL_NS
        while not self._events:
            reply = yield Call("events")
            self._now = reply.now_ns
            self._events += reply.result
            for event in reply.result:
                self._say(0, "event", words_of(event))
            if self._events or self._now >= until_ns:
                break
            yield from self._pass_to(min(until_ns, self._now + wait))
            wait = min(2 * wait, _LONGEST_POLL_NS)
        return self._events.pop(0) if self._events else None

    def _happened(self, step: DrillStep) -> _Part:
        assert isinstance(step, ExpectEvents)
        before = self._mark
        for wanted in step.events or (None,):
            expected = "no event" if wanted is None else f"the event {wanted_words(wanted)}"
            found = yield from self._told(before + step.within_ns)
            if (found is None) != (wanted is None):
                came = f"none in {step.within_ns / 1e6:g} ms" if found is None else words_of(found)
                raise Differs(step, expected, came, slack_ns=step.within_ns // 2 if found is None else 0)
            if found is None or wanted is None:
                self._mark = self._now
            elif not self._fits(found, wanted):
                raise Differs(step, expected, words_of(found))

    def _memory(self, step: DrillStep) -> _Part:
        assert isinstance(step, ExpectMemory)
        self._check_region(step.region, step.offset, len(step.content))
        arguments = {"region": step.region, "offset": step.offset, "length": len(step.content)}
        reply = yield Call("read", arguments)
        found = bytes.fromhex(reply.result)
        if found != step.content:
            words = payload_difference(found, step.content).replace("its payload", "them")
            raise Differs(
                step, f"{len(step.content)} bytes at {step.offset} of {step.region}", f"others: {words}"
            )

    def _check_arguments(self, call: str, arguments: Mapping[str, Any]) -> None:
        """Raises ValueError where an argument is no value that a program can have."""
        for key, value in arguments.items():
            bits = NUMBER_BITS.get(key, 64)
            if isinstance(value, int) and not 0 <= value < 1 << bits:
                raise ValueError(f"{key} is no number of {bits} bits: {value}")
        if "region" not in arguments:
            return
        if call == "fill":
            length = len(arguments["content"]) // 2
            self._check_region(arguments["region"], arguments["offset"], length)
        else:  # what lies outside of a region is the device's to judge
            self._check_region(arguments["region"], 0, 0)

    def _check_region(self, name: str, offset: int, length: int) -> None:
        """Raises ValueError where there is no such memory."""
        region = self.drill.setup.memory.get(name)
        if region is None:
            raise ValueError(f"no region {name!r}; there is {', '.join(self.drill.setup.memory)}")
        if not (0 <= offset <= region.length and 0 <= length <= region.length - offset):
            raise ValueError(f"{length} bytes at {offset} are not in {name}, which has {region.length}")

    def _state(self, step: DrillStep) -> _Part:
        assert isinstance(step, ExpectState)
        until = self._mark + min(step.within_ns, 1_000_000_000)
        wait = _POLL_NS
        while True:
            reply = yield Call("state")
            if reply.result in step.states:
                return
            if reply.now_ns >= until:
                raise Differs(step, f"the QP is in {' or '.join(step.states)}", f"it is in {reply.result}")
            yield from self._pass_to(min(until, reply.now_ns + wait))
            wait = min(2 * wait, _LONGEST_POLL_NS)

    def _risen(self, step: DrillStep) -> _Part:
        assert isinstance(step, ExpectCounters)
        reply = yield Call("counters")
        for name, wanted in step.counters.items():
            rose = reply.result.get(name, 0) - self._counters.get(name, 0)
            if not wanted.test(rose, self._names):
                raise Differs(step, f"{name} rose by {wanted.text}", f"it rose by {rose}")

    def _repeat(self, step: DrillStep) -> _Part:
        assert isinstance(step, RepeatSteps)
        for i in range(step.times):
            self._names["i"] = i
            for inner in step.steps:
                yield from self._do(inner)

    def _fits(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        """Whether a completion or an event is as wanted."""

        def one(value: Any, seen: Any) -> bool:
            if isinstance(value, Wanted):
                return seen is not None and value.test(seen, self._names)
            return bool(seen in value if isinstance(value, frozenset) else seen == value)

        return all(one(value, found.get(key)) for key, value in wanted.items())

    # -- words

    def _say(self, line: int, what: str, text: str, time_ns: int | None = None) -> None:
        at = (self._now if time_ns is None else time_ns) - self._began
        self.said.append(DrillEvent(at, line, what, text))

    def _words(self, seen: SeenPacket, expected: frozenset[str] = frozenset()) -> str:
        # A request of the peer's and the device's response to it count from rq, the other way from sq.
        from_peer = seen.source == self._peer_ip
        start = self._names["rq" if from_peer != seen.response else "sq"]
        return packet_words(seen, start & serial.MASK, expected=expected)

    def _expected_words(self, step: ExpectPacket) -> str:
        return step.text.removeprefix("expect: ")


def words_of(told: Mapping[str, Any]) -> str:
    """A completion or an event."""
    return ", ".join(f"{key} {value}" for key, value in told.items() if value is not None)


def wanted_words(wanted: Mapping[str, Any]) -> str:
    """What a completion or an event must be."""

    def one(value: Any) -> str:
        if isinstance(value, Wanted):
            return value.text
        return " or ".join(sorted(value)) if isinstance(value, frozenset) else str(value)

    return ", ".join(f"{key} {one(value)}" for key, value in wanted.items())


_DOERS: Final = {
    SendPackets: Player._send,
    ExpectPacket: Player._expect,
    ExpectAcked: Player._acked,
    ExpectNothing: Player._nothing,
    IgnorePackets: Player._ignore,
    CallProgram: Player._call,
    ExpectCompletions: Player._completed,
    ExpectMemory: Player._memory,
    ExpectState: Player._state,
    ExpectCounters: Player._risen,
    ExpectEvents: Player._happened,
    RepeatSteps: Player._repeat,
}
