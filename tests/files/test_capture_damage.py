"""Files that are no captures, and captures that are cut short, damaged or hostile.

What is no capture is one clear error. Of a damaged capture everything that can be read is delivered, and
the damage is noted where it is; nothing else is ever raised, and reading always ends.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from capture_bytes import (
    Frame,
    block,
    enhanced,
    interface,
    obsolete,
    option,
    pcap,
    pcap_header,
    pcap_record,
    section,
    simple,
    statistics,
)
from hypothesis import given
from hypothesis import strategies as st

from rocekit.capture import CaptureReader, open_capture
from rocekit.errors import CaptureError

FRAMES = [Frame(bytes([n + 1]) * (40 + n), 1_700_000_000_000_000_000 + n * 10_000) for n in range(20)]
DATAS = [frame.data for frame in FRAMES]
BLOCKS = [enhanced(frame.data, frame.time_ns // 1000) for frame in FRAMES]
NG_HEAD = section() + interface()


def read(data: bytes, chunk: int = 1 << 20) -> tuple[list[bytes], CaptureReader]:
    reader = open_capture(io.BytesIO(data), chunk_bytes=chunk)
    return [frame for batch in reader for frame in batch.frames()], reader


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[None]:
    """A capture x.pcap that this user may not read; root is nobody for as long as the test lasts."""
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(FRAMES))
    path.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


def damages(reader: CaptureReader) -> list[tuple[int, str]]:
    return [(damage.offset, damage.message) for damage in reader.damage]


# -- not a capture


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"\xd4\xc3", "its 2 bytes are neither pcap nor pcapng"),
        (b"frame,time\n1,2\n3,4\n", "begins neither as pcap nor as pcapng"),
        (bytes(5000), "begins neither as pcap nor as pcapng"),
        (struct.pack("<I", 0xA1B2CD34) + bytes(40), "Kuznetzov"),
        (b"snoop\0\0\0" + bytes(40), "snoop"),
        (b"BZh91AY&SY" + bytes(40), "bzip2"),
        (gzip.compress(b"just some words", mtime=0), "neither as pcap nor as pcapng"),
        (gzip.compress(b"", mtime=0), "empty"),
        (b"\x1f\x8b\x08\0" + bytes(6) + b"\xff" * 50, "gzip stream is damaged"),
        (b"\x1f\x8b", "cut short"),
        (zstandard.compress(b"just some words"), "neither as pcap nor as pcapng"),
        (b"\x28\xb5\x2f\xfd" + b"garbage" * 20, "zstd stream is damaged"),
        (pcap_header()[:20], "inside the pcap file header"),
        (
            b"\x0a\x0d\x0d\x0a" + struct.pack("<II", 28, 0x12345678) + bytes(16),
            "neither as pcap nor as pcapng",
        ),
    ],
)
def test_what_is_no_capture_is_one_clear_error(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(data)
    with pytest.raises(CaptureError) as raised:
        open_capture(path)
    assert words in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_missing_files_and_directories_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no such file"):
        open_capture(tmp_path / "x.pcap")
    with pytest.raises(CaptureError, match="is a directory"):
        open_capture(tmp_path)
    with pytest.raises(CaptureError, match="cannot be read"):
        open_capture("x\0y")


def test_a_file_that_may_not_be_read_is_one_clear_error(tmp_path: Path, nobody: None) -> None:
    path = tmp_path / "x.pcap"
    with pytest.raises(CaptureError, match="permissions"):
        open_capture(path)


def test_a_section_without_packets_is_an_empty_capture() -> None:
    for data in (section(), NG_HEAD, pcap([])):
        found, reader = read(data)
        assert (found, reader.frames, reader.damage) == ([], 0, [])


def test_a_pcapng_with_only_interfaces_that_cannot_carry_roce_is_refused() -> None:
    with pytest.raises(CaptureError, match="native InfiniBand"):
        read(section() + interface(247))


# -- cut short


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_a_pcap_cut_anywhere_delivers_the_whole_frames_and_one_damage(chunk: int) -> None:
    whole = pcap(FRAMES)
    ends = [24]
    for frame in FRAMES:
        ends.append(ends[-1] + 16 + len(frame.data))
    for cut in range(24, len(whole), 13):
        found, reader = read(whole[:cut], chunk)
        complete = sum(end <= cut for end in ends[1:])
        assert found == DATAS[:complete]
        if cut in ends:
            assert reader.damage == []
        else:
            (damage,) = reader.damage
            assert damage.offset == ends[complete]
            assert f"in the middle of frame {complete + 1}" in damage.message


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_a_pcapng_cut_anywhere_delivers_the_whole_frames_and_one_damage(chunk: int) -> None:
    whole = NG_HEAD + b"".join(BLOCKS)
    ends = [28, len(NG_HEAD)]
    for one in BLOCKS:
        ends.append(ends[-1] + len(one))
    for cut in range(28, len(whole), 13):
        found, reader = read(whole[:cut], chunk)
        complete = sum(end <= cut for end in ends[2:])
        assert found == DATAS[:complete]
        if cut in ends:
            assert reader.damage == []
        else:
            (damage,) = reader.damage
            assert damage.offset == max(end for end in ends if end <= cut)
            assert f"in the middle of a block, after frame {complete}" in damage.message


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_compressed_stream_cut_short_delivers_what_unpacks(pack: object) -> None:
    assert callable(pack)
    frames = [Frame(os.urandom(500)) for _ in range(1000)]
    packed = pack(pcap(frames))
    found, reader = read(packed[: len(packed) // 2])
    assert 300 < len(found) < 700
    assert found == [frame.data for frame in frames[: len(found)]]
    (damage,) = reader.damage
    assert "cut short" in damage.message
    assert damage.offset >= 24 + 516 * len(found)


def test_a_compressed_stream_cut_between_frames_is_noticed_all_the_same() -> None:
    data = pcap(FRAMES)
    # The data is whole, the checksum behind it is missing.
    with_sum = zstandard.ZstdCompressor(write_checksum=True)
    for kind, packed in (("gzip", gzip.compress(data)[:-8]), ("zstd", with_sum.compress(data)[:-4])):
        found, reader = read(packed)
        assert found == DATAS
        assert f"the {kind} stream ends before its end" in reader.damage[0].message
        assert len(reader.damage) == 1


def test_a_gzip_stream_with_a_wrong_checksum_or_rubbish_behind_it_is_damage() -> None:
    packed = gzip.compress(pcap(FRAMES * 100))
    found, reader = read(packed + b"rubbish")
    assert found == DATAS * 100
    assert "not gzip" in reader.damage[0].message
    found, reader = read(packed[:-8] + bytes(8))
    # What was unpacked together with the error is lost, and no more.
    assert len(found) > 1650
    assert found == (DATAS * 100)[: len(found)]
    assert "damaged" in reader.damage[0].message


# -- damaged in the middle


@pytest.mark.parametrize("chunk", [64, 500, 1 << 20])
@pytest.mark.parametrize("claim", [0xFFFFFFFF, 0x7FFFFFFF, 262145])
def test_a_pcap_record_of_an_impossible_length_costs_that_frame_only(claim: int, chunk: int) -> None:
    records = [pcap_record(frame) for frame in FRAMES]
    records[7] = records[7][:8] + struct.pack("<I", claim) + records[7][12:]
    found, reader = read(pcap_header() + b"".join(records), chunk)
    assert found == DATAS[:7] + DATAS[8:]
    ((offset, message),) = damages(reader)
    assert offset == 24 + sum(map(len, records[:7]))
    assert f"frame 8 claims {claim} bytes; reading goes on {len(records[7])} bytes further" in message


def test_a_pcap_record_that_claims_more_than_the_file_has_costs_that_frame_only() -> None:
    records = [pcap_record(frame) for frame in FRAMES]
    records[7] = records[7][:8] + struct.pack("<I", 60_000) + records[7][12:]
    found, reader = read(pcap_header() + b"".join(records))
    assert found == DATAS[:7] + DATAS[8:]
    assert len(reader.damage) == 1


def test_a_pcap_record_longer_than_any_frame_is_not_believed_though_the_file_has_the_bytes() -> None:
    records = [pcap_record(frame) for frame in FRAMES * 400]
    records[2007] = records[2007][:8] + struct.pack("<I", 262145) + records[2007][12:]
    assert sum(map(len, records[2007:])) > 300_000
    found, _ = read(pcap_header() + b"".join(records))
    assert found == DATAS * 100 + DATAS[:7] + DATAS[8:] + DATAS * 299


def test_zeros_behind_a_damaged_pcap_record_are_not_taken_for_records() -> None:
    bad = struct.pack("<IIII", 5, 5, 0xFFFFFFFF, 5)
    found, reader = read(pcap_header() + bad + bytes(4096) + b"".join(map(pcap_record, FRAMES)))
    assert found == DATAS
    assert len(reader.damage) == 1


def test_bytes_lost_from_the_middle_of_a_pcap_are_read_past() -> None:
    data = pcap(FRAMES * 20)
    found, reader = read(data[:2000] + data[2533:])
    assert len(found) > 380
    assert len(reader.damage) >= 1


@pytest.mark.parametrize("chunk", [64, 500, 1 << 20])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("claim", [0, 8, 11, 33, 0xFFFFFFFC, 1 << 20, 28])
def test_a_block_of_an_impossible_length_costs_that_frame_only(claim: int, order: str, chunk: int) -> None:
    blocks = [enhanced(frame.data, 1, order) for frame in FRAMES]
    blocks[7] = blocks[7][:4] + struct.pack(order + "I", claim) + blocks[7][8:]
    head = section(order) + interface(order=order)
    found, reader = read(head + b"".join(blocks), chunk)
    assert found == DATAS[:7] + DATAS[8:]
    ((offset, message),) = damages(reader)
    assert offset == len(head) + sum(map(len, blocks[:7]))
    assert "reading goes on" in message


def test_two_lengths_of_a_block_that_differ_cost_that_block_only() -> None:
    for number in (0, 7, 19):
        blocks = list(BLOCKS)
        blocks[number] = blocks[number][:-4] + struct.pack("<I", 9999)
        found, reader = read(NG_HEAD + b"".join(blocks))
        assert found == DATAS[:number] + DATAS[number + 1 :]
        assert len(reader.damage) == 1


@pytest.mark.parametrize("times", [1, 2, 999])
def test_rubbish_between_blocks_is_read_past_into_a_section_of_the_other_byte_order(times: int) -> None:
    other = section(">") + interface(order=">") + enhanced(b"last", 1, ">")
    found, reader = read(NG_HEAD + b"".join(BLOCKS) + b"rub!" * times + other)
    assert found == [*DATAS, b"last"]
    assert len(reader.damage) == 1


def test_packets_of_no_interface_or_with_more_bytes_than_their_block_are_left_out_with_their_number() -> None:
    data = NG_HEAD + enhanced(b"a") + enhanced(b"b", on=1) + enhanced(b"c", on=0xFFFFFFFF) + enhanced(b"d")
    data += enhanced(b"e", caplen=5) + enhanced(b"f", caplen=0xFFFFFFFF) + obsolete(b"g", 1, on=9)
    data += simple(b"h")
    found, reader = read(data)
    assert found == [b"a", b"d", b"h"]
    assert [message.split(" ")[:2] for _, message in damages(reader)] == [["frame", n] for n in "23567"]
    assert reader.frames == 8


def test_packets_before_any_interface_are_left_out() -> None:
    data = (
        section() + enhanced(b"a") + simple(b"b") + interface() + enhanced(b"c") + section() + enhanced(b"d")
    )
    for chunk in (64, 1 << 20):
        found, reader = read(data, chunk)
        assert found == [b"c"]
        assert [message[:7] for _, message in damages(reader)] == ["frame 1", "frame 2", "frame 4"]


def test_options_that_run_past_their_block_are_damage_and_the_frame_stands() -> None:
    long = struct.pack("<HH", 1, 500) + b"abcd"
    unended = option(1, b"fine") + struct.pack("<HH", 2, 8)
    data = section() + block(1, struct.pack("<HHI", 1, 0, 0) + long)
    data += enhanced(b"a", options=long) + enhanced(b"b", options=unended)
    data += enhanced(b"c", options=b"\1\0\0\0")
    found, reader = read(data)
    assert found == [b"a", b"b", b"c"]
    assert reader.comments == {2: ("fine",), 3: ("",)}
    assert ["runs past" in message for _, message in damages(reader)] == [True] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"tsresol": 0},
        {"tsresol": 9, "tsoffset": 2**63 - 1},
        {"tsresol": 9, "tsoffset": -(2**63)},
        {"tsoffset": 9_223_372_037},
    ],
)
def test_times_that_nanoseconds_cannot_say_are_set_to_the_limit_and_noted(options: dict[str, int]) -> None:
    data = section() + interface(**options) + enhanced(b"a", 2**64 - 1) + enhanced(b"b", 2**64 - 1)  # type: ignore[arg-type]
    found, reader = read(data)
    assert found == [b"a", b"b"]
    assert "outside the years" in reader.damage[0].message


@pytest.mark.parametrize("tsresol", [127, 0xFF, 0x80, 20, 28, 29, 0x80 | 63, 0x80 | 64, 0x80 | 97, 0x80 | 98])
def test_absurd_time_resolutions_are_arithmetic_like_any_other(tsresol: int) -> None:
    stamp = 2**64 - 1
    (batch,) = open_capture(io.BytesIO(section() + interface(tsresol=tsresol) + enhanced(b"a", stamp)))
    power = tsresol & 0x7F
    exact = stamp * 10**9 // (2**power if tsresol & 0x80 else 10**power)
    if exact < 2**62:
        assert abs(int(batch.time_ns[0]) - exact) <= 1


def test_blocks_too_short_for_their_headers_are_damage() -> None:
    data = NG_HEAD + block(3, b"") + block(2, bytes(12)) + block(5, b"") + block(1, b"") + enhanced(b"a")
    found, reader = read(data)
    assert found == [b"a"]
    assert reader.damage.total == 3


def test_a_section_of_another_version_is_noted() -> None:
    body = struct.pack("<IHHq", 0x1A2B3C4D, 7, 0, -1)
    found, reader = read(block(0x0A0D0D0A, body) + interface() + enhanced(b"a"))
    assert found == [b"a"]
    assert "version 7" in reader.damage[0].message


def test_endless_damage_is_counted_and_given_up() -> None:
    bad = enhanced(b"a", on=5)
    found, reader = read(NG_HEAD + bad * 3000 + enhanced(b"z"))
    assert found == [b"z"]
    assert reader.damage.total == 3000
    assert len(reader.damage) == 1000


# -- never more than it can take


@pytest.mark.parametrize(
    "data",
    [
        pcap_header() + struct.pack("<IIII", 1, 1, 0xFFFFFFF0, 0xFFFFFFF0) + bytes(1000),
        NG_HEAD + struct.pack("<II", 6, 0xFFFFFFF0) + bytes(1000),
        NG_HEAD + struct.pack("<II", 99, 0xFFFFFFF0) + bytes(1000),
        NG_HEAD + struct.pack("<II", 6, (16 << 20)) + bytes(1000),
        section() + block(1, struct.pack("<HHI", 1, 0, 0xFFFFFFFF)) + simple(b"abc", wirelen=0xFFFFFFFF),
    ],
)
def test_no_length_in_a_file_makes_the_reader_take_that_much_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 << 20


def _valid_captures() -> list[bytes]:
    little = NG_HEAD + interface(113, tsresol=9, tsoffset=5, name="eth0")
    little += b"".join(BLOCKS[:4]) + simple(b"simple") + obsolete(b"obsolete", 5) + statistics(if_drop=2)
    little += enhanced(b"commented", on=1, options=option(2, bytes(4)) + option(1, b"why") + option(0, b""))
    big = section(">") + interface(1, ">", tsresol=0x85) + enhanced(b"big", 1, ">") + statistics(">")
    return [
        pcap(FRAMES[:5]),
        pcap(FRAMES[:5], ">", "ns"),
        little + big,
        big + little,
        gzip.compress(pcap(FRAMES[:5]), mtime=0),
        zstandard.compress(little),
    ]


VALID = _valid_captures()
EXTREMES = [
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x0a\x0d\x0d\x0a",
    b"\x06\0\0\0",
]


@given(
    st.sampled_from(VALID),
    st.lists(st.tuples(st.integers(0, 2000), st.sampled_from(EXTREMES) | st.binary(max_size=6)), max_size=6),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 60)), max_size=2),
    st.sampled_from([64, 300, 1 << 16]),
    st.integers(1, 5),
)
def test_no_mutation_of_a_capture_makes_the_reader_fail_otherwise_or_not_end(
    data: bytes, changes: list[tuple[int, bytes]], cuts: list[tuple[int, int]], chunk: int, limit: int
) -> None:
    mutated = bytearray(data)
    for place, new in changes:
        at = place % len(mutated)
        mutated[at : at + len(new)] = new
    for place, size in cuts:
        at = place % (len(mutated) or 1)
        del mutated[at : at + size]
    frames = 0
    try:
        reader = open_capture(io.BytesIO(bytes(mutated)), chunk_bytes=chunk, batch_frames=limit)
        for batch in reader:
            assert 0 < len(batch) <= limit
            assert (batch.offset >= 0).all()
            assert (batch.caplen >= 0).all()
            assert (batch.offset + batch.caplen <= len(batch.buffer)).all()
            assert (batch.number > frames).all()
            frames = int(batch.number[-1])
        assert frames <= reader.frames
    except CaptureError:
        pass


@given(st.sampled_from(VALID[:4]), st.data())
def test_a_mutation_loses_nothing_before_it(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(28, len(data) - 1))
    mutated = data[:at] + bytes([data[at] ^ draw.draw(st.integers(1, 255))]) + data[at + 1 :]
    before: list[bytes] = []
    try:
        for batch in open_capture(io.BytesIO(data[:at]), batch_frames=1):
            before += batch.frames()
    except CaptureError:
        return
    found: list[bytes] = []
    try:
        for batch in open_capture(io.BytesIO(mutated), batch_frames=1):
            found += batch.frames()
    except CaptureError:
        pass
    assert found[: len(before)] == before
