"""The first bytes of TCP directions are those that were sent, however the segments come."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_exchange import End, segment

from rocekit.files.frames import SUPPORTED_LINKTYPES, FrameBatch
from rocekit.track.pairs.tcp_bytes import MOST_CLOSED, MOST_OPEN, Direction, TcpStarts

MOST = 1000
SYN, SYN_ACK = 0x02, 0x12


def batch(frames: Sequence[bytes], linktype: int = 1) -> FrameBatch:
    lengths = np.array([len(frame) for frame in frames], np.int64)
    n = len(frames)
    return FrameBatch(
        0,
        np.frombuffer(b"".join(frames), np.uint8),
        np.cumsum(lengths) - lengths,
        lengths,
        lengths,
        np.arange(n),
        np.arange(1, n + 1),
        np.full(n, linktype, np.uint16),
    )


def grown(starts: TcpStarts, frames: Sequence[bytes], linktype: int = 1) -> list[Direction]:
    made = batch(frames, linktype)
    return list(starts.feed(made, np.arange(len(made))))


def ends() -> tuple[End, End]:
    return End("10.0.0.1", 4000, 100), End("10.0.0.2", 5000, 200)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3 * MOST), st.randoms(use_true_random=False))
def test_any_order_of_segments_gives_the_bytes(start: int, length: int, rng: random.Random) -> None:
    data = bytes(rng.randrange(256) for _ in range(length))
    direction = Direction(b"a", b"b", 1, start)
    pieces = [(0, 0)]
    while pieces[-1][1] < length:
        at = pieces[-1][1]
        pieces.append((max(0, at - rng.randrange(50)), min(length, at + rng.randrange(1, 400))))
    pieces += rng.sample(pieces, len(pieces) // 2)
    rng.shuffle(pieces)
    for at, end in [*pieces, (-20, 5)]:
        before = len(direction.data)
        payload = data[at:end] if at >= 0 else bytes(-at) + data[:end]
        more = direction.take((start + at) % 2**32, payload, MOST)
        assert more == (len(direction.data) > before)
        assert direction.data == data[: len(direction.data)]
    assert direction.data == data[:MOST]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=120), max_size=8), st.sampled_from(sorted(SUPPORTED_LINKTYPES)), st.data())
def test_no_frame_breaks_it(frames: list[bytes], linktype: int, data: st.DataObject) -> None:
    a, b = ends()
    for n, noise in enumerate(list(frames)):
        frame = bytearray(segment(a, b, noise))
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 0xFF
        frames[n : n + 1] = [noise, bytes(frame[: data.draw(st.integers(0, len(frame)))])]
    for direction in grown(TcpStarts(MOST), frames, linktype):
        assert direction.data


@pytest.mark.parametrize(
    ("linktype", "head"),
    [
        (1, bytes(12) + b"\x08\x00"),
        (1, bytes(12) + b"\x81\x00\x00\x05\x08\x00"),
        (1, bytes(12) + b"\x88\xa8\x00\x05\x81\x00\x00\x06\x08\x00"),
        (113, bytes(14) + b"\x08\x00"),
        (276, b"\x08\x00" + bytes(18)),
        (101, b""),
        (228, b""),
    ],
)
def test_every_usual_link_is_read(linktype: int, head: bytes) -> None:
    frame = head + segment(*ends(), b"hello")[14:]
    (direction,) = grown(TcpStarts(MOST), [frame], linktype)
    assert direction.data == b"hello"
    assert direction.sender == bytes((10, 0, 0, 1)) + (4000).to_bytes(2, "big")


def test_padding_of_short_frames_is_no_data() -> None:
    a, b = ends()
    (direction,) = grown(TcpStarts(MOST), [segment(a, b, b"hi") + bytes(10)])
    assert direction.data == b"hi"
    assert not grown(TcpStarts(MOST), [segment(a, b, b"", 0x10) + bytes(20)])


def test_a_segment_cut_by_the_snaplen_ends_it() -> None:
    starts = TcpStarts(MOST)
    a, b = ends()
    assert [d.data for d in grown(starts, [segment(a, b, bytes(500))[:100]])] == [bytes(34)]
    assert grown(starts, [segment(a, b, bytes(500))]) == []


def test_the_syn_says_which_byte_is_the_first() -> None:
    starts = TcpStarts(MOST)
    a, b = ends()
    opening = segment(a, b, b"", SYN)
    first, second = segment(a, b, b"one"), segment(a, b, b"two")
    assert [bytes(d.data) for d in grown(starts, [opening, second, first, opening, first])] == [b"onetwo"]


def test_a_new_connection_of_the_same_ports_forgets_both_directions() -> None:
    starts = TcpStarts(MOST)
    a, b = ends()
    (answer,) = grown(starts, [segment(b, a, b"old")])
    a.next = 9000
    grown(starts, [segment(a, b, b"", SYN)])
    (direction,) = grown(starts, [segment(a, b, b"new")])
    assert starts.reverse(direction) is None
    starts.close(direction)
    assert grown(starts, [segment(a, b, b"more")]) == []
    a.next, b.next = 20_000, 30_000
    frames = [segment(a, b, b"", SYN), segment(b, a, b"", SYN_ACK), segment(a, b, b"x"), segment(b, a, b"y")]
    found = grown(starts, frames)
    assert [bytes(d.data) for d in found] == [b"x", b"y"]
    assert starts.reverse(found[0]) is found[1]
    assert answer not in found


def test_what_it_keeps_is_bounded() -> None:
    starts = TcpStarts(MOST)
    frames = []
    for n in range(MOST_OPEN + 500):
        a, b = End(f"10.0.{n >> 8}.{n & 255}", 4000, 100), End("10.1.0.2", 5000, 200)
        frames.append(segment(a, b, b"data"))
    assert len(grown(starts, frames)) == len(frames)
    assert len(starts._open) == MOST_OPEN
    a, b = ends()
    (direction,) = grown(starts, [segment(a, b, b"data")])
    a.next += 10
    for _ in range(3):  # behind a gap that nothing fills
        grown(starts, [segment(a, b, bytes(900))])
        assert direction.kept() <= 2 * MOST
    a.next += 5 * MOST
    grown(starts, [segment(a, b, bytes(900))])
    assert direction.key in starts._closed
    for key in range(MOST_CLOSED + 5):
        starts.close(Direction(b"", b"", key, 0))
    assert len(starts._closed) <= MOST_CLOSED
