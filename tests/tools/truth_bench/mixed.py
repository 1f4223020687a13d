"""Experiments of the truth bench that mix what others keep apart, and what rxe does not do by itself.

Operations of several kinds on one QP, messages of no bytes, retries that run out under losses, memory taken
away under losses, path MTUs that the two ends do not share, bursts of losses, two programs at once, CM's
messages doubled, late and overtaken, marks that are answered with CNPs, and QPs both of whose ends request.
"""

from __future__ import annotations

from typing import Any, Final

from truth_bench.experiments import (
    ATOMIC,
    BEFORE,
    BEHIND,
    BETWEEN,
    READ,
    SEND,
    TO,
    WRITE,
    Experiment,
    Fault,
    Killed,
    inject,
    perftest,
)

_STOPPED: Final = Killed("server", 60, stopped_s=0.3)
_MARKED: Final = "--tclass=2"
_MARKS: Final = Fault(BETWEEN, "a", "netem loss 8% ecn")
_ZERO: Final = "SEND:0,WRITE:0,READ:0,IMM:0,SEND:1,READ:1"


def medley(
    name: str,
    *faults: Fault,
    turns: str = "WRITE:3000,READ:5000,SEND:2000,IMM:1500,FETCH,SWAP,READ:100,SEND:10",
    n: int = 96,
    receives: int = 200,
    options: str = "-u 16",
    **more: Any,
) -> Experiment:
    """Operations of several kinds in turn on each QP."""
    words = "rocekit inject blast-medley"
    told = f"--timeout 60 -m 1024 -n {n} -s 5000 -r {receives} {options}".rstrip()
    return Experiment(
        name,
        client=f"{words} {TO} -d rxe0 {told}",
        server=f"{words} -d rxe1",
        faults=faults,
        told={"program": "blast-medley", "count": n, "bytes": 0, "turns": turns, "options": options},
        limit_s=40.0,
        environment={"MEDLEY": turns},
        **more,
    )


def _cnps(
    name: str,
    program: str,
    *faults: Fault,
    pace_us: int = 0,
    options: str = "",
    n: int = 60,
    size: int = 8192,
) -> Experiment:
    """Marks, and a notification point that answers them: at the server, of a READ at the client."""
    usual = perftest(name, program, n, size, *faults, options=f"{_MARKED} {options}".rstrip())
    point = "$PYTHON $INSIDE/truth_cnp.py"
    client, server = usual.client, usual.server
    if program == READ:
        client = f"sh -c '{point} va {pace_us} & N=$!; {client}; R=$?; kill $N; exit $R'"
    else:
        server = f"sh -c '{point} vb {pace_us} & N=$!; {server}; R=$?; kill $N; exit $R'"
    return Experiment(
        name,
        client=client,
        server=server,
        faults=faults,
        told={**usual.told, "cnps": pace_us},
        limit_s=usual.limit_s,
    )


def _beside(
    name: str, first: tuple[str, int, int], second: tuple[str, int, int], *faults: Fault
) -> Experiment:
    """Two of perftest's programs at once."""
    ends = [perftest(name, *each, options=f"-p {18515 + i}") for i, each in enumerate((first, second))]
    return Experiment(
        name,
        client=f"sh -c '{ends[0].client} & sleep 0.3; {ends[1].client}; wait'",
        server=f"sh -c '{ends[0].server} & {ends[1].server}; wait'",
        faults=faults,
        told={"program": "two", "count": 0, "bytes": 0, "options": ""},
    )


def _cm(name: str, *faults: Fault, n: int = 12) -> Experiment:
    return Experiment(
        name,
        client=f"cmtime -c {n} -s {TO}",
        server=f"cmtime -c {n}",
        faults=faults,
        told={"program": "cmtime", "count": n, "bytes": 0, "options": ""},
        limit_s=60.0,
        snaplen=400,
    )


def _retries(
    name: str, scenario: str, retries: str, *faults: Fault, n: int = 200, size: int = 4096
) -> Experiment:
    """One of rocekit's scenarios with few retries."""
    return inject(name, scenario, n, size, *faults, options=f"-u 14 {retries}", limit_s=20.0)


def _revoked(
    name: str, program: str, *faults: Fault, options: str = "", after: int = 150, size: int = 4096
) -> Experiment:
    """Memory that is taken away while packets are lost."""
    return perftest(name, program, 2000, size, *faults, options=options, revoke_after=after, limit_s=8.0)


