"""What a drill says, once it is read: the device's program, and the steps on one clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from rocekit.conform.expected import ExpectedPacket
from rocekit.conform.outgoing import OutgoingPacket
from rocekit.conform.values import Names, Sum, TimeSpan, Wanted

#: How long a step waits for what it expects, if it does not say.
PATIENCE_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class RegionSetup:
    """A memory region of the device's program.

    Attributes:
        domain: the protection domain's name; the QP is in ``main``.
        content: its first bytes; zeros follow.
    """

    length: int = 65_536
    access: tuple[str, ...] = ("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC")
    domain: str = "main"
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class DeviceSetup:
    """What the device's program makes before the first step.

    Attributes:
        state: of the QP at the first step: RESET, INIT, RTR or RTS.
        peer_qpn: the QPN that the packet side has.
        srq: whether the QP's receives come from a shared receive queue.
    """

    transport: str = "RC"
    state: str = "RTS"
    path_mtu: int = 1024
    access: tuple[str, ...] = ("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC")
    rq_psn: int = 1000
    sq_psn: int = 5000
    peer_qpn: int = 0x4D2
    timeout: int = 19
    retry_cnt: int = 6
    rnr_retry: int = 6
    min_rnr_timer: int = 12
    max_rd_atomic: int = 4
    max_dest_rd_atomic: int = 4
    qkey: int = 0x11111111
    tclass: int = 0
    srq: bool = False
    memory: Mapping[str, RegionSetup] = field(default_factory=lambda: {"main": RegionSetup()})


@dataclass(frozen=True, slots=True)
class DrillStep:
    """One line of a drill.

    Attributes:
        text: the line as it could stand in the file.
        at: when it must happen, from the event before on; None: until ``within_ns`` has passed.
    """

    line: int
    text: str
    at: TimeSpan | None = None
    within_ns: int = PATIENCE_NS


@dataclass(frozen=True, slots=True)
class SendPackets(DrillStep):
    """The packet side sends these, one directly after the other."""

    packets: tuple[OutgoingPacket, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectPacket(DrillStep):
    """The device sends a packet; it is one of these."""

    either: tuple[ExpectedPacket, ...] = ()
    or_nothing: bool = False
    capture: Mapping[str, str] = field(default_factory=dict)

    def names_cm(self, message: str) -> bool:
        """Whether a CM message of that name is one of these."""
        return any(packet.cm == message for packet in self.either)


@dataclass(frozen=True, slots=True)
class ExpectAcked(DrillStep):
    """The device acknowledges everything up to a PSN; ACKs of PSNs before it may come first (coalescing)."""

    psn: Sum = field(default_factory=lambda: Sum(()))
    msn: Wanted | None = None


@dataclass(frozen=True, slots=True)
class ExpectNothing(DrillStep):
    """The device sends nothing for so long."""

    for_ns: int = 0


@dataclass(frozen=True, slots=True)
class IgnorePackets(DrillStep):
    """Whatever the device sends for so long is not judged."""

    for_ns: int = 0


@dataclass(frozen=True, slots=True)
class ExpectCompletions(DrillStep):
    """The program polls these completions, in this order; an empty mapping: none, for ``within_ns``."""

    completions: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectEvents(DrillStep):
    """The program gets these events, in order; empty: none, for ``within_ns``."""

    events: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectMemory(DrillStep):
    """A region has these bytes there."""

    region: str = "main"
    offset: int = 0
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class ExpectState(DrillStep):
    """The QP is in one of these states, or comes there in time."""

    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectCounters(DrillStep):
    """Counters of the device have risen by so much since the drill began."""

    counters: Mapping[str, Wanted] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallProgram(DrillStep):
    """The device's program does something: a method of :class:`~rocekit.conform.device.ConformDevice`.

    Attributes:
        arguments: by name; numbers may be :class:`Sum`.
        refused: whether the device must refuse it.
        named: the name that its result, a number, gets.
    """

    call: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    refused: bool = False
    named: str = ""


@dataclass(frozen=True, slots=True)
class RepeatSteps(DrillStep):
    """The steps again and again; ``$i`` counts from 0."""

    times: int = 0
    steps: tuple[DrillStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Drill:
    """One test.

    Attributes:
        name: area and file name, such as ``responder/psn/duplicate_write``.
        claim: what it demonstrates, in one sentence.
        clause: of the specification.
        source: a second source beside the clause: a driver, its history, a capture.
        needs: features that the device must have; see :data:`~rocekit.conform.device.FEATURES`.
        unsure: what would settle whether the specification demands this; empty where its text does.
    """

    name: str
    claim: str
    clause: str
    steps: tuple[DrillStep, ...]
    setup: DeviceSetup = field(default_factory=DeviceSetup)
    source: str = ""
    needs: frozenset[str] = frozenset()
    unsure: str = ""
    text: str = ""


#: How many bits the numbers of a work request have; the others have 64. No queue has more receives than
#: ``count`` can say.
NUMBER_BITS: Final = MappingProxyType(
    {"rkey": 32, "invalidate_rkey": 32, "imm": 32, "qkey": 32, "qpn": 24, "length": 32, "flush_length": 32}
    | {"count": 16}
)


def resolved(arguments: Any, names: Names) -> Any:
    """Arguments with numbers in place of sums."""
    if isinstance(arguments, Sum):
        return arguments.value(names)
    if isinstance(arguments, Mapping):
        return {key: resolved(value, names) for key, value in arguments.items()}
    if isinstance(arguments, list | tuple):
        return [resolved(value, names) for value in arguments]
    return arguments
