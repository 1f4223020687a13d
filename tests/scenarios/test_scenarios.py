"""Every scenario over soft devices: clean and with one packet lost, each work request explained."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soft_pair import talk

from rocekit.analysis import Analysis, analyze
from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.endpoint import QpOptions, WaitWays
from rocekit.endpoint.qp_address import QpAddress
from rocekit.endpoint.tcp_introduction import read_message, write_message
from rocekit.endpoint.waiting import CM_WAYS, CQ_WAYS
from rocekit.journal import read_journal
from rocekit.scenarios import SCENARIOS
from rocekit.scenarios.scenario import Plan
from rocekit.soft.wires.faults import Fault
from rocekit.track.pairs.handshake import parse_offer

#: What each scenario is told to do, and what its transfers must be: (operation, bytes): how many.
TOLD: dict[str, tuple[Plan, dict[tuple[str, int], int]]] = {
    "ping-sr": (Plan("ping-sr", 3000, 5, qps=2), {("SEND", 3000): 20}),
    **{f"ping-sr-{n}": (Plan(f"ping-sr-{n}", 3000, 5), {("SEND", 3000): 10}) for n in range(5)},
    "blast-sr": (Plan("blast-sr", 3000, 12, qps=2, window=4, cq_mod=3), {("SEND", 3000): 24}),
    "ping-write": (Plan("ping-write", 3000, 5, qps=2), {("WRITE", 3000): 20}),
    "ping-read": (Plan("ping-read", 3000, 5, qps=2), {("READ", 3000): 10}),
    "atomic": (Plan("atomic", 8, 5, qps=2), {("FETCH_ADD", 8): 10}),
    "blast-write": (Plan("blast-write", 3000, 12, window=4, post_list=2), {("WRITE", 3000): 12}),
    "blast-read": (Plan("blast-read", 3000, 12, window=4), {("READ", 3000): 12}),
    "ud": (Plan("ud", 1000, 6), {("SEND", 1000): 12}),
    "uc": (Plan("uc", 3000, 5), {("WRITE", 3000): 10, ("SEND", 12): 10}),
    "immediate": (Plan("immediate", 3000, 5), {("SEND", 3000): 6, ("WRITE", 3000): 4}),
    "invalidate": (Plan("invalidate", 3000, 5), {("SEND", 12): 5, ("WRITE", 3000): 5, ("SEND", 8): 5}),
    "sge": (Plan("sge", 3000, 3), {("SEND", 16 + n): 2 for n in (3000, 2963, 2926)}),
    "wr-list": (Plan("wr-list", 3000, 8), {("SEND", 3000): 8}),
    "srq": (Plan("srq", 3000, 6, qps=3, window=4, receives=9), {("SEND", 3000): 18}),
    "cq-ex": (Plan("cq-ex", 3000, 5), {("SEND", 3000): 10}),
    "device-memory": (Plan("device-memory", 3000, 5), {("WRITE", 3000): 4, ("READ", 3000): 5}),
}
UNRELIABLE = ("ud", "uc")
PATIENT = QpOptions(timeout=18)
"""On a busy machine an acknowledgement may take longer than the usual 67 ms."""
QUICK = QpOptions(timeout=14)
"""Lost packets come again after 67 ms. Less, and a busy machine runs out of retries."""
QUICK_NS = 4096 << QUICK.timeout
LOST = Fault("drop", qpn=1, psn=4)


@pytest.fixture
def ips() -> tuple[str, str]:
    """Two addresses that no other test run has."""
    n = os.getpid() % 60_000
    return f"127.{n >> 8}.{n & 0xFF}.4", f"127.{n >> 8}.{n & 0xFF}.5"


def analyzed(tmp_path: Path) -> Analysis:
    journals = [tmp_path / f"{role}.journal.jsonl" for role in ("client", "server")]
    return analyze(tmp_path / "x.pcapng", journals=journals)


def assert_explained(analysis: Analysis, expected: dict[tuple[str, int], int]) -> None:
    """Each transfer stands beside its work request, and each work request beside its transfer."""
    assert Counter((t.operation, t.bytes) for t in analysis.transfers) == expected
    assert {t.status for t in analysis.transfers} <= {"acked", "sent"}
    assert analysis.journal is not None
    assert not analysis.journal_problems
    # The device refused it, so it is no wonder that it was not seen.
    assert all(wr.refused for wr in analysis.journal.unmatched)
    for transfer in analysis.transfers:
        assert transfer.wr is not None
        assert analysis.explain(transfer).verdict


def test_every_scenario_is_told_here_what_to_do() -> None:
    assert set(TOLD) | {"failures"} == set(SCENARIOS)


@pytest.mark.parametrize("name", TOLD)
def test_a_scenario_runs_and_every_wr_is_explained(name: str, tmp_path: Path, ips: tuple[str, str]) -> None:
    plan, expected = TOLD[name]
    outcome = talk(plan, tmp_path, server_ip=ips[0], client_ip=ips[1], qp=PATIENT)
    assert outcome.samples is not None
    analysis = analyzed(tmp_path)
    assert_explained(analysis, expected)
    assert analysis.capture.counts.bad_icrc == 0
    told = {f.rule for f in analysis.findings if f.severity in ("warning", "error")}
    # Where a server is slow to give its buffers back, three QPs may find none, and ask again.
    assert told <= ({"rnr"} if name == "srq" else set())


@pytest.mark.parametrize("name", TOLD)
def test_a_scenario_survives_a_lost_packet(name: str, tmp_path: Path, ips: tuple[str, str]) -> None:
    plan, expected = TOLD[name]
    outcome = talk(plan, tmp_path, server_ip=ips[0], client_ip=ips[1], faults=(LOST,), qp=QUICK)
    analysis = analyzed(tmp_path)
    if name in UNRELIABLE:
        whole = plan.iterations * plan.qps
        assert outcome.notes[0] == f"1 of {whole} round trips were lost"
        assert {t.status for t in analysis.transfers} == {"sent"}
        assert all(t.wr is not None for t in analysis.transfers)
        return
    assert_explained(analysis, expected)
    assert sum(c.retransmitted_packets for c in analysis.connections) > 0
    first_ns, again_ns, *_ = transmissions(tmp_path)
    # Unless the receiver asked, nothing is sent again before the local ACK timeout (9.7.6.1.3).
    assert any(c.naks for c in analysis.connections) or again_ns - first_ns >= QUICK_NS


def test_a_server_whose_last_acknowledgement_is_lost_gets_it_before_the_client_goes(
    tmp_path: Path, ips: tuple[str, str]
) -> None:
    """The client is done once its own requests are acknowledged; the server's last one was not."""
    lost = Fault("drop", qpn=1, psn=1, of="ack", sender="server")
    talk(Plan("invalidate", 3000, 1), tmp_path, server_ip=ips[0], client_ip=ips[1], faults=(lost,), qp=QUICK)
    analysis = analyzed(tmp_path)
    assert_explained(analysis, {("SEND", 12): 1, ("WRITE", 3000): 1, ("SEND", 8): 1})
    assert [t.operation for t in analysis.transfers if t.retransmitted_packets] == ["SEND"]


