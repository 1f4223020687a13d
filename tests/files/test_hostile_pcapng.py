"""Pcapng files made to cost much: every packet is read all the same, and what is left out is said."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from capture_bytes import block, enhanced, interface, option, section

from rocekit.files.reader import open_capture
from rocekit.machine.limits import BYTE_ORDERS, COMMENT_BYTES, UNPACK_RATIO, choose_limit, usual_limits

FRAME = b"x" * 60


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    yield
    usual_limits()


def read(data: bytes) -> tuple[list[int], list[str], int]:
    """Frame numbers, damages, and how many batches there were."""
    with open_capture(io.BytesIO(data)) as reader:
        batches = [batch for batch in reader if len(batch)]
        numbers = [int(n) for batch in batches for n in batch.number]
        return numbers, [damage.message for damage in reader.damage], len(batches)


def test_packets_between_ten_thousand_interfaces_come_in_few_batches() -> None:
    parts = [interface() + enhanced(FRAME, on=n) for n in range(10_000)]
    numbers, damages, batches = read(section() + b"".join(parts))
    assert (numbers, damages, batches < 5) == (list(range(1, 10_001)), [], True)


def test_packets_of_ten_thousand_sections_come_in_few_batches() -> None:
    numbers, damages, batches = read((section() + interface() + enhanced(FRAME)) * 10_000)
    assert (numbers, damages, batches < 5) == (list(range(1, 10_001)), [], True)


def test_a_packet_cannot_name_an_interface_behind_it_or_of_another_section() -> None:
    early = interface() + enhanced(FRAME, on=1) + interface() + enhanced(FRAME, on=1)
    later = section() + interface() + enhanced(FRAME, on=1) + enhanced(FRAME)
    numbers, damages, _ = read(section() + early + later)
    assert numbers == [2, 4]
    assert damages == [f"frame {n} names interface 1, and there are 1: it was left out" for n in (1, 3)]


def test_byte_orders_that_change_without_end_are_given_up() -> None:
    choose_limit(BYTE_ORDERS, 2)
    parts = [section(order) + interface(order=order) + enhanced(FRAME, order=order) for order in "<><><>"]
    numbers, damages, _ = read(b"".join(parts))
    assert numbers == [1, 2, 3]
    assert damages == [
        "the byte order changes more than 2 times: the rest was not read; --limit byte-orders=N raises that"
    ]


def test_comments_beyond_the_limit_are_left_out_and_counted() -> None:
    choose_limit(COMMENT_BYTES, 1000)
    packet = enhanced(FRAME, options=option(1, b"c" * 400) + option(0, b""))
    with open_capture(io.BytesIO(section() + interface() + packet * 10)) as reader:
        assert sum(len(batch) for batch in reader) == 10
        assert sorted(reader.comments) == [1, 2, 3]
        (damage,) = reader.damage
    assert damage.message == (
        "more than 1,000 bytes of comments: those of 7 frames were left out; "
        "--limit comment-bytes=N raises that"
    )


def test_a_file_that_unpacks_to_far_more_than_it_is_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    monkeypatch.setattr("rocekit.files.unpack._FREE_BYTES", 1 << 20)
    data = section() + interface() + block(0xBAD, bytes(1 << 16)) * 1000 + enhanced(FRAME)
    packed = zstandard.compress(data)
    numbers, (damage,), _ = read(packed)
    assert numbers == []
    assert "more than 2,000 times as many: --limit unpack-ratio=N raises that" in damage
    choose_limit(UNPACK_RATIO, len(data))
    assert read(packed) == ([1], [], 1)
