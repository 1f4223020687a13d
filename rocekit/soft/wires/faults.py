"""Faults on a wire, aimed at one packet or at random from a seed.

An aimed fault names its packet as Lumina does (SIGCOMM'23), in relative numbers counted from 1::

    {qpn: 1, psn: 4, type: drop, iter: 1}

drops the first transmission of the fourth PSN of the first queue pair. ``of`` is the kind of packet with
that PSN: ``request`` (the default), ``response`` (of a READ or atomic), ``ack`` or ``mad`` (the n-th that the
device sends). ``from`` names the requester's device; by default it is the first one on the wire. With
``rate`` instead of ``psn`` and ``iter``, packets are hit at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.packet import Datagram, mark_ce
from rocekit.soft.engine.prng import Prng
from rocekit.wire import BTH, GSI_QPN, OPCODES
from rocekit.wire.psn import MASK

TYPES: Final = ("drop", "ecn", "bit-error", "duplicate", "reorder", "delay")
OF: Final = ("request", "response", "ack", "mad")
_PSN_SHIFT: Final = BTH.length * 8 - BTH.by_name["psn"].offset - BTH.by_name["psn"].bits
_QPN_SHIFT: Final = BTH.length * 8 - BTH.by_name["dest_qpn"].offset - BTH.by_name["dest_qpn"].bits
_UDP_BYTES: Final = 8
_LONGEST_DELAY_US: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One aimed or random fault.

    Attributes:
        type: one of :data:`TYPES`.
        qpn: number of the requester's QP, from 1 in the order of creation; None: any.
        psn: number of the PSN, from 1; None for a random fault.
        iter: number of the transmission of that PSN, from 1; 0: all.
        of: one of :data:`OF`; None (random faults only): any.
        sender: name or role (``client``, ``server``) of the requester's device; None: the first on the wire
            (in memory) or the client, and any for a random fault.
        rate: the probability of a random fault.
        delay_us: how much later the packet is delivered; of a ``duplicate``, its second copy.
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
    """Random faults on all packets: ``at_random({"drop": 0.02, "reorder": 0.01})``."""
    return tuple(
        Fault(kind, qpn=None, of=None, rate=rate, delay_us=common.get("delay_us"))
        for kind, rate in rates.items()
    )


class Aim(NamedTuple):
    """A packet as faults name it, in numbers counted from 1.

    Attributes:
        requester, role: the requester's device.
        number: of its queue pair.
        of: one of :data:`OF`.
        psn: relative to the first.
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
    """Applies faults to datagrams; the same seed and datagrams give the same faults.

    Args:
        default_sender: of aimed faults without ``sender``; None: the first device.

        told: called with each fault that hits, the device and the datagram as it was sent.

    Attributes:
        done: how often each type occurred.
        struck: the faults that hit the last datagram.
    """

    def __init__(
        self,
        faults: Iterable[Fault],
        seed: int,
        *,
        default_sender: str | None = None,
        told: Callable[[Fault, SoftDevice, Datagram], None] | None = None,
    ) -> None:
        faults = tuple(faults)
        self._aimed = [f for f in faults if f.rate is None]
        self._random = [f for f in faults if f.rate is not None]
        self._default_sender = default_sender
        self._prng = Prng(seed, "faults")
        self._rounds: dict[Aim, int] = {}
        self.done = dict.fromkeys(TYPES, 0)
        self.struck: list[Fault] = []
        self._told = told

    def __bool__(self) -> bool:
        return bool(self._aimed or self._random)

    def apply(self, datagram: Datagram, sender: SoftDevice, devices: Sequence[SoftDevice]) -> list[Delivery]:
        """The deliveries of a datagram that was sent: none when it is lost."""
        hits = []
        if self._aimed:
            hits += self._aimed_at(datagram, sender, devices)
        for fault in self._random:
            if self._prng.chance(fault.rate or 0.0) and self._includes(fault, datagram, sender, devices):
                hits.append(fault)
        self.struck = []
        deliveries = self._hit(datagram.data, hits)
        if self._told is not None:
            for fault in self.struck:
                self._told(fault, sender, datagram)
        return deliveries

    @property
    def comment(self) -> str | None:
        """The comment of the last datagram in a capture: its faults, as ``fault: drop``."""
        if not self.struck:
            return None
        words = (f"{f.type} {f.delay_ns / 1000:g} µs" if f.delay_ns else f.type for f in self.struck)
        return f"fault: {', '.join(words)}"

    def _includes(
        self, fault: Fault, datagram: Datagram, sender: SoftDevice, devices: Sequence[SoftDevice]
    ) -> bool:
        if fault.qpn is None and fault.of is None and fault.sender is None:
            return True
        aim = _identify(datagram, sender, devices)
        if aim is None:
            return False
        requester, role, number, of, _ = aim
        return (
            fault.qpn in (None, number) and fault.of in (None, of) and fault.sender in (None, requester, role)
        )

    def _aimed_at(self, datagram: Datagram, sender: SoftDevice, devices: Sequence[SoftDevice]) -> list[Fault]:
        aim = _identify(datagram, sender, devices)
        if aim is None:
            return []
        requester, role, number, of, psn = aim
        wanted = [
            f
            for f in self._aimed
            if f.psn == psn
            and f.qpn in (None, number)
            and f.of == of
            and (f.sender or self._default_sender or devices[0].name) in (requester, role)
        ]
        if not wanted:
            return []
        rounds = self._rounds[aim] = self._rounds.get(aim, 0) + 1
        return [f for f in wanted if f.iter in (0, rounds)]

    def _hit(self, data: bytes, hits: list[Fault]) -> list[Delivery]:
        delay = 0
        copies: list[Fault] = []
        for fault in hits:
            self.done[fault.type] += 1
            self.struck.append(fault)
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
        """Flip one bit after the BTH, which the ICRC covers, or in the ICRC itself."""
        start = _transport(data) + BTH.length
        bit = self._prng.below((len(data) - start) * 8)
        flipped = bytearray(data)
        flipped[start + bit // 8] ^= 1 << bit % 8
        return bytes(flipped)


def fault_fields(fault: Fault, datagram: Datagram) -> dict[str, Any]:
    """The fields of the journal's ``fault_injected`` for a datagram as it was sent."""
    start = _transport(datagram.data)
    bth = datagram.data[start : start + BTH.length]
    op = OPCODES.get(bth[0])
    whole = int.from_bytes(bth, "big")
    fields: dict[str, Any] = {
        "type": fault.type,
        "local_ip": datagram.source,
        "remote_ip": datagram.destination,
        "dest_qpn": whole >> _QPN_SHIFT & MASK,
        "psn": whole >> _PSN_SHIFT & MASK,
        "opcode": op.name if op is not None else str(bth[0]),
    }
    if fault.delay_ns:
        fields["delay_ns"] = fault.delay_ns
    return fields


def _transport(data: bytes) -> int:
    """Offset of the BTH; the engine sends neither IP options nor extension headers."""
    return (40 if data[0] >> 4 == 6 else 20) + _UDP_BYTES


def _identify(datagram: Datagram, sender: SoftDevice, devices: Sequence[SoftDevice]) -> Aim | None:
    """The aim that hits a datagram; None for a CNP and for packets of unknown QPs."""
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
    # The requester is in another process: its QP is known by the number of its peer here.
    number = list(sender.qps).index(qp.qpn) + 1
    return Aim(datagram.destination, "server" if sender.role == "client" else "client", number, of, relative)
