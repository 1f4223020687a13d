"""Messages that carry fewer bytes than they announce: ``bytes`` is what was carried, and that is said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from capture_bytes import Frame
from doubled_capture import write
from handmade import Net, ethernet, transport
from places import PCAPS, ROOT

import rocekit

CONFORMANCE = ROOT / "docs" / "captures" / "conformance"


@pytest.mark.parametrize(
    ("name", "carried", "announced"),
    [("requester-responses-read_wrong_length", 32, 64), ("responder-length-write_ends_early", 2048, 3072)],
)
def test_bytes_are_what_was_carried(name: str, carried: int, announced: int) -> None:
    analysis = rocekit.analyze(CONFORMANCE / f"{name}.pcapng", journals=[])
    [transfer] = analysis.transfers
    assert (transfer.bytes, transfer.length, transfer.status) == (carried, announced, "acked")
    assert analysis.connections[0].bytes == carried
    assert f"{announced:,} B announced" in str(analysis)
    assert f"{carried:,} B came, and its first packet announced {announced:,} B" in str(analysis.explain(0))


A, B = "10.9.0.1", "10.9.0.2"
QPN_A, QPN_B = 0x11, 0x12
MTU = 1024
WRITE_FIRST, WRITE_LAST, WRITE_ONLY, READ, READ_FIRST, READ_LAST, READ_ONLY, ACK = (
    6,
    8,
    10,
    12,
    13,
    15,
    16,
    17,
)


def capture(path: Path, lengths: Sequence[tuple[bool, int, int]]) -> Path:
    """Messages of one requester: whether it is a READ, the length announced, and what is carried."""
    frames: list[Frame] = []

    def send(src: str, opcode: int, psn: int, size: int = 0, **fields: int) -> None:
        dst, qpn = (B, QPN_B) if src == A else (A, QPN_A)
        body = transport(opcode, bytes(size), dest_qpn=qpn, psn=psn, **fields)
        packet = Net(src=src, dst=dst, ip_id=len(frames) + 1).wrap(body)
        frames.append(Frame(ethernet(packet), 1_700_000_000_000_000_000 + 10_000 * len(frames)))

    psn = 100
    for msn, (is_read, announced, carried) in enumerate(lengths, 1):
        reth = {"remote_va": 4096, "rkey": 7, "dma_length": announced}
        sizes = [MTU] * ((carried - 1) // MTU) + [(carried - 1) % MTU + 1]
        names = (READ_FIRST, READ_LAST, READ_ONLY) if is_read else (WRITE_FIRST, WRITE_LAST, WRITE_ONLY)
        if is_read:
            send(A, READ, psn, **reth)
        for n, size in enumerate(sizes):
            kind = names[2] if len(sizes) == 1 else names[n > 0]
            of_first = reth if n == 0 and not is_read else {}
            send(B if is_read else A, kind, psn + n, size, **of_first, msn=msn, ack_req=int(not is_read))
        psn += len(sizes)
        if not is_read:
            send(B, ACK, psn - 1, msn=msn)
    return write(frames, path)


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("plain", [None, 5])
def test_also_among_messages_that_are_as_announced(tmp_path: Path, is_read: bool, plain: int | None) -> None:
    lengths = [(n % 3 == 0, 2 * MTU, 2 * MTU) for n in range(30)]
    lengths[20:20] = [(is_read, 2 * MTU, MTU + 100), (is_read, 64, 32)]
    lengths[10:10] = [(is_read, 2 * MTU, MTU + 100), (is_read, 64, 32)]
    path = capture(tmp_path / "x.pcap", lengths)
    analysis = rocekit.analyze(path, journals=[], plain=plain)
    assert analysis.connections[0].bytes == sum(carried for _, _, carried in lengths)
    if plain is None:
        assert [t.bytes for t in analysis.transfers] == [carried for _, _, carried in lengths]
        assert [t.is_short for t in analysis.transfers] == [a > c for _, a, c in lengths]
        assert {t.status for t in analysis.transfers} == {"acked"}


@pytest.mark.parametrize("name", ["ping-write-loss-behind", "ib_write_bw-clean", "ib_read_bw-clean"])
def test_none_is_short_that_is_not(name: str) -> None:
    analysis = rocekit.analyze(PCAPS / f"{name}.pcap", journals=[])
    assert not any(t.is_short for t in analysis.transfers)