MEDLEYS: Final = (
    medley("medley-clean"),
    medley("medley-between", Fault(BETWEEN, "a", "netem loss 4%")),
    medley("medley-before", Fault(BEFORE, "a", "netem loss 4%")),
    medley("medley-behind", Fault(BEHIND, "a", "drop 23 at random")),
    medley("medley-answers-between", Fault(BETWEEN, "b", "netem loss 6%")),
    medley("medley-answers-behind", Fault(BEHIND, "b", "drop 17 at random")),
    medley("medley-answers-duplicate", Fault(BETWEEN, "b", "netem duplicate 6% loss 4%")),
    medley("medley-answers-reorder", Fault(BETWEEN, "b", "netem delay 3ms reorder 95%")),
    medley(
        "medley-2qp-both",
        Fault(BETWEEN, "a", "netem loss 4%"),
        Fault(BETWEEN, "b", "netem loss 4%"),
        options="-u 16 -q 2",
        n=64,
    ),
    medley("medley-reorder", Fault(BETWEEN, "a", "netem delay 3ms reorder 95% duplicate 2%")),
    medley("medley-rnr-between", Fault(BETWEEN, "a", "netem loss 3%"), receives=8, killed=_STOPPED),
    medley(
        "medley-rnr-answers",
        Fault(BETWEEN, "b", "netem loss 6%"),
        receives=8,
        killed=_STOPPED,
        turns="SEND:2000,IMM:1500,READ:3000",
    ),
)

ZERO: Final = (
    medley("zero-clean", turns=_ZERO),
    medley(
        "zero-both", Fault(BETWEEN, "a", "netem loss 5%"), Fault(BETWEEN, "b", "netem loss 5%"), turns=_ZERO
    ),
    medley("zero-behind", Fault(BEHIND, "a", "drop 13 at random"), turns=_ZERO),
    medley("zero-rnr", Fault(BETWEEN, "a", "netem loss 5%"), turns=_ZERO, receives=8, killed=_STOPPED),
)

RETRIES: Final = (
    _retries("retry-1-write", "blast-write", "--retry 1", Fault(BETWEEN, "a", "netem loss 25%")),
    _retries("retry-2-acks", "blast-write", "--retry 2 -t 4 -Q 1", Fault(BETWEEN, "b", "netem loss 55%")),
    _retries("retry-1-read", "blast-read", "--retry 1", Fault(BETWEEN, "b", "netem loss 20%"), n=80),
    _retries("retry-1-behind", "blast-sr", "--retry 1", Fault(BEHIND, "a", "drop 4 at random")),
    _retries("retry-1-atomic", "atomic", "--retry 1 -q 2", Fault(BETWEEN, "b", "netem loss 30%"), size=8),
    inject(
        "rnr-retry-2",
        "blast-sr",
        300,
        2048,
        options="-u 14 --rnr-retry 2 -r 16",
        both=False,
        killed=Killed("server", 60, stopped_s=1.5),
        limit_s=15.0,
    ),
    inject(
        "rnr-retry-1-lossy",
        "blast-sr",
        300,
        2048,
        Fault(BETWEEN, "a", "netem loss 4%"),
        Fault(BETWEEN, "b", "netem loss 4%"),
        options="-u 14 --rnr-retry 1 -r 16 --retry 3",
        both=False,
        killed=Killed("server", 60, stopped_s=1.5),
        limit_s=15.0,
    ),
)

REVOKED: Final = (
    _revoked("revoked-write-naks", WRITE, Fault(BETWEEN, "b", "drop 2 at random", "acks")),
    _revoked(
        "revoked-read-both",
        READ,
        Fault(BETWEEN, "a", "netem loss 3%"),
        Fault(BETWEEN, "b", "netem loss 3%"),
        after=60,
    ),
    _revoked("revoked-atomic-between", ATOMIC, Fault(BETWEEN, "b", "netem loss 6%"), after=60, size=8),
    _revoked("revoked-write-reorder", WRITE, Fault(BETWEEN, "a", "netem delay 3ms reorder 96%")),
    _revoked("revoked-4qp-behind", WRITE, Fault(BEHIND, "a", "drop 29 at random"), options="-q 4"),
)

MTU: Final = (
    perftest("mtu-write-512", WRITE, 20, 4096, server_mtu_code=2, limit_s=6.0),
    perftest(
        "mtu-write-512-between",
        WRITE,
        20,
        4096,
        Fault(BETWEEN, "a", "netem loss 4%"),
        server_mtu_code=2,
        limit_s=6.0,
    ),
    perftest("mtu-send-512", SEND, 20, 4096, server_mtu_code=2, limit_s=6.0),
    perftest("mtu-read-512", READ, 20, 4096, server_mtu_code=2, limit_s=6.0),
    perftest("mtu-read-2048", READ, 20, 4096, server_mtu_code=4, limit_s=6.0),
    perftest("mtu-write-2048", WRITE, 20, 4096, server_mtu_code=4, limit_s=6.0),
)

BURSTS: Final = (
    perftest("burst-write-between", WRITE, 60, 16384, Fault(BETWEEN, "a", "netem loss gemodel 1% 25%")),
    perftest("burst-read-between", READ, 50, 16384, Fault(BETWEEN, "b", "netem loss gemodel 1% 25%")),
    perftest("burst-send-before", SEND, 60, 16384, Fault(BEFORE, "a", "netem loss gemodel 1% 25%")),
    perftest("burst-atomic-between", ATOMIC, 100, 8, Fault(BETWEEN, "b", "netem loss gemodel 3% 30%")),
    perftest(
        "burst-write-4qp",
        WRITE,
        16,
        16384,
        Fault(BETWEEN, "a", "netem loss gemodel 1% 20%"),
        Fault(BETWEEN, "b", "netem loss gemodel 2% 30%"),
        options="-q 4",
    ),
)

