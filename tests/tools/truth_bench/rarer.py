"""Still more experiments of the truth bench: what is rarer than what is unusual.

RNR NAKs with losses, many QPs, a lossy connection manager, packets marked, frames that are too large for a
link, multicast, and READs and atomics whose packets are doubled, overtaken and lost at once.
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
    rping,
)

_STOPPED: Final = Killed("server", 100, stopped_s=0.3)
_MARKED: Final = "--tclass=2"
"""ECT(0), so that netem marks instead of dropping."""
_MESSY: Final = "netem delay 2ms 30us reorder 4% duplicate 3% loss 1%"
_RESPONSES: Final = "read-responses"


def _immediate(name: str, *faults: Fault, receives: int = 16, n: int = 150, options: str = "") -> Experiment:
    """A stream of WRITEs with immediate data to a server with few ``receives``, which stops for a while."""
    words = "$PYTHON $INSIDE/truth_immediate.py inject blast-immediate"
    told = f"--timeout 60 -m 1024 -n {n} -s 3000 -u 16 -r {receives} {options}".rstrip()
    return Experiment(
        name,
        client=f"{words} {TO} -d rxe0 {told}",
        server=f"{words} -d rxe1",
        faults=faults,
        killed=_STOPPED if receives < n else None,
        told={"program": "blast-immediate", "count": n, "bytes": 3000, "options": options},
        limit_s=60.0,
    )


def _rnr(name: str, *faults: Fault, options: str = "-r 16", n: int = 400) -> Experiment:
    """SENDs to a server that stops for a while."""
    return perftest(name, SEND, n, 2048, *faults, options=options, killed=_STOPPED)


def _cm(name: str, *faults: Fault, n: int = 16, limit_s: float = 60.0) -> Experiment:
    """So many connections made and ended at once (cmtime)."""
    return Experiment(
        name,
        client=f"cmtime -c {n} -s {TO}",
        server=f"cmtime -c {n}",
        faults=faults,
        told={"program": "cmtime", "count": n, "bytes": 0, "options": ""},
        limit_s=limit_s,
        snaplen=400,
    )


def _lost(of: str, sender: str, where: str = BETWEEN, how: str = "netem loss 35%", **more: Any) -> Fault:
    return Fault(where, sender, how, of, **more)


IMMEDIATE: Final = (
    _immediate("imm-between", Fault(BETWEEN, "a", "netem loss 3%"), receives=200),
    _immediate("imm-rnr-between", Fault(BETWEEN, "a", "netem loss 2%")),
    _immediate("imm-rnr-before", Fault(BEFORE, "a", "netem loss 2%")),
    _immediate("imm-rnr-behind", Fault(BEHIND, "a", "drop 31 at random")),
    _immediate("imm-rnr-acks", Fault(BETWEEN, "b", "drop 5 at random", "acks")),
    _immediate(
        "imm-2qp-rnr-both",
        Fault(BETWEEN, "a", "netem loss 2%"),
        Fault(BETWEEN, "b", "netem loss 8%"),
        options="-q 2",
    ),
    _rnr("rnr-send-before", Fault(BEFORE, "a", "netem loss 2%")),
    _rnr("rnr-send-behind", Fault(BEHIND, "a", "drop 37 at random")),
    _rnr("rnr-send-lasts", Fault(BETWEEN, "a", "drop 9 at random", "lasts")),
    _rnr("rnr-send-acks-before", Fault(BEFORE, "b", "netem loss 12%", "acks")),
    _rnr(
        "rnr-send-4qp-both",
        Fault(BETWEEN, "a", "netem loss 2%"),
        Fault(BETWEEN, "b", "netem loss 5%"),
        options="-r 16 -q 4",
        n=150,
    ),
    _rnr("rnr-send-duplicate", Fault(BETWEEN, "a", "netem duplicate 4% loss 2%")),
    _rnr("rnr-send-reorder", Fault(BETWEEN, "a", "netem delay 3ms reorder 96%")),
)

MANY: Final = (
    perftest("many-8-write-between", WRITE, 8, 16384, Fault(BETWEEN, "a", "netem loss 3%"), options="-q 8"),
    perftest(
        "many-16-read-both",
        READ,
        6,
        8192,
        Fault(BETWEEN, "a", "netem loss 2%"),
        Fault(BETWEEN, "b", "netem loss 2%"),
        options="-q 16",
    ),
    perftest("many-16-send-behind", SEND, 8, 8192, Fault(BEHIND, "a", "drop 31 at random"), options="-q 16"),
    perftest(
        "many-16-atomic-both",
        ATOMIC,
        12,
        8,
        Fault(BETWEEN, "a", "netem loss 5%"),
        Fault(BETWEEN, "b", "netem loss 5%"),
        options="-q 16",
    ),
    perftest(
        "many-16-write-acks-behind",
        WRITE,
        20,
        2048,
        Fault(BEHIND, "b", "drop 5 at random", "acks"),
        options="-q 16",
    ),
    perftest("many-32-write-between", WRITE, 6, 8192, Fault(BETWEEN, "a", "netem loss 3%"), options="-q 32"),
    perftest("many-32-send-before", SEND, 6, 8192, Fault(BEFORE, "a", "netem loss 3%"), options="-q 32"),
)

CM: Final = (
    _cm("cm-clean"),
    _cm("cm-reqs", _lost("cm-req", "a")),
    _cm("cm-reqs-before", _lost("cm-req", "a", BEFORE)),
    _cm("cm-reqs-behind", _lost("cm-req", "a", BEHIND, "drop 3 at random")),
    _cm("cm-reps", _lost("cm-rep", "b")),
    _cm("cm-reps-behind", _lost("cm-rep", "b", BEHIND, "drop 3 at random")),
    _cm("cm-reps-cut", _lost("cm-rep", "b", how="cut", after=3), n=8),
    _cm("cm-rtus", _lost("cm-rtu", "a")),
    _cm("cm-rtus-behind", _lost("cm-rtu", "a", BEHIND, "drop 3 at random")),
    _cm("cm-dreqs", _lost("cm-dreq", "a")),
    _cm("cm-dreps", _lost("cm-drep", "b")),
    _cm("cm-all", _lost("cm", "a", how="netem loss 20%"), _lost("cm", "b", how="netem loss 20%")),
    rping("cm-rping-all", 20, 4096, _lost("cm", "a", how="netem loss 30%"), limit_s=60.0),
    Experiment(
        "cm-rep-cut-later",
        client=f"sh -c 'rping -c -a {TO} -C 20 -S 512; rping -c -a {TO} -C 20 -S 512'",
        server=f"rping -s -P -a {TO} -C 20 -S 512",
        faults=(_lost("cm-rep", "b", how="cut", after=60),),
        told={"program": "rping", "count": 40, "bytes": 512},
        snaplen=400,
        limit_s=90.0,
    ),
)

MARKS: Final = (
    perftest("ecn-marks", WRITE, 40, 16384, Fault(BETWEEN, "a", "netem loss 5% ecn"), options=_MARKED),
    perftest(
        "ecn-marks-behind",
        WRITE,
        40,
        16384,
        Fault(BETWEEN, "a", "netem loss 5% ecn"),
        Fault(BEHIND, "a", "drop 31 at random"),
        options=_MARKED,
    ),
    perftest(
        "ecn-read-marks-acks",
        READ,
        40,
        8192,
        Fault(BETWEEN, "b", "netem loss 5% ecn"),
        Fault(BETWEEN, "a", "netem loss 5%"),
        options=_MARKED,
    ),
    perftest("ecn-not-capable", SEND, 40, 8192, Fault(BETWEEN, "a", "netem loss 4% ecn")),
    perftest(
        "ecn-2qp-duplicate",
        SEND,
        30,
        8192,
        Fault(BETWEEN, "a", "netem loss 4% ecn duplicate 3%"),
        Fault(BEFORE, "a", "netem loss 2%"),
        options=f"{_MARKED} -q 2",
    ),
)

LARGE: Final = (
    perftest("large-write-cut", WRITE, 10, 2000, Fault(BETWEEN, "a", "cut", "large"), limit_s=6.0),
    perftest("large-write-behind", WRITE, 10, 2000, Fault(BEHIND, "a", "cut", "large"), limit_s=6.0),
    perftest("large-read-cut", READ, 10, 2000, Fault(BETWEEN, "b", "cut", "large"), limit_s=6.0),
    perftest(
        "large-send-later", SEND, 400, 2000, Fault(BETWEEN, "a", "cut", "large", after=200), limit_s=8.0
    ),
    rping("large-rping-a", 20, 4096, Fault(BETWEEN, "a", "cut", "large"), limit_s=12.0),
    rping("large-rping-b", 20, 4096, Fault(BETWEEN, "b", "cut", "large"), limit_s=12.0),
    inject(
        "large-inject-gives-up",
        "blast-write",
        20,
        2000,
        Fault(BETWEEN, "a", "cut", "large"),
        options="-u 14 --retry 3",
        limit_s=20.0,
    ),
    inject(
        "large-inject-read",
        "blast-read",
        20,
        2000,
        Fault(BETWEEN, "b", "cut", "large"),
        options="-u 14 --retry 3",
        limit_s=20.0,
    ),
    inject(
        "large-inject-lossy",
        "blast-sr",
        60,
        2000,
        Fault(BETWEEN, "a", "drop 3 at random", "large"),
        options="-u 14 --retry 6",
        limit_s=25.0,
    ),
)

DATAGRAMS: Final = (
    perftest(
        "ud-many-behind",
        SEND,
        100,
        1024,
        Fault(BEHIND, "a", "drop 9 at random"),
        options="-c UD -q 4",
        limit_s=6.0,
    ),
    perftest(
        "ud-lat-both",
        "ib_send_lat",
        60,
        256,
        Fault(BETWEEN, "a", "netem loss 2%"),
        options="-c UD",
        limit_s=6.0,
    ),
    Experiment(
        "ud-multicast-between",
        client=(
            "sh -c 'mckey -m 239.1.2.3 -b 10.9.0.2 -C 40 -S 512 & sleep 4; "
            "mckey -m 239.1.2.3 -s -b 10.9.0.1 -C 40 -S 512; sleep 1; kill $!'"
        ),
        faults=(Fault(BETWEEN, "a", "netem loss 5%"),),
        limit_s=20.0,
    ),
)

MESS: Final = (
    perftest("mess-read", READ, 30, 8192, Fault(BETWEEN, "b", _MESSY), timeout=14),
    perftest(
        "mess-read-both", READ, 30, 8192, Fault(BETWEEN, "a", _MESSY), Fault(BETWEEN, "b", _MESSY), timeout=14
    ),
    perftest("mess-read-requests", READ, 60, 2048, Fault(BETWEEN, "a", _MESSY), timeout=14),
    perftest("mess-atomic", ATOMIC, 120, 8, Fault(BETWEEN, "b", _MESSY), timeout=14),
    perftest(
        "mess-atomic-both",
        ATOMIC,
        120,
        8,
        Fault(BETWEEN, "a", _MESSY),
        Fault(BETWEEN, "b", _MESSY),
        timeout=14,
    ),
    perftest(
        "mess-atomic-2qp-reorder",
        ATOMIC,
        60,
        8,
        Fault(BETWEEN, "a", "netem delay 3ms reorder 92% duplicate 5%"),
        options="-q 2",
    ),
    perftest(
        "mess-read-jitter",
        READ,
        20,
        8192,
        Fault(BETWEEN, "b", "netem delay 2ms 60us duplicate 2%"),
        timeout=14,
    ),
    perftest(
        "mess-read-behind",
        READ,
        30,
        8192,
        Fault(BETWEEN, "b", "netem delay 3ms reorder 97% duplicate 2%"),
        Fault(BEHIND, "b", "drop 41 at random", _RESPONSES),
    ),
)

KINDS: Final = {
    "immediate": IMMEDIATE,
    "many": MANY,
    "cm": CM,
    "marks": MARKS,
    "large": LARGE,
    "datagrams": DATAGRAMS,
    "mess": MESS,
}
RARER: Final = {experiment.name: experiment for kind in KINDS.values() for experiment in kind}
