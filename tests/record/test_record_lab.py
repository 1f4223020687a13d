"""Claims about recording real programs on the kernel's rxe: nothing is missing, nothing is matched wrongly.

Programs that nobody here wrote (perftest, rdma-core's examples) and one on pyverbs run in the lab, both ends
recorded, their packets captured by tcpdump. What each had to do is the truth.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import lab_record_inside as inside
import pytest
from amount import EVERYTHING, lacks_more, needs_everything, or_skipped
from lab_boot import Boot, Part
from lab_forks import PRELOADED

from rocekit.analysis import Analysis, analyze
from rocekit.journal import Journal, read_journal
from rocekit.lab.jobs import load_manifest
from rocekit.record.build import look
from rocekit.wire.psn import MASK

SELECTION = (
    *("send", "write_list", "write_Q16", "read", "fetch_add", "send_ud", "send_srq", "write_cm"),
    *("ibv_srq_pingpong", "rping", "explained", "refused", "extended", "windows", "killed"),
)
"""What runs when more, but not everything, is asked for: each kind of call, QP and end at least once."""
CHOSEN = [job for job in inside.JOBS if EVERYTHING or job.name in SELECTION]
INSTALLED = [job for job in CHOSEN if shutil.which(job.truth["program"]) or job.truth["program"] == "pyverbs"]
TRUTH = {job.name: job.truth for job in CHOSEN}
PERFTEST = [name for name, truth in TRUTH.items() if "operation" in truth]
PINGPONGS = [name for name, truth in TRUTH.items() if name.endswith("_pingpong")]
LOADERS = [name for name in ("ucx", "libfabric") if name in TRUTH]
WHOLE = [name for name in TRUTH if name not in ("killed", "refused", *LOADERS)]


def obstacle() -> str | None:
    found = look()
    if found.path is None and not found.can_build:
        return f"{found.obstacle} (apt-get install {' '.join(found.packages)})"
    return lacks_more()


PART = Part(
    "record", (inside.__file__,), timeout_s=2400, jobs=tuple(INSTALLED), loads=PRELOADED, obstacle=obstacle
)
pytestmark = pytest.mark.lab(PART)


@pytest.fixture(scope="module")
def out(boot: Boot) -> Path:
    return boot.of(PART)


_ANALYSES: dict[str, Analysis] = {}


def journals(out: Path, name: str) -> dict[str, Journal]:
    """A job's journals by role."""
    return {
        role: read_journal(path)
        for role in ("client", "server")
        if (path := out / f"{name}.{role}.journal.jsonl").exists()
    }


def analysis(out: Path, name: str) -> Analysis:
    if name not in _ANALYSES:
        paths = [out / f"{name}.{role}.journal.jsonl" for role in journals(out, name)]
        _ANALYSES[name] = analyze(out / f"{name}.pcap", journals=paths)
    return _ANALYSES[name]


@pytest.mark.parametrize("name", WHOLE)
def test_programs_end_as_without_the_recorder(out: Path, name: str) -> None:
    entry = load_manifest(out)[name]
    assert entry["client_result"] == {"returncode": 0, "killed": False}
    assert entry["server_result"] in (None, {"returncode": 0, "killed": False})


@pytest.mark.parametrize("name", PERFTEST)
def test_perftest_posts_what_it_was_told_to(out: Path, name: str) -> None:
    truth = TRUTH[name]
    if "count" not in truth:
        pytest.skip("killed in the middle")
    found = journals(out, name)
    operations = {"WRITE": "RDMA_WRITE", "READ": "RDMA_READ", "SEND": "SEND"}
    atomics = {"FETCH_ADD": "ATOMIC_FETCH_AND_ADD", "CMP_SWAP": "ATOMIC_CMP_AND_SWP"}
    opcode = (operations | atomics)[truth["operation"]]
    posted = [
        e for e in found["client"].of("wr_posted") if e["opcode"] == opcode and e["length"] == truth["bytes"]
    ]
    assert len(posted) == truth["count"]
    assert not found["client"].of("records_lost")
    both_send = truth["program"].endswith("_lat") and truth["operation"] == "SEND"
    of_server = [
        e for e in found["server"].of("wr_posted") if e["opcode"] == opcode and e["length"] == truth["bytes"]
    ]
    assert len(of_server) == (truth["count"] if both_send else 0)
    if truth["operation"] == "SEND":
        received = [c for c in found["server"].of("wc_polled") if c.get("opcode") == "RECV"]
        header = 40 if truth["transport"] == "UD" else 0
        assert [c["byte_len"] for c in received] == [truth["bytes"] + header] * truth["count"]