BESIDE: Final = (
    _beside(
        "beside-write-read",
        (WRITE, 40, 8192),
        (READ, 30, 8192),
        Fault(BETWEEN, "a", "netem loss 3%"),
        Fault(BETWEEN, "b", "netem loss 3%"),
    ),
    _beside(
        "beside-send-atomic-reorder",
        (SEND, 40, 8192),
        (ATOMIC, 60, 8),
        Fault(BETWEEN, "a", "netem delay 3ms reorder 95% duplicate 2%"),
    ),
    perftest(
        "swap-both",
        ATOMIC,
        80,
        8,
        Fault(BETWEEN, "a", "netem loss 5%"),
        Fault(BETWEEN, "b", "netem loss 5% duplicate 5%"),
        options="-A CMP_AND_SWAP",
    ),
)

CM: Final = (
    _cm("cm-req-twice", Fault(BETWEEN, "a", "netem duplicate 50%", "cm-req")),
    _cm(
        "cm-all-twice",
        Fault(BETWEEN, "a", "netem duplicate 50%", "cm"),
        Fault(BETWEEN, "b", "netem duplicate 50%", "cm"),
    ),
    _cm(
        "cm-reorder",
        Fault(BETWEEN, "a", "netem delay 300ms 300ms", "cm"),
        Fault(BETWEEN, "b", "netem delay 300ms 300ms", "cm"),
    ),
    _cm("cm-reqs-late", Fault(BETWEEN, "a", "netem delay 6s reorder 50%", "cm-req"), n=8),
    _cm("cm-reps-late", Fault(BETWEEN, "b", "netem delay 6s reorder 50%", "cm-rep"), n=8),
    _cm("cm-rtus-late", Fault(BETWEEN, "a", "netem delay 6s reorder 50%", "cm-rtu"), n=8),
)

CNPS: Final = (
    _cnps("cnp-each", WRITE, _MARKS),
    _cnps("cnp-paced-behind", WRITE, _MARKS, Fault(BEHIND, "a", "drop 31 at random"), pace_us=400),
    _cnps("cnp-lost", SEND, _MARKS, Fault(BETWEEN, "b", "drop 2 at random", "cnps")),
    _cnps("cnp-2qp", WRITE, _MARKS, options="-q 2", n=30),
    _cnps("cnp-read", READ, Fault(BETWEEN, "b", "netem loss 8% ecn")),
    _cnps("cnp-all-lost", WRITE, _MARKS, Fault(BETWEEN, "b", "cut", "cnps")),
    _cnps("cnp-rare", WRITE, _MARKS, pace_us=20000),
)


def _each_way(
    name: str, program: str, n: int, size: int, where: str, how: str, of: str = "all", **more: Any
) -> Experiment:
    """Both ends of a QP request, and both directions have the same fault."""
    faults = [Fault(where, sender, how, of) for sender in "ab"]
    options = f"-b {more.pop('options', '')}".rstrip()
    return perftest(f"each-way-{name}", program, n, size, *faults, options=options, **more)


EACH_WAY: Final = (
    *(
        _each_way(f"{name}-{where}", program, 60, 8192, where, how, options=options)
        for name, program, options in (("write", WRITE, ""), ("send", SEND, ""), ("write-4qp", WRITE, "-q 4"))
        for where, how in (
            (BEFORE, "netem loss 2%"),
            (BETWEEN, "netem loss 2%"),
            (BEHIND, "drop 31 at random"),
        )
    ),
    _each_way("read", READ, 60, 8192, BETWEEN, "netem loss 2%"),
    _each_way("atomic", ATOMIC, 100, 8, BETWEEN, "netem loss 3%"),
    _each_way("send-acks", SEND, 100, 4096, BETWEEN, "netem loss 10%", "acks"),
    _each_way("write-acks", WRITE, 100, 4096, BEFORE, "netem loss 10%", "acks"),
    _each_way("send-rnr", SEND, 300, 2048, BETWEEN, "netem loss 1%", options="-r 16", killed=_STOPPED),
    _each_way("send-reorder", SEND, 60, 8192, BETWEEN, "netem delay 2ms reorder 96%"),
)

KINDS: Final = {
    "medleys": MEDLEYS,
    "zero": ZERO,
    "retries": RETRIES,
    "revoked": REVOKED,
    "path MTUs": MTU,
    "bursts": BURSTS,
    "beside": BESIDE,
    "CM": CM,
    "CNPs": CNPS,
    "each way": EACH_WAY,
}
MIXED: Final = {experiment.name: experiment for kind in KINDS.values() for experiment in kind}
