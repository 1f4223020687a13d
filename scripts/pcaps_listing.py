"""The captures of pcaps/: for each the programs, the fault, and what the programs transfer."""

from __future__ import annotations

from dataclasses import dataclass

from rocekit.lab.net import A, B

NETEM = {
    "loss": "loss 5%",
    "reordering": "delay 2ms reorder 25% 50%",
    "duplication": "duplicate 10%",
    "corruption": "corrupt 5%",
}
CLEAN = "-u 18"
"""A local ACK timeout of 1 s: perftest's 67 ms are too short for an emulated machine."""
FAULTY = "-u 16"
PATIENT = "--timeout 120"
"""On a busy machine a client can take longer than the usual 30 s until it connects."""
#: Drops every packet of an RC connection on arrival (opcodes 0 to 31, behind 20 bytes of IPv4 and 8 of UDP).
DEAF = "u32 match ip protocol 17 0xff match u8 0x00 0xe0 at 28 action drop"
#: Drops every 13th RoCE packet on arrival, behind the capture point.
BEHIND = "flower ip_proto udp dst_port 4791 action pass random determ drop 13"


@dataclass(frozen=True)
class Made:
    """A capture to make, and how.

    Attributes:
        client, server: command lines. Each `rocekit inject` also writes a journal.
        messages: (operation, bytes, number) that the programs are to transfer.
        about: its description in the manifest.
        netem, netem_b: the faults of what rxe0 and rxe1 send, before the capture point.
        ingress: a tc filter at rxe1's end, behind the capture point.
        strikes: "tc", or a counter of rxe that must have moved, else the fault did not happen; None: clean.
        fails: whether the client is meant to fail.
        traced: whether `rocekit trace --write` captures it, as pcapng.
        soft: whether it runs on soft devices, which needs no lab; their wire in memory writes the capture.
        devices: the number of devices in the lab; three or more are captured on the bridge between them.
    """

    name: str
    client: str
    server: str | None
    messages: tuple[tuple[str, int, int], ...]
    about: str
    transport: str = "RC"
    netem: str | None = None
    netem_b: str | None = None
    ingress: str | None = None
    capture_filter: str = "udp port 4791"
    strikes: str | None = None
    fails: bool = False
    traced: bool = False
    soft: bool = False
    devices: int = 2

    @property
    def clean(self) -> bool:
        return self.strikes is None and not self.fails


def _messages(scenario: str, size: int, iterations: int, qps: int) -> tuple[tuple[str, int, int], ...]:
    count = iterations * qps
    return {
        "ping-sr": (("SEND", size, 2 * count),),
        "blast-sr": (("SEND", size, count),),
        "ping-write": (("WRITE", size, 2 * count),),
        "ping-read": (("READ", size, count),),
        "atomic": (("FETCH_ADD", 8, count),),
        "atomic-cmp": (("CMP_SWAP", 8, count),),
        **{f"ping-sr-{n}": (("SEND", size, 2 * count),) for n in range(5)},
        "blast-write": (("WRITE", size, count),),
        "blast-read": (("READ", size, count),),
        "ud": (("SEND", size, 2 * count),),
        "uc": (("WRITE", size, 2 * count), ("SEND", 12, 2 * count)),
        # Both in turn, in both directions.
        "immediate": (("SEND", size, count), ("WRITE", size, count)),
        "invalidate": (("SEND", 12, count), ("WRITE", size, count), ("SEND", 8, count)),
        "sge": tuple(("SEND", 16 + size - i * 37 % size, 2 * qps) for i in range(iterations)),
        "wr-list": (("SEND", size, count),),
        "srq": (("SEND", size, count),),
        "cq-ex": (("SEND", size, 2 * count),),
        "device-memory": (("WRITE", size, count - qps), ("READ", size, count)),
        # tests/scenarios/test_failures.py checks what each mistake leads to.
        "failures": (),
    }[scenario]


#: Scenarios of another transport than RC.
TRANSPORTS = {"ud": "UD", "uc": "UC"}
MEET_BY_TCP = "udp port 4791 or tcp port 18515"


