"""The experiments of the truth bench: traffic between two rxe devices, and a fault whose place is known.

The wire has two capture points, ``va`` at the first host (a) and ``vb`` at the second (b), and a bridge
between them. A fault is *before* the sender's capture, *between* the two, or *behind* the receiver's::

    a's packets:  rxe0 ─ before (va out) ─ va ─ between (vb-port out) ─ vb ─ behind (vb in) ─ rxe1
    b's packets:  rxe1 ─ before (vb out) ─ vb ─ between (va-port out) ─ va ─ behind (va in) ─ rxe0

rxe notices a packet that tc drops before its capture, unless netem does it: there, faults are netem's.

No fault but those of "cm" hits the connection manager: what it loses comes again after seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

BEFORE, BETWEEN, BEHIND = "before", "between", "behind"
#: Opcodes (IBA Vol. 1, table 38) as u32 matches of tc: value and mask of BTH byte 0.
OPCODES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "all": (),
    "acks": ((0x11, 0xFF),),
    "read-requests": ((0x0C, 0xFF),),
    "read-responses": ((0x0E, 0xFE), (0x0D, 0xFF), (0x10, 0xFF)),
    "atomic-requests": ((0x13, 0xFF), (0x14, 0xFF)),
    "atomic-responses": ((0x12, 0xFF),),
    "middles": ((0x07, 0xFF), (0x01, 0xFF)),
    "lasts": ((0x08, 0xFF), (0x02, 0xFF)),
    "firsts": ((0x06, 0xFF), (0x00, 0xFF)),
    "first-responses": ((0x0D, 0xFF),),
    "middle-responses": ((0x0E, 0xFF),),
    "cnps": ((0x81, 0xFF),),
    "odd-qpns": (),
    "large": (),
    **dict.fromkeys(("cm", "cm-req", "cm-rep", "cm-rtu", "cm-dreq", "cm-drep"), ()),
}
#: The attribute IDs of CM's messages (IBA Vol. 1, table 104).
CM_ATTRIBUTES: Final = {"cm-req": 0x10, "cm-rep": 0x13, "cm-rtu": 0x14, "cm-dreq": 0x15, "cm-drep": 0x16}
#: IPv4 packets of 1,024 bytes and more: value and mask of their length.
LARGE: Final = ((0x0400, 0xFC00), (0x0800, 0xF800), (0x1000, 0xF000))


@dataclass(frozen=True)
class Fault:
    """What happens to the packets of one sender.

    Attributes:
        where: before, between or behind (see the module).
        sender: ``a`` or ``b``.
        how: ``drop N`` (every N-th), ``drop N at random`` (one of N), ``cut``, or a qdisc in tc's words.
        of: which packets, a name in ``OPCODES``.
        after: it starts when the receiver has got so many packets; 0: it is there from the start.
        seconds: it ends after so long; 0: with the experiment.
    """

    where: str
    sender: str
    how: str
    of: str = "all"
    after: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.where == BEHIND and self.how.split()[0] not in ("drop", "cut"):
            raise ValueError(f"{self.how}: a qdisc acts on what an interface sends, never behind a capture")


@dataclass(frozen=True)
class Killed:
    """A program that is killed when device ``rxe1`` has got so many packets.

    Attributes:
        program: ``server`` or ``client``.
        stopped_s: it is only stopped, and goes on after so long.
    """

    program: str
    after: int
    stopped_s: float = 0.0


@dataclass(frozen=True)
class Experiment:
    """Two programs and the faults between them.

    Attributes:
        client, server: shell commands, or ``rocekit …``; the server may be None (both ends in the client).
        journal: the programs' verbs calls are recorded too.
        snaplen: of both captures.
        limit_s: for the client; it is then ended.
        told: what the programs were told to do.
        first_psn: of perftest's programs, on both sides; None: by chance.
        revoke_after: the server's memory is deregistered when it has got so many packets.
        server_mtu_code: the path MTU of the server's QPs (2: 512 bytes; verbs' ibv_mtu); 0: as agreed.
        environment: of both programs, beside what they have anyway.
        ip_version: of the hosts' addresses.
    """

    name: str
    client: str
    server: str | None = None
    faults: tuple[Fault, ...] = ()
    killed: Killed | None = None
    journal: bool = False
    snaplen: int = 128
    limit_s: float = 25.0
    told: dict[str, Any] = field(default_factory=dict)
    first_psn: int | None = None
    revoke_after: int = 0
    server_mtu_code: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    ip_version: int = 4


TIMEOUT: Final = 16
"""The local ACK timeout's code, 268 ms. With 14, perftest's own, an emulated machine answers too late."""
PATH_MTU: Final = 1024
TO: Final = "10.9.0.2"
"""The address of b."""


def perftest(
    name: str,
    program: str,
    n: int,
    size: int,
    *faults: Fault,
    options: str = "",
    timeout: int = TIMEOUT,
    mtu: int = PATH_MTU,
    **more: Any,
) -> Experiment:
    """One of perftest's programs: ``n`` messages of ``size`` bytes from a to b (READ: a reads from b)."""
    sized = "" if program.startswith("ib_atomic") else f" -s {size}"
    words = f"-F -x 1 -u {timeout} -m {mtu} -n {n}{sized} {options}".rstrip()
    return Experiment(
        name,
        client=f"{program} -d rxe0 {words} {TO}",
        server=f"{program} -d rxe1 {words}",
        faults=faults,
        told={"program": program, "count": n, "bytes": size, "timeout": timeout, "options": options},
        **more,
    )


