"""Claims about recording what ends badly, does not fit or must not be told: the journal says what it lacks.

The programs are those of ``stub/program.c``, as in ``test_record.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from places import PCAPS
from recorded import record, recorder, run, sends

import rocekit
from rocekit.errors import JournalError
from rocekit.journal import Journal, parse_event, read_journal
from rocekit.journal.gaps import gaps_in
from rocekit.journal.redaction import Redaction
from rocekit.journal.work_requests import read_programs
from rocekit.record import ring
from rocekit.record.lines.journal_lines import JournalLines
from rocekit.record.process import Process
from rocekit.record.start import changed_ns
from rocekit.report.collector import Collector
from rocekit.report.document import document
from rocekit.report.lane_columns import build_lanes
from rocekit.report.text import summary


def test_a_killed_program_s_journal_holds_everything_until_then(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "killed")
    assert ran.returncode == -signal.SIGKILL
    assert sends(ran) == list(range(100))
    assert ran.of("recording")[-1]["signal"] == "SIGKILL"
    assert ran.journal.problems == []


def test_a_journal_whose_recorder_was_killed_says_that_it_has_no_end(program: Path, tmp_path: Path) -> None:
    whole = run(program, tmp_path, "killed")
    assert read_programs(whole.journal).unfinished == []
    path = tmp_path / "cut.journal.jsonl"
    with subprocess.Popen([*recorder(path), str(program), "paced", "1000", "1000"]) as process:
        while not path.exists() or '"wr_posted"' not in path.read_text():
            assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    programs = read_programs(read_journal(path))
    (cut,) = programs.unfinished
    assert str(cut.pid) in children
    assert "has no end: its recorder was killed or still runs" in str(cut)
    assert not any(qp.is_whole for qp in programs.qps)


def test_rings_that_somebody_else_put_there_are_not_read(tmp_path: Path) -> None:
    """The folder's name is no secret, and after a cleaner anybody may take it in a folder that all share."""
    folder = tmp_path / "rings"
    folder.mkdir()
    assert changed_ns(folder) == (folder.stat().st_mtime_ns, False)
    folder.rmdir()
    (tmp_path / "theirs").mkdir()
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(JournalError, match="was replaced by somebody"):
        changed_ns(folder)


