"""Conversations with many alike happenings: packets sprayed over paths, the same loss on many connections."""

from __future__ import annotations

import random
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

from capture_bytes import pcap
from talk import MS, US, A, B, Talk

from rocekit.analysis import Analysis, analyze
from rocekit.wire import ICRC_BYTES
from rocekit.wire.build import build_frame
from rocekit.wire.icrc import icrc_bytes

#: The source ports of a sprayed QP, unless a test takes others.
PORTS = tuple(range(0xC000, 0xC008))


def sprayed(
    talk: Talk,
    first: int,
    packets: int,
    *,
    reach: int = 5,
    ports: Collection[int] = PORTS,
    lost: Collection[int] = (),
    ids: bool = True,
    seed: int = 7,
    nak_after: tuple[int, int] | None = None,
) -> list[int]:
    """A WRITE whose packets overtake each other by up to ``reach`` places, each sent from one of ``ports``.

    Returns the PSNs in their order of arrival. Identifications are those of the order of sending; without
    ``ids`` they are 0.

    Args:
        nak_after: the PSN behind which a NAK comes, and the PSN that it names.
    """
    rng = random.Random(seed)
    numbers = range(first, first + packets)
    order = sorted(numbers, key=lambda psn: (psn + rng.uniform(0, reach), psn))
    base = talk.ident
    several = list(ports) or [0xC000]
    for psn in order:
        if psn in lost:
            continue
        talk.write(
            first,
            packets,
            only=[psn],
            sport=several[(psn - first) % len(several)],
            identification=(base + 1 + psn - first) & 0xFFFF if ids else 0,
        )
        if nak_after is not None and psn == nak_after[0]:
            talk.nak(nak_after[1])
    talk.ident = base + packets
    return [psn for psn in order if psn not in lost]


def adaptive_routing(packets: int = 64, **rest: object) -> Talk:
    """A WRITE of ``packets`` × 4096 bytes whose packets arrive out of order; no NAK, all acknowledged."""
    talk = Talk(mtu=4096)
    talk.write(10, 1)
    talk.ack(10)
    sprayed(talk, 11, packets, **rest)  # type: ignore[arg-type]
    talk.ack(10 + packets)
    return talk


def losses(times: int, talk: Talk | None = None) -> Talk:
    """One SEND of ``8 × times`` packets that loses one packet in eight, each sent again after its NAK."""
    t = talk or Talk()
    t.send(1)
    t.ack(1)
    packets = 8 * times
    for k in range(times):
        first = 2 + 8 * k
        at = first + 3
        t.send(2, packets, only=[p for p in range(first, first + 8) if p != at])
        t.nak(at)
        t.wait(100 * US)
        t.send(2, packets, only=range(at, first + 8))
    t.ack(1 + packets)
    return t


def refused(times: int) -> Talk:
    """One SEND that waits for a receive ``times`` times."""
    t = Talk()
    t.send(1)
    t.ack(1)
    for _ in range(times):
        t.send(2)
        t.rnr(2)
        t.wait(MS)
    t.send(2)
    t.ack(2)
    return t


def many_connections(count: int) -> Talk:
    """``count`` connections of two hosts, one after the other; each loses one packet."""
    whole = Talk()
    for n in range(count):
        t = Talk(qa=0x1000 + n, qb=0x9000 + n)
        t.now, t.ident, t.frames = whole.now, whole.ident, whole.frames
        losses(1, t)
        whole.now, whole.ident = t.now, t.ident
    return whole


def foreign(opcode: int, *, icrc: int | None = None) -> Talk:
    """A connection, and five packets with an opcode that ``wire`` does not define."""
    talk = Talk()
    talk.send(1)
    talk.ack(1)
    for psn in range(5):
        talk.ident += 1
        data = build_frame(
            "RC_SEND_ONLY", src=A, dst=B, dest_qpn=0x12, psn=900 + psn, payload=bytes(40 + 4 * psn)
        )
        start = 14 + 20 + 8  # behind Ethernet, IPv4 and UDP
        body = bytearray(data[:-ICRC_BYTES])
        body[start] = opcode
        right = icrc_bytes(bytes(body[14:]), 20)
        talk.raw(bytes(body) + (right if icrc is None else icrc.to_bytes(ICRC_BYTES, "little")))
    return talk


def analyzed(talk: Talk) -> Analysis:
    """The analysis of a conversation, read from a capture."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.pcap"
        path.write_bytes(pcap(talk.frames, unit="ns"))
        return analyze(path)
