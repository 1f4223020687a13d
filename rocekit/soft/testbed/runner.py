"""Running a program over two soft devices on a wire in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rocekit.files.pcapng_write import PcapngWriter
from rocekit.journal import JournalWriter
from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.congestion import DcqcnParameters
from rocekit.soft.engine.memory import MR, Sge
from rocekit.soft.engine.packet import GRH_AREA_BYTES
from rocekit.soft.engine.prng import Prng
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.record import TruthRecorder
from rocekit.soft.engine.work import VERBS, WC, RecvWR, SendWR
from rocekit.soft.testbed.host import Host
from rocekit.soft.testbed.program import Post, Program, QpSetup, Receive
from rocekit.soft.testbed.result import Posted, ProgramRun, Received
from rocekit.soft.wires.faults import Fault
from rocekit.soft.wires.memory import EPOCH_NS, MemoryWire

ADDRESSES = {4: ("10.9.0.1", "10.9.0.2"), 6: ("fd00:9::1", "fd00:9::2")}
REMOTE_ACCESS = (
    "LOCAL_WRITE",
    "REMOTE_WRITE",
    "REMOTE_READ",
    "REMOTE_ATOMIC",
    "FLUSH_GLOBAL",
    "FLUSH_PERSISTENT",
)
QKEY = 0x1111_1111  # as the libibverbs examples
#: A run that takes longer is stuck: the longest timeout with all retries is far shorter.
LONGEST_RUN_NS = 3_600 * 1_000_000_000


def run(
    program: Program,
    faults: Iterable[Fault] = (),
    seed: int = 0,
    *,
    capture: str | Path | None = None,
    journal: str | Path | None = None,
    tap: str = "sent",
    rate_bps: int = 10_000_000_000,
    delay_ns: int = 1_000,
    software_ns: int = 400,
    dcqcn: DcqcnParameters | None = None,
) -> ProgramRun:
    """Run a program to its end.

    Args:
        capture: pcapng to write, of the packets that ``tap`` selects (see :class:`MemoryWire`).
        journal: JSON Lines of both hosts, ``a`` and ``b``.
        software_ns: from posting to the device, and from the device to the polled completion.
        dcqcn: how both devices react to CNPs; None: not at all.
    """
    with ExitStack() as stack:
        sink = stack.enter_context(_capture(capture)) if capture is not None else None
        lines = (
            stack.enter_context(Path(journal).open("w", encoding="utf-8")) if journal is not None else None
        )
        wire = MemoryWire(
            seed=seed,
            faults=faults,
            capture=sink,
            tap=tap,
            rate_bps=rate_bps,
            delay_ns=delay_ns,
            journal=None if lines is None else JournalWriter(lines, host="wire", pid=1),
        )
        recorder = TruthRecorder()
        hosts = []
        for name, address in zip("ab", ADDRESSES[program.ip_version], strict=True):
            device = SoftDevice(f"soft_{name}", [address], seed=seed, recorder=recorder, dcqcn=dcqcn)
            hosts.append(Host(name, device, wire, journal=lines, software_ns=software_ns))
        result = ProgramRun(program, seed, recorder, (hosts[0], hosts[1]))
        _Setup(result, wire).connect_all()
        result.finished = wire.run(EPOCH_NS + LONGEST_RUN_NS)
        result.packets = wire.packets
        result.faults_done = wire.faults.done
        return result


@contextmanager
def _capture(path: str | Path) -> Iterator[PcapngWriter]:
    writer = PcapngWriter(path, interface_name="soft")
    try:
        yield writer
    finally:
        writer.close()


class _Setup:
    """Creates a program's queue pairs and plans its posts."""

    def __init__(self, result: ProgramRun, wire: MemoryWire) -> None:
        self.run = result
        self.wire = wire
        self.start = wire.now
        self._content = Prng(result.seed, "content")
        self._regions: dict[str, MR] = {}
        self._by_id: dict[int, Posted | Received] = {}
        self._used = {"a": 0, "b": 0}

    def connect_all(self) -> None:
        program = self.run.program
        size = sum(2 * p.length + 64 for p in program.posts)
        size += sum(r.count * (r.length + GRH_AREA_BYTES + 64) for r in program.receives) + 4096
        for host, side in zip(self.run.hosts, "ab", strict=True):
            pd = host.device.alloc_pd()
            host.pd = pd
            # One region for all requests of a side.
            address = host.device.memory.alloc(2 * size)
            self._regions[side] = host.reg_mr(pd, address, 2 * size, REMOTE_ACCESS)
        for connection in program.connections:
            self._connect(connection)
        for receive in program.receives:
            self._plan_receive(receive)
        for post in program.posts:
            self._plan_post(post)

    def _host(self, side: str) -> Host:
        return self.run.hosts["ab".index(side)]

    def _carve(self, side: str, length: int) -> int:
        address = self._regions[side].addr + self._used[side]
        self._used[side] += (length + 7) // 8 * 8 + 8
        return address

    def _connect(self, connection: QpSetup) -> None:
        qps = []
        program = self.run.program
        for host in self.run.hosts:
            cq = host.device.create_cq(sum(r.count for r in program.receives) + len(program.posts) + 16)
            assert host.pd is not None
            qp = host.create_qp(
                host.pd,
                connection.transport,
                cq,
                max_send_wr=max(len(program.posts), 1),
                max_recv_wr=max(sum(r.count for r in program.receives), 1),
                sq_sig_all=connection.sq_sig_all,
            )
            qps.append(qp)
        self.run.pairs.append((qps[0], qps[1]))
        psns = (connection.a_psn, connection.b_psn)
        for i, host in enumerate(self.run.hosts):
            connect(host, qps[i], qps[1 - i], connection, psns[i], psns[1 - i])
            key = (host.device.name, qps[i].qpn)
            self.run.completions[key] = []
            host.watch(qps[i].send_cq, self._completed)

    def _plan_receive(self, receive: Receive) -> None:
        host = self._host(receive.side)
        qp = self.run.pairs[receive.connection]["ab".index(receive.side)]
        wrs = []
        length = receive.length + (GRH_AREA_BYTES if qp.transport == "UD" else 0)
        for _ in range(receive.count):
            address = self._carve(receive.side, length)
            wr = RecvWR(self._id(), self._sges(receive.side, address, length, receive.sges))
            entry = Received(receive, wr.wr_id, qp, address)
            self._by_id[wr.wr_id] = entry
            self.run.received.append(entry)
            wrs.append(wr)
        self.wire.at(self.start + receive.at_ns, lambda: host.post_recv(qp, wrs))

    def _plan_post(self, post: Post) -> None:
        side, peer = post.side, "b" if post.side == "a" else "a"
        host = self._host(side)
        qp = self.run.pairs[post.connection]["ab".index(side)]
        verb = VERBS[post.opcode]
        local = self._carve(side, post.length)
        remote = self._carve(peer, post.length)
        content = self._content.bytes(post.length)
        if verb.reads_back:
            self._host(peer).device.memory.write(remote, content)
        elif verb.operation != "FLUSH":
            host.device.memory.write(local, content)
        mr = self._regions[peer]
        victim: MR | None = None
        if verb.invalidate:
            peer_host = self._host(peer)
            assert peer_host.pd is not None
            victim = peer_host.reg_mr(peer_host.pd, mr.addr, 8, ("LOCAL_WRITE",))
        sges = self._sges(side, local, post.length, post.sges)
        if post.wrong == "lkey":
            sges = tuple(Sge(s.addr, max(s.length, 1), s.lkey ^ 0xFF00) for s in sges)
        wr = SendWR(
            self._id(),
            post.opcode,
            () if verb.operation == "FLUSH" else sges,
            signaled=post.signaled,
            solicited=post.solicited,
            fenced=post.fenced,
            remote_va=mr.addr + mr.length - 4 if post.wrong == "bounds" else remote,
            rkey=mr.rkey ^ 0xFF00 if post.wrong == "rkey" else mr.rkey,
            imm=post.imm,
            invalidate_rkey=victim.rkey if victim is not None else 0,
            compare=post.compare,
            swap_add=post.swap_add,
            flush_length=post.length if verb.operation == "FLUSH" else 0,
            dest_ip=self._host(peer).device.addresses[0] if qp.transport == "UD" else None,
            dest_qpn=self.run.pairs[post.connection]["ab".index(peer)].qpn,
            qkey=QKEY,
        )
        entry = Posted(post, wr.wr_id, qp, local, remote, content)
        self._by_id[wr.wr_id] = entry
        self.run.posted.append(entry)
        self.wire.at(self.start + post.at_ns, lambda: host.post_send(qp, wr))

    def _sges(self, side: str, address: int, length: int, count: int) -> tuple[Sge, ...]:
        lkey = self._regions[side].lkey
        step = max(1, -(-length // max(1, count)))
        return tuple(Sge(address + at, min(step, length - at), lkey) for at in range(0, length, step))

    def _id(self) -> int:
        return len(self._by_id) + 1

    def _completed(self, host: Host, wc: WC) -> None:
        self.run.completions[host.device.name, wc.qpn].append(wc)
        entry = self._by_id[wc.wr_id]
        entry.wc = wc


def connect(host: Host, qp: Qp, peer: Qp, connection: QpSetup, sq_psn: int, rq_psn: int) -> None:
    """Take a queue pair from RESET to RTS towards its peer."""
    if connection.transport == "UD":
        host.modify_qp(qp, state="INIT", qkey=QKEY)
        host.modify_qp(qp, state="RTR")
        host.modify_qp(qp, state="RTS", sq_psn=sq_psn)
        return
    rights = [r for r in REMOTE_ACCESS if r != "LOCAL_WRITE"]
    host.modify_qp(qp, state="INIT", access=rights)
    ready: dict[str, Any] = {
        "dest_ip": peer.device.addresses[0],
        "dest_qpn": peer.qpn,
        "path_mtu": connection.path_mtu,
        "rq_psn": rq_psn,
    }
    sending: dict[str, Any] = {"sq_psn": sq_psn}
    if connection.transport == "RC":
        ready |= {
            "max_dest_rd_atomic": connection.depth,
            "min_rnr_timer": connection.min_rnr_timer,
            "flow_control": connection.flow_control,
        }
        sending |= {
            "timeout": connection.timeout,
            "retry_cnt": connection.retry_cnt,
            "rnr_retry": connection.rnr_retry,
            "max_rd_atomic": connection.depth,
        }
    host.modify_qp(qp, state="RTR", **ready)
    host.modify_qp(qp, state="RTS", **sending)
