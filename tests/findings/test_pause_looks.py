"""Pauses of very many senders while all hosts are silent: each of them is about the silences of all."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from growth import save, send

import rocekit
from rocekit.machine import limits

MS = 1_000_000
HOSTS = 80


def pausing(number: int) -> bytes:
    head = bytes.fromhex("0180c2000001") + b"\2\1" + struct.pack(">I", number) + b"\x88\x08"
    return head + struct.pack(">HH8H", 0x0101, 0xFF, *[0xFFFF] * 8) + bytes(26)


def storm(senders: int) -> Iterator[tuple[int, bytes]]:
    """All hosts send, then ``senders`` pause them, and all go on 3 ms later."""
    for n in range(HOSTS):
        yield n * 10, send(1, src=f"10.1.0.{n}", payload=bytes(64), dest_qpn=2 + n)
    for n in range(senders):
        yield 50_000 + n * 10, pausing(n)
    for n in range(HOSTS):
        yield 3 * MS + n * 10, send(2, src=f"10.1.0.{n}", payload=bytes(64), dest_qpn=2 + n)


def named(capture: Path) -> tuple[list[int], set[str]]:
    """How many silent classes the finding about each sender names, and the limits met."""
    analysis = rocekit.analyze(capture)
    found = [f for f in analysis.findings if f.rule == "pause-stall"]
    return [len(f.evidence["silent_classes"]) for f in found], set(analysis.capture.limits_met)


def test_the_senders_that_no_silences_were_compared_with_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = save(tmp_path / "storm.pcap", storm(30))
    assert named(capture) == ([HOSTS] * 30, set())
    # 80 looks a sender, of which 64 are free: the first seven take more than 100 of the limit.
    monkeypatch.setitem(limits._chosen, limits.PAUSE_LOOKS, 100)
    assert named(capture) == ([HOSTS] * 7 + [0] * 23, {limits.PAUSE_LOOKS})


def test_one_sender_is_compared_with_all_silences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(limits._chosen, limits.PAUSE_LOOKS, 1)
    assert named(save(tmp_path / "storm.pcap", storm(1))) == ([HOSTS], set())