def inject(
    name: str,
    scenario: str,
    n: int,
    size: int,
    *faults: Fault,
    options: str = "",
    both: bool = True,
    **more: Any,
) -> Experiment:
    """One of rocekit's own scenarios, which writes journals itself. ``both``: both ends in one process."""
    timeout = "" if "-u " in options else f"-u {TIMEOUT} "
    words = f"--timeout 60 -m {PATH_MTU} -n {n} -s {size} {timeout}{options}".rstrip()
    ends = "--both -d rxe0 --server-dev rxe1" if both else f"{TO} -d rxe0"
    journal = "both" if both else "client"
    return Experiment(
        name,
        client=f"rocekit inject {scenario} {ends} {words} --journal $OUT/{journal}.journal.jsonl",
        server=None if both else f"rocekit inject {scenario} -d rxe1 --journal $OUT/server.journal.jsonl",
        faults=faults,
        journal=True,
        told={"program": f"inject {scenario}", "count": n, "bytes": size, "options": options},
        **more,
    )


def rping(name: str, n: int, size: int, *faults: Fault, **more: Any) -> Experiment:
    """rping: SEND, READ and WRITE in turns, over the connection manager."""
    return Experiment(
        name,
        client=f"rping -c -a {TO} -C {n} -S {size}",
        server=f"rping -s -a {TO} -C {n} -S {size}",
        faults=faults,
        told={"program": "rping", "count": n, "bytes": size},
        **more,
    )


def pingpong(
    name: str, n: int, size: int, *faults: Fault, served: int | None = None, **more: Any
) -> Experiment:
    """rdma-core's ping-pong. ``served``: the server ends after so many, and its QP with it."""
    words = f"-g 1 -m {PATH_MTU} -s {size}"
    return Experiment(
        name,
        client=f"ibv_rc_pingpong -d rxe0 {words} -n {n} {TO}",
        server=f"ibv_rc_pingpong -d rxe1 {words} -n {served or n}",
        faults=faults,
        told={"program": "ibv_rc_pingpong", "count": n, "bytes": size},
        **more,
    )


WRITE, SEND, READ, ATOMIC = "ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_atomic_bw"

