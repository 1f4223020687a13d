"""The devices of the generator: queue pairs with a rate, chosen numbers, ports and classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.congestion import Dcqcn, DcqcnParameters, Notifier
from rocekit.soft.engine.memory import MR, PD
from rocekit.soft.engine.packet import Route
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.queues import CQ
from rocekit.soft.wires.memory import FRAME_OVERHEAD
from rocekit.wire import GSI_QPN, ICRC_BYTES

RateTold = Callable[[int, str, "FlowPacer"], None]


class FlowPacer(Dcqcn):
    """A flow's rate, counted in whole frames as they take their time on the link.

    Args:
        parameters: of DCQCN; None: it does not react to CNPs.
        most_bps: the rate that it never exceeds.
        header_bytes: of a packet, before its transport headers.
        told: is called with the time and the cause of each change.
    """

    def __init__(
        self, parameters: DcqcnParameters | None, most_bps: int, header_bytes: int, told: RateTold
    ) -> None:
        base = parameters or DcqcnParameters(min_rate_bps=1)
        super().__init__(replace(base, line_rate_bps=most_bps))
        self._reacts = parameters is not None
        self._extra = header_bytes + ICRC_BYTES + FRAME_OVERHEAD
        self._told = told

    def on_cnp(self, now: int) -> None:
        if self._reacts:
            super().on_cnp(now)

    def on_send(self, size: int, now: int) -> None:
        before = self.ready_ns
        super().on_send(size + self._extra, now)
        # A packet that waited for the link does not move the next ones: at most one may follow at once.
        gap = round((size + self._extra) * 8 * 1_000_000_000 / self.rate_bps)
        self.ready_ns = max(before + gap, now)

    def changed(self, why: str, now: int) -> None:
        self._told(now, why, self)


class SilentNotifier(Notifier):
    """A receiver that sends no CNPs."""

    def __init__(self) -> None:
        super().__init__(0)

    def marked(self, source: str, qpn: int, now: int) -> None:
        """Nothing is sent."""


class TrafficDevice(SoftDevice):
    """A device whose queue pairs may have chosen numbers, UDP source ports, classes and keys.

    Attributes:
        reserved: numbers that only a queue pair gets for which they were chosen.
    """

    def __init__(self, name: str, address: str, *, seed: int, **of_device: object) -> None:
        super().__init__(name, [address], seed=seed, **of_device)  # type: ignore[arg-type]
        self._flow_headers: dict[int, tuple[int | None, int]] = {}
        self.reserved: set[int] = set()

    def create_numbered_qp(self, qpn: int | None, pd: PD, transport: str, cq: CQ, most_wr: int) -> Qp:
        """A queue pair with that number, or the next free one.

        Raises:
            ValueError: the number is taken or reserved.
        """
        following = self._next_qpn
        if qpn is not None:
            if qpn in self.qps or qpn <= GSI_QPN:
                raise ValueError(f"{self.name} cannot have another QP {qpn}")
            self._next_qpn = qpn
        else:
            while self._next_qpn in self.reserved:
                self._next_qpn += 1
        qp = self.create_qp(pd, transport, cq, max_send_wr=most_wr, max_recv_wr=most_wr)
        if qpn is not None:
            self._next_qpn = following
        return qp

    def set_headers(self, qpn: int, udp_sport: int | None, tclass: int) -> None:
        """The UDP source port (None: the device's choice) and the traffic class of a queue pair."""
        self._flow_headers[qpn] = udp_sport, tclass

    def route(self, source: str, destination: str, qpn: int, dest_qpn: int, tclass: int) -> Route:
        route = super().route(source, destination, qpn, dest_qpn, tclass)
        chosen = self._flow_headers.get(qpn)
        if chosen is None:
            return route
        sport = route.udp_sport if chosen[0] is None else chosen[0]
        return Route(source, destination, qpn=qpn, udp_sport=sport, tclass=chosen[1])

    def region(self, pd: PD, size: int, access: tuple[str, ...], at: int | None, key: int | None) -> MR:
        """A region over new bytes, at that address and with that key if they are given.

        Raises:
            ValueError, VerbsError: the address or the key is taken.
        """
        address = self.memory.alloc(size, at=at)
        view = self.memory.view(address, size)
        return self.keys.regions.register(pd, address, size, access, view, self._random.bits(8), key)
