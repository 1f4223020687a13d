"""Programs for the testbed as plain data: their queue pairs, and what is posted when.

A program, faults and a seed are the whole input of a run. Programs can be written to JSON and read back, and
:func:`random_program` makes one from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from rocekit.soft.engine.prng import Prng
from rocekit.soft.engine.work import VERBS
from rocekit.soft.wires.faults import TYPES, Fault, at_random
from rocekit.wire import ATOMIC_BYTES


@dataclass(frozen=True, slots=True)
class QpSetup:
    """How a connection is set up: a queue pair on device ``a`` and one on device ``b``.

    Attributes:
        a_psn, b_psn: the first PSN that each side sends.
        timeout, retry_cnt, rnr_retry, min_rnr_timer: as in ``ibv_qp_attr``.
        depth: outstanding READs and atomics in each direction.
        path_mtu: bytes.
    """

    transport: str = "RC"
    path_mtu: int = 1024
    a_psn: int = 0
    b_psn: int = 0
    timeout: int = 10
    retry_cnt: int = 7
    rnr_retry: int = 7
    min_rnr_timer: int = 1
    depth: int = 4
    flow_control: bool = False
    sq_sig_all: bool = False


@dataclass(frozen=True, slots=True)
class Post:
    """A send request; it has ``length`` bytes in memory on both sides that no other request uses.

    Attributes:
        connection: index of its QP pair.
        at_ns: when, from the start of the run.
        sges: number of elements that contain the local bytes.
        wrong: a mistake to make: ``rkey``, ``bounds``, ``lkey`` or None.
    """

    connection: int = 0
    side: str = "a"
    opcode: str = "SEND"
    length: int = 64
    at_ns: int = 0
    signaled: bool = True
    solicited: bool = False
    fenced: bool = False
    sges: int = 1
    imm: int = 0
    compare: int = 0
    swap_add: int = 1
    wrong: str | None = None


@dataclass(frozen=True, slots=True)
class Receive:
    """``count`` receive requests of ``length`` bytes each, posted by ``side``."""

    connection: int = 0
    side: str = "b"
    count: int = 1
    length: int = 4096
    at_ns: int = 0
    sges: int = 1


@dataclass(frozen=True, slots=True)
class Program:
    """What the programs on both devices do."""

    connections: tuple[QpSetup, ...] = (QpSetup(),)
    posts: tuple[Post, ...] = ()
    receives: tuple[Receive, ...] = ()
    ip_version: int = 4

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Program:
        """The program that :meth:`to_json` wrote.

        Raises:
            ValueError: an unknown key.
        """
        return cls(
            tuple(_make(QpSetup, c) for c in document.get("connections", [{}])),
            tuple(_make(Post, p) for p in document.get("posts", [])),
            tuple(_make(Receive, r) for r in document.get("receives", [])),
            document.get("ip_version", 4),
        )


def _make(kind: type[Any], values: Mapping[str, Any]) -> Any:
    known = [f.name for f in fields(kind)]
    unknown = values.keys() - set(known)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ValueError(f"{kind.__name__} has no {names}; it has {', '.join(known)}")
    return kind(**values)


def random_program(seed: int, *, transports: tuple[str, ...] = ("RC",)) -> Program:
    """A program drawn from a seed: up to 3 connections, requests of all kinds, some receives late."""
    draw = Prng(seed, "program")
    connections = tuple(_random_connection(draw, transports) for _ in range(draw.between(1, 3)))
    posts: list[Post] = []
    receives: list[Receive] = []
    for number, connection in enumerate(connections):
        for side, peer in (("a", "b"), ("b", "a")):
            if side == "b" and draw.chance(0.5):
                continue
            time_ns = 0
            for _ in range(draw.between(1, 12)):
                time_ns += draw.choice((0, 0, 0, 500, 20_000))
                post = _random_post(draw, number, side, connection, time_ns)
                posts.append(post)
                if post.opcode.startswith("SEND") or post.opcode.endswith("_IMM"):
                    late = draw.choice((0, 0, 0, 0, 30_000, 200_000))
                    receives.append(
                        Receive(number, peer, 1, max(post.length, 1), late, draw.choice((1, 1, 2)))
                    )
    receives.sort(key=lambda r: r.at_ns)
    return Program(connections, tuple(posts), _long_enough(tuple(receives)), draw.choice((4, 4, 6)))


def random_faults(seed: int) -> tuple[Fault, ...]:
    """Faults drawn from a seed: of each type none, or on 1 to 15 % of the packets."""
    draw = Prng(seed, "rates")
    rates = {kind: draw.choice((0.0, 0.0, 0.01, 0.05, 0.15)) for kind in TYPES}
    return at_random({kind: rate for kind, rate in rates.items() if rate})


def _long_enough(receives: tuple[Receive, ...]) -> tuple[Receive, ...]:
    """Make all receives of a side as long as its longest: any message may consume any of them."""
    longest: dict[tuple[int, str], int] = {}
    for r in receives:
        key = (r.connection, r.side)
        longest[key] = max(r.length, longest.get(key, 0))
    return tuple(
        Receive(r.connection, r.side, r.count, longest[r.connection, r.side], r.at_ns, r.sges)
        for r in receives
    )


def _random_connection(draw: Prng, transports: tuple[str, ...]) -> QpSetup:
    near_wrap = draw.chance(0.4)
    return QpSetup(
        transport=draw.choice(transports),
        path_mtu=draw.choice((256, 256, 512, 1024, 2048, 4096)),
        a_psn=0xFFFFF0 + draw.below(16) if near_wrap else draw.bits(24),
        b_psn=draw.bits(24),
        timeout=draw.choice((4, 5, 6, 8)),
        retry_cnt=draw.choice((2, 5, 7)),
        rnr_retry=draw.choice((3, 7, 7)),
        min_rnr_timer=draw.choice((1, 2, 5)),
        depth=draw.choice((1, 2, 4)),
        flow_control=draw.chance(0.2),
    )


def _random_post(draw: Prng, number: int, side: str, connection: QpSetup, at_ns: int) -> Post:
    transport, path_mtu = connection.transport, connection.path_mtu
    opcode = draw.choice(
        [name for name, verb in VERBS.items() if transport in verb.transports and not verb.local]
    )
    verb = VERBS[opcode]
    if verb.fixed_length is not None:
        length = ATOMIC_BYTES
    elif transport == "UD":
        length = draw.choice((0, 1, draw.below(4097), 4096))
    else:
        length = draw.choice((0, 1, draw.below(path_mtu), path_mtu, path_mtu + 1, draw.below(path_mtu * 12)))
    return Post(
        number,
        side,
        opcode,
        length,
        at_ns,
        signaled=draw.chance(0.7),
        solicited=draw.chance(0.2),
        fenced=draw.chance(0.2),
        sges=draw.choice((1, 1, 2, 3)) if length > 3 else 1,
        imm=draw.bits(32),
        compare=draw.below(3),
        swap_add=draw.below(1000),
    )
