"""Faults on a wire: one packet hit on purpose, or packets hit at random from a seed.

A fault names its packet as Lumina does (SIGCOMM'23), in relative numbers counted from 1::

    {qpn: 1, psn: 4, type: drop, iter: 1}

is the first transmission of the fourth PSN of the first queue pair. ``of`` says which packet with that PSN:
``request`` (the default), ``response`` (a READ's or atomic's), ``ack`` or ``mad`` (the n-th that the device
sends); ``from`` names the requester's device, the first one on the wire if not given. With ``rate`` in the
place of ``psn`` and ``iter``, packets are hit at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.soft.cm.ids import GSI_QPN
from rocekit.soft.engine.packet import Datagram, mark_ce
from rocekit.soft.engine.prng import Prng
from rocekit.wire import BTH, OPCODES
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.soft.device import Device

TYPES: Final = ("drop", "ecn", "bit-error", "duplicate", "reorder", "delay")
OF: Final = ("request", "response", "ack", "mad")
_PSN_SHIFT: Final = BTH.length * 8 - BTH.by_name["psn"].offset - BTH.by_name["psn"].bits
_UDP_BYTES: Final = 8
_LONGEST_DELAY_US: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to which packet.

    Attributes:
        type: one of :data:`TYPES`.
        qpn: which QP of the requester, from 1 in the order they were made; None: any.
        psn: which PSN of it, from 1; None for a random fault.
        iter: which transmission of that PSN, from 1; 0: every one.
        of: one of :data:`OF`; None (random faults only): any.
        sender: the requester's device: its name, or its role ``client`` or ``server``; None: the first on the
            wire (in memory) or the client, and any for a random fault.
        rate: the chance of a packet to be hit, for a random fault.
        delay_us: how much later a ``delay`` or ``reorder`` delivers, or how much later the second of a
            ``duplicate``.
    """

    type: str
    qpn: int | None = 1
    psn: int | None = None
    iter: int = 1
    of: str | None = "request"
    sender: str | None = None
    rate: float | None = None
    delay_us: float | None = None

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise ValueError(f"type is one of {', '.join(TYPES)}, not {self.type!r}")
        if self.of is not None and self.of not in OF:
            raise ValueError(f"of is one of {', '.join(OF)}, not {self.of!r}")
        if (self.psn is None) == (self.rate is None):
            raise ValueError("a fault has either psn or rate")
        for name, value in (("qpn", self.qpn), ("psn", self.psn)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is counted from 1, not {value}")
        if self.psn is not None and self.psn > MASK + 1:
            raise ValueError(f"psn is at most {MASK + 1}: there are no more PSNs of 24 bits, not {self.psn}")
        if self.iter < 0:
            raise ValueError(f"iter is counted from 1, or 0 for every transmission, not {self.iter}")
        if self.rate is not None and not 0 <= self.rate <= 1:
            raise ValueError(f"rate is a chance from 0 to 1, not {self.rate}")
        if self.delay_us is not None and not 0 <= self.delay_us <= _LONGEST_DELAY_US:
            raise ValueError(f"delay_us is 0 to {_LONGEST_DELAY_US}, an hour, not {self.delay_us}")

    @property
    def delay_ns(self) -> int:
        default = {"reorder": 20.0, "delay": 1000.0, "duplicate": 2.0}.get(self.type, 0.0)
        return round((default if self.delay_us is None else self.delay_us) * 1000)


def at_random(rates: dict[str, float], **common: float) -> tuple[Fault, ...]:
    """Random faults on everything: ``at_random({"drop": 0.02, "reorder": 0.01})``."""
    return tuple(
        Fault(kind, qpn=None, of=None, rate=rate, delay_us=common.get("delay_us"))
        for kind, rate in rates.items()
    )


class Aim(NamedTuple):
    """A packet as faults name it, numbers counted from 1: the requester's device and role, the number of its
    queue pair, which of :data:`OF`, and the relative PSN.
    """

    requester: str
    role: str | None
    number: int
    of: str
    psn: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A datagram to deliver, ``delay_ns`` later than without faults."""

    data: bytes
    delay_ns: int = 0


class FaultInjector:
    """Decides what becomes of each datagram; the same for the same seed and the same datagrams.

    Attributes:
        done: how often each type was done.
    """

    def __init__(self, faults: Iterable[Fault], seed: int, *, usual: str | None = None) -> None:
        faults = tuple(faults)
        self._aimed = [f for f in faults if f.rate is None]
        self._random = [f for f in faults if f.rate is not None]
        self._usual = usual
        self._prng = Prng(seed, "faults")
        self._rounds: dict[Aim, int] = {}
        self.done = dict.fromkeys(TYPES, 0)

    def __bool__(self) -> bool:
        return bool(self._aimed or self._random)

    def apply(self, datagram: Datagram, sender: Device, devices: Sequence[Device]) -> list[Delivery]:
        """The deliveries that a sent datagram becomes: none when it is lost."""
        hits = []
        if self._aimed:
            hits += self._aim(datagram, sender, devices)
        for fault in self._random:
            if self._prng.chance(fault.rate or 0.0) and self._concerns(fault, datagram, sender, devices):
                hits.append(fault)
        return self._hit(datagram.data, hits)

    def _concerns(self, fault: Fault, datagram: Datagram, sender: Device, devices: Sequence[Device]) -> bool:
        if fault.qpn is None and fault.of is None and fault.sender is None:
            return True
        aimed = _identify(datagram, sender, devices)
        if aimed is None:
            return False
        requester, role, number, of, _ = aimed
        return (
            fault.qpn in (None, number) and fault.of in (None, of) and fault.sender in (None, requester, role)
        )

    def _aim(self, datagram: Datagram, sender: Device, devices: Sequence[Device]) -> list[Fault]:
        aimed = _identify(datagram, sender, devices)
        if aimed is None:
            return []
        requester, role, number, of, psn = aimed
        wanted = [
            f
            for f in self._aimed
            if f.psn == psn
            and f.qpn in (None, number)
            and f.of == of
            and (f.sender or self._usual or devices[0].name) in (requester, role)
        ]
        if not wanted:
            return []
        rounds = self._rounds[aimed] = self._rounds.get(aimed, 0) + 1
        return [f for f in wanted if f.iter in (0, rounds)]

    def _hit(self, data: bytes, hits: list[Fault]) -> list[Delivery]:
        delay = 0
        copies: list[Fault] = []
        for fault in hits:
            self.done[fault.type] += 1
            if fault.type == "drop":
                return []
            if fault.type == "ecn":
                data = mark_ce(data)
            elif fault.type == "bit-error":
                data = self._flip(data)
            elif fault.type == "duplicate":
                copies.append(fault)
            else:
                delay += fault.delay_ns
        return [Delivery(data, delay), *(Delivery(data, delay + f.delay_ns) for f in copies)]

    def _flip(self, data: bytes) -> bytes:
        """One bit wrong, somewhere that the ICRC covers: from behind the BTH, or in the ICRC itself."""
        start = _transport(data) + BTH.length
        bit = self._prng.below((len(data) - start) * 8)
        flipped = bytearray(data)
        flipped[start + bit // 8] ^= 1 << bit % 8
        return bytes(flipped)


def _transport(data: bytes) -> int:
    """Where the BTH begins; the engine sends neither IP options nor extension headers."""
    return (40 if data[0] >> 4 == 6 else 20) + _UDP_BYTES


def _identify(datagram: Datagram, sender: Device, devices: Sequence[Device]) -> Aim | None:
    """What a datagram is for faults to aim at; None for what is none of a queue pair's."""
    start = _transport(datagram.data)
    op = OPCODES.get(datagram.data[start])
    if datagram.qpn == GSI_QPN:
        return Aim(sender.name, sender.role, 1, "mad", sender.cm.sent)
    qp = sender.qps.get(datagram.qpn)
    if op is None or qp is None or op.transport == "CNP":
        return None
    psn = int.from_bytes(datagram.data[start : start + BTH.length], "big") >> _PSN_SHIFT & MASK
    if not op.response:
        number = list(sender.qps).index(qp.qpn) + 1
        return Aim(sender.name, sender.role, number, "request", (psn - qp.sq_psn & MASK) + 1)
    of = "ack" if op.operation == "ACK" else "response"
    relative = (psn - qp.rq_psn & MASK) + 1
    requester = next((d for d in devices if datagram.destination in d.addresses), None)
    if requester is not None and qp.dest_qpn in requester.qps:
        number = list(requester.qps).index(qp.dest_qpn) + 1
        return Aim(requester.name, requester.role, number, of, relative)
    # The requester is in another process: its QP goes by the number of its peer here.
    number = list(sender.qps).index(qp.qpn) + 1
    return Aim(datagram.destination, "server" if sender.role == "client" else "client", number, of, relative)