@pytest.mark.parametrize("name", PERFTEST)
def test_the_last_of_the_signaled_completes(out: Path, name: str) -> None:
    truth = TRUTH[name]
    if "count" not in truth:
        pytest.skip("killed in the middle")
    posted = journals(out, name)["client"].of("wr_posted")
    completed = [c for c in journals(out, name)["client"].of("wc_polled") if c.get("opcode") not in ("RECV",)]
    assert len(completed) == sum(e["signaled"] for e in posted)
    assert {c["status"] for c in completed} == {"SUCCESS"}
    expected = {"write_list": 40 // 8, "write_Q16": 64 // 16}
    if name in expected:
        assert len(completed) == expected[name]


@pytest.mark.parametrize("name", PINGPONGS)
def test_ping_pongs_send_and_receive_alike(out: Path, name: str) -> None:
    truth = TRUTH[name]
    found = journals(out, name)
    for journal in found.values():
        posted, polled = journal.of("wr_posted"), journal.of("wc_polled")
        # The SRQ ping-pong runs on until all its QPs have come to the end of their turn.
        if name == "ibv_srq_pingpong":
            assert truth["count"] <= len(posted) < truth["count"] + 4
        else:
            assert len(posted) == truth["count"]
        counted = Counter(c["opcode"] for c in polled)
        if name == "ibv_srq_pingpong":
            # It leaves as soon as it has counted enough of both; what else is under way it never polls.
            assert all(truth["count"] <= counted[kind] for kind in ("SEND", "RECV"))
            assert counted["SEND"] <= len(posted)
        else:
            assert counted == {"SEND": len(posted), "RECV": len(posted)}
        assert {e["length"] for e in posted} == {truth["bytes"]}


def test_rping_does_what_its_manual_says(out: Path) -> None:
    rping = journals(out, "rping")
    # A turn: the client names its buffer twice; the server reads it, says so, writes it, says so.
    assert Counter(e["opcode"] for e in rping["client"].of("wr_posted")) == {"SEND": 10}
    assert Counter(e["opcode"] for e in rping["server"].of("wr_posted")) == {
        "SEND": 10,
        "RDMA_READ": 5,
        "RDMA_WRITE": 5,
    }
    # The client may end before it is told that its own disconnect is done; it says whether it was told.
    told = ["DISCONNECTED"] * ("client DISCONNECT EVENT" in (out / "rping.client.txt").read_text())
    assert [e["type"] for e in rping["client"].of("cm_event")] == [
        "ADDR_RESOLVED",
        "ROUTE_RESOLVED",
        "ESTABLISHED",
        *told,
    ]
    assert [e["type"] for e in rping["server"].of("cm_event")] == [
        "CONNECT_REQUEST",
        "ESTABLISHED",
        "DISCONNECTED",
    ]
    assert {e["call"] for e in rping["client"].of("cm_called")} == {"CONNECT", "DISCONNECT"}


def test_ucmatose_does_what_its_manual_says(out: Path) -> None:
    if "ucmatose" not in TRUTH:
        needs_everything()
    ucmatose = journals(out, "ucmatose")
    for journal in ucmatose.values():
        assert [e["length"] for e in journal.of("wr_posted")] == [100] * 6
        assert len({e.qp for e in journal.of("wr_posted")}) == 2
    assert Counter(e["type"] for e in ucmatose["client"].of("cm_event"))["ESTABLISHED"] == 2


def test_a_refused_connection_tells_its_reason(out: Path) -> None:
    events = journals(out, "refused")["client"].of("cm_event")
    assert events[-1]["type"] == "REJECTED"
    assert events[-1]["status"] == 8  # no listener on that service ID


def test_the_kernels_connection_manager_is_in_the_same_journal(out: Path) -> None:
    told = {e.get("event_type") for e in journals(out, "rping")["client"].of("kernel_cm")}
    assert {"ADDR_RESOLVED", "ROUTE_RESOLVED", "ESTABLISHED"} <= told
    events = journals(out, "refused")["client"].of("kernel_cm")
    assert "icm_no_listener_err" in {e["type"] for e in events}
    (rejected,) = [e for e in events if e.get("event_type") == "REJECTED"]
    assert rejected["status"] == 8
    (seen,) = [e for e in journals(out, "refused")["client"].of("cm_event") if e["type"] == "REJECTED"]
    assert (rejected["local_port"], rejected["remote_port"]) == (seen["local_port"], seen["remote_port"])


def test_transfers_are_explained_when_the_program_ends(out: Path) -> None:
    said = (out / "explained.client.txt").read_text()
    assert "5 transfers: 5 acked" in said
    assert "RDMA_WRITE, 1 SGE" in said
    assert "WC " in said
    journal = out / "explained.client.journal.jsonl"
    found = analyze(out / "explained.client.pcapng", journals=[journal])
    assert [t.wr.matched_by for t in found.transfers if t.wr] == ["psn"] * 5


@pytest.mark.parametrize("name", or_skipped(LOADERS))
def test_what_loads_libibverbs_at_run_time_is_recorded(out: Path, name: str) -> None:
    truth = TRUTH[name]
    if name not in load_manifest(out):
        pytest.skip(f"no {truth['program']} (apt-get install ucx-utils libfabric-bin)")
    found = analysis(out, name)
    # What these libraries post for a message, and over which transport, is theirs: the wire is the truth.
    posted = 0
    for journal in journals(out, name).values():
        assert not journal.of("records_lost", "not_recorded")
        posted += len(journal.of("wr_posted"))
    assert posted == len(found.transfers) > truth["count"]
    for transfer in found.transfers:
        assert transfer.wr is not None
        assert transfer.wr.length == transfer.bytes
        if transfer.connection.transport == "RC":
            assert transfer.wr.recorded_psn == transfer.first_psn & MASK


def test_the_extended_calls_are_seen(out: Path) -> None:
    journal = journals(out, "extended")["client"]
    posted = journal.of("wr_posted")
    assert [(e["wr_id"], e["opcode"], e["length"], e["signaled"]) for e in posted] == [
        (10 * turn + k, opcode, length, k == 3)
        for turn in range(5)
        for k, (opcode, length) in enumerate(
            [("RDMA_WRITE", 3000), ("RDMA_READ", 2500), ("ATOMIC_FETCH_AND_ADD", 8), ("SEND_WITH_IMM", 40)]
        )
    ]
    assert Counter(c["opcode"] for c in journal.of("wc_polled")) == {"SEND": 5, "RECV": 5}
    assert [e["imm"] for e in posted if e["opcode"] == "SEND_WITH_IMM"] == list(range(5))
    assert [c["imm"] for c in journal.of("wc_polled") if c["opcode"] == "RECV"] == list(range(5))


def test_windows_are_told_as_the_peer_uses_them(out: Path) -> None:
    journal = journals(out, "windows")["client"]
    (region,) = [e for e in journal.of("mr_registered") if "MW_BIND" in e["access"]]
    assert [(e["wr_id"], e["opcode"], e["length"]) for e in journal.of("wr_posted")] == [
        *((n, "BIND_MW", 4096) for n in (1, 2, 3)),
        *((n, "RDMA_WRITE", 100) for n in (11, 12, 13)),
    ]
    assert [(e["wr_id"], e["addr"] - region["addr"], e["length"]) for e in journal.of("mw_bound")] == [
        (1, 0, 4096),
        (2, 4096, 4096),
        (3, 8192, 4096),
    ]
    assert {(e["mr_lkey"], e["mr_rkey"]) for e in journal.of("mw_bound")} == {
        (region["lkey"], region["rkey"])
    }
    # The device granted the peer what the key was told to grant.
    written = [e["rkey"] for e in journal.of("wr_posted") if e["opcode"] == "RDMA_WRITE"]
    assert [e["rkey"] for e in journal.of("mw_bound")] == written
    assert len({*written}) == 3
    assert [(e["wr_id"], e["status"]) for e in journal.of("wc_polled")] == [
        (n, "SUCCESS") for n in (1, 2, 3, 11, 12, 13)
    ]


@pytest.mark.parametrize("name", WHOLE)
def test_every_transfer_has_its_request_and_its_completion(out: Path, name: str) -> None:
    found = analysis(out, name)
    assert found.transfers
    for transfer in found.transfers:
        assert transfer.wr is not None, transfer
        assert transfer.wr.matched_by == "psn"
    told = [t.wr.completion.status for t in found.transfers if t.wr and t.wr.completion]
    # ucmatose's client sends last, three times on two connections, and leaves without polling; an end
    # of the SRQ ping-pong leaves when it has counted enough.
    left = len(found.transfers) - len(told)
    assert set(told) == {"SUCCESS"}
    assert left <= 6 if name == "ibv_srq_pingpong" else left == (6 if name == "ucmatose" else 0)
    assert found.journal is not None
    assert found.journal.unmatched == []


@pytest.mark.parametrize("name", WHOLE)
def test_none_is_matched_wrongly(out: Path, name: str) -> None:
    """The PSN that the recorder counted up to is the PSN on the wire, and order is kept."""
    found = analysis(out, name)
    for transfer in found.transfers:
        assert transfer.wr is not None
        assert transfer.wr.recorded_psn == transfer.first_psn & MASK
        assert transfer.wr.qp.qpn == transfer.connection.qpns[transfer.side]
    for connection in found.connections:
        for side in (0, 1):
            mine = [t for t in found.transfers if t.connection is connection and t.side == side and t.wr]
            posted = [t.wr.posted_ns for t in sorted(mine, key=lambda t: t.first_psn) if t.wr]
            assert posted == sorted(posted)


@pytest.mark.parametrize("name", [n for n in WHOLE if TRUTH[n].get("operation") == "SEND" or n in PINGPONGS])
def test_what_arrived_is_told_by_the_receiver(out: Path, name: str) -> None:
    found = analysis(out, name)
    untold = [t for t in found.transfers if t.operation == "SEND" and t.recv_wc is None]
    # As above: who has counted enough leaves with receives that it never polls for.
    assert len(untold) <= (6 if name == "ibv_srq_pingpong" else 0)


def test_a_killed_program_s_journal_is_whole_until_then(out: Path) -> None:
    found = analysis(out, "killed")
    assert found.journal is not None
    assert not found.journal_problems
    client = journals(out, "killed")["client"]
    posted = client.of("wr_posted")
    assert {e["length"] for e in posted} == {TRUTH["killed"]["bytes"]}
    matched = [t for t in found.transfers if t.wr is not None]
    # What the wire showed had been posted, and was written down before.
    assert len(matched) >= len(found.transfers) - 1
    assert all(t.wr is not None and t.wr.recorded_psn == t.first_psn & MASK for t in matched)