def transmissions(tmp_path: Path) -> list[int]:
    """When the packet was sent that LOST names, each time; nanoseconds."""
    told: dict[str, int] = {}
    for event in read_journal(tmp_path / "client.journal.jsonl").of("qp_modified"):
        for key in ("dest_qpn", "sq_psn"):
            if event.get(key) is not None:
                told.setdefault(key, event[key])
    psn = (told["sq_psn"] + 3) % (1 << 24)
    found: list[int] = []
    with open_capture(tmp_path / "x.pcapng") as reader:
        decoder = Decoder()
        for batch in reader:
            packets = decoder.decode(batch)
            hit = (packets.dest_qpn == told["dest_qpn"]) & (packets.psn == psn)
            found += [int(time_ns) for time_ns in packets.time_ns[hit]]
    return found


@pytest.mark.parametrize(("cm", "cq"), list(itertools.product(CM_WAYS, CQ_WAYS)))
def test_a_ping_pong_comes_back_whatever_its_way_of_waiting(
    cm: str, cq: str, tmp_path: Path, ips: tuple[str, str]
) -> None:
    plan = Plan("ping-sr", 64, 5)
    outcome = talk(plan, tmp_path, server_ip=ips[0], client_ip=ips[1], ways=WaitWays(cm, cq))
    assert outcome.ways == WaitWays(cm, cq)
    assert outcome.cpu_percent is not None


