"""What hostile captures and journals cost, beside normal traffic: time and memory, a packet or a line.

    .venv/bin/python benchmarks/hostile.py
    .venv/bin/python benchmarks/hostile.py --cases gaps,sources --packets 50000
    .venv/bin/python benchmarks/hostile.py --command "report -o /tmp/report.html" --times 1
    .venv/bin/python benchmarks/hostile.py --cases sources --twice

Each case is made with two sizes, so that a cost that grows faster than the file shows. A run is a whole
process with its output to /dev/null; the start-up (a capture of 100 packets) is taken off, of time and of
memory. Time is processor time. Each case takes --times turns of a start, a normal file and
its own; the medians are compared, those of the start and of a normal file over all cases' turns.

What a file may cost: a record (a packet, a pcapng block, a line of a journal) as much as ten normal ones, and
so may each further 140 bytes of it, which are a normal packet's. Normal traffic is `rocekit generate` with as
many packets, cut to 128 bytes; a normal journal has work requests and their completions on 64 QPs. So no file
of n bytes takes more than a constant times n, and none more than ten times a normal file of as many records,
or of as many bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rocekit.wire.build import build_frame, build_mad

ROCEKIT = str(Path(sys.executable).parent / "rocekit")
START_NS = 1_700_000_000_000_000_000
MTU = 1024
NO_ACK, ACK_IT = 0, 1
ENOUGH_S = 60


def pcap(frames: Iterable[bytes], step_ns: int = 1_000) -> Iterator[bytes]:
    """A pcap in nanoseconds."""
    yield struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1)
    now = START_NS
    for frame in frames:
        now += step_ns
        yield struct.pack("<IIII", now // 10**9, now % 10**9, len(frame), len(frame)) + frame


def block(kind: int, body: bytes) -> bytes:
    """A pcapng block."""
    total = 12 + len(body)
    return struct.pack("<II", kind, total) + body + struct.pack("<I", total)


SECTION = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(options: bytes = b"") -> bytes:
    return block(1, struct.pack("<HHI", 1, 0, 262144) + options)


def option(code: int, data: bytes) -> bytes:
    return struct.pack("<HH", code, len(data)) + data + bytes(-len(data) & 3)


def enhanced(number: int, frame: bytes, at_us: int, options: bytes = b"") -> bytes:
    head = struct.pack("<IIIII", number, at_us >> 32, at_us & 0xFFFFFFFF, len(frame), len(frame))
    return block(6, head + frame + bytes(-len(frame) & 3) + options)


def write(psn: int, opcode: str = "RC_RDMA_WRITE_MIDDLE", **fields: object) -> bytes:
    fields = {"src": "10.0.0.1", "dst": "10.0.0.2", "dest_qpn": 0x12, "payload": b""} | fields
    return build_frame(opcode, psn=psn & 0xFFFFFF, **fields)  # type: ignore[arg-type]


def ack(psn: int, **fields: object) -> bytes:
    return write(psn, "RC_ACKNOWLEDGE", src="10.0.0.2", dst="10.0.0.1", dest_qpn=0x11, **fields)


# ---------------------------------------------------------------------- captures


def gaps(count: int) -> Iterator[bytes]:
    """Every second PSN is missing."""
    return pcap(write(2 * n, "RC_SEND_ONLY", identification=n & 0xFFFF) for n in range(count))


def acked_gaps(count: int) -> Iterator[bytes]:
    """Every second PSN is missing, and all are acknowledged now and then."""

    def frames() -> Iterator[bytes]:
        for n in range(count):
            yield ack(2 * n - 1, msn=0) if n % 50 == 49 else write(2 * n, "RC_SEND_ONLY")

    return pcap(frames())


def gaps_of_writes(count: int) -> Iterator[bytes]:
    """Messages that never end, every second packet missing."""
    return pcap(write(2 * n, "RC_RDMA_WRITE_MIDDLE", payload=b"abcd") for n in range(count))


def half_sampled(count: int) -> Iterator[bytes]:
    """One direction, half of its packets, by chance; messages of eight packets."""
    rng = random.Random(1)

    def frames() -> Iterator[bytes]:
        psn = made = 0
        while made < count:
            opcode = ("FIRST", *["MIDDLE"] * 6, "LAST")[psn % 8]
            if rng.random() < 0.5:
                made += 1
                fields = {"remote_va": 0, "rkey": 1, "dma_length": 8 * MTU} if opcode == "FIRST" else {}
                yield write(psn, f"RC_RDMA_WRITE_{opcode}", payload=bytes(64), ackreq=psn % 8 == 7, **fields)
            psn += 1

    return pcap(frames())


def half_sampled_reads(count: int) -> Iterator[bytes]:
    """READ responses only, half of them."""
    rng = random.Random(2)

    def frames() -> Iterator[bytes]:
        psn = made = 0
        while made < count:
            opcode = ("FIRST", *["MIDDLE"] * 6, "LAST")[psn % 8]
            if rng.random() < 0.5:
                made += 1
                yield write(psn, f"RC_RDMA_READ_RESPONSE_{opcode}", payload=bytes(64))
            psn += 1

    return pcap(frames())


def colliding(count: int) -> Iterator[bytes]:
    """Every packet from another IPv6 address, chosen so that a simple hash has them all in one place."""
    return pcap(
        write(
            n,
            "RC_SEND_ONLY",
            src=f"2001:{n & 65535:x}:{n >> 16:x}:0:2001:{n & 65535 ^ 7:x}:{n >> 16:x}:0",
            dst="2001::1",
        )
        for n in range(count)
    )


def one_psn(count: int) -> Iterator[bytes]:
    """Requests of one PSN to ever other QPs, then responses of QPs that may be the other half of each."""

    def frames() -> Iterator[bytes]:
        for n in range(count // 2):
            yield write(7, "RC_SEND_ONLY", dest_qpn=2 + n)
        for n in range(count // 2):
            yield write(7, "RC_ACKNOWLEDGE", src="10.0.0.2", dst="10.0.0.1", dest_qpn=2 + count + n, msn=0)

    return pcap(frames())


def rnr_naks(count: int) -> Iterator[bytes]:
    """One request after the other refused for want of a receive, without end."""

    def frames() -> Iterator[bytes]:
        for n in range(count // 2):
            yield write(n // 2, "RC_SEND_ONLY", ackreq=1, identification=n & 0xFFFF)
            yield ack(n // 2, syndrome=0x20)

    return pcap(frames())


def sources(count: int) -> Iterator[bytes]:
    """Every packet from another address."""
    return pcap(
        write(n, "RC_SEND_ONLY", src=f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}") for n in range(count)
    )


def qpns(count: int) -> Iterator[bytes]:
    """Every packet to another QP."""
    return pcap(write(n, "RC_SEND_ONLY", dest_qpn=2 + n) for n in range(count))


def random_packets(count: int) -> Iterator[bytes]:
    """Random opcodes, PSNs, QPs of ten, both ways."""
    rng = random.Random(3)
    names = ("SEND_ONLY", "RDMA_READ_REQUEST", "ACKNOWLEDGE", "RDMA_READ_RESPONSE_MIDDLE", "SEND_MIDDLE")

    def frames() -> Iterator[bytes]:
        for _ in range(count):
            both = ("10.0.0.1", "10.0.0.2")[:: rng.choice((1, -1))]
            yield write(
                rng.getrandbits(24),
                f"RC_{rng.choice(names)}",
                src=both[0],
                dst=both[1],
                dest_qpn=rng.randrange(16, 26),
                identification=rng.getrandbits(16),
            )

    return pcap(frames())


def repeats(count: int) -> Iterator[bytes]:
    """The same request again and again."""
    return pcap(write(7, "RC_SEND_ONLY", identification=n & 0xFFFF) for n in range(count))


def naks(count: int) -> Iterator[bytes]:
    """Each request refused, and sent again."""

    def frames() -> Iterator[bytes]:
        for n in range(count // 4):
            yield write(2 * n, "RC_SEND_ONLY", ackreq=1)
            yield write(2 * n + 1, "RC_SEND_ONLY", ackreq=1)
            yield ack(2 * n, syndrome=0x60)
            yield write(2 * n, "RC_SEND_ONLY", ackreq=1)

    return pcap(frames())


def backwards(count: int) -> Iterator[bytes]:
    """PSNs that run down."""
    return pcap(write(-n, "RC_SEND_ONLY") for n in range(count))


def reqs(count: int) -> Iterator[bytes]:
    """REQs that nobody answers."""
    return pcap(
        write(
            n,
            "UD_SEND_ONLY",
            dest_qpn=1,
            payload=build_mad("REQ", n, local_comm_id=n, local_qpn=n & 0xFFFFFF),
        )
        for n in range(count)
    )


def one_req(count: int) -> Iterator[bytes]:
    """One REQ, sent without end."""
    mad = build_mad("REQ", 7, local_comm_id=7, local_qpn=7)
    return pcap(write(n, "UD_SEND_ONLY", dest_qpn=1, payload=mad) for n in range(count))


def datagrams(count: int) -> Iterator[bytes]:
    """UD datagrams between ever other QPs."""
    return pcap(write(n, "UD_SEND_ONLY", dest_qpn=2 + n, src_qpn=n + 2) for n in range(count))


def networks(count: int, step: int = 0) -> Iterator[bytes]:
    """Every packet in another virtual network (VXLAN), with a QPN that is ``step`` less."""
    inner = write(0, "RC_SEND_ONLY")
    udp = struct.pack(">HHHH", 51000, 4789, 16 + len(inner), 0)
    length = 28 + 8 + len(inner)
    ip = struct.pack(">BBHHHBBH8s", 0x45, 0, length, 0, 0, 64, 17, 0, bytes((10, 9, 0, 1, 10, 9, 0, 2)))
    outer = bytes(12) + b"\x08\x00" + ip + udp

    def frames() -> Iterator[bytes]:
        for n in range(count):
            inside = write(0, "RC_SEND_ONLY", dest_qpn=0xF00000 - step * n & 0xFFFFFF) if step else inner
            yield outer + struct.pack(">II", 8 << 24, n + 1 << 8) + inside

    return pcap(frames())


def colliding_networks(count: int) -> Iterator[bytes]:
    """The same, with QPNs so that keys of 64 bits below a network's number have one hash in Python."""
    return networks(count, 8)


