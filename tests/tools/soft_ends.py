"""Two soft devices whose queue pairs may be set up differently, and altered captures of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from story import Shot

from rocekit.analysis import Analysis, analyze
from rocekit.capture import open_capture
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.memory import Sge
from rocekit.soft.engine.queues import CQ
from rocekit.soft.engine.work import RecvWR, SendWR
from rocekit.soft.testbed import ADDRESSES, REMOTE_ACCESS, connect
from rocekit.soft.testbed.host import Host
from rocekit.soft.testbed.program import QpSetup
from rocekit.soft.wires.faults import Fault
from rocekit.soft.wires.memory import MemoryWire

A, B = ADDRESSES[4]
ROOM = 1 << 20


@dataclass
class Ends:
    """Queue pairs of hosts ``a`` and ``b``, one pair or more; each side sets up its own.

    Attributes:
        a, b: how each side sets up its queue pairs.
        b_expects: the first PSN that b expects; None: the first that a sends.
    """

    folder: Path
    a: QpSetup = field(default_factory=QpSetup)
    b: QpSetup | None = None
    b_expects: int | None = None
    pairs: int = 1
    faults: Iterable[Fault] = ()
    tap: str = "sent"
    journal: bool = True
    device: dict[str, Any] = field(default_factory=dict)
    posted: int = 0

    def run(self, posts: Callable[[Ends], None]) -> Path:
        """Run the posts that ``posts`` plans; the capture."""
        capture = self.folder / "x.pcapng"
        writer = PcapngWriter(capture)
        lines = (self.folder / "x.journal.jsonl").open("w") if self.journal else None
        try:
            self.wire = MemoryWire(faults=self.faults, capture=writer, tap=self.tap)
            self.hosts = [
                Host(name, SoftDevice(f"soft_{name}", [address], **self.device), self.wire, journal=lines)
                for name, address in zip("ab", (A, B), strict=True)
            ]
            self._set_up()
            posts(self)
            self.wire.run()
        finally:
            writer.close()
            if lines is not None:
                lines.close()
        return capture

    def analyze(self, posts: Callable[[Ends], None]) -> Analysis:
        return analyze(self.run(posts))

    def _set_up(self) -> None:
        self.regions = []
        self.qps = []
        cqs: list[CQ] = []
        for host in self.hosts:
            pd = host.device.alloc_pd()
            host.pd = pd
            self.regions.append(host.reg_mr(pd, host.device.memory.alloc(ROOM), ROOM, REMOTE_ACCESS))
            cqs.append(host.device.create_cq(4096))
            host.watch(cqs[-1], lambda host, wc: None)
        b = self.b or self.a
        for n in range(self.pairs):
            qps = []
            for host, cq in zip(self.hosts, cqs, strict=True):
                assert host.pd is not None
                qps.append(host.create_qp(host.pd, self.a.transport, cq, max_send_wr=1024, max_recv_wr=1024))
            self.qps.append(qps)
            psn = self.a.a_psn + 1000 * n
            expects = psn if self.b_expects is None else self.b_expects
            connect(self.hosts[0], qps[0], qps[1], self.a, psn, b.b_psn)
            connect(self.hosts[1], qps[1], qps[0], b, b.b_psn, expects)

    def post(
        self, opcode: str, length: int = 64, *, at_us: float = 0, side: int = 0, pair: int = 0, **more: Any
    ) -> None:
        """Plan a work request; ``more`` are fields of ``SendWR``."""
        mine, peers = self.regions[side], self.regions[1 - side]
        sges = () if not length else (Sge(mine.addr, length, mine.lkey),)
        self.posted += 1
        wr = SendWR(
            self.posted,
            opcode,
            sges,
            remote_va=peers.addr + 4096,
            rkey=more.pop("rkey", peers.rkey),
            **more,
        )
        qp = self.qps[pair][side]
        self.wire.at(self.wire.now + round(at_us * 1000), lambda: self.hosts[side].post_send(qp, wr))

    def receive(
        self, count: int = 1, length: int = 4096, *, at_us: float = 0, side: int = 1, lkey: int | None = None
    ) -> None:
        """Plan receives."""
        mine = self.regions[side]
        wrs = [
            RecvWR(n, (Sge(mine.addr, length, mine.lkey if lkey is None else lkey),)) for n in range(count)
        ]
        qp = self.qps[0][side]
        self.wire.at(self.wire.now + round(at_us * 1000), lambda: self.hosts[side].post_recv(qp, wrs))


def shots(capture: Path) -> list[Shot]:
    """The frames of a capture."""
    with open_capture(capture) as reader:
        return [
            Shot(frame, int(time_ns))
            for batch in reader
            for frame, time_ns in zip(batch.frames(), batch.time_ns, strict=True)
        ]


def rewrite(capture: Path, frames: Sequence[Shot]) -> Path:
    """Replace the frames of a capture."""
    with PcapngWriter(capture) as writer:
        for shot in frames:
            writer.write(shot.data, shot.time_ns)
    return capture


def altered(capture: Path, change: Callable[[list[Shot]], list[Shot]]) -> Analysis:
    """The analysis of a capture whose frames are changed."""
    return analyze(rewrite(capture, change(shots(capture))))