FIRST: Final = (
    perftest("write-clean", WRITE, 40, 16384),
    perftest("write-between", WRITE, 40, 16384, Fault(BETWEEN, "a", "netem loss 3%")),
    perftest("write-before", WRITE, 40, 16384, Fault(BEFORE, "a", "netem loss 3%")),
    perftest("write-behind", WRITE, 40, 16384, Fault(BEHIND, "a", "drop 31 at random")),
    perftest("write-4qp-between", WRITE, 12, 16384, Fault(BETWEEN, "a", "netem loss 2%"), options="-q 4"),
    perftest("write-8qp-before", WRITE, 8, 16384, Fault(BEFORE, "a", "netem loss 2%"), options="-q 8"),
    perftest("write-acks-between", WRITE, 100, 4096, Fault(BETWEEN, "b", "drop 5 at random", "acks")),
    perftest("write-acks-before", WRITE, 100, 4096, Fault(BEFORE, "b", "netem loss 20%", "acks")),
    perftest("write-acks-behind", WRITE, 100, 4096, Fault(BEHIND, "b", "drop 5 at random", "acks")),
    perftest("send-between", SEND, 40, 16384, Fault(BETWEEN, "a", "netem loss 3%")),
    perftest("send-before", SEND, 40, 16384, Fault(BEFORE, "a", "netem loss 3%")),
    perftest("send-behind", SEND, 40, 16384, Fault(BEHIND, "a", "drop 31 at random")),
    perftest(
        "send-2qp-both-ways",
        SEND,
        20,
        8192,
        Fault(BETWEEN, "a", "netem loss 2%"),
        Fault(BETWEEN, "b", "netem loss 2%"),
        options="-q 2 -b",
    ),
    perftest("read-clean", READ, 30, 16384),
    perftest(
        "read-responses-between", READ, 40, 16384, Fault(BETWEEN, "b", "drop 41 at random", "read-responses")
    ),
    perftest(
        "read-responses-before", READ, 40, 16384, Fault(BEFORE, "b", "netem loss 2.5%", "read-responses")
    ),
    perftest(
        "read-responses-behind", READ, 40, 16384, Fault(BEHIND, "b", "drop 41 at random", "read-responses")
    ),
    perftest(
        "read-requests-between", READ, 60, 4096, Fault(BETWEEN, "a", "drop 9 at random", "read-requests")
    ),
    perftest(
        "atomic-requests-between", ATOMIC, 120, 8, Fault(BETWEEN, "a", "drop 17 at random", "atomic-requests")
    ),
    perftest(
        "atomic-responses-between",
        ATOMIC,
        80,
        8,
        Fault(BETWEEN, "b", "drop 17 at random", "atomic-responses"),
    ),
    perftest(
        "atomic-both-between",
        ATOMIC,
        120,
        8,
        Fault(BETWEEN, "a", "drop 11 at random", "atomic-requests"),
        Fault(BETWEEN, "b", "drop 11 at random", "atomic-responses"),
    ),
    perftest(
        "read-both-between",
        READ,
        60,
        4096,
        Fault(BETWEEN, "a", "drop 9 at random", "read-requests"),
        Fault(BETWEEN, "b", "drop 31 at random", "read-responses"),
    ),
    perftest(
        "write-both-between",
        WRITE,
        60,
        8192,
        Fault(BETWEEN, "a", "drop 19 at random"),
        Fault(BETWEEN, "b", "drop 5 at random", "acks"),
    ),
    perftest("write-reorder", WRITE, 40, 16384, Fault(BETWEEN, "a", "netem delay 3ms reorder 96%")),
    perftest("atomic-reorder", ATOMIC, 80, 8, Fault(BETWEEN, "a", "netem delay 3ms reorder 90%")),
    perftest("write-duplicate", WRITE, 40, 16384, Fault(BETWEEN, "a", "netem duplicate 4%")),
    perftest("write-tbf", WRITE, 40, 16384, Fault(BETWEEN, "a", "tbf rate 8mbit burst 6000 limit 12000")),
    perftest(
        "write-cut",
        "ib_write_lat",
        300,
        64,
        Fault(BETWEEN, "a", "cut", after=100, seconds=0.7),
        Fault(BETWEEN, "b", "netem delay 4ms"),
    ),
    perftest("send-rnr", SEND, 400, 2048, options="-r 16", killed=Killed("server", 100, stopped_s=0.3)),
    inject("inject-write-between", "ping-write", 12, 16384, Fault(BETWEEN, "a", "netem loss 4%")),
    inject("inject-blast-sr-behind", "blast-sr", 40, 8192, Fault(BEHIND, "a", "drop 31 at random")),
    inject("inject-read-between", "ping-read", 12, 16384, Fault(BETWEEN, "b", "netem loss 4%")),
    rping("rping-clean", 30, 256),
    rping(
        "rping-between", 30, 4096, Fault(BETWEEN, "a", "netem loss 4%"), Fault(BETWEEN, "b", "netem loss 4%")
    ),
    pingpong("pingpong-between", 60, 4096, Fault(BETWEEN, "a", "netem loss 3%")),
    pingpong("pingpong-destroyed", 60, 1024, served=30, limit_s=3.0),
)