def accepted(count: int) -> Iterator[bytes]:
    """REQs from ever other addresses, each with its REP."""

    def frames() -> Iterator[bytes]:
        for n in range(count // 2):
            host = f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}"
            asked = build_mad("REQ", n, local_comm_id=n + 1, local_qpn=n + 2 & 0xFFFFFF)
            given = build_mad("REP", n, local_comm_id=n + 7, remote_comm_id=n + 1, local_qpn=n + 3 & 0xFFFFFF)
            yield write(n, "UD_SEND_ONLY", src=host, dest_qpn=1, payload=asked)
            yield write(n, "UD_SEND_ONLY", src="10.0.0.2", dst=host, dest_qpn=1, payload=given)

    return pcap(frames())


def interfaces(count: int) -> Iterator[bytes]:
    """An interface block before every packet."""
    yield SECTION
    frame = write(0, "RC_SEND_ONLY")
    for n in range(count):
        yield interface()
        yield enhanced(n, frame, n)


def sections(count: int) -> Iterator[bytes]:
    """A section for every packet."""
    frame = write(0, "RC_SEND_ONLY")
    for n in range(count):
        yield SECTION + interface(option(2, b"eth%d" % n)) + enhanced(0, frame, n)


def comments(count: int) -> Iterator[bytes]:
    """Comments of 10,000 bytes each."""
    yield SECTION + interface()
    frame = write(0, "RC_SEND_ONLY")
    for n in range(count):
        yield enhanced(0, frame, n, option(1, b"x" * 10_000))


