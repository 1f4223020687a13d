"""The scenarios over the kernel's rxe: the packets on the wire are those that the journal says.

The kernel's driver, not this project, made the packets: where they agree with the journal, both are right.
"""

from __future__ import annotations

import contextlib
import json
import struct
import tarfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import inject_inside
import pytest
from amount import needs_more, or_skipped
from lab_boot import PROCESSORS, Boot, Part
from lab_forks import PRELOADED

from rocekit.analysis import Analysis, analyze
from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.endpoint.waiting import CM_WAYS, CQ_WAYS
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.journal import Journal, JournalEvent, merge, read_journal
from rocekit.wire import OPCODES, psns_of

PART = Part("inject", (inject_inside.__file__,), timeout_s=1800, loads=PRELOADED)
pytestmark = pytest.mark.lab(PART)

PSNS = 1 << 24


@pytest.fixture(scope="module")
def out(boot: Boot) -> Path:
    """Each run's capture and journals as files of their own."""
    return unpacked(boot.of(PART))


def unpacked(folder: Path) -> Path:
    with tarfile.open(folder / "journals.tar") as tar:
        for member in tar:
            journal = tar.extractfile(member)
            assert journal is not None
            (folder / Path(member.name).name).write_bytes(journal.read())
    split_capture(folder)
    return folder


def split_capture(folder: Path) -> None:
    """Give each run the frames of its time."""
    facts = json.loads((folder / "facts.json").read_text())
    spans = {name: fact["span_ns"] for name, fact in {**facts["runs"], "failures": facts["failures"]}.items()}
    with contextlib.ExitStack() as stack:
        writers = {name: stack.enter_context(PcapngWriter(folder / f"{name}.pcapng")) for name in spans}
        reader = stack.enter_context(open_capture(folder / "all.pcap"))
        for batch in reader:
            for at, length, time_ns in zip(batch.offset, batch.caplen, batch.time_ns, strict=True):
                for name, (first, last) in spans.items():
                    if first <= time_ns <= last:
                        writers[name].write(batch.buffer[at : at + length].tobytes(), int(time_ns))


@pytest.fixture(scope="module")
def facts(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "facts.json").read_text())
    return found


UNRELIABLE = ("ud", "uc")
LOSSY = [name for name, (_, more) in inject_inside.RUNS.items() if "lossy" in more]
CONNECTED_BY_CM = [
    name
    for name, (plan, more) in inject_inside.RUNS.items()
    if plan.scenario not in UNRELIABLE and not more.get("tcp")
]


def test_the_capture_is_whole(facts: dict[str, Any]) -> None:
    assert "\n0 packets dropped by kernel" in facts["tcpdump"]


@pytest.mark.parametrize("name", inject_inside.RUNS)
def test_a_scenario_runs_and_its_data_is_right(facts: dict[str, Any], name: str) -> None:
    assert "error" not in facts["runs"][name]
    plan, _ = inject_inside.RUNS[name]
    assert facts["runs"][name]["outcome"]["path_mtu"] == (plan.path_mtu or 4096)


def journal_of(out: Path, name: str) -> Journal:
    journal = merge([read_journal(out / f"{name}.{role}.jsonl") for role in ("server", "client")])
    assert journal.problems == []
    return journal


@cache
def analyzed(out: Path, name: str) -> Analysis:
    return analyze(
        out / f"{name}.pcapng", journals=[out / f"{name}.{role}.jsonl" for role in ("server", "client")]
    )


Qp = tuple[int, tuple[str, int] | None]  # two processes may have the same QPN on two devices


def by_qp(events: list[JournalEvent]) -> dict[Qp, list[JournalEvent]]:
    found: dict[Qp, list[JournalEvent]] = defaultdict(list)
    for event in events:
        found[event.pid, event.qp].append(event)
    return found


@pytest.mark.parametrize("name", inject_inside.RUNS)
def test_every_request_has_its_completion(out: Path, name: str) -> None:
    journal = journal_of(out, name)
    polled = {(event.pid, event.qp, event["wr_id"]): event for event in journal.of("wc_polled")}
    scenario = inject_inside.RUNS[name][0].scenario
    for event in journal.of("wr_posted", "recv_posted"):
        if event.get("signaled", True) and event.qp is not None and not event.get("errno"):
            done = polled.pop((event.pid, event.qp, event["wr_id"]))
            assert done.time_ns >= event.time_ns
            spare = event.event == "recv_posted" and scenario in UNRELIABLE
            assert done["status"] in (("SUCCESS", "WR_FLUSH_ERR") if spare else ("SUCCESS",))
    # What a shared queue's receives took has the QP that it came for, and its own number.
    assert {event["opcode"] for event in polled.values()} == ({"RECV"} if scenario == "srq" else set())


