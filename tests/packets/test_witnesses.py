"""ICMP errors, ARP and ND as they are read from frames: whole, cut, tagged, too many."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable

import pytest
from capture_bytes import Frame, pcap
from hypothesis import given
from hypothesis import strategies as st
from witness_frames import advertise, arp, icmp, solicit

from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.packets import witnesses
from rocekit.packets.witnesses import Witnesses
from rocekit.packets.witnesses.neighbours import Unanswered
from rocekit.wire.build import build_frame

S = 1_000_000_000
A, B = "10.9.0.1", "10.9.0.2"
DATA = build_frame("RC_SEND_ONLY", payload=bytes(2000), src=A, dst=B, dest_qpn=0x12, psn=9)
DATA6 = build_frame("RC_SEND_ONLY", payload=bytes(2000), src="fd00::1", dst="fd00::2", dest_qpn=0x12, psn=9)
UNREACHABLE = icmp(DATA, 3, 3, source=B)
TOO_BIG6 = icmp(DATA6, 2, 0, source="fd00::fe", mtu=1280, quoted=1232)
ASKED, REPLIED = arp(A, B), arp(B, A, reply=True)
SOLICITED, ADVERTISED = solicit("fd00::1", "fd00::2"), advertise("fd00::2", "fd00::1")
ALL = (UNREACHABLE, TOO_BIG6, ASKED, REPLIED, SOLICITED, ADVERTISED)


def read(frames: Iterable[bytes]) -> Witnesses:
    """The witnesses among frames that come a second apart."""
    decoder = Decoder()
    records = [Frame(data, n * S) for n, data in enumerate(frames, 1)]
    with open_capture(io.BytesIO(pcap(records, unit="ns"))) as reader:
        for batch in reader:
            decoder.decode(batch)
    return decoder.witnesses


def streaks(witnesses: Witnesses) -> list[Unanswered]:
    assert witnesses.neighbours is not None
    return witnesses.neighbours.unanswered


def tagged(data: bytes) -> bytes:
    return data[:12] + bytes.fromhex("81000005") + data[12:]


@pytest.mark.parametrize("change", [bytes, tagged])
def test_an_error_and_its_quote(change: Callable[[bytes], bytes]) -> None:
    (error,) = read([change(UNREACHABLE)]).icmp
    assert (error.kind, error.source, error.mtu) == ("port unreachable", B, None)
    quote = error.quote
    assert (quote.src, quote.dst, quote.dest_qpn, quote.psn) == (A, B, 0x12, 9)
    assert quote.length == len(DATA) - 14


def test_an_error_of_icmpv6() -> None:
    (error,) = read([TOO_BIG6]).icmp
    assert (error.kind, error.source, error.mtu) == ("packet too big", "fd00::fe", 1280)
    assert (error.quote.src, error.quote.dest_qpn, error.quote.length) == ("fd00::1", 0x12, len(DATA6) - 14)


@pytest.mark.parametrize("frames", [(ASKED, REPLIED), (SOLICITED, ADVERTISED), (ASKED,), (SOLICITED,)])
def test_a_single_request_is_no_streak(frames: tuple[bytes, ...]) -> None:
    assert streaks(read(frames)) == []


@pytest.mark.parametrize(("asked", "replied"), [(ASKED, REPLIED), (SOLICITED, ADVERTISED)])
def test_a_streak_ends_with_its_reply(asked: bytes, replied: bytes) -> None:
    (streak,) = streaks(read([asked, asked, tagged(asked), replied, asked, replied]))
    assert (streak.requests, streak.frames) == (3, [1, 2, 3])
    assert (streak.until_ns, streak.replied) == (4 * S, True)


def test_echoes_and_later_fragments_are_no_errors() -> None:
    echo = bytearray(UNREACHABLE)
    echo[34] = 8
    fragment = bytearray(UNREACHABLE)
    fragment[20:22] = b"\x00\x10"
    assert read([bytes(echo), bytes(fragment)]).icmp_count == 0


def test_more_errors_than_are_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "MAX_KEPT", 3)
    found = read([UNREACHABLE] * 5)
    assert (len(found.icmp), found.icmp_count, found.is_full) == (3, 5, True)


@given(st.lists(st.tuples(st.sampled_from(ALL), st.integers(0, 200)), max_size=8))
def test_cut_frames_are_read_as_far_as_they_go(frames: list[tuple[bytes, int]]) -> None:
    found = read(data[:length] for data, length in frames)
    assert found.icmp_count <= len(frames)


@given(st.sampled_from(ALL), st.lists(st.tuples(st.integers(12, 120), st.integers(0, 255)), max_size=6))
def test_damaged_frames_are_no_error_of_the_reader(data: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(data)
    for at, value in changes:
        if at < len(damaged):
            damaged[at] = value
    read([bytes(damaged)] * 2)