def many_comments(count: int) -> Iterator[bytes]:
    """A thousand comments on every packet."""
    yield SECTION + interface()
    frame = write(0, "RC_SEND_ONLY")
    for n in range(count):
        yield enhanced(0, frame, n, option(1, b"x") * 1000)


def empty_records(count: int) -> Iterator[bytes]:
    """Records without bytes."""
    yield struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1)
    yield bytes(16) * count


def statistics(count: int) -> Iterator[bytes]:
    """Interface statistics of interfaces that are not there."""
    yield SECTION + interface()
    for n in range(count):
        yield block(5, struct.pack("<III", n, 0, 0) + option(5, bytes(8)))


def damaged(count: int) -> Iterator[bytes]:
    """A damaged record behind each whole one."""
    for n, record in enumerate(pcap(write(n, "RC_SEND_ONLY") for n in range(count))):
        yield record
        if n:
            yield struct.pack("<IIII", 0, 0, 0xFFFFFFFF, 0) + bytes(64)


# ---------------------------------------------------------------------- journals

QP = {"device": "rxe0", "qpn": 17}


def lines(events: Iterable[dict[str, object]]) -> Iterator[bytes]:
    for n, event in enumerate(events):
        base = {"time_ns": START_NS + n, "clock": "realtime", "host": "h", "pid": 1}
        yield json.dumps(base | event).encode() + b"\n"


