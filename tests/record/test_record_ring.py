"""Claims about the shared memory: both sides mean the same bytes by the same names."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import struct
import subprocess
from array import array
from pathlib import Path

import pytest

from rocekit.errors import JournalError
from rocekit.journal import JournalWriter, read_journal
from rocekit.record import ring
from rocekit.record.build import SOURCES, compiler
from rocekit.record.collect import HOLD_NS, LEAST_PAUSE_S, MOST_PAUSE_S, STUCK_NS, TAKE_NS, Rings
from rocekit.record.gids import GidTables
from rocekit.record.losses import ENTRIES, ENTRY, TABLE
from rocekit.record.recording import Recording

C = r"""
#include "record.h"
#include <stdio.h>
#define SIZE(name) printf(#name " %zu\n", sizeof(struct name))
#define AT(name, field) printf(#name "." #field " %zu\n", offsetof(struct name, field))
int main(void)
{
    SIZE(record_send); SIZE(record_recv); SIZE(record_wc); SIZE(record_item); SIZE(record_qp);
    SIZE(record_modify); SIZE(record_mr); SIZE(record_ah); SIZE(record_srq); SIZE(record_async);
    SIZE(record_mw); SIZE(record_dm); SIZE(record_ring); SIZE(record_slot);
    AT(record_cm, private_data); AT(record_ring, tail); AT(record_ring, lost_sends);
    AT(record_slot, type); AT(record_slot, number); AT(record_slot, mono); AT(record_slot, real);
    AT(record_slot, payload); AT(record_slot, continued); AT(record_file, program); AT(record_recv, sge);
    AT(record_modify, timeout); AT(record_modify, sgid); AT(record_modify, flow_label);
    AT(record_cm, status); AT(record_cm, responder_resources); AT(record_cm, src); AT(record_mw, gone);
    printf("types %d %d\n", RECORD_DEVICE, RECORD_NOT_COVERED);
    printf("marks %d %d\n", RECORD_LEFT, OVERLAPPED == NO_PSN - 1);
    AT(record_file, pid_namespace);
    AT(record_file, losses); SIZE(record_loss); AT(record_loss, completions);
    printf("losses %d %llx\n", RECORD_LOSSES, LOSS_USED | LOSS_SRQ);
    printf("flags %d %d %d\n", SEND_EXTENDED, SEND_UD, SEND_ATOMIC);
    return 0;
}
"""


def test_layouts_agree_with_the_writing_side(tmp_path: Path) -> None:
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler (apt-get install gcc libc6-dev)")
    source = tmp_path / "layout.c"
    source.write_text(C)
    subprocess.run(
        [cc, "-I", str(SOURCES), "-o", str(tmp_path / "layout"), str(source)], check=True, timeout=240
    )
    said = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    theirs = dict(line.split(" ", 1) for line in said.splitlines())
    ours = {
        "record_send": ring.SEND_BODY.size,
        "record_recv": ring.RECV_BODY.size + ring.SGE.size,
        "record_wc": ring.WC_BODY.size + 4,
        "record_item": ring.SGE.size,
        "record_qp": ring.QP_BODY.size,
        "record_modify": ring.MODIFY_BODY.size,
        "record_mr": ring.MR_BODY.size,
        "record_ah": ring.AH_BODY.size,
        "record_srq": ring.SRQ_BODY.size,
        "record_async": ring.ASYNC_BODY.size,
        "record_mw": ring.MW_BODY.size,
        "record_dm": ring.DM_BODY.size,
        "record_ring": ring.CONTROL,
        "record_slot": ring.SLOT,
        "record_cm.private_data": ring.CM_BODY.size,
        "record_ring.tail": ring.TAIL,
        "record_ring.lost_sends": ring.LOST,
        "record_slot.type": 8,
        "record_slot.number": 12,
        "record_slot.mono": 16,
        "record_slot.real": 24,
        "record_slot.payload": ring.FIRST,
        "record_slot.continued": ring.CONTINUED,
        "record_file.program": ring.FILE.size - 64,
        "record_recv.sge": ring.RECV_BODY.size,
        "record_modify.timeout": struct.calcsize("<8I"),
        "record_modify.sgid": struct.calcsize("<8I8B"),
        "record_modify.flow_label": struct.calcsize("<8I8B32s"),
        "record_cm.status": struct.calcsize("<QQ"),
        "record_cm.responder_resources": struct.calcsize("<QQiIII"),
        "record_cm.src": struct.calcsize("<QQiIII8B"),
        "record_mw.gone": struct.calcsize("<I"),
        "types": f"{ring.DEVICE} {ring.NOT_COVERED}",
        "marks": f"{ring.LEFT} {int(ring.OVERLAPPED == ring.NO_PSN - 1)}",
        "record_file.pid_namespace": struct.calcsize("<8sIIQIIQQ"),
        "record_file.losses": ring.LOSSES_CHANGED,
        "record_loss": ENTRY.size,
        "record_loss.completions": struct.calcsize("<QQQ"),
        "losses": f"{ENTRIES} {1 << 63 | 1 << 40:x}",
        "flags": f"{ring.SEND_EXTENDED} {ring.SEND_UD} {ring.SEND_ATOMIC}",
    }
    assert theirs == {name: str(value) for name, value in ours.items()}


SLOTS = 64


class Writer:
    """A writer in Python, with one ring, that can stop in the middle of anything."""

    def __init__(self, path: Path, pid: int = 42) -> None:
        self.path = path
        self.number = pid
        self.head = 0
        size = 2 * ring.PAGE + SLOTS * ring.SLOT + TABLE
        self.memory = bytearray(size)
        ring.FILE.pack_into(
            self.memory, 0, ring.MAGIC, ring.LAYOUT, 1, SLOTS, pid, 0, 1_000, 2_000, 0, 0, b"program"
        )
        path.write_bytes(self.memory)

    def _patch(self, at: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def reserve(self, slots: int) -> int:
        at = self.head
        self.head += slots
        self._patch(ring.PAGE + ring.HEAD, self.head.to_bytes(8, "little"))
        return at

    def write(
        self,
        at: int,
        mark: int,
        slots: int = 1,
        *,
        flag: int = 0,
        commit: bool = True,
        mono: int | None = None,
    ) -> None:
        mono = mark if mono is None else mono
        for k in range(slots):
            place = 2 * ring.PAGE + (at + k) % SLOTS * ring.SLOT
            word = ((at + k) // SLOTS + 1) | flag if commit else 0
            first = ring.HEADER.pack(ring.WC, slots, 0, 0, mark, mono, mono)[8:] if k == 0 else bytes(24)
            self._patch(place, word.to_bytes(8, "little") + first + bytes([mark & 0xFF] * 32))

    def put(self, mark: int, slots: int = 1) -> None:
        self.write(self.reserve(slots), mark, slots)


def numbers(chunks: list[bytes]) -> list[int]:
    return [record.number for chunk in chunks for record in ring.records(chunk)]


def test_records_come_in_order_over_many_turns_of_the_ring(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "x.ring")
    file = ring.RingFile(writer.path)
    assert (file.pid, file.program, file.started_ns, file.started_mono_ns) == (42, "program", 1_000, 2_000)
    seen: list[int] = []
    for turn in range(100):
        for k in range(10):
            writer.put(turn * 10 + k, slots=1 + k % 3)
        seen += numbers(file.drain())
    assert seen == list(range(1000))
    assert file.finish() == ([], [], 0)
    file.close()


def test_what_is_not_written_yet_holds_up_what_is_behind_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "x.ring")
    file = ring.RingFile(writer.path)
    writer.put(1)
    late = writer.reserve(2)
    writer.put(3)
    assert numbers(file.drain()) == [1]
    writer.write(late, 2, 2)
    assert numbers(file.drain()) == [2, 3]


def test_a_dead_writer_s_gap_is_stepped_over_and_counted(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "x.ring")
    file = ring.RingFile(writer.path)
    writer.put(1)
    writer.reserve(2)
    writer.put(3, slots=2)
    writer.write(writer.reserve(1), 4, flag=ring.FILLED)
    writer.put(5)
    whole, unfinished, holes = file.finish()
    assert numbers(whole) == [1, 3, 5]
    assert numbers(unfinished) == [4]
    assert holes == 2


def test_a_record_that_ends_beyond_the_head_is_not_believed(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "x.ring")
    file = ring.RingFile(writer.path)
    at = writer.reserve(1)
    writer.write(at, 1, 1)
    # Its first slot says five.
    writer._patch(2 * ring.PAGE + 9, bytes([5]))
    whole, _, holes = file.finish()
    assert numbers(whole) == []
    assert holes == 1


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"x" * 10, bytes(8192), ring.MAGIC + bytes(8184)):
        path = tmp_path / "x.ring"
        path.write_bytes(content)
        with pytest.raises(JournalError):
            ring.RingFile(path)


def test_processes_lines_are_in_the_order_of_their_times_whenever_they_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of two processes with interleaved times, one always taken a moment after the other."""
    writers = [Writer(tmp_path / f"{n}.ring", pid=n) for n in (1, 2)]
    journal = tmp_path / "x.journal.jsonl"
    with JournalWriter(journal) as out:
        now = 10**9
        monkeypatch.setattr("time.monotonic_ns", lambda: now)
        rings = Rings([tmp_path], out, Recording(journal), None)
        for turn in range(40):
            # The second process is 150 ms late with what it has to tell, as if it had been put to sleep.
            for writer, late in zip(writers, (0, 150_000_000), strict=True):
                at = writer.reserve(1)
                writer.write(at, turn, mono=now - late)
            rings.collect()
            rings.write()
            out.flush()
            held = [event.mono_ns for event in read_journal(journal).of("wc_polled")]
            assert all(mono is not None and mono <= now - HOLD_NS for mono in held)
            now += 20_000_000
        assert held
        rings.finish()
    told = [event.mono_ns or 0 for event in read_journal(journal).of("wc_polled")]
    assert len(told) == 80
    assert told == sorted(told)


