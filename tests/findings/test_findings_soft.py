"""For every rule a run of soft endpoints that provokes it, alone, and a near miss that does not.

What no endpoint does by itself (a class that is rewritten, a pause, a cut or damaged capture) is done to the
captured frames.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from alike import adaptive_routing, analyzed, foreign
from capture_bytes import Frame, pcap
from counted import analysed, plain
from soft_ends import A, Ends, altered, shots
from soft_world import PORT, World
from story import Shot, Story
from talk import MS, Talk
from test_findings_network import pause
from witness_frames import arp, icmp

from rocekit.analysis import Analysis, analyze
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.findings.rules import RULES
from rocekit.soft.engine.congestion import DcqcnParameters
from rocekit.soft.testbed.program import QpSetup
from rocekit.soft.traffic import FlowPlan, PatternSettings, pattern, run_traffic
from rocekit.soft.wires.faults import Fault
from rocekit.wire import CNP_OPCODE, ICRC_BYTES
from rocekit.wire.build import build_frame
from rocekit.wire.icrc import icrc_bytes

Case = Callable[[Path], Analysis]
PROVOKE: dict[str, Case] = {}
NEAR_MISS: dict[str, Case] = {}

IP_AT, UDP_AT, BTH_AT = 14, 34, 42


def provokes(rule: str) -> Callable[[Case], Case]:
    return lambda case: PROVOKE.setdefault(rule, case)


def nearly(rule: str) -> Callable[[Case], Case]:
    return lambda case: NEAR_MISS.setdefault(rule, case)


#: They come with a loss, so never alone; test_findings_nak_ignored and test_findings_retries provoke them.
WITH_A_LOSS = frozenset({"nak-ignored", "retries-nearly-exhausted", "go-back-n-cost"})
ALONE = [rule for rule in RULES if rule not in WITH_A_LOSS]


@pytest.mark.parametrize("rule", ALONE)
def test_the_rule_is_provoked_and_nothing_else_is_found(rule: str, tmp_path: Path) -> None:
    findings = PROVOKE[rule](tmp_path).findings
    assert rule in {f.rule for f in findings}, [str(f) for f in findings]
    assert {f.rule for f in findings if f.severity != "info"} <= {rule}, [str(f) for f in findings]
    assert sum(f.rule == rule for f in findings) == 1
    assert all(f.evidence and f.advice for f in findings)


@pytest.mark.parametrize("rule", ALONE)
def test_a_near_miss_does_not_raise_it(rule: str, tmp_path: Path) -> None:
    assert rule not in {f.rule for f in NEAR_MISS[rule](tmp_path).findings}


#: What a device counts of ``plain``.
COUNTED = {"sent_pkts": 8, "rcvd_pkts": 3, "rdma_sends": 3, "rdma_recvs": 1}


@provokes("counter-mismatch")
def _(folder: Path) -> Analysis:
    """The device's counter rose by more than the packets in the capture."""
    return analysed(
        folder, plain(Talk()), rose={"sent_pkts": 11, "rcvd_pkts": 3, "rdma_sends": 3, "rdma_recvs": 1}
    )


@nearly("counter-mismatch")
def _(folder: Path) -> Analysis:
    return analysed(
        folder, plain(Talk()), rose={"sent_pkts": 8, "rcvd_pkts": 3, "rdma_sends": 3, "rdma_recvs": 1}
    )


# ---------------------------------------------------------------------- losses and their like


def writes(folder: Path, *faults: Fault, count: int = 6, tap: str = "sent", **a: int) -> Path:
    """WRITEs of four packets each, in turn."""
    settings = {"timeout": 10, "a_psn": 0xFFFFF8} | a

    def posts(ends: Ends) -> None:
        for n in range(count):
            ends.post("RDMA_WRITE", 4096, at_us=30 * n)

    return Ends(folder, QpSetup(**settings), faults=faults, tap=tap).run(posts)  # type: ignore[arg-type]


def reads(folder: Path, *faults: Fault, tap: str = "sent") -> Analysis:
    def posts(ends: Ends) -> None:
        for n in range(4):
            ends.post("RDMA_READ", 4096, at_us=30 * n)

    return Ends(folder, QpSetup(timeout=10), faults=faults, tap=tap).analyze(posts)


