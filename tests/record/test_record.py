"""Claims about recording: what a program did is in the journal, all of it.

The programs are those of ``stub/program.c`` on a device that needs no kernel; each claim is what the
program's source says it does.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from recorded import run, sends

from rocekit.journal.work_requests import read_programs
from rocekit.record.build import SOURCES, compiler, interposer
from rocekit.record.built import FLAGS


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
            timeout=240,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert list((tmp_path / what).glob("*.ring"))


def test_a_device_opened_again_is_a_device_of_its_own(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "opens_and_closes")
    assert sends(ran) == list(range(20))
    assert len(ran.of("device_opened")) == 20
    assert {event.qp[0] for event in ran.of("wr_posted") if event.qp} == {"stub0"}
