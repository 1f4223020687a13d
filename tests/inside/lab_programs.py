"""Programs that nobody here wrote, as jobs for the lab, with what each is to do.

A job's ``truth`` lists ``messages``: an operation, its bytes, and how many of them all sides together send;
the ``transport``; and ``complete``: whether every message must arrive, as it must on RC whatever the network
does, and on UC and UD where it does nothing.
"""

from __future__ import annotations

from typing import Any

from amount import MORE

from rocekit.lab.jobs import Job

NETEM = {
    "clean": None,
    "loss": "loss 2%",
    "reorder": "delay 2ms reorder 25% 50%",
    "duplicate": "duplicate 5%",
    "corrupt": "corrupt 3%",
}
UNRELIABLE = ("send_uc", "send_ud")
ITERATIONS = 20
#: 4 packets of the lab's path MTU, or 16.
SIZE = 65536 if MORE else 16384
#: perftest's programs: name, options, transport, operation, bytes.
PERFTEST = (
    ("send_rc", "ib_send_bw", f"-s {SIZE}", "RC", "SEND", SIZE),
    ("write_rc", "ib_write_bw", f"-s {SIZE}", "RC", "WRITE", SIZE),
    ("read_rc", "ib_read_bw", f"-s {SIZE}", "RC", "READ", SIZE),
    ("atomic_rc", "ib_atomic_bw", "-A FETCH_AND_ADD", "RC", "FETCH_ADD", 8),
    ("send_uc", "ib_send_bw", f"-c UC -s {SIZE}", "UC", "SEND", SIZE),
    ("write_uc", "ib_write_bw", f"-c UC -s {SIZE}", "UC", "WRITE", SIZE),
    ("send_ud", "ib_send_bw", "-c UD -s 2048", "UD", "SEND", 2048),
)
#: The libibverbs examples: transport and default size.
PINGPONG = {"rc": ("RC", 4096), "uc": ("UC", 4096), "ud": ("UD", 1024), "srq": ("RC", 4096)}
#: The receiver does not learn of a lost datagram, so some of these wait for ever.
PATIENCE_S = 12.0
#: Now and then a program gives up under its netem, or a receiver that is to be late keeps up.
TRIES = 4


def truth(transport: str, net: str, messages: dict[tuple[str, int], int], **more: Any) -> dict[str, Any]:
    counted = [[operation, size, count] for (operation, size), count in messages.items()]
    complete = transport == "RC" or net == "clean"
    return {"transport": transport, "messages": counted, "complete": complete, **more}


def tries(transport: str, net: str) -> int:
    """What is reliable must come through whatever the network does, and the program with it."""
    return TRIES if transport == "RC" and net != "clean" else 1


def perftest(name: str, net: str, *, qps: int = 1, extra: str = "") -> Job:
    """One of PERFTEST with so many QPs: 20 messages on each."""
    _, program, options, transport, operation, size = next(row for row in PERFTEST if row[0] == name)
    # An emulated machine is slow: without faults, no timer of the requester (67 ms by default) is to run out.
    options += f" -F -x 1 -n {ITERATIONS} -q {qps} {extra}" + (" -u 18" if net == "clean" else "")
    # A receiver that waits for what was lost shall sleep.
    options += " -e" if transport != "RC" and net != "clean" else ""
    return Job(
        f"{name}_q{qps}_{net}",
        client=f"{program} -d rxe0 {options} 10.9.0.2",
        server=f"{program} -d rxe1 {options}",
        netem=NETEM[net],
        limit_s=60.0 if transport == "RC" else PATIENCE_S + 20 * (net == "clean"),
        linger_s=3.0,
        tries=tries(transport, net),
        truth=truth(transport, net, {(operation, size): ITERATIONS * qps}, connections=qps),
    )