def hit(kind: str, psn: int, iteration: int = 1, of: str = "request", **rest: float) -> Fault:
    return Fault(kind, 1, psn, iteration, of, **rest)  # type: ignore[arg-type]


@provokes("loss")
def _(folder: Path) -> Analysis:
    return analyze(writes(folder, hit("drop", 6)))


@nearly("loss")
def _(folder: Path) -> Analysis:
    """Only the capture lacks the packet."""
    return altered(writes(folder), lambda frames: frames[:6] + frames[7:])


@provokes("tail-loss")
def _(folder: Path) -> Analysis:
    return analyze(writes(folder, hit("drop", 24)))


@nearly("tail-loss")
def _(folder: Path) -> Analysis:
    """The last packet is late, but comes before the timeout."""
    return analyze(writes(folder, hit("delay", 24, delay_us=3000)))


@provokes("ack-loss")
def _(folder: Path) -> Analysis:
    return analyze(writes(folder, hit("drop", 24, of="ack")))


@nearly("ack-loss")
def _(folder: Path) -> Analysis:
    """The ACK of the next message includes the lost one."""
    return analyze(writes(folder, hit("drop", 8, of="ack")))


@provokes("timeout-too-short")
def _(folder: Path) -> Analysis:
    """The ACK of the last message comes after the repeat, and the repeat draws another one."""
    return analyze(writes(folder, hit("delay", 24, of="ack", delay_us=6000), tap="delivered"))


@nearly("timeout-too-short")
def _(folder: Path) -> Analysis:
    """The ACK never comes: the repeat draws the only one."""
    return analyze(writes(folder, hit("drop", 24, of="ack"), tap="delivered"))


@provokes("implied-nak")
def _(folder: Path) -> Analysis:
    return reads(folder, hit("drop", 6, of="response"))


@nearly("implied-nak")
def _(folder: Path) -> Analysis:
    """The request is lost, not a response."""
    return reads(folder, hit("drop", 13), tap="delivered")


@provokes("reordering")
def _(folder: Path) -> Analysis:
    """Delayed until the packet behind it has drawn a NAK, but there before the repeat."""
    return analyze(writes(folder, hit("reorder", 6, delay_us=1.5), tap="delivered"))


@nearly("reordering")
def _(folder: Path) -> Analysis:
    return analyze(writes(folder, hit("drop", 6), tap="delivered"))


@provokes("duplicate")
def _(folder: Path) -> Analysis:
    return analyze(writes(folder, hit("duplicate", 6), tap="delivered"))


@nearly("duplicate")
def _(folder: Path) -> Analysis:
    """The same PSN twice, because the requester sent it twice."""
    return analyze(writes(folder, hit("drop", 6), tap="sent"))


@provokes("needless-repeat")
def _(folder: Path) -> Analysis:
    """The ACK comes a little after the timeout, at the same time as the repeat."""
    return analyze(writes(folder, hit("delay", 24, of="ack", delay_us=4192), tap="delivered"))


@nearly("needless-repeat")
def _(folder: Path) -> Analysis:
    return analyze(writes(folder, hit("delay", 24, of="ack", delay_us=4000), tap="delivered"))


@provokes("peer-silent")
def _(folder: Path) -> Analysis:
    return analyze(writes(folder, Fault("drop", qpn=None, of=None, rate=1.0), retry_cnt=3))


@nearly("peer-silent")
def _(folder: Path) -> Analysis:
    """It answers once."""
    return analyze(writes(folder, hit("drop", 5, 0), hit("drop", 6, 0), retry_cnt=3))


@provokes("retry-exceeded")
def _(folder: Path) -> Analysis:
    return analyze(writes(folder, hit("drop", 6, 0), retry_cnt=3))


@nearly("retry-exceeded")
def _(folder: Path) -> Analysis:
    """The last try gets through."""
    faults = (hit("drop", 24, n) for n in (1, 2, 3))
    return analyze(writes(folder, *faults, retry_cnt=3))


@provokes("icrc-bad")
def _(folder: Path) -> Analysis:
    return analyze(writes(folder, hit("bit-error", 6), tap="delivered"))


@nearly("icrc-bad")
def _(folder: Path) -> Analysis:
    """A snaplen cuts the ICRCs off: there is nothing to check."""
    return cut(folder, writes(folder), 80)