def test_a_recording_goes_on_where_a_cleaner_removes_its_rings(program: Path, tmp_path: Path) -> None:
    """Programs that run keep their memory; those that start later find a new folder."""
    path = tmp_path / "cleaned.journal.jsonl"
    # The first runs until the cleaner has come on a loaded machine, too.
    twice = f"{program} paced 2000 3; {program} paced 100 1"
    with subprocess.Popen([*recorder(path), "sh", "-c", twice]) as process:
        while not path.exists() or '"wr_posted"' not in path.read_text():
            assert process.poll() is None
        bases = (Path("/dev/shm"), tmp_path)
        folders = [f for base in bases for f in base.glob(f"*rocekit-record-{process.pid}-*")]
        assert folders
        for folder in folders:
            shutil.rmtree(folder)
    assert process.returncode == 0
    posted = [json.loads(line) for line in path.read_text().splitlines() if '"wr_posted"' in line]
    of_each = Counter(one["pid"] for one in posted)
    assert len(of_each) == 2
    assert max(of_each.values()) > 5_000  # of the first program's 6,000, before and after the cleaner came
    assert not any(f.exists() for f in folders)


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_journal_without_its_end_does_not_have_may_have_happened(tmp_path: Path, ends: bool) -> None:
    capture = tmp_path / "x.pcap"
    shutil.copy(PCAPS / "blast-sr-loss.pcap", capture)
    lines = (PCAPS / "blast-sr-loss.client.journal.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    about = {key: first[key] for key in ("time_ns", "host", "pid", "clock")} | {"event": "recording"}
    lines.insert(0, json.dumps(about | {"state": "started"}))
    lines = [line for line in lines if '"event":"wc_polled"' not in line.replace(" ", "")]
    if ends:
        lines.append(json.dumps(about | {"state": "ended"}))
    (tmp_path / "x.journal.jsonl").write_text("\n".join(lines) + "\n")
    analysis = rocekit.analyze(capture)
    assert ("has no end" in summary(analysis)) is not ends
    assert [cut["pid"] for cut in analysis.to_dict()["journal"]["unfinished"]] == [first["pid"]] * (not ends)
    transfer = next(t for t in analysis.transfers if t.wr is not None)
    told = str(rocekit.explain(transfer, analysis))
    assert "its completion was not polled" in told
    assert ("or is among what the journal lacks" in told) is not ends


def test_a_crash_while_posting_shows_what_was_being_posted(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "crashes_while_posting")
    assert ran.returncode == -signal.SIGSEGV
    last = ran.of("wr_posted")[-1]
    assert (last["wr_id"], last["unfinished"]) == (0xDEAD, True)
    assert not any("unfinished" in event.fields for event in ran.of("wr_posted")[:-1])


def test_what_finds_no_room_is_counted_to_the_record(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "flood", options=("--ring-size", "64"))
    assert ran.returncode == 0
    lost = Counter[str]()
    for event in ran.of("records_lost"):
        lost.update({kind: event.get(kind, 0) for kind in ("sends", "completions")})
        assert event["count"] == event.get("sends", 0) + event.get("completions", 0) + event.get("others", 0)
    assert lost["sends"] > 0
    assert len(ran.of("wr_posted")) + lost["sends"] == 200_000
    assert len(ran.of("wc_polled")) + lost["completions"] == 200_000
    assert "did not fit" in ran.stderr
    assert ran.journal.problems == []
    assert len(set(sends(ran))) == len(sends(ran))


def test_what_finds_no_room_is_counted_of_each_queue(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "floods", options=("--ring-size", "64"))
    assert ran.returncode == 0
    assert ran.journal.problems == []
    gaps = gaps_in(ran.journal)
    assert sum(gap.counts["sends"] for gap in gaps) > 0
    created = [event.qp for event in ran.of("qp_created")]
    for qp, posted in zip(created, (60_000, 20_000), strict=True):
        lost = Counter[str]()
        for gap in gaps:
            if gap.qp == qp:
                lost.update(gap.counts)
        for event, kind in (("wr_posted", "sends"), ("wc_polled", "completions")):
            assert sum(e.qp == qp for e in ran.of(event)) + lost[kind] == posted
    shared = [gap for gap in gaps if gap.srq is not None]
    assert len(ran.of("recv_posted")) + sum(gap.counts["receives"] for gap in shared) == 80_000


def test_what_is_recorded_into_several_files_is_all_there_once(program: Path, tmp_path: Path) -> None:
    options = ("--rotate", "200k", "--ring-size", "1M")
    done = subprocess.run(
        [*recorder(tmp_path / "x.journal.jsonl", *options), str(program), "paced", "3000"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    files = sorted(tmp_path.glob("*.jsonl"))
    assert f"journal rotated:{files[0]}..{files[-1].name}" in done.stderr
    assert len(files) > 5
    assert max(file.stat().st_size for file in files) <= 200 << 10
    journal = read_journal(f"rotated:{files[0]}..{files[-1].name}")
    assert journal.problems == []
    ids = [event["wr_id"] for event in journal.of("wr_posted")]
    assert len(ids) == len(set(ids)) == len(journal.of("wc_polled")) > 4000
    (qp,) = [qp for qp in read_programs(journal).qps if qp.sends]
    assert len(qp.sends) == len(ids)
    assert all(wr.wc is not None for wr in qp.sends)
    newest = read_programs(read_journal(files[-1]))
    assert [found.transport for found in newest.qps] == ["RC"], "each file says what is set up"


def test_a_gap_of_one_qp_takes_nothing_from_another() -> None:
    lost = {"qp": {"device": "d", "qpn": 17}, "count": 1, "sends": 1, "since_ns": 1}
    send = {"opcode": "SEND", "length": 8, "wr_id": 1, "signaled": True}
    done = {"status": "SUCCESS", "opcode": "SEND", "wr_id": 1}
    lines: list[tuple[int, str, dict[str, Any]]] = []
    for at, qpn in enumerate((17, 18)):
        qp = {"qp": {"device": "d", "qpn": qpn}}
        lines += [(2 + at, "wr_posted", qp | send), (4 + at, "wr_posted", qp | send)]
        lines += [(6 + at, "wc_polled", qp | done)]
    gapped, whole = read_programs(journal_of(*lines, (9, "records_lost", lost))).qps
    assert gapped.lossy_ns == 1
    assert [wr.wc is not None for wr in gapped.sends] == [False, False], "the completion may be of a third"
    assert whole.lossy_ns is None
    assert [wr.wc is not None for wr in whole.sends] == [True, False]


def test_analyze_and_the_report_say_how_much_of_which_queue_the_journal_lacks(tmp_path: Path) -> None:
    capture = tmp_path / "x.pcap"
    shutil.copy(PCAPS / "blast-sr-loss.pcap", capture)
    journal = (PCAPS / "blast-sr-loss.client.journal.jsonl").read_text()
    line = next(json.loads(line) for line in journal.splitlines() if '"wr_posted"' in line)
    lost = line["qp"]
    event = {key: line[key] for key in ("time_ns", "host", "pid", "clock")}
    event |= {"event": "records_lost", "qp": lost, "count": 1207, "sends": 1200, "completions": 7}
    (tmp_path / "x.journal.jsonl").write_text(journal + json.dumps(event) + "\n" + json.dumps(event) + "\n")
    words = (
        f"the journal lacks 2,400 work requests and 14 completions of {lost['device']} QP {lost['qpn']:#x}"
    )
    collector = Collector()
    analysis = rocekit.analyze(capture, watch=collector)
    assert words in summary(analysis)
    meta, _columns = document(analysis, build_lanes(collector, analysis))
    assert any(line.startswith(words) for line in meta["capture"]["unknown"])
    (gap,) = analysis.to_dict()["journal"]["lost"]
    assert (gap["qp"], gap["sends"], gap["completions"]) == (lost, 2400, 14)


def journal_of(*events: tuple[int, str, dict[str, Any]]) -> Journal:
    """Events of one process at these times (ns)."""
    lines = [{"time_ns": t, "host": "h", "pid": 1, "event": name, **fields} for t, name, fields in events]
    return Journal([parse_event(line) for line in lines])


def test_over_a_gap_only_an_unmistakable_completion_is_given_to_its_request() -> None:
    qp = {"qp": {"device": "d", "qpn": 17}}
    send = {**qp, "opcode": "SEND", "length": 8}
    done = {**qp, "status": "SUCCESS", "opcode": "SEND"}
    journal = journal_of(
        (1, "wr_posted", {**send, "wr_id": 1}),
        (2, "wc_polled", {**done, "wr_id": 1}),
        (3, "wr_posted", {**send, "wr_id": 1}),
        (4, "wr_posted", {**send, "wr_id": 7}),
        # Between 5 and 9 something is missing; it may have been a request 1 and a completion 1.
        (6, "wr_posted", {**send, "wr_id": 1}),
        (9, "records_lost", {"count": 2, "sends": 1, "completions": 1, "since_ns": 5}),
        (10, "wc_polled", {**done, "wr_id": 1}),
        (11, "wc_polled", {**done, "wr_id": 7}),
    )
    (life,) = read_programs(journal).qps
    assert [(wr.wr_id, wr.wc is not None) for wr in life.sends] == [
        (1, True),
        (1, False),
        (7, True),
        (1, False),
    ]
    assert [wc.wr_id for wc in life.stray_completions] == [1]


def test_psns_are_told_on_both_sides_of_a_gap(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "flood", options=("--ring-size", "64"))
    posted = ran.of("wr_posted")
    assert 0 < len(posted) < 200_000
    # The QP's starting PSN is 0xfffff0, and each of its sends is one packet.
    assert all(e["psn"] == (0xFFFFF0 + (e["wr_id"] & 0xFFFFF)) % (1 << 24) for e in posted)


def test_the_recorder_leaves_the_processors_to_the_program(program: Path, tmp_path: Path) -> None:
    # Where another one is free the recorder uses it: here it has only that of the program.
    def on_one() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    ran = record(tmp_path / "x.journal.jsonl", [str(program), "paced", "3000"], preexec_fn=on_one)
    assert ran.returncode == 0
    assert not ran.of("records_lost")
    assert len(ran.of("wr_posted")) == len(ran.of("wc_polled")) > 4000
    written, woken, seconds = map(float, ran.stdout.split())
    if not written:
        pytest.skip("this kernel keeps no account of what processes write (CONFIG_TASK_IO_ACCOUNTING)")
    # Of 9000 records a second it writes few down before the program ends, and it seldom looks.
    assert written < (tmp_path / "x.journal.jsonl").stat().st_size / 4
    assert woken < 60 * seconds


def test_rings_that_find_no_room_are_told_of(program: Path, tmp_path: Path) -> None:
    # Not even the smallest rings fit: the shell allows files of 4 KiB.
    script = f"trap '' XFSZ; ulimit -f 4; exec {program} never_polls"
    ran = record(tmp_path / "x", ["bash", "-c", script])
    assert ran.returncode == 0
    assert ran.of("wr_posted") == []
    assert "no room for its rings" in ran.one("not_recorded")["what"]
    assert "no room for its rings" in ran.stderr


def test_a_program_that_never_polls_has_no_completions(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "never_polls")
    assert len(ran.of("wr_posted")) == 100
    assert ran.of("wc_polled") == []
    assert ran.journal.problems == []
    # Nothing is missing, and nothing is made up: each request is there, without an end.
    assert not ran.of("records_lost", "not_recorded")
    (qp,) = read_programs(ran.journal).qps
    assert [wr.wc for wr in qp.sends] == [None] * 100


def test_a_fork_s_child_is_a_process_of_its_own(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "forks")
    assert ran.returncode == 0
    assert ran.journal.problems == []
    began = [event for event in ran.of("recording") if event["state"] == "began"]
    parent, child = began[0].pid, began[1].pid
    assert began[1]["forked_from"] == parent
    by_pid = {pid: [e["wr_id"] for e in ran.of("wr_posted") if e.pid == pid] for pid in (parent, child)}
    assert by_pid == {parent: [1, 3], child: [2]}
    assert {event.qp for event in ran.of("wr_posted")} == {ran.one("qp_created").qp}


def test_children_are_followed_unless_told_not_to(program: Path, tmp_path: Path) -> None:
    shell = ["sh", "-c", f"{program} never_polls; {program} never_polls"]
    assert len(record(tmp_path / "a", shell).of("wr_posted")) == 200
    alone = record(tmp_path / "b", shell, "--no-follow-children")
    assert alone.of("wr_posted") == []
    assert "no process was seen to open a verbs device" in alone.stderr
    # What the program becomes by exec is still the program.
    became = record(tmp_path / "c", ["sh", "-c", f"exec {program} never_polls"], "--no-follow-children")
    assert len(became.of("wr_posted")) == 100


def test_redaction_hides_keys_and_addresses_and_keeps_what_they_say(program: Path, tmp_path: Path) -> None:
    plain = run(program, tmp_path, "each_operation")
    hidden = record(tmp_path / "y", [str(program), "each_operation"], "--redact")
    region, shown = hidden.one("mr_registered"), plain.one("mr_registered")
    assert region["lkey"] != shown["lkey"]
    assert region["rkey"] != shown["rkey"]
    text = hidden.path.read_text()
    assert str(0xABC) not in [str(e.get("rkey")) for e in hidden.of("wr_posted")]
    assert f":{0x123456789000}" not in text
    write = next(e for e in hidden.of("wr_posted") if e["wr_id"] == 4)
    assert [s["addr"] - region["addr"] for s in write["sges"]] == [0, 4096, 8192, 12288, 16384]
    assert {s["lkey"] for s in write["sges"]} == {region["lkey"]}
    atomics = [e for e in hidden.of("wr_posted") if e["opcode"].startswith("ATOMIC")]
    assert len({e["rkey"] for e in atomics}) == 1
    assert atomics[1]["remote_va"] - atomics[0]["remote_va"] == 8


def test_redaction_hides_what_programs_tell_each_other_as_they_connect() -> None:
    """Private data is where keys and addresses go, as a rule."""
    told = struct.pack(">QI", 0x7F1234567000, 0xABC).ljust(56, b"\0")
    body = ring.CM_BODY.pack(1, 0, 0, 9, 17, 0, *[0] * 6, len(told), 0, bytes(28), bytes(28))
    record = ring.Record(ring.CM_EVENT, 0, 0, 0, 1, 1, body + told)
    plain, hidden, again = (
        json.loads(line)["private_data"]
        for redaction in (None, Redaction(b"secret"), Redaction(b"secret"))
        for line in JournalLines(Process("host", 1), redaction).of(record)
    )
    assert bytes.fromhex(plain) == told
    assert len(hidden) == len(plain)
    assert hidden == again
    assert hidden.endswith(plain[-88:])  # zeros
    assert hidden[:24] != plain[:24]