def normal_journal(count: int) -> Iterator[bytes]:
    """Work requests, each with its completion, as a recorder writes them."""

    def events() -> Iterator[dict[str, object]]:
        for n in range(count // 2):
            qp = {"device": "rxe0", "qpn": 17 + n % 64}
            wr = {"event": "wr_posted", "qp": qp, "wr_id": n, "opcode": "RDMA_WRITE", "length": 65536}
            yield wr | {
                "sges": [[140737353850880, 65536, 4660]],
                "remote_va": 94210,
                "rkey": 4660,
                "signaled": True,
            }
            yield {"event": "wc_polled", "qp": qp, "wr_id": n, "status": "SUCCESS", "opcode": "RDMA_WRITE"}

    return lines(events())


def posted(count: int) -> Iterator[bytes]:
    """Work requests with one wr_id, unsignaled, never completed but for the last."""
    wr = {"event": "wr_posted", "qp": QP, "wr_id": 1, "opcode": "SEND", "length": 1, "signaled": False}
    done = {"event": "wc_polled", "qp": QP, "wr_id": 1, "status": "SUCCESS"}
    half = count // 2
    return lines([wr] * half + [done] * half)


def unknown_completions(count: int) -> Iterator[bytes]:
    """Open work requests, and completions of none of them."""
    half = count // 2
    wrs = ({"event": "wr_posted", "qp": QP, "wr_id": n, "opcode": "SEND", "length": 1} for n in range(half))
    done = ({"event": "wc_polled", "qp": QP, "wr_id": -n % 2**63, "status": "SUCCESS"} for n in range(half))
    return lines([*wrs, *done])


def many_qps(count: int) -> Iterator[bytes]:
    """A QP a line."""
    return lines(
        {"event": "qp_created", "qp": {"device": f"d{n}", "qpn": n % 2**24}, "transport": "RC"}
        for n in range(count)
    )


def bad_lines(count: int) -> Iterator[bytes]:
    """Lines that are no events."""
    yield from lines([{"event": "async_event", "type": "X"}])
    for _ in range(count):
        yield b"{}\n"


@dataclass(frozen=True)
class Case:
    make: Callable[[int], Iterator[bytes]]
    suffix: str = ".pcap"
    share: float = 1.0
    """Of --packets: for cases whose packets are large."""
    records: int = 1
    """Blocks for each packet."""


CASES: dict[str, Case] = {
    make.__name__: Case(make, *rest)
    for make, *rest in (
        (gaps,),
        (acked_gaps,),
        (gaps_of_writes,),
        (half_sampled,),
        (half_sampled_reads,),
        (sources,),
        (colliding,),
        (one_psn,),
        (rnr_naks,),
        (qpns,),
        (random_packets,),
        (repeats,),
        (naks,),
        (backwards,),
        (reqs,),
        (one_req,),
        (accepted,),
        (networks,),
        (colliding_networks,),
        (datagrams,),
        (interfaces, ".pcapng", 1.0, 2),
        (sections, ".pcapng", 1.0, 3),
        (comments, ".pcapng", 0.2),
        (many_comments, ".pcapng", 0.05),
        (empty_records,),
        (statistics, ".pcapng"),
        (damaged,),
        (posted, ".journal.jsonl"),
        (unknown_completions, ".journal.jsonl"),
        (many_qps, ".journal.jsonl"),
        (bad_lines, ".journal.jsonl"),
    )
}


@dataclass(frozen=True)
class Cost:
    seconds: float
    megabytes: float
    status: int


def run(*arguments: str) -> Cost:
    """A whole process: its processor time, peak memory and exit status."""
    process = subprocess.Popen(
        [ROCEKIT, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=_limit
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if b"Traceback" in said:
        print(said.decode()[-2000:])
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, process.returncode)


def _limit() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (ENOUGH_S, ENOUGH_S))
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


def save(path: Path, parts: Iterable[bytes]) -> Path:
    with path.open("wb") as file:
        file.writelines(parts)
    return path


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--cases", default=",".join(CASES), help="those to measure, with commas")
    parser.add_argument("--packets", type=int, default=20_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--command", default="analyze", help="with its options")
    parser.add_argument("--twice", action="store_true", help="each capture as two of the same traffic")
    options = parser.parse_args()
    command, twice = options.command.split(), 1 + options.twice
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = str(folder / "small.pcap")
        run("generate", small, "--packets", "100")

        def normal_of(size: int, journal: bool) -> tuple[str, ...]:
            """The command that reads a normal file, made at first need."""
            plain = folder / f"normal.{size}{'.journal.jsonl' if journal else '.pcap'}"
            if journal and not plain.exists():
                save(plain, normal_journal(size))
            elif not plain.exists():
                run("generate", str(plain), "--packets", str(size), "--snaplen", "128")
            return (*start, "--journal", str(plain)) if journal else (*command, *[str(plain)] * twice)

        start = (*command, *[small] * twice)
        runs: dict[tuple[str, ...], list[Cost]] = {}
        found = []
        for case in options.cases.split(","):
            chosen = CASES[case]
            is_journal = "journal" in chosen.suffix
            count = int(options.packets * chosen.share)
            own = []
            for size in (count // 4, count):
                path = save(folder / f"{case}.{size}{chosen.suffix}", chosen.make(size))
                files = [str(path)] * twice
                own.append((*start, "--journal", str(path)) if is_journal else (*command, *files))
                plain = normal_of(size, is_journal)
                # In turns: the machine has other work as well, now more and now less.
                for _ in range(options.times):
                    for words in (start, plain, own[-1]):
                        runs.setdefault(words, []).append(run(*words))
                ones = max(chosen.records, path.stat().st_size / Path(plain[-1]).stat().st_size)
                path.unlink()
            found.append((case, count, (*own, plain), ones))
            print(f"{case}: {_median(runs[own[1]]).seconds:.2f} s", file=sys.stderr, flush=True)
        first = _median(runs[start])
        print(f"start: {first.seconds:.2f} s, {first.megabytes:.0f} MB")
        print("| case | packets or lines | µs each | B each | normal ones | time | memory | growth |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        for case, count, commands, ones in found:
            print(_row(case, count, [_median(runs[words]) for words in commands], first, ones))


def _median(costs: Sequence[Cost]) -> Cost:
    seconds, megabytes = median(c.seconds for c in costs), median(c.megabytes for c in costs)
    return Cost(seconds, megabytes, next((c.status for c in costs if c.status not in (0, 1)), 0))


def _row(case: str, count: int, costs: Sequence[Cost], start: Cost, ones: float) -> str:
    spent = [max(cost.seconds - start.seconds, 0.001) for cost in costs]
    held = [max(cost.megabytes - start.megabytes, 0.1) for cost in costs]
    status = f" exit {costs[1].status}" if costs[1].status else ""
    return (
        f"| {case}{status} | {count:,} | {spent[1] / count * 1e6:.2f} | {held[1] / count * 2**20:,.0f} "
        f"| {ones:.1f} | {spent[1] / spent[2] / ones:.1f} × | {held[1] / held[2] / ones:.1f} × "
        f"| {spent[1] / spent[0]:.1f} × |"
    )


if __name__ == "__main__":
    main()