# ---------------------------------------------------------------------- refusals


def refused(
    folder: Path, *, receives: bool = True, late_us: float = 0, length: int = 64, lkey: int | None = None,
    rkey: int | None = None, a: QpSetup | None = None, b: QpSetup | None = None,
    b_expects: int | None = None, opcode: str = "SEND", room: int = 4096,
) -> Analysis:  # fmt: skip
    """One request among others, right or wrong."""
    a = a or QpSetup(timeout=10, retry_cnt=3)

    def posts(ends: Ends) -> None:
        ends.post("RDMA_WRITE", 64)
        if receives:
            ends.receive(at_us=late_us, lkey=lkey, length=room)
        more = {} if rkey is None else {"rkey": rkey}
        ends.post(opcode, length, at_us=40, **more)

    return Ends(folder, a, b, b_expects).analyze(posts)


@provokes("rnr")
def _(folder: Path) -> Analysis:
    return refused(folder, late_us=200)


@nearly("rnr")
def _(folder: Path) -> Analysis:
    return refused(folder, late_us=39)


@provokes("remote-access-error")
def _(folder: Path) -> Analysis:
    return refused(folder, opcode="RDMA_WRITE", rkey=0xDEAD00)


@nearly("remote-access-error")
def _(folder: Path) -> Analysis:
    return refused(folder, opcode="RDMA_WRITE")


@provokes("invalid-request")
def _(folder: Path) -> Analysis:
    return refused(folder, length=65, room=64)


@nearly("invalid-request")
def _(folder: Path) -> Analysis:
    return refused(folder, length=64, room=64)


@provokes("remote-operational-error")
def _(folder: Path) -> Analysis:
    """The responder's own receive names memory that it may not write."""
    return refused(folder, lkey=0xDEAD00)


@nearly("remote-operational-error")
def _(folder: Path) -> Analysis:
    return refused(folder)


@provokes("mtu-mismatch")
def _(folder: Path) -> Analysis:
    a, b = (QpSetup(timeout=10, path_mtu=mtu) for mtu in (1024, 4096))
    return refused(folder, opcode="RDMA_WRITE", length=8192, a=a, b=b)


@nearly("mtu-mismatch")
def _(folder: Path) -> Analysis:
    return refused(folder, opcode="RDMA_WRITE", length=8192, a=QpSetup(timeout=10, path_mtu=4096))


@provokes("dead-qp")
def _(folder: Path) -> Analysis:
    """B expects another starting PSN than A starts with."""
    return refused(folder, b_expects=5000, a=QpSetup(timeout=10, retry_cnt=3, a_psn=9))


@nearly("dead-qp")
def _(folder: Path) -> Analysis:
    return refused(folder, b_expects=9, a=QpSetup(timeout=10, retry_cnt=3, a_psn=9))


def deep(folder: Path, depth: int) -> Analysis:
    """Eight READs at once, of which B serves four."""

    def posts(ends: Ends) -> None:
        for _ in range(8):
            ends.post("RDMA_READ", 4096)

    a, b = QpSetup(timeout=10, depth=depth), QpSetup(timeout=10, depth=4)
    capture = Ends(folder, a, b).run(posts)
    return analyze(capture)


@provokes("read-depth")
def _(folder: Path) -> Analysis:
    """B does serve them, but did not agree to."""

    def posts(ends: Ends) -> None:
        ends.qps[0][1].max_dest_rd_atomic = 16
        for _ in range(8):
            ends.post("RDMA_READ", 4096)

    a, b = QpSetup(timeout=10, depth=16), QpSetup(timeout=10, depth=4)
    return Ends(folder, a, b).analyze(posts)


@nearly("read-depth")
def _(folder: Path) -> Analysis:
    return deep(folder, 4)


# ---------------------------------------------------------------------- the network


