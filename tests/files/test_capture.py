"""What a capture file says, the reader says: frames, times, lengths, numbers, comments, drops."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
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
    pcap_record,
    section,
    simple,
    statistics,
)
from hypothesis import given
from hypothesis import strategies as st

from rocekit.capture import CaptureReader, PcapngWriter, open_capture
from rocekit.errors import CaptureError
from rocekit.files.frames import FrameBatch
from rocekit.files.pcapng_interface import split_stamp

Row = tuple[int, int, int, int, bytes]
"""Frame number, time, captured length, wire length, bytes."""


def rows(reader: CaptureReader) -> list[Row]:
    """Everything a reader delivers, copied out of its buffer before the next batch."""
    found: list[Row] = []
    for batch in reader:
        for index, data in enumerate(batch.frames()):
            found.append(
                (
                    int(batch.number[index]),
                    int(batch.time_ns[index]),
                    int(batch.caplen[index]),
                    int(batch.wirelen[index]),
                    data,
                )
            )
    return found


def read(data: bytes, **options: Any) -> tuple[list[Row], CaptureReader]:
    reader = open_capture(io.BytesIO(data), **options)
    return rows(reader), reader


def datas(data: bytes) -> list[bytes]:
    return [row[4] for row in read(data)[0]]


THREE = [
    Frame(b"\x01" * 60, 1_700_000_000_000_001_000),
    Frame(b"\x02" * 61, 1_700_000_000_999_999_000, wirelen=1500),
    Frame(b"\x03" * 128, 1_700_000_001_000_000_000),
]


# -- pcap


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("unit", ["us", "ns"])
def test_pcap_in_both_byte_orders_and_units_says_the_same(order: str, unit: str) -> None:
    found, reader = read(pcap(THREE, order, unit))
    assert found == [
        (number, frame.time_ns, len(frame.data), frame.on_wire, frame.data)
        for number, frame in enumerate(THREE, 1)
    ]
    assert reader.format == "pcap"
    assert reader.damage == []


def test_nanosecond_pcap_keeps_every_nanosecond() -> None:
    found, _ = read(pcap([Frame(b"x" * 20, 1_700_000_000_123_456_789)], unit="ns"))
    assert found[0][1] == 1_700_000_000_123_456_789


def test_times_after_2038_stay_positive() -> None:
    late = 4_294_967_295_000_000_000
    assert read(pcap([Frame(b"x", late)]))[0][0][1] == late


@pytest.mark.parametrize("snaplen", [0, 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_what_the_file_header_says_of_snaplen_limits_nothing(snaplen: int) -> None:
    # libpcap wrote 0, and tcpdump -s 0 the highest number, where they meant no limit.
    assert datas(pcap(THREE, snaplen=snaplen)) == [frame.data for frame in THREE]


def test_fcs_bits_above_the_link_type_are_no_part_of_it() -> None:
    batch = next(iter(open_capture(io.BytesIO(pcap(THREE, linktype=0x14000001)))))
    assert batch.linktype.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("raw", "folded"),
    [(1, 1), (113, 113), (276, 276), (101, 101), (12, 101), (14, 101), (228, 228), (229, 229)],
)
def test_link_types_that_carry_roce(raw: int, folded: int) -> None:
    for data in (pcap(THREE, linktype=raw), section() + interface(raw) + enhanced(b"abcd")):
        batch = next(iter(open_capture(io.BytesIO(data))))
        assert set(batch.linktype.tolist()) == {folded}


@pytest.mark.parametrize(("linktype", "word"), [(247, "InfiniBand"), (105, "802.11"), (9999, "9999")])
def test_other_link_types_are_refused_by_name(linktype: int, word: str) -> None:
    with pytest.raises(CaptureError, match=word):
        read(pcap(THREE, linktype=linktype))
    with pytest.raises(CaptureError, match=word):
        read(section() + interface(linktype) + enhanced(b"abcd"))


# -- chunks and batches


@pytest.mark.parametrize("chunk", [64, 100, 333, 4096])
def test_frames_that_span_chunks_are_whole(chunk: int) -> None:
    frames = [Frame(bytes([n]) * (7 * n % 300), 10**18 + n * 1000) for n in range(200)]
    blocks = section() + interface(tsresol=9) + b"".join(enhanced(f.data, f.time_ns) for f in frames)
    for data in (pcap(frames), blocks):
        found, reader = read(data, chunk_bytes=chunk)
        assert [(row[0], row[1], row[4]) for row in found] == [
            (number, frame.time_ns, frame.data) for number, frame in enumerate(frames, 1)
        ]
        assert reader.damage == []


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_batch_has_no_more_frames_than_asked_for(limit: int) -> None:
    data = pcap([Frame(b"x" * 10)] * 25)
    sizes = [len(batch) for batch in open_capture(io.BytesIO(data), batch_frames=limit)]
    assert sum(sizes) == 25
    assert max(sizes) == min(limit, 25)


def test_batches_carry_the_place_of_their_file_and_the_dtypes_of_the_contract() -> None:
    for data in (pcap(THREE), section() + interface() + enhanced(b"abcd")):
        batch = next(iter(open_capture(io.BytesIO(data), file=3)))
        assert batch.file == 3
        assert batch.buffer.dtype == np.uint8
        assert batch.linktype.dtype == np.uint16
        for column in (batch.offset, batch.caplen, batch.wirelen, batch.time_ns, batch.number):
            assert column.dtype == np.int64


def test_wrong_limits_are_the_callers_mistake() -> None:
    wrong: list[dict[str, Any]] = [{"batch_frames": 0}, {"chunk_bytes": 1}]
    for options in wrong:
        with pytest.raises(ValueError, match="at least"):
            open_capture(io.BytesIO(pcap(THREE)), **options)


# -- pcapng


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_in_both_byte_orders(order: str) -> None:
    data = section(order) + interface(order=order)
    data += enhanced(b"one", 1_700_000_000_000_001, order) + enhanced(b"four", 1, order, wirelen=9000)
    found, reader = read(data)
    assert found == [(1, 1_700_000_000_000_001_000, 3, 3, b"one"), (2, 1000, 4, 9000, b"four")]
    assert (reader.format, reader.damage) == ("pcapng", [])


def test_sections_have_their_own_byte_order_and_interfaces_and_frames_count_through() -> None:
    data = section("<") + interface(1, tsresol=9) + enhanced(b"a", 5)
    data += section(">") + interface(113, ">", tsresol=0) + enhanced(b"b", 5, ">")
    data += section("<") + interface(101, tsresol=6) + interface(1, tsresol=3) + enhanced(b"c", 5, on=1)
    batches = list(open_capture(io.BytesIO(data)))
    assert [batch.number.tolist() for batch in batches] == [[1], [2], [3]]
    assert [batch.time_ns.tolist() for batch in batches] == [[5], [5_000_000_000], [5_000_000]]
    assert [batch.linktype.tolist() for batch in batches] == [[1], [113], [1]]


@given(st.integers(0, 2**64 - 1), st.integers(0, 255))
def test_every_time_resolution_rounds_down_to_the_nanosecond(stamp: int, tsresol: int) -> None:
    power = tsresol & 0x7F
    unit = 2**power if tsresol & 0x80 else 10**power
    seconds, nanos = split_stamp(np.array([stamp], np.uint64), tsresol)
    exact = stamp * 10**9 // unit
    if tsresol & 0x80 and power > 34:
        # A fraction finer than 2^-34 s is cut there first: up to one nanosecond lower.
        assert exact - 1 <= int(seconds[0]) * 10**9 + int(nanos[0]) <= exact
    else:
        assert int(seconds[0]) * 10**9 + int(nanos[0]) == exact


@pytest.mark.parametrize(
    ("tsresol", "stamp", "time_ns"),
    [
        (0, 1_700_000_000, 1_700_000_000 * 10**9),
        (3, 1_700_000_000_123, 1_700_000_000_123_000_000),
        (9, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
        (12, 1_700_000_123_456_789, 1_700_000_123_456),
        (0x80 | 10, 1_700_000_000 << 10 | 512, 1_700_000_000_500_000_000),
        (0x80 | 32, 1_700_000_000 << 32 | 1 << 31, 1_700_000_000_500_000_000),
    ],
)
def test_times_of_an_interface_with_a_resolution(tsresol: int, stamp: int, time_ns: int) -> None:
    found, _ = read(section() + interface(tsresol=tsresol) + enhanced(b"abcd", stamp))
    assert found[0][1] == time_ns


def test_time_offset_is_added_in_seconds() -> None:
    data = section() + interface(tsoffset=1_700_000_000) + interface(tsoffset=-10, tsresol=9)
    data += enhanced(b"a", 250_000, on=0) + enhanced(b"b", 20_000_000_001, on=1)
    assert [row[1] for row in read(data)[0]] == [1_700_000_000_250_000_000, 10_000_000_001]


def test_simple_packets_are_cut_by_the_first_interfaces_snaplen_and_have_no_time() -> None:
    data = section() + interface(snaplen=3) + interface() + simple(b"abc", wirelen=100)
    data += section() + interface() + simple(b"abcdefg")
    found, reader = read(data)
    assert found == [(1, 0, 3, 100, b"abc"), (2, 0, 7, 7, b"abcdefg")]
    assert reader.damage == []


def test_obsolete_packets_are_read_among_new_ones() -> None:
    data = (
        section() + interface(tsresol=6) + enhanced(b"new", 1) + obsolete(b"old", 2) + enhanced(b"newer", 3)
    )
    assert [(row[1], row[4]) for row in read(data)[0]] == [(1000, b"new"), (2000, b"old"), (3000, b"newer")]


def test_packet_comments_are_kept_by_frame_number() -> None:
    flags = option(2, bytes(4))
    two = option(1, "größer".encode()) + flags + option(1, b"second") + option(0, b"")
    many = b"".join(option(4, bytes(8)) for _ in range(20)) + option(1, b"late") + option(0, b"")
    data = section() + interface()
    data += enhanced(b"a") + enhanced(b"bcd", options=two) + enhanced(b"e", options=flags + option(0, b""))
    data += enhanced(b"f", options=many) + obsolete(b"ghi", 1, options=option(1, b"old"))
    _, reader = read(data)
    assert reader.comments == {2: ("größer", "second"), 4: ("late",), 5: ("old",)}
    assert reader.damage == []


def test_drops_are_those_of_the_last_statistics_of_each_interface() -> None:
    data = section() + interface() + interface()
    assert read(data)[1].dropped is None
    data += statistics(on=0, if_drop=1) + statistics(on=1, os_drop=10)
    data += statistics(on=0, received=100, if_drop=3, os_drop=4)
    assert read(data)[1].dropped == 17
    data += section() + interface() + statistics(os_drop=100)
    assert read(data)[1].dropped == 117


def test_blocks_that_are_not_packets_are_passed_over() -> None:
    names = block(4, bytes(8))
    secrets = block(10, b"TLSK" + bytes(100))
    custom = block(0x40000BAD, bytes(40000))
    data = section() + names + interface() + secrets + enhanced(b"a") + custom + block(0x70000001, b"")
    data += enhanced(b"b")
    for chunk in (64, 1 << 20):
        found, reader = read(data, chunk_bytes=chunk)
        assert [(row[0], row[4]) for row in found] == [(1, b"a"), (2, b"b")]
        assert reader.damage == []


def test_frames_of_interfaces_that_cannot_carry_roce_are_counted_but_not_delivered() -> None:
    data = section() + interface(1) + interface(247) + interface(189)
    data += enhanced(b"a", on=1) + enhanced(b"b", on=0) + enhanced(b"c", on=1) + enhanced(b"d", on=2)
    found, reader = read(data)
    assert [(row[0], row[4]) for row in found] == [(2, b"b")]
    assert reader.skipped == {247: 2, 189: 1}
    assert reader.frames == 4


# -- where the bytes come from


@pytest.mark.parametrize("name", ["x.pcap", "x.gz", "x"])
def test_compression_is_told_by_the_first_bytes_whatever_the_name(tmp_path: Path, name: str) -> None:
    plain = pcap(THREE * 50)
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    packed = {
        "plain": plain,
        "gzip": gzip.compress(plain),
        "members": gzip.compress(plain[:1000]) + gzip.compress(plain[1000:]),
        "padded": gzip.compress(plain) + bytes(512),
        "zstd": zstandard.compress(plain),
        "zstd frames": zstandard.compress(plain[:1000]) + skippable + zstandard.compress(plain[1000:]),
        "zstd skippable first": skippable + zstandard.compress(plain),
    }
    expected = read(plain)[0]
    for how, data in packed.items():
        path = tmp_path / name
        path.write_bytes(data)
        for chunk in (64, 1 << 20):
            with open_capture(path, chunk_bytes=chunk) as reader:
                assert rows(reader) == expected, how
                assert reader.damage == [], how
                assert reader.bytes_read == reader.size == len(data)


def test_a_gzip_stream_that_unfolds_hugely_is_read_in_bounded_steps() -> None:
    frames = pcap([Frame(bytes(60_000))] * 800, unit="ns")
    for packed in (zlib.compress(frames, 9, wbits=31), zstandard.compress(frames, 19)):
        assert len(packed) < len(frames) // 500
        count = sum(len(batch) for batch in open_capture(io.BytesIO(packed)))
        assert count == 800


def test_standard_input_is_read_to_its_end() -> None:
    program = (
        "from rocekit.capture import open_capture\n"
        "reader = open_capture('-')\n"
        "print(reader.name, reader.size, sum(len(batch) for batch in reader))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pcap(THREE * 5000),
        capture_output=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.decode().strip() == "standard input None 15000"


def test_a_pipe_delivers_what_has_come_before_more_comes() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb", 0) as source, os.fdopen(into, "wb", 0) as target:
        target.write(pcap(THREE))
        batches = iter(open_capture(source))
        assert len(next(batches)) == 3
        target.write(pcap_record(THREE[0])[:30])
        target.write(pcap_record(THREE[0])[30:])
        assert next(batches).number.tolist() == [4]
        target.close()
        assert list(batches) == []


def test_a_growing_file_is_followed_until_told_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "growing.pcap"
    path.write_bytes(pcap(THREE))
    reader = open_capture(path, follow=True)
    with path.open("ab", buffering=0) as target:
        batches = iter(reader)
        assert len(next(batches)) == 3
        assert len(next(batches)) == 0  # a chance to look at the clock
        record = pcap_record(Frame(b"late"))
        target.write(record[:18])
        assert len(next(batches)) == 0
        target.write(record[18:] + record[:10])
        frames = [data for batch in (next(batches), next(batches)) for data in batch.frames()]
        assert frames == [b"late"]
    reader.stop()
    assert sum(len(batch) for batch in batches) == 0
    # Its writer may only not have come to the end of the record.
    assert reader.damage == []


def test_a_followed_pipe_ends_when_told_so_from_another_thread() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb", 0) as source, os.fdopen(into, "wb", 0) as target:
        target.write(section() + interface() + enhanced(b"abcd"))
        reader = open_capture(source, follow=True)
        threading.Timer(0.2, reader.stop).start()
        assert sum(len(batch) for batch in reader) == 1


def test_an_open_file_of_any_kind_will_do(tmp_path: Path) -> None:
    class OnlyRead:
        def __init__(self, data: bytes) -> None:
            self._data = io.BytesIO(data)

        def read(self, size: int) -> bytes:
            return self._data.read(min(size, 50))

    assert len(rows(open_capture(OnlyRead(pcap(THREE))))) == 3  # type: ignore[arg-type]
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(THREE))
    with path.open("rb") as file:
        assert len(rows(open_capture(file))) == 3


# -- writing


def batch_of(frames: list[Frame], linktypes: list[int]) -> FrameBatch:
    data = b"".join(frame.data for frame in frames)
    caplen = np.array([len(frame.data) for frame in frames], np.int64)
    return FrameBatch(
        file=0,
        buffer=np.frombuffer(data, np.uint8),
        offset=np.cumsum(caplen) - caplen,
        caplen=caplen,
        wirelen=np.array([frame.on_wire for frame in frames], np.int64),
        time_ns=np.array([frame.time_ns for frame in frames], np.int64),
        number=np.arange(1, len(frames) + 1),
        linktype=np.array(linktypes, np.uint16),
    )


frames_written = st.lists(
    st.builds(
        Frame,
        data=st.binary(max_size=200),
        time_ns=st.integers(0, 4_611_686_018 * 10**9 - 1),  # a later time is read as the last second
        wirelen=st.none() | st.integers(0, 2**32 - 1),
    ),
    max_size=30,
)


@given(frames_written, st.data())
def test_what_is_written_is_read_back_whole(frames: list[Frame], data: st.DataObject) -> None:
    comments = data.draw(
        st.lists(st.none() | st.text(max_size=50), min_size=len(frames), max_size=len(frames))
    )
    linktypes = data.draw(
        st.lists(st.sampled_from([1, 113, 276, 101]), min_size=len(frames), max_size=len(frames))
    )
    one_by_one, at_once = io.BytesIO(), io.BytesIO()
    with PcapngWriter(one_by_one, interface_name="eth0") as writer:
        for frame, comment in zip(frames, comments, strict=True):
            writer.write(frame.data, frame.time_ns, wirelen=frame.wirelen, comment=comment)
    with PcapngWriter(at_once) as writer:
        writer.write_batch(batch_of(frames, linktypes))
        writer.write_statistics(1000, 7)
        assert writer.frames == len(frames)
    expected = [
        (number, frame.time_ns, len(frame.data), frame.on_wire, frame.data)
        for number, frame in enumerate(frames, 1)
    ]
    found, reader = read(one_by_one.getvalue())
    assert found == expected
    assert reader.damage == []
    assert reader.comments == {
        number: (comment,) for number, comment in enumerate(comments, 1) if comment is not None
    }
    found, reader = read(at_once.getvalue())
    assert found == expected
    assert (reader.damage, reader.dropped) == ([], 7)
    kinds = [
        kind for batch in open_capture(io.BytesIO(at_once.getvalue())) for kind in batch.linktype.tolist()
    ]
    assert kinds == linktypes


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"nowhere/x\.pcapng: cannot be written: No such file"):
        PcapngWriter(tmp_path / "nowhere" / "x.pcapng")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_clear_error() -> None:
    writer = PcapngWriter("/dev/full")
    with pytest.raises(CaptureError, match="No space left"):
        writer.write(bytes(3 << 20), 0)
    with pytest.raises(CaptureError, match="No space left"):
        writer.close()


# -- tshark, capinfos, editcap and mergecap as outside truth


Told = tuple[int, int, int, int]
"""Frame number, time, captured length, wire length."""


def tshark_says(tshark: str, path: Path) -> list[Told]:
    fields = ["frame.number", "frame.time_epoch", "frame.cap_len", "frame.len"]
    command = [tshark, "-n", "-r", str(path), "-T", "fields", *(word for f in fields for word in ("-e", f))]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    told: list[Told] = []
    for line in out.splitlines():
        number, epoch, caplen, wirelen = line.split("\t")
        second, fraction = epoch.split(".")
        told.append(
            (int(number), int(second) * 10**9 + int(fraction.ljust(9, "0")), int(caplen), int(wirelen))
        )
    return told


def we_say(path: Path) -> list[Told]:
    with open_capture(path) as reader:
        told = [row[:4] for row in rows(reader)]
        assert reader.damage == []
    return told


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} (apt-get install wireshark-common)")
    return path


def test_tshark_agrees_on_captures_that_others_made(others: Path, tshark: str) -> None:
    for path in sorted(others.glob("*.pcap")):
        assert we_say(path) == tshark_says(tshark, path), path.name


@pytest.mark.parametrize("form", ["pcap", "nsecpcap", "pcapng"])
def test_tshark_agrees_on_what_editcap_writes(others: Path, tshark: str, tmp_path: Path, form: str) -> None:
    path = tmp_path / "x"
    # Moved by nanoseconds, cut short, so that times and lengths are not round.
    command = [
        tool("editcap"),
        "-F",
        form,
        "-t",
        "0.000000123",
        "-s",
        "70",
        str(others / "rdma_cm.pcap"),
        str(path),
    ]
    subprocess.run(command, check=True, timeout=240)
    told = we_say(path)
    assert told == tshark_says(tshark, path)
    assert len(told) == 96


def test_tshark_agrees_on_what_mergecap_writes(others: Path, tshark: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    files = [str(others / f"{name}.pcap") for name in ("rping", "rdma_cm", "nccl_ring_node0")]
    subprocess.run([tool("mergecap"), "-I", "none", "-w", str(path), *files], check=True, timeout=240)
    told = we_say(path)
    assert told == tshark_says(tshark, path)
    assert len(told) == 65 + 96 + 184


def test_tshark_agrees_on_sections_byte_orders_and_resolutions(tshark: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    frame = bytes(12) + b"\x08\x00" + bytes(50)
    data = b""
    for order in "<>":
        data += section(order)
        for number, tsresol in enumerate((None, 0, 3, 6, 9, 0x80 | 10, 0x80 | 20, 0x80 | 30)):
            offset = None if number % 3 else 1_000_000_000
            data += interface(1, order, tsresol=tsresol, tsoffset=offset)
            unit = 10**6 if tsresol is None else 2 ** (tsresol & 0x7F) if tsresol & 0x80 else 10**tsresol
            stamp = 600_000_000 * unit + unit // 3
            data += enhanced(frame, stamp, order, on=number, wirelen=100 + number)
        data += block(4, bytes(4), order) + obsolete(frame, 1_700_000_000_000_001, order)
    path.write_bytes(data)
    assert we_say(path) == tshark_says(tshark, path)


def test_tshark_reads_what_is_written(tshark: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    frames = [Frame(bytes(12) + b"\x08\x06" + bytes(28 + n), 1_700_000_000_000_000_000 + n) for n in range(5)]
    with PcapngWriter(path, interface_name="veth0", snaplen=128) as writer:
        writer.write_batch(batch_of(frames, [1] * 5))
        writer.write(frames[0].data, frames[0].time_ns, wirelen=999, comment="why this frame")
        writer.write_statistics(6, 2)
    assert tshark_says(tshark, path) == we_say(path)
    command = [
        tshark,
        "-n",
        "-r",
        str(path),
        "-T",
        "fields",
        "-e",
        "frame.comment",
        "-e",
        "frame.interface_name",
    ]
    out = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    assert out.splitlines()[4:] == ["\tveth0", "why this frame\tveth0"]
    info = subprocess.run(
        [tool("capinfos"), str(path)], capture_output=True, text=True, timeout=240, check=True
    )
    assert "Capture application: rocekit" in info.stdout
    assert "nanoseconds (9)" in info.stdout
    assert "Number of stat entries = 1" in info.stdout
