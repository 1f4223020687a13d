"""Claims about recording: what a program did is in the journal, all of it, and the program is none the wiser.

The programs are those of ``stub/program.c`` on a device that needs no kernel; each claim is what the
program's source says it does.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded import Ran, build_stub, record, recorder

from rocekit import record_ring as ring
from rocekit._interposer_sources import SOURCES
from rocekit.journal import Journal, parse_event, read_journal
from rocekit.record import Recorder
from rocekit.record_build import FLAGS, HEADERS, InterposerError, cached, compiler, fallback, interposer, look
from rocekit.record_events import Lines
from rocekit.record_lines import Process
from rocekit.record_redact import Redaction
from rocekit.workrequests import read_programs


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = look()
    if found.path is None and not found.can_build:
        pytest.skip(f"{found.obstacle} (apt-get install {' '.join(found.packages)})")
    interposer()
    return build_stub(tmp_path_factory.mktemp("stub"))


def run(program: Path, tmp_path: Path, what: str, *arguments: str, options: tuple[str, ...] = ()) -> Ran:
    return record(tmp_path / "x.journal.jsonl", [str(program), what, *arguments], *options)


def sends(ran: Ran) -> list[int]:
    return [event["wr_id"] for event in ran.of("wr_posted")]


# ---------------------------------------------------------------------- what was asked and told


def test_every_operation_is_recorded_with_what_it_was_asked_to_do(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "each_operation")
    assert ran.returncode == 0
    assert ran.journal.problems == []
    by_id = {event["wr_id"]: event for event in ran.of("wr_posted")}
    assert {wr_id: event["opcode"] for wr_id, event in by_id.items()} == {
        1: "SEND",
        2: "SEND_WITH_IMM",
        3: "SEND_WITH_INV",
        4: "RDMA_WRITE",
        5: "RDMA_READ",
        6: "ATOMIC_CMP_AND_SWP",
        7: "ATOMIC_FETCH_AND_ADD",
    }
    region = ran.one("mr_registered")
    assert region["length"] == 1 << 16
    assert region["access"] == ["LOCAL_WRITE", "REMOTE_READ"]
    assert by_id[2]["imm"] == 0x11223344
    assert by_id[3]["invalidate_rkey"] == 0x777
    assert (by_id[4]["remote_va"], by_id[4]["rkey"]) == (0x123456789000, 0xABC)
    assert (by_id[6]["compare"], by_id[6]["swap_add"]) == (5, 6)
    assert (by_id[7]["swap_add"], by_id[7].get("compare")) == (9, None)
    assert [by_id[n]["signaled"] for n in range(1, 8)] == [True, False, False, False, False, False, True]
    assert by_id[1]["solicited"]
    assert by_id[5]["fenced"]
    assert [s["length"] for s in by_id[4]["sges"]] == [1000, 1001, 1002, 1003, 1004]
    assert by_id[4]["length"] == 5010
    assert [s["addr"] - region["addr"] for s in by_id[4]["sges"]] == [0, 4096, 8192, 12288, 16384]
    assert {s["lkey"] for s in by_id[4]["sges"]} == {region["lkey"]}
    receives = ran.of("recv_posted")
    assert [(r["wr_id"], len(r["sges"]), r["length"]) for r in receives] == [
        (100, 1, 256),
        (101, 3, 768),
        (102, 5, 1280),
    ]
    assert [
        (c["wr_id"], c["opcode"], c.get("imm"), c.get("invalidate_rkey")) for c in ran.of("wc_polled")
    ] == [
        (1, "SEND", None, None),
        (100, "RECV", None, None),
        (101, "RECV", 0x11223344, None),
        (102, "RECV", None, 0x777),
        (7, "FETCH_ADD", None, None),
    ]


def test_a_qp_s_path_is_told_as_packets_show_it(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "each_operation")
    created = ran.one("qp_created")
    assert (created["transport"], created["sq_sig_all"]) == ("RC", False)
    attributes = read_programs(ran.journal).qps[0].attributes
    wanted = {
        "state": "RTS",
        "dest_qpn": 0x42,
        "rq_psn": 7,
        "sq_psn": 0xFFFFFE,
        "path_mtu": 1024,
        "timeout": 14,
        "retry_cnt": 7,
        "rnr_retry": 6,
        "local_ip": "10.9.0.1",
        "dest_ip": "10.9.0.2",
    }
    assert {key: attributes.get(key) for key in wanted} == wanted
    # 5,010 bytes and 1,024 a packet: five PSNs; the READ, the atomics and the SENDs take one each.
    sent = ran.of("wr_posted")
    assert [e["psn"] for e in sent] == [0xFFFFFE, 0xFFFFFF, 0, 1, 6, 7, 8]
    assert ran.one("qp_destroyed").qp == created.qp
    assert ran.one("mr_deregistered")["lkey"] == ran.one("mr_registered")["lkey"]


def test_a_registration_is_told_once_though_the_library_calls_itself(program: Path, tmp_path: Path) -> None:
    # ibv_reg_mr calls ibv_reg_mr_iova2 by its exported name, in rdma-core as in the stub.
    assert len(run(program, tmp_path, "each_operation").of("mr_registered")) == 1


def test_a_datagram_has_the_address_of_its_handle(program: Path, tmp_path: Path) -> None:
    sent = run(program, tmp_path, "datagrams").one("wr_posted")
    assert (sent["dest_qpn"], sent["dest_ip"], sent["qkey"]) == (0x99, "10.9.0.9", 0x11111111)
    assert sent["inline"]
    assert sent["signaled"], "the QP signals everything"


def test_a_bad_request_in_a_list_refuses_itself_and_what_follows(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "bad_in_the_middle")
    assert ran.returncode == 0
    assert ran.journal.problems == []
    # What was refused takes no PSN.
    assert [(e["wr_id"], e.get("errno"), e.get("psn")) for e in ran.of("wr_posted")] == [
        (0, None, 50),
        (1, None, 51),
        (0xBAD, 22, None),
        (3, 22, None),
        (4, 22, None),
        (5, None, 52),
    ]
    assert [(e["wr_id"], e.get("errno")) for e in ran.of("recv_posted")] == [(1, None), (0xBAD, 12), (3, 12)]
    (qp,) = read_programs(ran.journal).qps
    assert [wr.wc is not None for wr in qp.sends] == [True, True, False, False, False, True]


def test_an_error_completion_has_its_status_and_the_vendor_s_code(program: Path, tmp_path: Path) -> None:
    told = run(program, tmp_path, "failing").of("wc_polled")
    assert [(c["wr_id"], c["status"]) for c in told] == [(5, "REM_ACCESS_ERR"), (6, "WR_FLUSH_ERR")]
    assert told[0]["vendor_err"] == 0x88
    assert told[0].get("opcode") is None, "it means nothing in an error completion"


def test_the_extended_calls_are_recorded_as_they_are_posted(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "extended")
    assert ran.returncode == 0
    assert ran.one("qp_created")["extended"]
    posted = ran.of("wr_posted")
    # 4 was taken back by wr_abort; the list with 0xbad was refused as a whole.
    assert [(e["wr_id"], e["opcode"], e["length"], e.get("errno")) for e in posted] == [
        (1, "RDMA_WRITE", 300, None),
        (2, "SEND_WITH_IMM", 30, None),
        (3, "ATOMIC_CMP_AND_SWP", 8, None),
        (5, "SEND", 0, 12),
        (0xBAD, "SEND", 0, 12),
    ]
    assert (posted[0]["remote_va"], posted[0]["rkey"]) == (0x5000, 0xABC)
    assert [s["length"] for s in posted[0]["sges"]] == [100, 200]
    assert posted[1]["imm"] == 0xCAFE
    assert posted[1]["inline"]
    assert [s["lkey"] for s in posted[1]["sges"]] == [0, 0]
    assert (posted[2]["compare"], posted[2]["swap_add"]) == (1, 2)
    # The program asked for no QP numbers, and every completion has its QP.
    qpn = ran.one("qp_created").qp
    assert [(c.qp, c["wr_id"], c["opcode"]) for c in ran.of("wc_polled")] == [
        (qpn, 1, "RDMA_WRITE"),
        (qpn, 2, "SEND"),
        (qpn, 50, "RECV"),
        (qpn, 3, "COMP_SWAP"),
    ]


def test_a_window_s_binding_is_told_alike_however_it_is_posted(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "windows")
    assert ran.returncode == 0
    assert ran.journal.problems == []
    region = ran.one("mr_registered")
    assert [(e["rkey"], e["type"]) for e in ran.of("mw_allocated")] == [(0x500, 1), (0x500, 2), (0x500, 2)]
    posted = [(e["wr_id"], e["opcode"], e["length"], e["sges"], e.get("errno")) for e in ran.of("wr_posted")]
    assert posted == [
        (1, "BIND_MW", 5 << 32, [], None),
        (2, "BIND_MW", 5 << 32, [], None),
        (3, "BIND_MW", 5 << 32, [], None),
        (4, "LOCAL_INV", 0, [], None),
        (0xBAD, "BIND_MW", 5 << 32, [], 1),
    ]
    bound = ran.of("mw_bound")
    assert [e["wr_id"] for e in bound] == [1, 2, 3]
    for event in bound:
        assert (event["rkey"], event["old_rkey"]) == (0x501, 0x500)
        assert (event["addr"] - region["addr"], event["length"]) == (64, 5 << 32)
        assert (event["mr_lkey"], event["mr_rkey"]) == (region["lkey"], region["rkey"])
        assert event["access"] == ["REMOTE_WRITE"]
    assert [e["rkey"] for e in ran.of("mw_deallocated")] == [0x501] * 3
    assert [(c["wr_id"], c["opcode"]) for c in ran.of("wc_polled")] == [
        (1, "BIND_MW"),
        (2, "BIND_MW"),
        (3, "BIND_MW"),
        (4, "LOCAL_INV"),
    ]


def test_flush_and_atomic_write_are_recorded_and_take_a_psn_each(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "placement")
    assert ran.returncode == 0
    told = [
        (e["wr_id"], e["opcode"], e["length"], e.get("remote_va"), e.get("rkey"), e["psn"])
        for e in ran.of("wr_posted")
    ]
    assert told == [
        (1, "FLUSH", 1 << 20, 0x6000, 0xABC, 70),
        (2, "ATOMIC_WRITE", 8, 0x6008, 0xABD, 71),
        (3, "SEND", 0, None, None, 72),
    ]
    assert [c["opcode"] for c in ran.of("wc_polled")] == ["FLUSH", "ATOMIC_WRITE", "SEND"]


def test_every_sge_of_a_long_list_is_told_or_none(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "many_sges")
    assert ran.returncode == 0
    assert ran.journal.problems == []
    assert [(e["wr_id"], e["length"], len(e.get("sges", ()))) for e in ran.of("wr_posted")] == [
        (32, 512, 32),
        (64, 1024, 64),
        (100, 1600, 0),
    ]
    assert [(e["wr_id"], e.get("length"), len(e.get("sges", ()))) for e in ran.of("recv_posted")] == [
        (32, 512, 32),
        (64, 1024, 64),
        (100, None, 0),
    ]


def test_shared_receives_belong_to_their_queue_and_complete_on_a_qp(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "shared_receives")
    queue = ran.one("srq_created")["srq"]
    assert [(r["wr_id"], r["srq"], r.qp) for r in ran.of("recv_posted")] == [
        (n, queue, None) for n in range(4)
    ]
    qps = [event.qp for event in ran.of("qp_created")]
    assert {event["srq"] for event in ran.of("qp_created")} == {queue}
    received = [c for c in ran.of("wc_polled") if c["opcode"] == "RECV"]
    assert [(c.qp, c["wr_id"], c["byte_len"]) for c in received] == [(qps[0], 0, 10), (qps[1], 1, 20)]


def test_threads_and_devices_do_not_mix(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "threads")
    assert ran.returncode == 0
    assert not ran.of("records_lost")
    # 20 threads, each with a device and a QP of its own, more than there are rings.
    programs = read_programs(ran.journal)
    assert len(programs.qps) == 20
    for qp in programs.qps:
        ids = [wr.wr_id for wr in qp.sends]
        assert ids == list(range(ids[0], ids[0] + 500))
        assert all(wr.wc is not None and wr.posted_ns <= wr.wc.polled_ns for wr in qp.sends)
        assert qp.stray_completions == []


def test_times_are_real_with_the_monotonic_clock_beside_them(program: Path, tmp_path: Path) -> None:
    before = time.time_ns()
    events = run(program, tmp_path, "never_polls").of("wr_posted")
    after = time.time_ns()
    assert all(before <= event.time_ns <= after for event in events)
    mono = [event.mono_ns for event in events]
    assert all(a is not None and b is not None and a <= b for a, b in itertools.pairwise(mono))
    apart = {event.time_ns - (event.mono_ns or 0) for event in events}
    assert max(apart) - min(apart) < 10**6


@pytest.mark.parametrize("how", ["loads", "loads_by_version"])
def test_a_library_loaded_at_run_time_is_recorded(program: Path, tmp_path: Path, how: str) -> None:
    ran = run(program, tmp_path, how, str(program.parent / "libibverbs.so.1"))
    assert ran.returncode == 0
    assert sends(ran) == [1]
    assert len(ran.of("wc_polled")) == len(ran.of("mr_registered")) == len(ran.of("qp_created")) == 1


def test_asking_the_linker_for_what_comes_next_still_works(program: Path, tmp_path: Path) -> None:
    assert run(program, tmp_path, "asks_for_next").returncode == 0


def test_the_linker_s_questions_end_in_a_jump(program: Path) -> None:
    """glibc takes RTLD_NEXT's place from the return address: a call in between would change the answer."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("no objdump (apt-get install binutils)")
    for name in ("dlsym", "dlvsym"):
        code = subprocess.run(
            [objdump, "-d", f"--disassemble={name}", str(interposer())],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "jmp    *" in code or "br\t" in code, code


def test_the_interposer_does_nothing_that_c_leaves_undefined(program: Path, tmp_path: Path) -> None:
    library = tmp_path / "checked.so"
    flags = [*FLAGS, "-g", "-fsanitize=undefined", "-fno-sanitize-recover=undefined"]
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    built = subprocess.run(
        [
            *(str(compiler()), *flags, f"-Wl,--version-script={SOURCES / 'exports.map'}", "-o", str(library)),
            *(*sources, "-ldl", "-lpthread"),
        ],
        capture_output=True,
        check=False,
        timeout=120,
    )
    if built.returncode:
        pytest.skip("this compiler has no undefined-behaviour sanitizer")
    for what in (
        "each_operation",
        "datagrams",
        "bad_in_the_middle",
        "extended",
        "windows",
        "placement",
        "threads",
    ):
        (tmp_path / what).mkdir()
        variables = {"LD_PRELOAD": str(library), "ROCEKIT_RECORD_FOLDER": str(tmp_path / what)}
        ran = subprocess.run(
            [str(program), what],
            env=os.environ | variables | {"ROCEKIT_RECORD_SLOTS": "128", "ROCEKIT_RECORD_RINGS": "2"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert list((tmp_path / what).glob("*.ring"))


def test_a_device_opened_again_is_a_device_of_its_own(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "opens_and_closes")
    assert sends(ran) == list(range(20))
    assert len(ran.of("device_opened")) == 20
    assert {event.qp[0] for event in ran.of("wr_posted") if event.qp} == {"stub0"}


# ---------------------------------------------------------------------- what goes wrong


def test_a_killed_program_s_journal_holds_everything_until_then(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "killed")
    assert ran.returncode == -signal.SIGKILL
    assert sends(ran) == list(range(100))
    assert ran.of("recording")[-1]["signal"] == "SIGKILL"
    assert ran.journal.problems == []


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
    assert "found no room" in ran.stderr
    assert ran.journal.problems == []
    assert len(set(sends(ran))) == len(sends(ran))


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
    ran = run(program, tmp_path, "paced", "3000")
    assert ran.returncode == 0
    assert not ran.of("records_lost")
    assert len(ran.of("wr_posted")) == len(ran.of("wc_polled")) > 4000
    percent = float(ran.stdout)
    if percent < 0:
        pytest.skip("this kernel keeps no account of what processes take (CONFIG_SCHED_INFO)")
    # 9000 records a second: to write each of them down at once takes 6 % and more.
    assert percent < 4


def test_rings_that_find_no_room_are_told_of(program: Path, tmp_path: Path) -> None:
    # 8 rings of 2^24 slots are 8 GiB; the shell allows files of 1 MiB.
    script = f"trap '' XFSZ; ulimit -f 1024; exec {program} never_polls"
    ran = record(tmp_path / "x", ["bash", "-c", script], "--ring-size", str(1 << 24))
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
    assert "no process opened a verbs device" in alone.stderr
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
        for line in Lines(Process("host", 1), redaction).of(record)
    )
    assert bytes.fromhex(plain) == told
    assert len(hidden) == len(plain)
    assert hidden == again
    assert hidden.endswith(plain[-88:])  # zeros
    assert hidden[:24] != plain[:24]


# ---------------------------------------------------------------------- the program's own


def test_output_input_and_status_are_the_program_s(tmp_path: Path) -> None:
    ran = record(tmp_path / "x", ["sh", "-c", "cat; echo said >&2; exit 7"], "--quiet", input="given")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "given", "said\n")
    assert ran.of("recording")[-1]["status"] == 7


def test_a_signal_goes_to_the_program_and_ends_both_alike(program: Path, tmp_path: Path) -> None:
    journal = tmp_path / "x"
    with subprocess.Popen(
        [*recorder(journal, "--quiet"), str(program), "waits_for_a_signal"], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "waiting\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == -signal.SIGTERM
    assert read_journal(journal).of("recording")[-1]["signal"] == "SIGTERM"


def test_a_program_that_takes_a_signal_goes_on(tmp_path: Path) -> None:
    script = "trap 'echo got; exit 4' USR1; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [*recorder(tmp_path / "x", "--quiet"), "sh", "-c", script], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGUSR1)
        assert running.stdout.readline() == "got\n"
        assert running.wait(30) == 4


def test_a_closed_pipe_ends_the_program_as_it_would(tmp_path: Path) -> None:
    command = " ".join(recorder(tmp_path / "x", "--quiet")) + " yes | head -1; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"y\n{128 + signal.SIGPIPE}\n"


@pytest.fixture
def small(tmp_path: Path, root: None) -> Iterator[Path]:
    """A disk of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no tmpfs may be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_ends_the_journal_and_not_the_program(program: Path, small: Path) -> None:
    journal = small / "x.journal.jsonl"
    ran = record(journal, ["sh", "-c", f"{program} paced 3000 >/dev/null && echo done; exit 5"], "--quiet")
    assert (ran.returncode, ran.stdout) == (5, "done\n")
    assert "No space left on device" in ran.stderr
    assert 0 < len(ran.of("wr_posted")) < 4000
    # It may end in the middle of a line; that is said, and nothing else is wrong.
    assert [problem.expected.split(":")[0] for problem in ran.journal.problems] in (
        [],
        ["the last line is cut off"],
    )


def test_a_full_disk_ends_the_packets_and_not_the_program(program: Path, small: Path, root: None) -> None:
    script = (
        "import socket\n"
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n"
        "    for _ in range(300): s.sendto(bytes(1000), ('127.0.0.1', 4791))\n"
        "exit(5)"
    )
    options = ("-i", "lo", "-w", str(small / "x.pcapng"))
    done = subprocess.run(
        [*recorder(small.parent / "x", *options), sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 5
    assert "No space left on device" in done.stderr
    assert read_journal(small.parent / "x").of("recording")[-1]["status"] == 5


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_stream_is_nothing_to_the_recorder(tmp_path: Path, closed: str) -> None:
    command = " ".join([*recorder(tmp_path / "x"), "sh", "-c", "'exit 3'", closed])
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert read_journal(tmp_path / "x").of("recording")[-1]["status"] == 3


def test_the_program_is_not_written_over(program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copy(program, copy)
    done = subprocess.run(
        [*recorder(copy), str(copy), "never_polls"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (
        1,
        f"rocekit: error: {copy}: this is the program; name another file\n",
    )
    assert copy.read_bytes() == program.read_bytes()


def test_a_missing_program_is_said_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*recorder(tmp_path / "x"), "no-such-program"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 127
    assert done.stderr == "rocekit: error: no-such-program: no such program\n"


def test_a_preload_of_the_user_s_own_is_kept(program: Path, tmp_path: Path) -> None:
    ran = record(
        tmp_path / "x",
        ["sh", "-c", "echo $LD_PRELOAD"],
        env={"LD_PRELOAD": str(program.parent / "libibverbs.so.1")},
    )
    assert ran.stdout.strip() == f"{interposer()}:{program.parent / 'libibverbs.so.1'}"


def test_nothing_is_left_in_memory(program: Path, tmp_path: Path) -> None:
    run(program, tmp_path, "killed")
    left = [path.name for path in Path("/dev/shm").glob("rocekit-record-*")]
    assert not [name for name in left if not Path("/proc", name.split("-")[2]).exists()]


def test_lines_are_journal_lines_in_order(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "threads")
    for line in ran.path.read_text().splitlines():
        assert json.loads(line)["host"] == os.uname().nodename
    assert ran.journal.problems == []


def test_packets_are_kept_and_explained_beside_the_program_s_own_output(
    program: Path, tmp_path: Path, root: None
) -> None:
    script = f"echo mine; {program} never_polls"
    kept = tmp_path / "x.pcapng"
    done = subprocess.run(
        [
            *recorder(tmp_path / "x.journal.jsonl", "-i", "lo", "-w", str(kept), "--redact"),
            "sh",
            "-c",
            script,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "mine\n")
    assert "0 frames" in done.stderr
    assert "100 work requests" in done.stderr
    assert "the packets are as they were" in done.stderr
    assert kept.stat().st_size > 0


def test_a_capture_without_an_interface_is_a_wrong_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*recorder(tmp_path / "x", "-w", "y"), "true"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2


def test_a_static_program_is_said_to_be_out_of_reach(program: Path, tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 6; }\n")
    made = subprocess.run(
        [str(compiler()), "-static", "-o", str(tmp_path / "static"), str(source)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("this compiler links nothing statically")
    ran = record(tmp_path / "x", [str(tmp_path / "static")])
    assert ran.returncode == 6
    assert "linked statically" in ran.one("not_recorded")["what"]
    assert "linked statically" in ran.stderr


def test_a_ring_must_be_a_power_of_two(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Recorder(["true"], tmp_path / "x", Path("/nowhere"), slots=100)


def test_what_is_missing_for_the_interposer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rocekit.record_build.packaged", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look()
    assert found.path is None
    assert found.obstacle == "no C compiler"
    assert set(HEADERS.values()) < set(found.packages)


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rocekit.record_build.packaged", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    found = look()
    assert found.obstacle == "no infiniband/verbs.h and no rdma/rdma_cma.h"
    assert found.packages == ("libibverbs-dev", "librdmacm-dev")


def test_a_library_in_a_folder_of_somebody_else_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rocekit.record_build.packaged", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for path in (cached(), fallback()):
        path.parent.mkdir()
        path.write_bytes(b"not to be trusted")
        if os.geteuid() == 0:
            os.chown(path, 4711, 4711)
            os.chown(path.parent, 4711, 4711)
    if os.geteuid():
        monkeypatch.setattr("os.geteuid", lambda: 4711)
    assert look().path is None
    with pytest.raises(InterposerError, match=r"belongs to somebody else.*set XDG_CACHE_HOME"):
        interposer()


def test_a_library_of_root_s_in_a_folder_of_somebody_else_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: None
) -> None:
    """Whoever owns the folder can put another library in its place."""
    monkeypatch.setattr("rocekit.record_build.packaged", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fallback().parent.mkdir()
    fallback().symlink_to(shutil.which("true") or "/bin/true")
    assert look().path is None
    fallback().unlink()
    fallback().write_bytes(b"root's, and not for this")
    os.chown(fallback().parent, 4711, 4711)
    assert look().path is None


def test_a_program_that_is_no_longer_root_is_recorded(program: Path, root: None) -> None:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("no setpriv (apt-get install util-linux)")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name in ("program", "libibverbs.so.1"):
            shutil.copy(program.parent / name, folder)
        ran = record(
            Path(folder) / "x",
            [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", f"{folder}/program", "never_polls"],
            env={"LD_LIBRARY_PATH": folder},
        )
    assert ran.returncode == 0
    assert len(ran.of("wr_posted")) == 100
    assert "ld.so" not in ran.stderr


def test_a_cache_that_cannot_be_written_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rocekit.record_build.packaged", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    built = interposer()
    assert built.parent.parent == tmp_path
    assert interposer() == look().path == built