@pytest.mark.parametrize("name", [name for name in inject_inside.RUNS if not name.startswith("ud")])
def test_the_psns_on_the_wire_are_those_that_the_journal_gives_by_arithmetic(out: Path, name: str) -> None:
    journal = journal_of(out, name)
    posted = by_qp([event for event in journal.of("wr_posted") if not event.get("errno")])
    expected: dict[tuple[str, int], set[int]] = {}
    for qp, events in by_qp(journal.of("qp_modified")).items():
        told: dict[str, Any] = {}
        for event in events:
            told |= event.fields
        psn, psns = told["sq_psn"], set()
        for wr in posted.get(qp, []):
            count = 1 if wr["opcode"].startswith("ATOMIC") else psns_of(wr["length"], told["path_mtu"])
            # A READ's request is one packet; its responses take the PSNs behind it.
            psns |= {psn} if wr["opcode"] == "RDMA_READ" else {(psn + i) % PSNS for i in range(count)}
            psn = (psn + count) % PSNS
        if psns:
            expected[told["local_ip"], told["dest_qpn"]] = psns
    # Losses are behind the capture: it has every packet, and every repeat.
    assert requests_seen(out / f"{name}.pcapng") == expected


def requests_seen(pcap: Path) -> dict[tuple[str, int], set[int]]:
    """PSNs of request packets, by (source address, destination QPN)."""
    requests = {
        value
        for value, opcode in OPCODES.items()
        if opcode.transport in ("RC", "UC")
        and opcode.operation in ("SEND", "WRITE", "READ", "FETCH_ADD", "CMP_SWAP")
    }
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    with open_capture(pcap) as reader:
        decoder = Decoder()
        for batch in reader:
            packets = decoder.decode(batch)
            for src, qpn, opcode, psn in zip(
                packets.src, packets.dest_qpn, packets.opcode, packets.psn, strict=True
            ):
                if qpn > 1 and int(opcode) in requests:
                    found[packets.addresses[src], int(qpn)].add(int(psn))
    return dict(found)


@pytest.mark.parametrize("name", inject_inside.RUNS)
def test_every_request_is_explained(out: Path, name: str) -> None:
    """Each transfer stands beside its WR, and each WR beside its transfer, whatever was lost."""
    analysis = analyzed(out, name)
    assert analysis.journal is not None
    unreliable = inject_inside.RUNS[name][0].scenario in UNRELIABLE
    assert {t.status for t in analysis.transfers} <= ({"sent", "incomplete"} if unreliable else {"acked"})
    for transfer in analysis.transfers:
        assert transfer.wr is not None
        assert analysis.explain(transfer).verdict
    if not (unreliable and name in LOSSY):
        assert all(wr.refused for wr in analysis.journal.unmatched)
    assert analysis.capture.counts.bad_icrc == 0


@pytest.mark.parametrize("name", or_skipped(LOSSY))
def test_loss_was_there_and_was_recovered_from(out: Path, facts: dict[str, Any], name: str) -> None:
    """What is reliable was sent again; of what is not, the program missed something."""
    if inject_inside.RUNS[name][0].scenario in UNRELIABLE:
        round_trips, *writes = facts["runs"][name]["outcome"]["notes"]
        assert not round_trips.startswith("0 of ") or not writes[0].startswith("0 ")
    else:
        assert sum(c.retransmitted_packets for c in analyzed(out, name).connections) > 0