SECOND: Final = (
    perftest("send-clean", SEND, 40, 8192),
    perftest("atomic-clean", ATOMIC, 60, 8),
    perftest("write-recorded-between", WRITE, 30, 16384, Fault(BETWEEN, "a", "netem loss 3%"), journal=True),
    perftest("send-recorded-before", SEND, 30, 16384, Fault(BEFORE, "a", "netem loss 3%"), journal=True),
    perftest("read-recorded-behind", READ, 30, 16384, Fault(BEHIND, "b", "drop 41 at random"), journal=True),
    perftest("atomic-recorded-between", ATOMIC, 60, 8, Fault(BETWEEN, "a", "netem loss 12%"), journal=True),
    perftest(
        "write-both-ways-before",
        WRITE,
        20,
        8192,
        Fault(BEFORE, "a", "netem loss 2%"),
        Fault(BEFORE, "b", "netem loss 2%"),
        options="-b",
    ),
    perftest(
        "read-4qp-between",
        READ,
        12,
        8192,
        Fault(BETWEEN, "a", "netem loss 2%"),
        Fault(BETWEEN, "b", "netem loss 2%"),
        options="-q 4",
    ),
    perftest("atomic-before", ATOMIC, 80, 8, Fault(BEFORE, "a", "netem loss 5%")),
    perftest("atomic-behind", ATOMIC, 80, 8, Fault(BEHIND, "b", "drop 17 at random", "atomic-responses")),
    perftest("write-lasts-between", WRITE, 80, 4096, Fault(BETWEEN, "a", "drop 9 at random", "lasts")),
    perftest("write-middles-behind", WRITE, 60, 8192, Fault(BEHIND, "a", "drop 29 at random", "middles")),
    perftest(
        "write-single-acks-between",
        WRITE,
        80,
        2048,
        Fault(BETWEEN, "b", "drop 9 at random", "acks"),
        options="-t 1",
    ),
    perftest(
        "write-single-acks-before",
        WRITE,
        80,
        2048,
        Fault(BEFORE, "b", "netem loss 11%", "acks"),
        options="-t 1",
    ),
    perftest(
        "send-single-acks-behind",
        SEND,
        80,
        2048,
        Fault(BEHIND, "b", "drop 9 at random", "acks"),
        options="-t 1",
    ),
    perftest("read-reorder", READ, 30, 16384, Fault(BETWEEN, "b", "netem delay 3ms reorder 96%")),
    perftest("send-duplicate-before", SEND, 40, 8192, Fault(BEFORE, "a", "netem duplicate 4%")),
    perftest("read-duplicate", READ, 30, 8192, Fault(BETWEEN, "b", "netem duplicate 4%")),
    perftest("write-corrupt", WRITE, 30, 8192, Fault(BETWEEN, "a", "netem corrupt 3%"), snaplen=1300),
    perftest("read-corrupt", READ, 30, 8192, Fault(BETWEEN, "b", "netem corrupt 3%"), snaplen=1300),
    perftest("write-late", WRITE, 60, 4096, Fault(BETWEEN, "b", "netem delay 120ms"), timeout=12),
    perftest("read-late", READ, 40, 4096, Fault(BETWEEN, "a", "netem delay 120ms"), timeout=12),
    perftest("send-jitter", SEND, 16, 8192, Fault(BETWEEN, "a", "netem delay 2ms 40us")),
    perftest("read-tbf", READ, 30, 16384, Fault(BETWEEN, "b", "tbf rate 8mbit burst 6000 limit 12000")),
    perftest(
        "read-cut",
        "ib_read_lat",
        300,
        64,
        Fault(BETWEEN, "a", "cut", after=100, seconds=0.7),
        Fault(BETWEEN, "b", "netem delay 4ms"),
    ),
    perftest(
        "send-cut-behind",
        "ib_send_lat",
        300,
        64,
        Fault(BEHIND, "a", "cut", after=100, seconds=0.7),
        Fault(BETWEEN, "b", "netem delay 4ms"),
    ),
    perftest(
        "write-cut-before",
        "ib_write_lat",
        300,
        64,
        Fault(BEFORE, "b", "netem loss 100%", after=100, seconds=0.7),
        Fault(BETWEEN, "a", "netem delay 4ms"),
    ),
    perftest(
        "send-rnr-between",
        SEND,
        400,
        2048,
        Fault(BETWEEN, "a", "netem loss 2%"),
        options="-r 16",
        killed=Killed("server", 100, stopped_s=0.3),
    ),
    perftest("write-lat-between", "ib_write_lat", 120, 64, Fault(BETWEEN, "a", "netem loss 3%")),
    perftest("read-lat-between", "ib_read_lat", 120, 2048, Fault(BETWEEN, "b", "netem loss 3%")),
    perftest(
        "send-lat-both-between",
        "ib_send_lat",
        80,
        3000,
        Fault(BETWEEN, "a", "netem loss 4%"),
        Fault(BETWEEN, "b", "netem loss 4%"),
    ),
    perftest(
        "send-uc-between", SEND, 60, 8192, Fault(BETWEEN, "a", "netem loss 3%"), options="-c UC", limit_s=4.0
    ),
    perftest(
        "write-mixed",
        WRITE,
        30,
        16384,
        Fault(BETWEEN, "a", "netem delay 2ms reorder 97% duplicate 2% loss 2%"),
    ),
    perftest("write-killed", "ib_write_lat", 3000, 64, killed=Killed("server", 200), limit_s=3.0),
    inject(
        "inject-killed",
        "blast-write",
        1000,
        4096,
        options="-u 12 --retry 3",
        both=False,
        killed=Killed("server", 500),
        limit_s=45.0,
    ),
    inject(
        "inject-gives-up",
        "blast-write",
        400,
        4096,
        Fault(BETWEEN, "a", "cut", after=500),
        options="-u 12 --retry 3",
        limit_s=15.0,
    ),
    inject(
        "inject-silent",
        "blast-write",
        5,
        4096,
        Fault(BETWEEN, "a", "cut"),
        options="-u 12 --retry 3",
        limit_s=15.0,
    ),
    inject("inject-atomic-between", "atomic", 30, 8, Fault(BETWEEN, "b", "netem loss 4%"), options="-q 2"),
    inject(
        "inject-immediate-before", "immediate", 30, 4096, Fault(BEFORE, "a", "netem loss 4%"), limit_s=45.0
    ),
    inject("inject-read-behind", "blast-read", 30, 8192, Fault(BEHIND, "b", "drop 37 at random")),
    inject("inject-sr-clean", "ping-sr", 30, 4096),
    rping("rping-before", 30, 4096, Fault(BEFORE, "a", "netem loss 4%")),
    rping("rping-recorded-behind", 20, 4096, Fault(BEHIND, "a", "drop 19 at random"), journal=True),
    pingpong("pingpong-clean", 60, 4096),
    pingpong("pingpong-acks-behind", 60, 2048, Fault(BEHIND, "b", "drop 7 at random", "acks")),
)

EXPERIMENTS: Final = {experiment.name: experiment for experiment in (*FIRST, *SECOND)}
#: A few that show what matters most, in under a minute.
SHORT: Final = ("write-between", "send-before", "read-responses-behind", "atomic-requests-between")