def pingpong(kind: str, net: str) -> Job:
    transport, size = PINGPONG[kind]
    program = f"ibv_{kind}_pingpong"
    return Job(
        f"pingpong_{kind}_{net}",
        client=f"{program} -d rxe0 -g 1 -n {ITERATIONS} 10.9.0.2",
        server=f"{program} -d rxe1 -g 1 -n {ITERATIONS}",
        netem=NETEM[net],
        limit_s=60.0 if transport == "RC" else PATIENCE_S,
        linger_s=3.0,
        tries=tries(transport, net),
        # With a shared receive queue 16 QPs play at once, and some have sent more when the count is reached.
        truth=truth(transport, net, {("SEND", size): 2 * ITERATIONS}, at_least=kind == "srq"),
    )


def rping(net: str, rounds: int = 5, *, ipv6: bool = False) -> Job:
    """A round: the client names its source, the server READs it; it names its sink, the server WRITEs.

    A SEND of 16 bytes reports each of the four steps; the buffers have 64.
    """
    address = "fd00:9::2 -I fd00:9::1" if ipv6 else "10.9.0.2"
    listen = address.split()[0]
    messages = {("SEND", 16): 4 * rounds, ("READ", 64): rounds, ("WRITE", 64): rounds}
    return Job(
        f"rping{'6' if ipv6 else ''}_{net}",
        client=f"rping -c -a {address} -C {rounds} -v",
        server=f"rping -s -a {listen} -C {rounds} -v",
        netem=NETEM[net],
        linger_s=3.0,
        tries=tries("RC", net),
        truth=truth("RC", net, messages, connections=1),
    )


def rnr() -> Job:
    """A receiver with a single RECV posted at a time, and a sender who does not wait for it."""
    options = f"-F -x 1 -n {ITERATIONS} -s 4096 -r 1 -t 32"
    return Job(
        "send_rc_rnr",
        client=f"ib_send_bw -d rxe0 {options} 10.9.0.2",
        server=f"ib_send_bw -d rxe1 {options}",
        tries=TRIES,
        strikes="send_rnr_err",
        truth=truth("RC", "rnr", {("SEND", 4096): ITERATIONS}, connections=1, rnr=True),
    )


def everything() -> list[Job]:
    """The whole matrix: a quarter of an hour and more in an emulated VM."""
    jobs = []
    for net in NETEM:
        jobs += [perftest(row[0], net, qps=qps) for qps in (1, 4) for row in PERFTEST]
        jobs += [rping(net), *(pingpong(kind, net) for kind in PINGPONG)]
    return [*jobs, rping("clean", ipv6=True), rnr()]


#: What runs under each fault where more is asked for.
MORE_UNDER_FAULT = ("send_rc", "write_rc", "read_rc", "atomic_rc", *UNRELIABLE, "rping", "pingpong")
#: What runs under each fault by default. tests/lab/test_lab_selection.py says what has to be among it.
UNDER_FAULT = {
    "loss": ("send_rc", "read_rc", "atomic_rc", *UNRELIABLE, "rping"),
    "reorder": ("write_rc", "read_rc", "send_ud"),
    "duplicate": ("write_rc", "atomic_rc", "send_ud"),
    "corrupt": ("write_rc", "read_rc", "pingpong"),
}
#: What runs without faults on one QP too, by default. All of PERFTEST runs on four.
ON_ONE_QP = ("send_rc",)


def _under_fault(name: str, net: str) -> Job:
    """A reliable operation runs on four QPs."""
    if name in ("rping", "pingpong"):
        return rping(net) if name == "rping" else pingpong("rc", net)
    return perftest(name, net, qps=1 if name in UNRELIABLE else 4)


def selection() -> list[Job]:
    """Every program without faults, and some under each fault.

    A receiver whose UC messages were lost waits until it is ended, a third of a minute.
    """
    jobs = [
        perftest(row[0], "clean", qps=qps)
        for qps in (1, 4)
        for row in PERFTEST
        if MORE or qps == 4 or row[0] in ON_ONE_QP
    ]
    jobs += [
        rping("clean"),
        rping("clean", ipv6=True),
        *(pingpong(kind, "clean") for kind in PINGPONG),
        rnr(),
    ]
    for net, names in UNDER_FAULT.items():
        jobs += [_under_fault(name, net) for name in (MORE_UNDER_FAULT if MORE else names)]
    return jobs
