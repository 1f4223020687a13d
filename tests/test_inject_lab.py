"""The scenarios over the kernel's rxe: the packets on the wire are those that the journal says.

The kernel's driver, not this project, made the packets: where they agree with the journal, both are right.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import inject_inside
import pytest

from rocekit import lab
from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.journal import Event, Journal, merge, read_journal
from rocekit.wire import OPCODES, psns_of

pytestmark = pytest.mark.lab

INSIDE = Path(inject_inside.__file__)
PSNS = 1 << 24


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One boot for all of this file."""
    lacking = lab.missing()
    if lacking:
        pytest.skip(f"the lab is missing: {'; '.join(lacking)}")
    folder = tmp_path_factory.mktemp("inject") / "out"
    result = lab.run([sys.executable, str(INSIDE)], out=folder, timeout_s=1800)
    assert result.returncode == 0, result.log[-2000:]
    return folder


@pytest.fixture(scope="module")
def facts(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "facts.json").read_text())
    return found


@pytest.mark.parametrize("name", inject_inside.RUNS)
def test_a_scenario_runs_and_its_data_is_right(facts: dict[str, Any], name: str) -> None:
    assert "error" not in facts["runs"][name]
    plan, _ = inject_inside.RUNS[name]
    assert facts["runs"][name]["outcome"]["path_mtu"] == (plan.path_mtu or 4096)
    assert "\n0 packets dropped by kernel" in facts["runs"][name]["tcpdump"]


def journal_of(out: Path, name: str) -> Journal:
    journal = merge([read_journal(out / f"{name}.{role}.jsonl") for role in ("server", "client")])
    assert journal.problems == []
    return journal


Qp = tuple[int, tuple[str, int] | None]  # two processes may have the same QPN on two devices


def by_qp(events: list[Event]) -> dict[Qp, list[Event]]:
    found: dict[Qp, list[Event]] = defaultdict(list)
    for event in events:
        found[event.pid, event.qp].append(event)
    return found


@pytest.mark.parametrize("name", inject_inside.RUNS)
def test_every_request_has_its_completion(out: Path, name: str) -> None:
    journal = journal_of(out, name)
    polled = {(event.pid, event.qp, event["wr_id"]): event for event in journal.of("wc_polled")}
    assert {event["status"] for event in polled.values()} == {"SUCCESS"}
    for event in journal.of("wr_posted", "recv_posted"):
        if event.get("signaled", True):
            assert polled.pop((event.pid, event.qp, event["wr_id"])).time_ns >= event.time_ns
    assert polled == {}


@pytest.mark.parametrize("name", inject_inside.RUNS)
def test_the_psns_on_the_wire_are_those_that_the_journal_gives_by_arithmetic(out: Path, name: str) -> None:
    journal = journal_of(out, name)
    posted = by_qp(journal.of("wr_posted"))
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
    assert requests_seen(out / f"{name}.pcap") == expected


def requests_seen(pcap: Path) -> dict[tuple[str, int], set[int]]:
    """PSNs of request packets, by (source address, destination QPN)."""
    requests = {
        value
        for value, opcode in OPCODES.items()
        if opcode.transport == "RC" and opcode.operation in ("SEND", "WRITE", "READ", "FETCH_ADD", "CMP_SWAP")
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


def test_loss_was_there_and_was_recovered_from(out: Path) -> None:
    """The runs under loss saw what they are about: some PSN was sent more than once."""
    with open_capture(out / "blast-sr-loss.pcap") as reader:
        decoder = Decoder()
        psns = [
            (int(qpn), int(psn))
            for packets in map(decoder.decode, reader)
            for qpn, psn, length in zip(packets.dest_qpn, packets.psn, packets.payload_length, strict=True)
            if qpn > 1 and length
        ]
    assert len(psns) > len(set(psns))


@pytest.mark.parametrize("name", inject_inside.RUNS)
def test_cm_events_carry_the_qp_and_the_private_data_of_the_handshake(out: Path, name: str) -> None:
    plan, _ = inject_inside.RUNS[name]
    events = journal_of(out, name).of("cm_event")
    asked = [event for event in events if event["type"] == "CONNECT_REQUEST"]
    assert len(asked) == plan.qps
    assert all(bytes.fromhex(event["private_data"]).startswith(b"rcki") for event in asked)
    answered = [event for event in events if event["type"] == "CONNECT_RESPONSE"]
    assert len({event.qp for event in answered}) == plan.qps
    assert {event["status"] for event in events} == {0}


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
        ("server terminated", "server", 143, ""),
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
        assert "ping-sr, after " in line
    journal = read_journal(out / f"{ending.replace(' ', '-')}.{role}.jsonl")
    assert journal.problems == []
    assert journal.of("wc_polled")


def test_nothing_is_left_behind(facts: dict[str, Any]) -> None:
    assert facts["after"] == facts["before"]