@pytest.mark.parametrize("name", CONNECTED_BY_CM)
def test_cm_events_carry_the_qp_and_the_private_data_of_the_handshake(out: Path, name: str) -> None:
    plan, _ = inject_inside.RUNS[name]
    events = journal_of(out, name).of("cm_event")
    asked = [event for event in events if event["type"] == "CONNECT_REQUEST"]
    assert len(asked) == plan.qps
    count_and_size = struct.pack(">II", plan.iterations, plan.size)
    told = dict.fromkeys([f"ping-sr-{n}" for n in range(1, 5)], count_and_size) | {"ping-sr-0": b""}
    data = told.get(plan.scenario, b"rcki")
    assert all(bytes.fromhex(event.get("private_data") or "").startswith(data) for event in asked)
    answered = [event for event in events if event["type"] == "CONNECT_RESPONSE"]
    assert len({event.qp for event in answered}) == plan.qps
    assert {event["status"] for event in events} == {0}


@pytest.mark.parametrize("name", ["uc", "ping-sr-tcp", "atomic-tcp"])
def test_qps_that_met_over_tcp_are_paired_by_what_they_said_there(out: Path, name: str) -> None:
    plan, _ = inject_inside.RUNS[name]
    analysis = analyze(out / f"{name}.pcapng", journals=[])
    assert [c.paired_by for c in analysis.connections] == ["handshake"] * plan.qps
    assert not analysis.cm


@pytest.mark.parametrize(("cm", "cq"), inject_inside.EVERY_WAY)
def test_each_way_of_waiting_is_measured(facts: dict[str, Any], cm: str, cq: str) -> None:
    if (cm, cq) not in inject_inside.WAYS:
        needs_more()
    outcome = facts["runs"][f"ping-sr-{cm}-{cq}"]["outcome"]
    assert (outcome["cm"], outcome["cq"]) == (cm, cq)
    assert 0 < outcome["t_min_us"] <= outcome["t_typical_us"] <= outcome["t_max_us"]
    assert outcome["cpu_percent"] > 0


@pytest.mark.parametrize("cm", CM_WAYS)
def test_who_sleeps_for_completions_saves_cpu(facts: dict[str, Any], cm: str) -> None:
    if PROCESSORS < 2 or any((cm, cq) not in inject_inside.WAYS for cq in CQ_WAYS):
        needs_more()  # on one processor two programs that poll take half of it each
    busy, *asleep = (facts["runs"][f"ping-sr-{cm}-{cq}"]["outcome"]["cpu_percent"] for cq in CQ_WAYS)
    assert max(asleep) < busy


def test_sends_complete_on_an_extended_cq_one_turn_a_completion(facts: dict[str, Any]) -> None:
    """``most`` bounds what one poll takes; nothing is lost, doubled or out of order."""
    fact = facts["extended"]
    assert not fact["walks"]
    assert fact["one by one"] == [
        [[fact["qpn"], wr_id, "SUCCESS", "RDMA_WRITE", None] for wr_id in wr_ids]
        for wr_ids in ((1, 2, 3, 4), (5, 6), ())
    ]
    assert [found[1:4] for found in fact["failed"][0]] == [
        [12, "REM_ACCESS_ERR", None],
        [13, "WR_FLUSH_ERR", None],
    ]


def test_an_extended_cq_does_without_timestamps(facts: dict[str, Any]) -> None:
    told = facts["runs"]["cq-ex"]["outcome"]["notes"]
    assert told == ["sends completed on an extended CQ, without timestamps"]


def test_several_completions_are_walked_through_in_one_turn(facts: dict[str, Any]) -> None:
    walked, after = facts["extended"]["walked"]
    assert [found[1:4] for found in walked] == [[wr_id, "SUCCESS", "RDMA_WRITE"] for wr_id in range(7, 12)]
    assert after == []


def test_a_client_that_leaves_before_its_rtu_is_heard_was_connected(facts: dict[str, Any]) -> None:
    told = facts["quick to leave"]
    assert told == {
        "said": "as you like",
        "disconnected": True,
        "heard": ["CONNECT_REQUEST", "DISCONNECTED"],
    }