def inject(
    scenario: str,
    condition: str,
    about: str,
    *,
    size: int = 8192,
    iterations: int = 10,
    qps: int = 1,
    more: str = "",
    requester: str = "",
    addresses: tuple[str, str] = (A.ipv4, B.ipv4),
    netem: str | None = None,
    netem_b: str | None = None,
    ingress: str | None = None,
    server: bool = True,
    traced: bool = False,
    strikes: str | None = None,
    fails: bool = False,
    server_options: str = "",
) -> Made:
    """A scenario of rocekit inject.

    Args:
        requester: options of both ends, for the requests that they send.
        server_options: options that only the server needs.
    """
    name = scenario.removesuffix("-cmp")
    faulty = bool(netem or netem_b or ingress)
    requester = requester or (FAULTY if faulty else CLEAN)
    ours, theirs = addresses
    call = ["rocekit inject", name, theirs, "--bind", ours, "-m 1024", f"-n {iterations}", requester, more]
    if name != "atomic":
        call.append(f"-s {size}")
    if qps > 1:
        call.append(f"-q {qps}")
    if scenario == "atomic-cmp":
        call.append("-A CMP_AND_SWAP")
    return Made(
        f"{scenario}-{condition}",
        " ".join(filter(None, call)),
        " ".join(filter(None, ("rocekit inject", name, "--bind", theirs, server_options, requester, PATIENT)))
        if server
        else None,
        () if fails else _messages(scenario, size, iterations, qps),
        about,
        transport=TRANSPORTS.get(name, "RC"),
        capture_filter=MEET_BY_TCP if name in TRANSPORTS or "--no-rdma_cm" in more else "udp port 4791",
        netem=netem,
        netem_b=netem_b,
        ingress=ingress,
        strikes=strikes or ("tc" if faulty else None),
        fails=fails,
        traced=traced,
    )


def perftest(
    program: str,
    condition: str,
    options: str,
    messages: tuple[tuple[str, int, int], ...],
    about: str,
    *,
    transport: str = "RC",
    netem: str | None = None,
    handshake: bool = False,
    strikes: str | None = None,
) -> Made:
    """A program of perftest."""
    options = f"-F -x 1 {options} {FAULTY if netem else CLEAN}"
    return Made(
        f"{program}-{condition}",
        f"{program} -d {A.device} {options} {B.ipv4}",
        f"{program} -d {B.device} {options}",
        messages,
        about,
        transport=transport,
        netem=netem,
        capture_filter="udp port 4791 or tcp port 18515" if handshake else "udp port 4791",
        strikes=strikes or ("tc" if netem else None),
    )


def _rping(rounds: int, name: str, address: str, source: str, about: str) -> Made:
    return Made(
        name,
        f"rping -c -a {address} -I {source} -C {rounds} -v",
        f"rping -s -a {address} -C {rounds} -v",
        (("SEND", 16, 4 * rounds), ("READ", 64, rounds), ("WRITE", 64, rounds)),
        about,
    )


def soft_pair(scenario: str, about: str, *, size: int, iterations: int) -> Made:
    """A scenario between two soft devices: rxe cannot do it, or the program matters, not the packets."""
    return Made(
        f"{scenario}-soft",
        f"rocekit inject {scenario} --both --backend soft --seed 1 -n {iterations} -s {size} {CLEAN}",
        None,
        _messages(scenario, size, iterations, 1),
        about,
        soft=True,
    )


def group(scenario: str, about: str, lengths: dict[int, int], hosts: int = 4, size: int = 2048) -> Made:
    """A scenario of n hosts on soft devices. ``lengths``: bytes of a message to the number of messages."""
    return Made(
        f"{scenario}-soft",
        f"rocekit inject {scenario} --hosts {hosts} --backend soft --seed 1 -n 1 -s {size} -m 1024",
        None,
        tuple(("WRITE", length, count) for length, count in lengths.items()),
        about,
        soft=True,
    )


def group_of_rxe(scenario: str, about: str, lengths: dict[int, int], *, netem: str | None = None) -> Made:
    """A scenario of three hosts on rxe devices, all in one program."""
    return Made(
        f"{scenario}-{'loss' if netem else 'clean'}",
        f"rocekit inject {scenario} --hosts 3 -n 1 -s 3072 {FAULTY if netem else CLEAN} {PATIENT}",
        None,
        tuple(("WRITE", length, count) for length, count in lengths.items()),
        about,
        netem=netem,
        strikes="tc" if netem else None,
        devices=3,
    )


LOST = "some packets of rxe0 are lost before the capture point"
V6 = (A.ipv6, B.ipv6)

