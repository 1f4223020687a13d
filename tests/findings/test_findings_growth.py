"""What findings cost grows with the capture, also where it has very many of what two of them are made of."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from encapsulated import ethernet, ipv4
from growth import assert_linear, back, save, save_journal, send

import rocekit

MS = 1_000_000


def timeouts(count: int) -> Iterator[tuple[int, bytes]]:
    """A connection all of whose requests time out: its class is silent each time."""
    now = 0
    for n in range(count // 3):
        for wait in (1000, 67 * MS):
            now += wait
            yield now, send(n, payload=bytes(64), ackreq=1, identification=2 * n + (wait > MS))
        now += 5000
        yield now, back(n, msn=n + 1)


def quoted(count: int, qpns: int, quoted_bytes: int) -> Iterator[tuple[int, bytes]]:
    for n in range(count // 2):
        frame = send(n, payload=bytes(64), dest_qpn=0x12 + n % qpns, sport=0xC000 + n % qpns)
        error = b"\3\1" + bytes(6) + frame[14 : 14 + quoted_bytes]
        yield 2 * n * 1000, frame
        yield 2 * n * 1000 + 500, ethernet(ipv4(1, error, f"10.9.{n >> 8}.{n & 255}", "10.0.0.1"))


def icmp_of_one_connection(count: int) -> Iterator[tuple[int, bytes]]:
    """An ICMP error about each of a connection's messages, each from another router."""
    return quoted(count, 1, 60)


def icmp_of_many_connections(count: int) -> Iterator[tuple[int, bytes]]:
    return quoted(count, 1 << 20, 60)


def icmp_without_qpn(count: int) -> Iterator[tuple[int, bytes]]:
    return quoted(count, 1 << 20, 28)


def pausing(number: int) -> bytes:
    """PFC of all priorities, each from another sender."""
    head = bytes.fromhex("0180c2000001") + b"\2\1" + struct.pack(">I", number) + b"\x88\x08"
    return head + struct.pack(">HH8H", 0x0101, 0xFF, *[0xFFFF] * 8) + bytes(26)


def senders_of_pauses_in_timeouts(count: int) -> Iterator[tuple[int, bytes]]:
    """A pause of another sender in each wait for a timer."""
    for n, (now, frame) in enumerate(timeouts(3 * count // 4)):
        yield now, frame
        if n % 3 == 0:
            yield now + 30 * MS, pausing(n)


def senders_of_pauses_in_silences(count: int) -> Iterator[tuple[int, bytes]]:
    """Pauses of many senders, and as many hosts that are silent during one of them each."""
    for n in range(count // 3):
        for since, frame in ((0, send(0, src=f"10.8.{n >> 8}.{n & 255}")), (1000, pausing(n))):
            yield 5 * n * MS + since, frame
        yield 5 * n * MS + 3 * MS, send(1, src=f"10.8.{n >> 8}.{n & 255}")


CASES = (
    timeouts,
    senders_of_pauses_in_timeouts,
    senders_of_pauses_in_silences,
    icmp_of_one_connection,
    icmp_of_many_connections,
    icmp_without_qpn,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_four_times_the_packets_take_no_sixteen_times_the_work(case: object, tmp_path: Path) -> None:
    assert callable(case)
    assert_linear("findings", lambda n: (save(tmp_path / f"{n}.pcap", case(n)), None))


def test_refused_accesses_are_not_each_compared_with_all_registered_memory(tmp_path: Path) -> None:
    """As many refused WRITEs, on as many connections, as the responder's journal has memory regions."""

    def files(count: int) -> tuple[Path, Path]:
        frames: list[bytes] = []
        events: list[dict[str, Any]] = []
        for n in range(count):
            write = {"dest_qpn": 0x1000 + n, "remote_va": 0x7000, "rkey": 7 + n, "dma_length": 64}
            frames.append(send(0, "RC_RDMA_WRITE_ONLY", payload=bytes(64), ackreq=1, **write))
            frames.append(back(0, syndrome=0x62, msn=0, dest_qpn=0x200000 + n))
            qp = {"qp": {"device": "rxe0", "qpn": 0x1000 + n}}
            ends = {"dest_ip": "10.0.0.1", "local_ip": "10.0.0.2", "dest_qpn": 0x200000 + n}
            events += [
                {"event": "qp_created", "transport": "RC", **qp},
                {"event": "qp_modified", "state": "RTR", "rq_psn": 0, "path_mtu": 1024, **qp, **ends},
                {"event": "mr_registered", "device": "rxe0", "addr": 0, "length": 64, "access": []}
                | {"rkey": 7 + n, "lkey": 7 + n},
            ]
        return (
            save(tmp_path / f"{count}.pcap", ((1000 * n, frame) for n, frame in enumerate(frames))),
            save_journal(tmp_path / f"{count}.journal.jsonl", events),
        )

    capture, journal = files(3)
    found = rocekit.analyze(capture, journals=[journal]).findings
    assert sum("bytes out of the region's bounds" in str(f.evidence.get("region")) for f in found) == 3
    assert_linear("findings/evidence.py", files)
