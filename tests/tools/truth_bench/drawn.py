"""Experiments of the truth bench that chance draws: ``drawn-7`` is always the same, and nobody chose it.

Programs, sizes, path MTUs, QPs, timers and up to three faults, as a seed has them. What is written by hand
asks what its author thought of; these ask the rest, and no rule was made for them.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from truth_bench import over_ipv6
from truth_bench.experiments import (
    ATOMIC,
    BEFORE,
    BEHIND,
    BETWEEN,
    READ,
    SEND,
    WRITE,
    Experiment,
    Fault,
    Killed,
    perftest,
    rping,
)
from truth_bench.mixed import medley
from truth_bench.peers import PEERS, peers
from truth_bench.storage import KINDS, STORAGE, storage
from truth_bench.unusual import ALL

PREFIX: Final = "drawn-"
#: The same, of which the programs' verbs calls are recorded too.
RECORDED: Final = "recorded-"
#: Seeds from here on draw from more programs: UC, UD, ping-pongs, perftest's options.
WIDER: Final = 1000
#: Bytes that a QP sends in all, at most: an emulated machine takes some seconds for these.
_BYTES: Final = 400_000
_MESSAGES: Final = 120
#: Which packets of requesters and of responders a fault may be for, beside "all", by program.
_OF: Final = {
    WRITE: (("firsts", "middles", "lasts"), ("acks",)),
    SEND: (("firsts", "middles", "lasts"), ("acks",)),
    READ: (("read-requests",), ("first-responses", "middle-responses")),
    ATOMIC: (("atomic-requests",), ("atomic-responses",)),
}


def experiment_of(name: str) -> Experiment:
    """The experiment of a name, one that is written down or one that is drawn.

    Raises:
        KeyError: there is none.
    """
    if name.startswith(over_ipv6.PREFIX):
        return over_ipv6.over_ipv6(experiment_of(name.removeprefix(over_ipv6.PREFIX)))
    prefix, dash, number = name.rpartition("-")
    if prefix + dash == STORAGE and number.isdecimal():
        return _drawn_storage(name, Random(int(number)))
    if prefix + dash == PEERS and number.isdecimal():
        chance = Random(int(number))
        return peers(name, chance, _faults(chance))
    if prefix + dash in (PREFIX, RECORDED) and number.isdecimal():
        drawn = _drawn if int(number) < WIDER else _drawn_wider
        return replace(drawn(name, Random(int(number))), journal=prefix + dash == RECORDED)
    return ALL[name]


def _drawn(name: str, chance: Random) -> Experiment:
    program = chance.choice([WRITE, WRITE, SEND, SEND, READ, READ, ATOMIC, "medley", "rping"])
    if program == "medley":
        qps, n = chance.choice([(1, 96), (2, 48)])
        options = f"-u {chance.choice([14, 16])} -q {qps}"
        return medley(name, *_faults(chance), n=n, options=options)
    if program == "rping":
        return rping(name, chance.randint(10, 30), chance.choice([100, 3000, 9000]), *_faults(chance))
    qps, mtu = chance.choice([1, 1, 1, 2, 4]), chance.choice([512, 1024, 1024, 4096])
    each_way = chance.random() < 0.25
    size = 8 if program == ATOMIC else chance.choice([64, 2048, 8192, 8192, 16384, 65536])
    n = min(_MESSAGES, max(_BYTES // size // qps // (1 + each_way), 5))
    options = f"-q {qps}{' -b' * each_way}"
    killed = None
    if program == SEND and chance.random() < 0.4:
        options += f" -r {chance.choice([8, 16])}"
        killed = Killed("server", chance.randint(20, 100), stopped_s=chance.choice([0.1, 0.3]))
    requests, answers = _OF[program] if size > mtu or program == ATOMIC else ((), ())
    return perftest(
        name,
        program,
        n,
        size,
        *_faults(chance, requests + answers * each_way, answers + requests * each_way),
        options=options,
        timeout=chance.choice([14, 16, 16]),
        mtu=mtu,
        killed=killed,
    )


#: Bytes that are written to storage, and read again, at most.
_STORED: Final = 300_000
#: What an initiator and its target send, beside commands and answers.
_OF_INITIATOR: Final = ("acks", "first-responses", "middle-responses")
_OF_TARGET: Final = ("acks", "read-requests", "firsts", "middles", "lasts")


#: Options of perftest that change what is on the wire, or when.
_OPTIONS: Final = ("", "-e", "-l 4", "-t 4", "-Q 4", "-R", "-b", "-q 3", "-I 64")
_SHARED: Final = "--use-srq -r 64"


def _drawn_wider(name: str, chance: Random) -> Experiment:
    service = chance.choice(["UC", "UC", "UD", "RC", "RC", "RC"])
    program = SEND if service == "UD" else chance.choice([WRITE, SEND] if service == "UC" else [*_OF])
    mtu = chance.choice([512, 1024, 1024, 4096])
    size = chance.choice([64, 1024, 4096, 8192, 16384, 65536])
    if service == "UD":
        size = min(size, mtu)
    options = [f"-c {service}", *chance.sample(_OPTIONS, chance.choice([0, 1, 1, 2]))]
    if program == SEND and service == "RC" and chance.random() < 0.3:
        options.append(_SHARED)
    if program == ATOMIC:
        size, options = 8, [option for option in options if option != "-I 64"]
    if chance.random() < 0.3:  # one message at a time
        program = program.replace("_bw", "_lat")
        options = [option for option in options if option.startswith(("-c", "-e", "-R", "-I"))]
    if "-R" in options and (service == "UC" or _SHARED in options):
        options.remove("-R")  # librdmacm has no UC
    n = min(_MESSAGES, max(_BYTES // size // (3 if "-q 3" in options else 1), 8))
    faults = _faults(chance)
    return perftest(
        name,
        program,
        n,
        size,
        *faults,
        options=" ".join(option for option in options if option),
        timeout=chance.choice([14, 16, 16]),
        mtu=mtu,
        limit_s=25.0 if service == "RC" else 12.0,
    )


def _drawn_storage(name: str, chance: Random) -> Experiment:
    size = chance.choice([4096, 8192, 32768, 65536])
    n = min(24, _STORED // size)
    return storage(name, chance.choice(KINDS), n, size, *_faults(chance, _OF_INITIATOR, _OF_TARGET))


def _faults(chance: Random, of_a: tuple[str, ...] = (), of_b: tuple[str, ...] = ()) -> list[Fault]:
    """One to three faults, at most one of each place and sender; half of them are for all packets."""
    places = [(where, sender) for where in (BEFORE, BETWEEN, BETWEEN, BEHIND) for sender in "ab"]
    chosen = dict.fromkeys(chance.sample(places, chance.choice([1, 1, 2, 2, 3])))
    faults = []
    for where, sender in chosen:
        some = of_a if sender == "a" else of_b
        of = chance.choice(some) if some and chance.random() < 0.5 else "all"
        faults.append(Fault(where, sender, _how(chance, where), of))
    return faults


def _how(chance: Random, where: str) -> str:
    if where == BEHIND:
        return f"drop {chance.choice([11, 23, 37, 61])} at random"
    loss, rare = chance.choice([1, 2, 4, 8]), chance.choice([1, 2, 5])
    how = chance.choice(
        [
            f"netem loss {loss}%",
            f"netem loss {loss}%",
            f"netem loss gemodel {rare}% 30%",
            f"netem duplicate {loss}%",
            f"netem loss {rare}% duplicate {loss}%",
            f"netem delay 3ms reorder {100 - loss}%",
            f"netem delay 2ms reorder {100 - loss}% loss {rare}%",
            f"netem delay 1ms 100us loss {rare}%",
        ]
    )
    # The first capture's order is what tells the judge in which pass a packet was sent.
    return f"netem loss {loss}%" if where == BEFORE and "delay" in how else how