def test_an_extended_cq_does_without_timestamps(tmp_path: Path, ips: tuple[str, str]) -> None:
    plan, expected = TOLD["cq-ex"]
    outcome = talk(plan, tmp_path, server_ip=ips[0], client_ip=ips[1], qp=PATIENT, timestamps=False)
    assert outcome.notes == ("sends completed on an extended CQ, without timestamps",)
    assert_explained(analyzed(tmp_path), expected)


def test_a_lost_packet_of_an_unreliable_write_takes_the_whole_write(
    tmp_path: Path, ips: tuple[str, str]
) -> None:
    """The first WRITE's three packets, its SEND, and of the second WRITE the middle."""
    outcome = talk(
        Plan("uc", 3000, 5),
        tmp_path,
        server_ip=ips[0],
        client_ip=ips[1],
        faults=(Fault("drop", qpn=1, psn=6),),
    )
    assert outcome.notes == (
        "0 of 5 round trips were lost",
        # The server missed it, and wrote back what it had instead.
        "1 WRITEs were lost though the SEND after them came",
    )


@pytest.mark.parametrize("name", ["ping-sr", "blast-sr", "ping-write", "blast-read", "atomic", "srq"])
def test_without_rdma_cm_the_same_happens(name: str, tmp_path: Path, ips: tuple[str, str]) -> None:
    plan, expected = TOLD[name]
    talk(plan, tmp_path, server_ip=ips[0], client_ip=ips[1], tcp=True, qp=PATIENT)
    analysis = analyzed(tmp_path)
    assert analysis.cm == []
    assert {connection.paired_by for connection in analysis.connections} == {"journal"}
    assert_explained(analysis, expected)


places = st.builds(
    QpAddress,
    qpn=st.integers(0, 2**24 - 1),
    psn=st.integers(0, 2**24 - 1),
    rkey=st.integers(0, 2**32 - 1),
    address=st.integers(0, 2**64 - 1),
    ip=st.ip_addresses().map(str),
)


@given(places, st.binary(max_size=56), st.sampled_from([256, 1024, 4096]))
def test_what_peers_tell_each_other_over_tcp_is_read_out_of_captures_too(
    place: QpAddress, data: bytes, path_mtu: int
) -> None:
    said = write_message(place, data, path_mtu)
    told, back, mtu = read_message(said)
    assert (told.qpn, told.psn, back, mtu) == (place.qpn, place.psn, data, path_mtu)
    offer = parse_offer(b"\0" * 66 + said)
    assert offer is not None
    assert (offer.qpn, offer.psn, offer.rkey, offer.remote_va) == (
        place.qpn,
        place.psn,
        place.rkey,
        place.address,
    )


@pytest.mark.parametrize("name", ["ping-sr-0", "ping-sr-1"])
def test_a_path_mtu_that_is_not_told_is_the_one_that_both_users_gave(
    name: str, tmp_path: Path, ips: tuple[str, str]
) -> None:
    plan = Plan(name, 3000, 3, path_mtu=512)
    outcome = talk(plan, tmp_path, server_ip=ips[0], client_ip=ips[1], qp=PATIENT)
    assert outcome.path_mtu == 512
    assert not [f.rule for f in analyzed(tmp_path).findings if f.rule == "mtu-mismatch"]