def test_lines_are_in_order_though_each_time_is_over_after_a_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken together is unpacked bit by bit: the last to be unpacked may be the first in time."""
    monkeypatch.setattr("rocekit.record.collect._PART", 5 * ring.SLOT)
    writers = [Writer(tmp_path / f"{n}.ring", pid=n) for n in (1, 2)]
    journal = tmp_path / "x.journal.jsonl"
    with JournalWriter(journal) as out:
        now = 10**9
        monkeypatch.setattr("time.monotonic_ns", lambda: now)
        rings = Rings([tmp_path], out, Recording(journal), None)
        slices = 0
        for turn in range(20):
            for writer in writers:
                for k in range(13):
                    slots = 1 + k % 3
                    writer.write(writer.reserve(slots), turn, slots, mono=now + 1000 * k + writer.number)
            rings.collect()
            now += 2 * HOLD_NS
            while not rings.write(for_s=0):
                slices += 1
        assert slices > 20
        rings.finish()
    told = [event.mono_ns or 0 for event in read_journal(journal).of("wc_polled")]
    assert len(told) == 20 * 2 * 13
    assert told == sorted(told)


def test_a_look_at_rings_that_fill_up_slowly_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path / "1.ring")
    journal = tmp_path / "x.journal.jsonl"
    now = 10**9
    monkeypatch.setattr("time.monotonic_ns", lambda: now)
    # What is taken is written within a share of the time, however busy this machine is.
    monkeypatch.setattr("time.monotonic", lambda: now / 1e9)
    with JournalWriter(journal) as out:
        rings = Rings([tmp_path], out, Recording(journal), None)
        for _ in range(SLOTS // 4):
            writer.put(1)
            assert not rings.tick()
        writer.put(1)  # more than a quarter
        assert rings.tick()
        writer.put(1)
        assert not rings.tick()
        now += TAKE_NS  # or long enough
        assert rings.tick()
        assert not rings.tick()
        rings.finish()
    assert len(read_journal(journal).of("wc_polled")) == SLOTS // 4 + 2


def test_with_more_than_can_wait_it_returns_soon_to_the_rings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path / "x.ring")
    journal = tmp_path / "x.journal.jsonl"
    now = 10**9
    monkeypatch.setattr("rocekit.record.collect._HURRY", 10 * ring.SLOT)
    monkeypatch.setattr("time.monotonic_ns", lambda: now)
    late = itertools.count()
    # Each look at the clock takes longer than it may make lines at a time.
    monkeypatch.setattr("time.monotonic", lambda: next(late) * 1.0)
    with JournalWriter(journal) as out:
        rings = Rings([tmp_path], out, result := Recording(journal), None)
        for _ in range(4):
            for _ in range(SLOTS - 1):
                writer.put(1)
            now += TAKE_NS
            assert rings.tick()
            assert rings.pause_s == 0.0, "there is more to do"
        assert result.completions < SLOTS, "it has not made all lines before it looked again"
        monkeypatch.undo()
        rings.finish()
    assert len(read_journal(journal).of("wc_polled")) == 4 * (SLOTS - 1)
    assert result.total_lost == 0


def test_losses_are_told_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "x.ring")
    file = ring.RingFile(writer.path)
    assert file.lost() == {}
    writer._patch(ring.PAGE + ring.LOST, (7).to_bytes(8, "little"))
    assert file.lost() == {"sends": 7}
    assert file.lost() == {}


def test_what_a_program_has_written_over_is_counted_as_lost_and_the_rest_is_told(tmp_path: Path) -> None:
    """Any bytes at all where records should be, among two that are what they should be."""
    journal = tmp_path / "x.journal.jsonl"
    writer = Writer(tmp_path / "x.ring")
    rng = random.Random(1)
    with JournalWriter(journal) as out:
        rings = Rings([tmp_path], out, result := Recording(journal), None)
        writer.put(17)
        for kind in range(256):
            slots = rng.choice((1, 1, 2, 3, 8))
            at = writer.reserve(slots)
            for k in range(slots):
                first = bytes([kind, slots]) if k == 0 else b""
                word = ((at + k) // SLOTS + 1).to_bytes(8, "little")
                noise = rng.randbytes(ring.SLOT - 8 - len(first))
                writer._patch(2 * ring.PAGE + (at + k) % SLOTS * ring.SLOT, word + first + noise)
            rings.collect()
        writer.put(18)
        rings.finish()
    told = read_journal(journal)
    assert told.problems == []
    completed = [event.qp for event in told.of("wc_polled") if event["status"] != "SUCCESS"]
    assert {("?", 17), ("?", 18)} <= set(completed)
    assert result.total_lost == len(told.of("records_lost")) > 0


def test_a_ring_goes_on_without_a_call_that_has_not_returned_for_long(tmp_path: Path) -> None:
    """A thread may leave a post by longjmp: its record stays filled for ever; the ring must not stop."""
    writer = Writer(tmp_path / "x.ring")
    file = ring.RingFile(writer.path)
    writer.put(1)
    writer.write(writer.reserve(1), 2, flag=ring.FILLED)
    for mark in range(3, 3 + SLOTS // 4):
        writer.put(mark)
    assert numbers(file.drain()) == [1]
    assert file.step_over() == ([], 0), "half of the ring is free: there is no haste"
    for mark in range(3 + SLOTS // 4, 3 + SLOTS // 2):
        writer.put(mark)
    found, holes = file.step_over()
    (record,) = ring.records(found[0])
    assert (record.number, record.finished, record.left, record.type) == (2, False, True, ring.WC)
    assert holes == 0
    assert numbers(file.drain()) == list(range(3, 3 + SLOTS // 2))


def test_slots_that_were_never_written_are_stepped_over_too(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "x.ring")
    file = ring.RingFile(writer.path)
    writer.reserve(3)
    for mark in range(SLOTS // 2):
        writer.put(mark)
    assert file.step_over() == ([], 3)
    assert numbers(file.drain()) == list(range(SLOTS // 2))


def test_only_after_seconds_is_a_call_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path / "1.ring")
    journal = tmp_path / "x.journal.jsonl"
    now = 10**9
    monkeypatch.setattr("time.monotonic_ns", lambda: now)
    with JournalWriter(journal) as out:
        rings = Rings([tmp_path], out, result := Recording(journal), None)
        writer.write(writer.reserve(1), 7, flag=ring.FILLED)
        for mark in range(SLOTS // 2):
            writer.put(mark)
        for _ in range(4):
            rings.collect()
            assert file_waits(rings) > SLOTS // 2
            now += STUCK_NS // 4
        rings.collect()
        rings.collect()
        assert file_waits(rings) == 0
        rings.finish()
    assert len(read_journal(journal).of("wc_polled")) == 1 + SLOTS // 2
    assert result.lost == {}


def file_waits(rings: Rings) -> int:
    return max(file.most_waiting() for file, _ in rings._files.values())


def test_who_is_told_to_stop_keeps_the_journal_and_counts_the_rest(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "1.ring")
    journal = tmp_path / "x.journal.jsonl"
    with JournalWriter(journal) as out:
        rings = Rings([tmp_path], out, result := Recording(journal), None)
        writer.put(1)
        rings.collect()
        rings.write()
        for mark in range(40):
            writer.put(mark)
        # The machine is so slow that a slice of time is over at once.
        rings.write = lambda *, for_s=None: False  # type: ignore[method-assign]
        rings.finish(lambda: True)
    told = read_journal(journal)
    assert told.problems == []
    lost = sum(e["count"] for e in told.of("records_lost"))
    assert len(told.of("wc_polled")) + lost == 41
    assert result.lost == {"completions": lost}
    assert "stopped by a signal" in result.failed[0]


def test_a_device_s_addresses_are_read_once_and_nobody_waits_for_them(tmp_path: Path) -> None:
    table = tmp_path / "devices" / "rxe0" / "ports" / "1" / "gids"
    table.mkdir(parents=True)
    for n in range(300):
        (table / str(n)).write_text(
            "0000:0000:0000:0000:0000:ffff:0a09:0001\n" if n == 1 else f"{'0000:' * 7}0000\n"
        )
    # The first look must wait for somebody who writes into it.
    os.mkfifo(table / "300")
    gids = GidTables(tmp_path / "devices")
    assert not gids.ready("rxe0")
    assert not gids.ready("rxe0")
    (table / "300").write_text("fe80::1\n")
    assert gids.ready("rxe0", wait_s=60)
    assert gids.of("rxe0") == ["10.9.0.1", "fe80::1"]
    shutil.rmtree(tmp_path / "devices")
    assert gids.ready("rxe0")
    assert gids.of("rxe0") == ["10.9.0.1", "fe80::1"]
    assert gids.ready("no_such_device", wait_s=60)
    assert gids.of("no_such_device") is None


def test_addresses_are_read_slowly_while_the_program_needs_the_processor_and_soon_when_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "devices" / "rxe0" / "ports" / "1" / "gids"
    table.mkdir(parents=True)
    for n in range(50):
        (table / str(n)).write_text("fe80::1\n")
    monkeypatch.setattr("rocekit.record.gids._SLICE_S", 0.0)  # a pause after each entry
    monkeypatch.setattr("rocekit.record.gids._ONE_IN", 1 << 40)  # that lasts for ever
    gids = GidTables(tmp_path / "devices")
    gids.give_way(True)
    assert not gids.ready("rxe0")
    gids._threads["rxe0"].join(0.2)
    assert not gids.ready("rxe0")
    gids.give_way(False)
    gids._threads["rxe0"].join(60)
    assert gids.ready("rxe0")
    gids = GidTables(tmp_path / "devices")
    gids.give_way(True)
    assert gids.ready("rxe0", wait_s=60), "at the end nobody gives way"


def test_an_unfinished_slot_is_found_wherever_it_is() -> None:
    for size in (1, 2, 3, 8, 31):
        same = array("Q", [7]) * size
        for at in range(size):
            other = array("Q", same)
            other[at] = 0
            assert ring._same(memoryview(other), memoryview(same)) == at
        assert ring._same(memoryview(same), memoryview(array("Q", same))) == size


def test_lines_are_made_at_once_where_a_core_is_free_however_long_the_last_ones_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "x.jsonl"
    folder = tmp_path / "rings"
    folder.mkdir()
    free = True
    monkeypatch.setattr("rocekit.record.collect.SpareProcessors.__bool__", lambda self: free)
    with JournalWriter(journal) as out:
        rings = Rings([folder], out, Recording(journal), None)
        written: list[float | None] = []
        rings.write = lambda *, for_s=None: written.append(for_s) or True  # type: ignore[method-assign,func-returns-value]
        rings._wrote_ns = 1 << 62  # the program is never quiet
        rings._write_next_ns = 1 << 62  # where no core is free its turn is far away
        rings._backlog = 1
        rings._due = True
        rings.tick()
        rings.tick()
        free = False
        rings.tick()
    assert written == [0.01, 0.01]


def test_while_nothing_is_due_it_neither_looks_for_a_core_nor_comes_back_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest records wait for older ones: a look for each 5 ms of that took more than their lines."""
    writer = Writer(tmp_path / "1.ring")
    journal = tmp_path / "x.journal.jsonl"
    now = 10**9
    looks: list[bool] = []

    def look(_self: object) -> bool:
        looks.append(True)
        return True

    monkeypatch.setattr("rocekit.record.collect.SpareProcessors.__bool__", look)
    monkeypatch.setattr("time.monotonic_ns", lambda: now)
    with JournalWriter(journal) as out:
        rings = Rings([tmp_path], out, result := Recording(journal), None)
        pauses = [LEAST_PAUSE_S]
        for turn in range(8):
            writer.write(writer.reserve(1), turn + 1, mono=now + TAKE_NS)
            for _ in range(10):
                now += TAKE_NS // 10
                rings.tick()
                pauses.append(rings.pause_s)
        assert result.completions >= 6, "what is due is written"
        rings.finish()
    assert len(looks) <= 9, "one for each time that records were taken"
    assert max(pauses[20:]) == min(pauses[20:]) == MOST_PAUSE_S
    assert len(read_journal(journal).of("wc_polled")) == 8