def checksum(head: bytes) -> bytes:
    """IPv4's, of a header whose own is zero (RFC 791)."""
    total = sum(struct.unpack(f"!{len(head) // 2}H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return (~(total + (total >> 16)) & 0xFFFF).to_bytes(2, "big")


def signed(frame: bytes) -> bytes:
    """The same frame with the right ICRC."""
    ip = frame[IP_AT:-ICRC_BYTES]
    return frame[:IP_AT] + ip + icrc_bytes(ip, UDP_AT - IP_AT)


def with_class(frame: bytes, dscp: int) -> bytes:
    """The same packet in another class; the ICRC does not cover it (A17.3.3)."""
    head = bytearray(frame[IP_AT:UDP_AT])
    head[1] = dscp << 2 | head[1] & 3
    head[10:12] = bytes(2)
    head[10:12] = checksum(bytes(head))
    return frame[:IP_AT] + bytes(head) + frame[UDP_AT:]


def is_from(frame: bytes, ip: str) -> bool:
    return ".".join(map(str, frame[IP_AT + 12 : IP_AT + 16])) == ip


@provokes("dscp-mismatch")
def _(folder: Path) -> Analysis:
    """A's packets are rewritten to class 26, B's are not."""
    return altered(
        writes(folder),
        lambda frames: [Shot(with_class(s.data, 26 if is_from(s.data, A) else 0), s.time_ns) for s in frames],
    )


@nearly("dscp-mismatch")
def _(folder: Path) -> Analysis:
    """All packets have one class, and switches marked some of them."""
    marked = writes(folder, Fault("ecn", qpn=None, of="request", rate=0.5), tap="delivered")
    return altered(marked, lambda frames: [Shot(with_class(s.data, 26), s.time_ns) for s in frames])


def streams(
    folder: Path, *, cnp_interval_ns: int = 50_000, marks: float = 1.0, dcqcn: bool = False, count: int = 300
) -> Path:
    """Many WRITEs one after the other, marked on the way."""

    def posts(ends: Ends) -> None:
        for _ in range(count):
            ends.post("RDMA_WRITE", 16384)

    device = {"cnp_interval_ns": cnp_interval_ns, "dcqcn": DcqcnParameters() if dcqcn else None}
    faults = (Fault("ecn", qpn=None, of="request", rate=marks),)
    ends = Ends(folder, QpSetup(timeout=12), faults=faults, tap="delivered", device=device, journal=False)
    return ends.run(posts)


@provokes("ecn-unanswered")
def _(folder: Path) -> Analysis:
    """The receiver's CNPs are taken out, as if it sent none."""
    return altered(
        streams(folder, count=100),
        lambda frames: [s for s in frames if s.data[BTH_AT] != CNP_OPCODE],
    )


@nearly("ecn-unanswered")
def _(folder: Path) -> Analysis:
    return analyze(streams(folder, count=100, dcqcn=True))


@provokes("cnp-storm")
def _(folder: Path) -> Analysis:
    """A CNP every two microseconds."""
    return analyze(streams(folder, cnp_interval_ns=2_000, count=100))


@nearly("cnp-storm")
def _(folder: Path) -> Analysis:
    """As often as NICs send them, to a sender that slows down."""
    return analyze(streams(folder, dcqcn=True))


def paused(folder: Path, quanta: int) -> Analysis:
    def insert(frames: list[Shot]) -> list[Shot]:
        frame = pause(quanta, priorities=0x08)
        return [*frames[:8], Shot(frame, frames[8].time_ns - 1), *frames[8:]]

    return altered(writes(folder), insert)


@provokes("pause-stall")
def _(folder: Path) -> Analysis:
    return paused(folder, 0xFFFF)


@nearly("pause-stall")
def _(folder: Path) -> Analysis:
    """A frame that ends a pause is no pause."""
    return paused(folder, 0)


def icmp_about(folder: Path, *, code: int, port: int = 4791) -> Analysis:
    """A router sends an ICMP error about a packet that was acknowledged all the same."""

    def insert(frames: list[Shot]) -> list[Shot]:
        about = bytearray(frames[7].data)
        about[UDP_AT + 2 : UDP_AT + 4] = struct.pack("!H", port)
        error = icmp(bytes(about), 3, code, source="10.9.0.254", mtu=1500 if code == 4 else 0)
        return [*frames[:8], Shot(error, frames[7].time_ns + 1), *frames[8:]]

    return altered(writes(folder), insert)


@provokes("icmp-unreachable")
def _(folder: Path) -> Analysis:
    return icmp_about(folder, code=13)


@nearly("icmp-unreachable")
def _(folder: Path) -> Analysis:
    return icmp_about(folder, code=13, port=53)


@provokes("icmp-too-big")
def _(folder: Path) -> Analysis:
    return icmp_about(folder, code=4)


@nearly("icmp-too-big")
def _(folder: Path) -> Analysis:
    return icmp_about(folder, code=4, port=53)


def neighbours(folder: Path, *, reply: bool) -> Analysis:
    """Three ARP requests after the traffic."""

    def append(frames: list[Shot]) -> list[Shot]:
        a, b, last_ns = frames[0], frames[0], frames[-1].time_ns
        src, dst = (socket.inet_ntoa(s.data[at : at + 4]) for s, at in ((a, IP_AT + 12), (b, IP_AT + 16)))
        for second in (1, 2, 3):
            frames = [*frames, Shot(arp(src, dst), last_ns + second * 10**9)]
            if reply:
                frames = [*frames, Shot(arp(dst, src, reply=True), last_ns + second * 10**9 + 1000)]
        return frames

    return altered(writes(folder), append)


@provokes("arp-unanswered")
def _(folder: Path) -> Analysis:
    return neighbours(folder, reply=False)


@nearly("arp-unanswered")
def _(folder: Path) -> Analysis:
    return neighbours(folder, reply=True)


def refused_by_its_own_device(folder: Path, status: str) -> Analysis:
    """A WR that its device ended, behind one that was carried out: no packet of it is in the capture."""
    story = Story(
        f"""
        A created
        A wr 1 SEND 64
        a RC_SEND_ONLY 5 64 ackreq=1
        b ACK 5
        A wc 1 SUCCESS
        A wr 2 SEND 64
        A wr 3 SEND 64
        A wc 2 {status}
        A wc 3 WR_FLUSH_ERR
        """
    )
    return story.analyze(folder)


@provokes("local-error")
def _(folder: Path) -> Analysis:
    return refused_by_its_own_device(folder, "LOC_PROT_ERR")


@nearly("local-error")
def _(folder: Path) -> Analysis:
    """Flushed, as after another error or the end of the QP."""
    return refused_by_its_own_device(folder, "WR_FLUSH_ERR")


def classes(folder: Path, dscps: tuple[int, int, int]) -> Analysis:
    """Three connections of the same two hosts, each in a traffic class."""
    frames: list[Frame] = []
    for n, dscp in enumerate(dscps):
        t = Talk(qa=0x100 + n, qb=0x200 + n)
        t.now += n * 10**6
        t.common["dscp"] = dscp
        t.send(1000 * n)
        t.ack(1000 * n)
        frames += t.frames
    file = folder / "classes.pcap"
    file.write_bytes(pcap(frames, unit="ns"))
    return analyze(file)


@provokes("class-differs")
def _(folder: Path) -> Analysis:
    return classes(folder, (26, 26, 0))


@nearly("class-differs")
def _(folder: Path) -> Analysis:
    return classes(folder, (26, 26, 26))


def many_pairs(folder: Path, *, one_port: bool) -> Analysis:
    def posts(ends: Ends) -> None:
        for pair in range(8):
            ends.post("RDMA_WRITE", 64, at_us=10 * pair, pair=pair)

    capture = Ends(folder, QpSetup(timeout=10), pairs=8, journal=False).run(posts)
    if not one_port:
        return analyze(capture)
    port = struct.pack("!H", 0xC001)

    def change(frames: list[Shot]) -> list[Shot]:
        return [Shot(signed(s.data[:UDP_AT] + port + s.data[UDP_AT + 2 :]), s.time_ns) for s in frames]

    return altered(capture, change)


def incast_of(folder: Path, hosts: int) -> Analysis:
    """A short incast over a switch whose queue marks, to senders that react."""
    flow = FlowPlan("", 0, 0, path_mtu=4096, sizes=(65_536,))
    settings = PatternSettings(hosts=hosts, duration_ns=500_000, flow=flow)
    run_traffic(pattern("incast", settings), capture=folder / "x.pcapng")
    return analyze(folder / "x.pcapng")


@provokes("incast")
def _(folder: Path) -> Analysis:
    return incast_of(folder, 4)


@nearly("incast")
def _(folder: Path) -> Analysis:
    """Two senders only."""
    return incast_of(folder, 3)


@provokes("low-entropy")
def _(folder: Path) -> Analysis:
    return many_pairs(folder, one_port=True)


@nearly("low-entropy")
def _(folder: Path) -> Analysis:
    return many_pairs(folder, one_port=False)


def _twice(folder: Path, gap_acks: int) -> Analysis:
    """A requester that sends the same messages again long after the last of some ACKs."""
    t = Talk()
    for _ in range(2):
        for psn in range(gap_acks):
            t.send(psn)
            t.ack(psn)
        t.wait(10_000 * MS)
    return analysed(folder, t)


@provokes("qpn-used-again")
def _(folder: Path) -> Analysis:
    return _twice(folder, 4)


@nearly("qpn-used-again")
def _(folder: Path) -> Analysis:
    return _twice(folder, 2)


@provokes("multipath")
def _(folder: Path) -> Analysis:
    return analyzed(adaptive_routing())


@nearly("multipath")
def _(folder: Path) -> Analysis:
    """Out of order, but from one port."""
    return analyzed(adaptive_routing(ports=[0xC000]))


@provokes("vendor-opcode")
def _(folder: Path) -> Analysis:
    return analyzed(foreign(0xC5))


@nearly("vendor-opcode")
def _(folder: Path) -> Analysis:
    """An opcode that the specification reserves."""
    return analyzed(foreign(0x1E))


# ---------------------------------------------------------------------- connection management


def meeting(folder: Path, *faults: Fault, port: int = PORT) -> Analysis:
    world = World(faults=faults)
    capture = folder / "x.pcapng"
    with PcapngWriter(capture) as writer:
        world.wire._capture = writer
        world.connect(port=port)
        writer.write(shots_end(), world.wire.now + 60_000_000_000)
    return analyze(capture)


def shots_end() -> bytes:
    """A packet of other hosts, long after: the capture went on."""
    return build_frame("UC_SEND_ONLY", src="10.9.9.1", dst="10.9.9.2", dest_qpn=99, psn=1, payload=bytes(4))


@provokes("cm-rejected")
def _(folder: Path) -> Analysis:
    return meeting(folder, port=PORT + 1)


@nearly("cm-rejected")
def _(folder: Path) -> Analysis:
    return meeting(folder)


@provokes("cm-unanswered")
def _(folder: Path) -> Analysis:
    return meeting(folder, Fault("drop", qpn=None, of="mad", rate=1.0))


@nearly("cm-unanswered")
def _(folder: Path) -> Analysis:
    return meeting(folder)


# ---------------------------------------------------------------------- the capture itself


def cut(folder: Path, capture: Path, snaplen: int) -> Analysis:
    file = folder / "cut.pcap"
    frames = [Frame(s.data[:snaplen], s.time_ns, len(s.data)) for s in shots(capture)]
    file.write_bytes(pcap(frames, unit="ns"))
    return analyze(file)


@provokes("capture-gap")
def _(folder: Path) -> Analysis:
    return altered(writes(folder), lambda frames: frames[:6] + frames[7:])


@nearly("capture-gap")
def _(folder: Path) -> Analysis:
    """The packet was lost on the wire: it is sent again."""
    return analyze(writes(folder, hit("drop", 6), tap="delivered"))


@provokes("capture-truncated")
def _(folder: Path) -> Analysis:
    return cut(folder, writes(folder), 80)


@nearly("capture-truncated")
def _(folder: Path) -> Analysis:
    return cut(folder, writes(folder), 65535)


def malformed(folder: Path, opcode: int) -> Analysis:
    """An ACK with another opcode and the right ICRC for it."""

    def change(frames: list[Shot]) -> list[Shot]:
        ack = next(s.data for s in frames if not is_from(s.data, A))
        other = signed(ack[:BTH_AT] + bytes([opcode]) + ack[BTH_AT + 1 :])
        return [*frames, Shot(other, frames[-1].time_ns + 1)]

    return altered(writes(folder), change)


@provokes("malformed")
def _(folder: Path) -> Analysis:
    """A READ response LAST as short as an ACK is not malformed."""
    return malformed(folder, 0x1F)


@nearly("malformed")
def _(folder: Path) -> Analysis:
    return malformed(folder, 0x11)