MADE: tuple[Made, ...] = (
    inject("ping-sr", "clean", "no faults", size=4096, traced=True),
    inject("blast-sr", "clean", "no faults; one WR in four is signaled", iterations=16, more="-t 8 -Q 4"),
    inject("ping-write", "clean", "no faults"),
    inject("ping-read", "clean", "no faults"),
    inject("atomic", "clean", "no faults; two QPs add to one counter", qps=2),
    inject("atomic-cmp", "clean", "no faults"),
    inject("ping-sr", "ipv6-clean", "no faults, over IPv6", size=4096, addresses=V6),
    inject("ping-write", "loss", LOST, size=16384, netem=NETEM["loss"], traced=True),
    inject(
        "ping-write",
        "loss-behind",
        "every 13th packet to rxe1 is lost behind the capture point",
        ingress=BEHIND,
    ),
    inject("ping-sr", "loss", LOST, iterations=15, netem=NETEM["loss"]),
    inject("blast-sr", "loss", LOST, iterations=20, more="-t 8 -Q 4", netem=NETEM["loss"]),
    inject(
        "ping-read",
        "loss",
        "some READ requests are lost before the capture point",
        iterations=20,
        netem="loss 20%",
    ),
    inject(
        "ping-read",
        "response-loss",
        "some responses of rxe1 are lost before the capture point",
        netem_b=NETEM["loss"],
    ),
    inject("atomic", "loss", LOST, iterations=20, netem="loss 10%"),
    inject(
        "atomic",
        "response-loss",
        "some responses of rxe1 are lost before the capture point: their requests are sent again",
        iterations=20,
        netem_b="loss 10%",
    ),
    inject(
        "blast-sr",
        "reordering",
        "some packets of rxe0 overtake others",
        iterations=16,
        more="-t 8 -Q 4",
        netem=NETEM["reordering"],
    ),
    inject("ping-write", "reordering", "some packets of rxe0 overtake others", netem=NETEM["reordering"]),
    inject("ping-sr", "duplication", "some packets of rxe0 are duplicated", netem=NETEM["duplication"]),
    inject("ping-write", "duplication", "some packets of rxe0 are duplicated", netem=NETEM["duplication"]),
    inject(
        "blast-sr",
        "corruption",
        "a bit is flipped in some packets of rxe0",
        iterations=20,
        more="-t 8 -Q 4",
        netem=NETEM["corruption"],
    ),
    inject(
        "ping-read",
        "corruption",
        "a bit is flipped in some packets of rxe1, which are READ responses",
        iterations=15,
        netem_b=NETEM["corruption"],
    ),
    inject(
        "blast-sr",
        "rnr",
        "the receiver posts one receive at a time, and the sender does not wait for it",
        size=2048,
        more="-t 8 -Q 4 -r 1",
        strikes="send_rnr_err",
    ),
    inject(
        "ping-write",
        "dead",
        "no packet of the connection reaches rxe1: the first WRITE exceeds its retries",
        size=2048,
        requester="--retry 3 -u 14",
        ingress=DEAF,
        fails=True,
    ),
    inject("ping-sr", "rejected", "no server listens: the REQ is rejected", server=False, fails=True),
    perftest(
        "ib_send_bw",
        "clean",
        "-n 10 -s 8192",
        (("SEND", 8192, 10),),
        "no faults; with the TCP handshake",
        handshake=True,
    ),
    perftest("ib_write_bw", "clean", "-n 10 -s 8192", (("WRITE", 8192, 10),), "no faults"),
    perftest("ib_read_bw", "clean", "-n 10 -s 8192", (("READ", 8192, 10),), "no faults"),
    perftest("ib_atomic_bw", "clean", "-n 10 -A FETCH_AND_ADD", (("FETCH_ADD", 8, 10),), "no faults"),
    perftest(
        "ib_send_bw",
        "uc-clean",
        "-c UC -n 10 -s 8192",
        (("SEND", 8192, 10),),
        "no faults",
        transport="UC",
    ),
    perftest(
        "ib_send_bw",
        "ud-clean",
        "-c UD -n 10 -s 2048",
        (("SEND", 2048, 10),),
        "no faults",
        transport="UD",
    ),
    perftest(
        "ib_write_bw", "4qp-loss", "-q 4 -n 5 -s 16384", (("WRITE", 16384, 20),), LOST, netem=NETEM["loss"]
    ),
    perftest(
        "ib_send_bw",
        "rnr",
        "-n 10 -s 4096 -r 1 -t 16",
        (("SEND", 4096, 10),),
        "the receiver posts one receive at a time, and the sender does not wait for it",
        strikes="send_rnr_err",
    ),
    _rping(5, "rping-clean", B.ipv4, A.ipv4, "no faults; each round is SEND, READ, SEND, SEND, WRITE, SEND"),
    _rping(3, "rping-ipv6-clean", B.ipv6, A.ipv6, "no faults, over IPv6"),
    Made(
        "ibv_rc_pingpong-clean",
        f"ibv_rc_pingpong -d {A.device} -g 1 -n 10 {B.ipv4}",
        f"ibv_rc_pingpong -d {B.device} -g 1 -n 10",
        (("SEND", 4096, 20),),
        "no faults; no connection manager",
    ),
    *(
        soft_pair(f"ping-sr-{n}", f"soft devices: {how}", size=1024, iterations=5)
        for n, how in (
            (0, "no private data"),
            (1, "number and size of the messages in the private data of the REQ"),
            (2, "a thread reads CM events"),
            (3, "a completion channel"),
            (4, "both channels non-blocking"),
        )
    ),
    inject(
        "ping-sr",
        "tcp-clean",
        "no faults; no connection manager, the TCP exchange is in the capture",
        size=1024,
        iterations=5,
        more="--no-rdma_cm",
        server_options="--no-rdma_cm",
    ),
    inject(
        "blast-write",
        "clean",
        "no faults; one WR in four is signaled",
        size=2048,
        iterations=12,
        more="-t 8 -Q 4",
    ),
    inject(
        "blast-read",
        "clean",
        "no faults; four READs at a time",
        size=2048,
        iterations=9,
        more="-o 4",
    ),
    inject("ud", "clean", "no faults; datagrams in both directions", size=1024, iterations=5),
    inject("uc", "clean", "no faults; WRITEs and SENDs in both directions", size=2048, iterations=5),
    inject("immediate", "clean", "no faults; SEND and WRITE in turn", size=2048, iterations=6),
    inject("invalidate", "clean", "no faults; each rkey is invalidated after use", size=2048, iterations=5),
    inject("sge", "clean", "no faults; header and body in two buffers", size=1500, iterations=5),
    inject("wr-list", "clean", "one WR in four is refused when it is posted", size=512, iterations=12),
    inject("srq", "clean", "no faults; three QPs, one receive queue", size=1024, iterations=5, qps=3),
    inject(
        "cq-ex",
        "clean",
        "no faults; sends complete on an extended CQ, without timestamps",
        size=1024,
        iterations=5,
        qps=2,
        more="--no-timestamps",
        server_options="--no-timestamps",
    ),
    inject(
        "failures",
        "each",
        "one mistake after another, each on its own connection",
        size=4096,
        iterations=1,
        strikes="send_rnr_err",
    ),
    soft_pair("cq-ex", "soft devices: completions with timestamps", size=1024, iterations=5),
    soft_pair("device-memory", "soft devices: memory of the server's device", size=2048, iterations=5),
    # An all-to-all of blocks of 2,048 bytes, and an all-reduce of 2,048 bytes in four pieces.
    group("mesh", "four soft hosts, each connected to all, exchange blocks directly", {2048: 12, 512: 24}),
    group(
        "ring",
        "four soft hosts in a ring exchange blocks, passed on from host to host",
        {6144: 4, 4096: 4, 2048: 4, 512: 24},
    ),
    group_of_rxe(
        "mesh", "three rxe devices, each connected to all, exchange blocks directly", {3072: 6, 1024: 12}
    ),
    group_of_rxe(
        "ring",
        "three rxe devices in a ring exchange blocks, passed on from one to the next",
        {6144: 3, 3072: 3, 1024: 12},
    ),
    group_of_rxe(
        "mesh", f"three rxe devices, each connected to all; {LOST}", {3072: 6, 1024: 12}, netem="loss 10%"
    ),
    group_of_rxe(
        "ring", f"three rxe devices in a ring; {LOST}", {6144: 3, 3072: 3, 1024: 12}, netem="loss 10%"
    ),
)