def test_failures_tells_what_the_device_says_to_each_mistake(facts: dict[str, Any]) -> None:
    assert "error" not in facts["failures"], facts["failures"]["error"]
    told = {row["name"]: row for row in facts["failures"]["outcome"]["provoked"]}
    seen = {name for name, row in told.items() if row["seen_by"]}
    assert seen >= {
        *("SUCCESS", "LOC_QP_OP_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR", "REM_ACCESS_ERR"),
        *("REM_OP_ERR", "REM_INV_REQ_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR"),
        *("ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "CONNECT_REQUEST", "CONNECT_RESPONSE"),
        *("REJECTED", "ESTABLISHED", "DISCONNECTED", "MULTICAST_JOIN"),
    }
    assert all(row["how"] for name, row in told.items() if name not in seen)
    # What is an invalid request to others, rxe refuses before it is sent, or cannot carry out.
    assert told["REM_INV_REQ_ERR"]["how"].startswith("a READ on a QP that was made ready without REMOTE_READ")
    for said in ("receive of 8; the device reports REM_OP_ERR", "no multiple of 8; the device reports"):
        assert said in told["REM_INV_REQ_ERR"]["how"]


def test_devices_tells_what_the_lab_has(facts: dict[str, Any]) -> None:
    devices = facts["devices"]["devices"]
    assert [device["name"] for device in devices] == ["rxe0", "rxe1"]
    (port,) = devices[0]["ports"]
    assert (port["state"], port["active_mtu"], port["max_mtu"]) == ("ACTIVE", 4096, 4096)
    assert port["gids"][1] | {"type": "RoCE v2", "ip": "10.9.0.1", "netdev": "va"} == port["gids"][1]
    assert devices[0]["limits"]["max_qp"] > 0
    assert devices[0]["limits"]["max_qp_rd_atom"] > 0


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("no listener", "10.9.0.2 port 18515 rejected the connection"),
        ("wrong GID index", "no GID index 77 (-x); there is"),
        ("no client", "nobody asked to connect within 1 s"),
        ("port taken", "port 18515 of 10.9.0.2 is taken"),
        ("other scenario", "this server does ping-sr, not ping-read"),
        ("other scenario, server", "this server does ping-sr, not ping-read"),
        ("MTU too large", "MTU 4096 (-m) is above the 1024 of rxe0 port 1"),
        ("no timestamps", "cannot create an extended CQ with completion timestamps: ENOTSUP"),
        ("no device memory", "cannot allocate 4096 bytes of device memory: Device doesn't support dm"),
        ("no TCP listener", "no TCP connection to 10.9.0.2 port 18515: Connection refused; is its server"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(facts: dict[str, Any], mistake: str, said: str) -> None:
    fact = facts["mistakes"][mistake]
    *before, line = fact["stderr"].splitlines()
    assert said in line
    assert line.startswith("rocekit: error: ")
    assert not [text for text in before if not text.startswith("listening on")]
    assert (fact["returncode"], fact["stdout"]) == (1, "")


@pytest.mark.parametrize(
    ("ending", "role", "status", "said"),
    [
        ("server killed", "client", 1, "disconnected"),
        ("server terminated", "client", 1, "disconnected"),
        ("server terminated", "server", 1, "ended by SIGTERM"),
        ("client interrupted", "client", 130, ""),
        ("client interrupted", "server", 1, "disconnected"),
        ("wire cut", "client", 1, "RETRY_EXC_ERR"),
    ],
)
def test_an_end_in_the_middle_is_told_and_the_journal_is_kept(
    out: Path, facts: dict[str, Any], ending: str, role: str, status: int, said: str
) -> None:
    fact = facts["interrupted"][ending]
    assert fact["began"]
    assert "Traceback" not in fact[role]["stderr"]
    assert fact[role]["returncode"] == status
    if said:
        line = fact[role]["stderr"].splitlines()[-1]
        assert said in line
        scenario = inject_inside.CUT_SCENARIO if ending == "wire cut" else "ping-sr"
        assert f"{scenario}, after " in line or said == "ended by SIGTERM"
    journal = read_journal(out / f"{ending.replace(' ', '-')}.{role}.jsonl")
    assert journal.problems == []
    assert journal.of("wc_polled")


def test_nothing_is_left_behind(facts: dict[str, Any]) -> None:
    assert facts["after"] == facts["before"]


def test_no_context_is_left_open(facts: dict[str, Any]) -> None:
    """librdmacm keeps one of each device that it has used until its process ends, with the channel of its
    events; it is the same for every run of a process, and every client here is on rxe0."""
    assert facts["contexts before"] == {"own": {}, "others": {}, "open": {}}
    assert facts["contexts after"] == {
        "own": {"rxe0": 1},
        "others": {},
        "open": {"/dev/infiniband/uverbs0": 1, "anon_inode:[infinibandevent]": 1},
    }
