"""Generated traffic over a switch with queues: its truth, its results, and what the switch may do."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from places import ROOT

from rocekit import cli
from rocekit.analysis import analyze
from rocekit.errors import ScenarioError
from rocekit.journal import read_journal
from rocekit.soft.engine.congestion import DcqcnParameters
from rocekit.soft.engine.prng import Prng
from rocekit.soft.traffic import PATTERNS, FlowPlan, PatternSettings, TrafficPlan, pattern, run_traffic
from rocekit.soft.traffic.otg import read_otg
from rocekit.soft.traffic.results import flow_metrics, peer_metrics
from rocekit.soft.traffic.run import TrafficRun
from rocekit.soft.wires.switch import SwitchSettings

OTG = ROOT / "tests/soft/otg.yaml"
#: Small enough for a run of a fraction of a second.
BIG = FlowPlan("", 0, 0, path_mtu=4096, sizes=(65_536,))


def plan_of(name: str = "incast", **more: Any) -> TrafficPlan:
    settings = PatternSettings(duration_ns=1_000_000, flow=BIG)
    return pattern(name, replace(settings, **more))


def played(folder: Path, plan: TrafficPlan, name: str = "x") -> tuple[TrafficRun, Path, Counter[str]]:
    """A run, its capture, and how often each event is in its journal."""
    capture, journal = folder / f"{name}.pcapng", folder / f"{name}.journal.jsonl"
    run = run_traffic(plan, capture=capture, journal=journal)
    return run, capture, Counter(e.event for e in read_journal(journal).events)


def lossy() -> TrafficPlan:
    """An incast without PFC into a buffer that is too small, and nobody slows down."""
    switch = SwitchSettings(lossless=frozenset(), buffer_bytes=200_000)
    return plan_of(dcqcn=None, switch=switch, tap="sent")


def test_the_same_seed_gives_the_same_capture_and_journal(tmp_path: Path) -> None:
    for name in ("a", "b"):
        played(tmp_path, plan_of(hosts=3, seed=5), name)
    for suffix in (".pcapng", ".journal.jsonl"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    played(tmp_path, plan_of(hosts=3, seed=6), "c")
    assert (tmp_path / "a.pcapng").read_bytes() != (tmp_path / "c.pcapng").read_bytes()


def test_the_journal_has_every_mark_that_the_capture_shows(tmp_path: Path) -> None:
    run, capture, events = played(tmp_path, plan_of(duration_ns=2_000_000))
    packets = analyze(capture).packets
    assert run.marked == events["packet_marked"] == int((packets.ecn == 3).sum()) > 100
    psns = {
        e.fields["psn"]
        for e in read_journal(tmp_path / "x.journal.jsonl").events
        if e.event == "packet_marked"
    }
    assert psns == set(packets.psn[packets.ecn == 3].tolist())


def test_the_results_are_what_the_analysis_of_the_capture_finds(tmp_path: Path) -> None:
    run, capture, _ = played(tmp_path, plan_of(duration_ns=2_000_000))
    found = analyze(capture)
    assert len(found.connections) == len(run.flows) == 4
    for flow in run.flows:
        connection = next(c for c in found.connections if {c.ips[0], c.ips[1]} == set(flow.addresses))
        mine = [t for t in found.transfers if t.connection is connection]
        assert (len(mine), sum(t.bytes for t in mine)) == (flow.counts.message_tx, flow.counts.tx_bytes)
        assert connection.to_dict()["cnps"] == flow.counts.cnp_rx > 0
        assert connection.to_dict()["ce_marked"] == flow.counts.ecn_ce_rx


def test_every_packet_sent_arrives_or_is_in_the_journal_as_lost(tmp_path: Path) -> None:
    run, _, events = played(tmp_path, lossy())
    assert run.lost == {"buffer_full": events["packet_lost"]}
    assert sum(f.counts.frames_lost for f in run.flows) == events["packet_lost"] > 50
    for row in flow_metrics(run):
        assert row["frame_delta"] == row["frames_lost"]
        assert row["message_complete_rx"] == row["message_tx"]
        assert row["message_fail"] == 0


def test_what_is_sent_again_is_in_the_journal_with_its_reason(tmp_path: Path) -> None:
    run, capture, events = played(tmp_path, lossy())
    again = [e for e in read_journal(tmp_path / "x.journal.jsonl").events if e.event == "packet_repeated"]
    assert {e.fields["reason"] for e in again} <= {"nak", "timeout", "implied_nak"}
    assert len(again) == sum(f.counts.data_frames_retransmitted for f in run.flows)
    found = analyze(capture)
    assert sum(t.retransmitted_packets for t in found.transfers) == events["packet_repeated"]


def test_a_paused_class_sends_nothing_and_loses_nothing(tmp_path: Path) -> None:
    run, capture, events = played(tmp_path, plan_of(hosts=3, dcqcn=None, tap="host2"))
    assert run.lost == {}
    assert run.held == events["packet_held"] > 0
    assert run.pause_frames == events["link_paused"]
    found = analyze(capture)
    assert found.evidence is not None
    pauses = found.evidence.pauses
    assert pauses
    assert {p.priorities for p in pauses} == {1 << 3}
    sent = analyze(capture).packets
    mine = sent.time_ns[(sent.src == sent.addresses.index("10.9.0.2")) & (sent.dscp == 24)]
    for begin, end in itertools.pairwise(pauses):
        if begin.quanta and not end.quanta:
            assert not ((mine > begin.time_ns) & (mine < end.time_ns)).any()


def test_a_pause_holds_only_its_own_class(tmp_path: Path) -> None:
    """ACKs in class 5 go on while data in class 3 are paused: both hosts of the ring send both."""
    plan = plan_of("all-to-all", hosts=3, dcqcn=None)
    plan = replace(plan, hosts=tuple(replace(h, ack_tclass=5 << 5) for h in plan.hosts))
    plan = replace(plan, switch=replace(plan.switch, xoff_bytes=8_000, xon_bytes=4_000))
    run, _, _ = played(tmp_path, plan)
    held = [e for e in read_journal(tmp_path / "x.journal.jsonl").events if e.event == "packet_held"]
    assert held
    assert not any(e.fields["opcode"] == "RC_ACKNOWLEDGE" for e in held)
    assert run.lost == {}


def test_the_switch_marks_nothing_below_kmin_and_everything_above_kmax(tmp_path: Path) -> None:
    switch = SwitchSettings(kmin_bytes=50_000, kmax_bytes=100_000, pmax=0.5)
    plan = plan_of(dcqcn=None, switch=switch)
    run, _, _ = played(tmp_path, plan)
    events = read_journal(tmp_path / "x.journal.jsonl").events
    marked = [e.fields["queue_bytes"] for e in events if e.event == "packet_marked"]
    assert min(marked) > 50_000
    assert run.most_queued["host1"] > 100_000
    # What was not marked found at most kmax in the queue: those above it were all marked.
    frames = sum(f.counts.data_frames_tx for f in run.flows)
    assert len(marked) < frames
    assert sum(q > 100_000 for q in marked) > 100


def test_packets_that_are_not_ecn_capable_are_never_marked(tmp_path: Path) -> None:
    run, _, _ = played(tmp_path, plan_of(flow=replace(BIG, tclass=24 << 2), hosts=3))
    assert run.marked == 0
    assert run.most_queued["host1"] > 200_000


def test_senders_that_react_share_the_link_and_keep_the_queue_short(tmp_path: Path) -> None:
    reacting, _, _ = played(tmp_path, plan_of(hosts=3, duration_ns=3_000_000))
    deaf, _, _ = played(tmp_path, plan_of(hosts=3, duration_ns=3_000_000, dcqcn=None), "y")

    def latency(run: TrafficRun) -> float:
        return sum(r["avg_latency"] for r in flow_metrics(run)) / len(run.flows)

    assert latency(reacting) < latency(deaf) / 2
    assert deaf.pause_frames > reacting.pause_frames


def test_hosts_of_a_ring_send_at_the_rate_they_are_given(tmp_path: Path) -> None:
    run, _, _ = played(tmp_path, plan_of("ring", hosts=3, rate=0.25, rate_bps=10_000_000_000))
    for row in flow_metrics(run):
        frame = (4096 + 12 + 4 + 28 + 38) / 4096  # all headers, preamble and gap; WRITE FIRST has 16 more
        assert row["data_tx_rate"] * frame == pytest.approx(2.5, rel=0.02)


@pytest.mark.parametrize(
    ("verb", "transport"),
    [
        ("RDMA_READ", "RC"),
        ("ATOMIC_FETCH_AND_ADD", "RC"),
        ("SEND_WITH_IMM", "RC"),
        ("RDMA_WRITE", "UC"),
        ("SEND", "UD"),
    ],
)
def test_transports_and_verbs_complete_and_are_analyzed(tmp_path: Path, verb: str, transport: str) -> None:
    flow = FlowPlan("", 0, 0, verb, transport, sizes=(1000,), depth=4)
    run, capture, _ = played(tmp_path, plan_of(hosts=3, flow=flow, duration_ns=50_000))
    found = analyze(capture)
    assert found.capture_dict()["bad_icrc"] == 0
    assert not [f for f in found.findings if f.severity != "info"]
    assert len(found.transfers) == sum(f.counts.message_tx for f in run.flows) > 20
    assert all(f.counts.message_complete_rx == f.counts.message_tx for f in run.flows)


def test_receives_that_come_late_draw_rnr_naks(tmp_path: Path) -> None:
    flow = replace(BIG, verb="SEND", receives=2, repost_ns=100_000, sizes=(4096,))
    run, capture, _ = played(tmp_path, plan_of(hosts=2, flow=flow))
    naks = run.flows[0].counts.nak_tx
    assert naks > 0
    assert sum(t.rnr_naks for t in analyze(capture).transfers) == naks


def test_bursts_leave_gaps(tmp_path: Path) -> None:
    flow = replace(BIG, burst=2, gap_ns=200_000, sizes=(4096,))
    _, capture, _ = played(tmp_path, plan_of(hosts=2, flow=flow))
    times = sorted(t.first_ns for t in analyze(capture).transfers)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert len(times) == 10
    assert sum(g > 150_000 for g in gaps) == 4


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_in_a_permutation_everybody_sends_to_one_and_receives_from_one(hosts: int) -> None:
    for seed in range(20):
        pairs = PATTERNS["permutation"](hosts, Prng(seed, "pattern"))
        senders, receivers = zip(*pairs, strict=True)
        assert sorted(senders) == sorted(receivers) == list(range(hosts))
        assert all(a != b for a, b in pairs)


# ---------------------------------------------------------------------- the Open Traffic Generator


def test_an_otg_configuration_decides_the_packets(tmp_path: Path) -> None:
    run, capture, _ = played(tmp_path, read_otg(OTG, duration_ns=200_000))
    p = analyze(capture).packets
    writes = p.opcode == 0x06
    assert set(p.dest_qpn[writes].tolist()) == {200}
    assert set(p.udp_sport[writes].tolist()) == {50001}
    assert set(p.dscp[writes].tolist()) == {26}
    assert set(p.ecn[writes].tolist()) == {2}
    assert (int(p.psn[writes][0]), int(p.remote_va[writes][0]), int(p.rkey[writes][0])) == (
        16777214,
        0x7F0000100000,
        0x1234,
    )
    assert set(p.dma_length[writes].tolist()) == {16 * 1024}
    assert set(p.immediate[p.opcode == 0x09].tolist()) == {0x2A}
    acks = (p.opcode == 0x11) & (p.src == p.addresses.index("10.1.0.1"))
    assert set(p.dscp[acks].tolist()) == {40}
    assert set(p.ecn[acks].tolist()) == {0}
    sends = p.opcode == 0x00
    assert set(p.dest_qpn[sends].tolist()) == {100}
    assert int(p.psn[sends][0]) == 7
    assert [f.name for f in run.flows] == ["f1", "f2"]


def test_the_flow_results_have_the_columns_of_the_model(tmp_path: Path) -> None:
    run, _, _ = played(tmp_path, read_otg(OTG, duration_ns=200_000))
    rows = flow_metrics(run)
    model = [
        "flow_name",
        "port_tx",
        "port_rx",
        "src_qp",
        "dest_qp",
        "src_ipv4",
        "dest_ipv4",
        "data_frames_tx",
        "data_frames_rx",
        "frame_delta",
        "data_frames_retransmitted",
        "frame_sequence_error",
        "tx_bytes",
        "rx_bytes",
        "data_tx_rate",
        "data_rx_rate",
        "message_tx",
        "message_complete_rx",
        "message_fail",
        "flow_completion_time",
        "avg_latency",
        "min_latency",
        "max_latency",
        "ecn_ce_rx",
        "cnp_tx",
        "cnp_rx",
        "ack_tx",
        "ack_rx",
        "nak_tx",
        "nak_rx",
        "first_timestamp",
        "last_timestamp",
    ]
    assert list(rows[0])[: len(model)] == model
    assert rows[0]["port_tx"] == "p1"
    assert rows[0]["src_qp"] == 100
    assert rows[0]["dest_qp"] == 200
    peers = peer_metrics(run)
    assert [row["name"] for row in peers] == ["peer1", "peer2"]
    assert [(row["qp_configured"], row["qp_up"], row["qp_down"]) for row in peers] == [(1, 1, 0)] * 2
    assert peers[0]["connect_request_tx"] == peers[0]["connect_reply_rx"] == peers[0]["ready_tx"] == 1
    assert peers[1]["disconnect_request_rx"] == peers[1]["disconnect_reply_tx"] == 1


def test_the_peer_results_have_the_columns_of_the_model(tmp_path: Path) -> None:
    """A QP without a flow is configured, and down; of a pattern each host has a row."""
    path = tmp_path / "otg.yaml"
    idle = "                - {qp_name: idle}\n                - qp_name: qp1\n"
    path.write_text(OTG.read_text().replace("                - qp_name: qp1\n", idle))
    run, _, _ = played(tmp_path, read_otg(path, duration_ns=20_000))
    rows = peer_metrics(run)
    names = ("connect_request", "connect_reply", "ready", "disconnect_request", "disconnect_reply", "reject")
    messages = [f"{name}_{way}" for name in names for way in ("tx", "rx")]
    assert list(rows[0]) == ["name", "qp_configured", "qp_up", "qp_down", *messages, "unknown_msg_rx"]
    assert [(row["qp_configured"], row["qp_up"], row["qp_down"]) for row in rows] == [(2, 1, 1), (1, 1, 0)]
    run, _, _ = played(tmp_path, plan_of("ring", hosts=3, duration_ns=20_000), "z")
    rows = peer_metrics(run)
    assert [(row["name"], row["qp_configured"], row["qp_up"]) for row in rows] == [
        ("host1", 2, 2),
        ("host2", 2, 2),
        ("host3", 2, 2),
    ]
    assert [(row["connect_request_tx"], row["connect_request_rx"]) for row in rows] == [(1, 1)] * 3


def test_qps_without_a_number_count_up_from_the_models_default(tmp_path: Path) -> None:
    path = tmp_path / "otg.yaml"
    path.write_text(
        OTG.read_text().replace("source_qp_number: 100, ", "").replace("source_qp_number: 200, ", "")
    )
    run, _, _ = played(tmp_path, read_otg(path, duration_ns=20_000))
    assert [f.qpns for f in run.flows] == [(2, 2), (2, 2)]
    assert [row["qp_configured"] for row in peer_metrics(run)] == [1, 1]


SECOND = "{name: f3, tx_endpoint: qp1, rx_endpoint: qp2, message_size: 3000, message_size_unit: bytes}"


def with_a_second_flow(tmp_path: Path, flow: str = SECOND) -> Path:
    """The configuration, with another flow of qp1 behind its first."""
    path = tmp_path / "otg.yaml"
    lines = OTG.read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if "name: f1," in line)
    path.write_text("\n".join([*lines[: place + 1], lines[place].split("{")[0] + flow, *lines[place + 1 :]]))
    return path


@pytest.mark.parametrize("lossy", [False, True])
def test_several_flows_of_a_qp_share_its_send_queue_and_have_rows_of_their_own(
    tmp_path: Path, lossy: bool
) -> None:
    """Its two flows take a half of its rate each; what the wire carried is in exactly one of the rows."""
    plan = read_otg(with_a_second_flow(tmp_path), duration_ns=200_000)
    if lossy:
        switch = replace(plan.switch, lossless=frozenset(), buffer_bytes=20_000, ecn=False)
        slow = replace(plan.hosts[1], rate_bps=5_000_000_000)
        plan = replace(plan, switch=switch, hosts=(plan.hosts[0], slow), tap="sent")
    run, capture, _ = played(tmp_path, plan)
    assert bool(run.lost) == lossy
    rows = {row["flow_name"]: row for row in flow_metrics(run)}
    assert list(rows) == ["f1", "f3", "f2"]
    assert [rows[n]["src_qp"] for n in rows] == [100, 100, 200]
    assert [row["qp_configured"] for row in peer_metrics(run)] == [1, 1]
    found = analyze(capture)
    packets = found.packets
    requests = (packets.dest_qpn == 200) & (packets.opcode < 0x0C)
    assert rows["f1"]["data_frames_tx"] + rows["f3"]["data_frames_tx"] == int(requests.sum())
    of = {n: [t for t in found.transfers if t.bytes == size] for n, size in (("f1", 16384), ("f3", 3000))}
    for name, transfers in of.items():
        assert rows[name]["message_tx"] == rows[name]["message_complete_rx"] == len(transfers) > 5
        assert rows[name]["tx_bytes"] >= sum(t.bytes for t in transfers)
        again = sum(t.retransmitted_packets for t in transfers)
        assert rows[name]["data_frames_retransmitted"] == again
    assert (sum(rows[name]["data_frames_retransmitted"] for name in of) > 0) == lossy


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        ("{name: f1, tx_endpoint: qp1, rx_endpoint: qp2}", "two flows are named f1"),
        ("{name: f3, tx_endpoint: qp1, rx_endpoint: p2}", "qp1 is connected for f1: an RC QP has one QP"),
    ],
)
def test_flows_that_cannot_share_a_qp_are_refused(tmp_path: Path, flow: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        read_otg(with_a_second_flow(tmp_path, flow))


def test_an_otg_configuration_may_be_json(tmp_path: Path) -> None:
    from rocekit.files.yaml import read_yaml

    document = read_yaml(OTG)
    assert document is not None
    path = tmp_path / "otg.json"
    path.write_text(json.dumps(document.plain()))
    assert read_otg(path) == read_otg(OTG)


def test_the_models_dcqcn_defaults_are_used_where_its_block_stands() -> None:
    dcqcn = read_otg(OTG).hosts[0].dcqcn
    assert dcqcn is not None
    assert (dcqcn.g, dcqcn.alpha_ns, dcqcn.increase_ns, dcqcn.fast_steps) == (5 / 1024, 21_000, 250_000, 25)
    assert dcqcn.line_rate_bps == 25_000_000_000
    assert dcqcn.most_cut == 0.1
    assert not dcqcn.clamp_target
    assert read_otg(OTG).hosts[1].dcqcn is None


@pytest.mark.parametrize(
    ("found", "instead", "said"),
    [
        ("ib_mtu: 1024", "ibmtu: 1024", "line 16: no key 'ibmtu'"),
        ("source_qp_number: 200", "source_qp_number: 1", "source_qp_number is a whole number from 2"),
        ("tx_endpoint: qp1", "tx_endpoint: qp9", "no QP is named 'qp9'; there is qp1, qp2"),
        ("destination_ip_address: 10.1.0.2", "destination_ip_address: 10.1.0.9", "goes to 10.1.0.9"),
        ("choice: send", "choice: sent", "rocev2_verb is one of write"),
        ("source_qp_number: 200", "source_qp_number: 16777216", "source_qp_number is a whole number from 2"),
        ("name: peer2", "name: peer1", "two peers are named peer1"),
        ("retransmission_retry_count: 5", "retransmission_retry_count: 9", "3 bits: 0 to 7, not 9"),
        ("ib_mtu: 1024", "ib_mtu: 1500", "a path MTU is 256, 512"),
        ("message_size_unit: kb", "message_size_unit: kB", "message_size_unit is one of bytes, kb"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_one_line(
    tmp_path: Path, found: str, instead: str, said: str
) -> None:
    path = tmp_path / "otg.yaml"
    path.write_text(OTG.read_text().replace(found, instead))
    with pytest.raises(ScenarioError) as error:
        read_otg(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------- DCQCN


def test_alpha_goes_on_decaying_at_the_line_rate() -> None:
    """Zhu et al., equation 2: without CNPs alpha decays, whatever the rate is."""
    from rocekit.soft.engine.congestion import Dcqcn

    flow = Dcqcn(DcqcnParameters(line_rate_bps=1_000_000_000))
    flow.on_cnp(0)
    flow.on_send(1000, 1_000_000_000)
    assert not flow.limited
    flow.on_cnp(1_000_000_000)
    assert flow.rate_bps > 0.99 * 1_000_000_000


# ---------------------------------------------------------------------- endpoints over sockets


def test_what_inject_sends_again_is_in_its_journal_with_the_reason(tmp_path: Path) -> None:
    """The capture is the client's: it has all requests that were sent again."""
    words = "inject ping-write --both --backend soft -n 6 -s 4096 --seed 3 --fault qpn=1,psn=2,type=drop"
    capture, journal = tmp_path / "x.pcapng", tmp_path / "x.journal.jsonl"
    result = CliRunner().invoke(
        cli.rocekit, [*words.split(), "--capture", str(capture), "--journal", str(journal)]
    )
    assert result.exit_code == 0, result.output
    again = [e for e in read_journal(journal).events if e.event == "packet_repeated"]
    found = analyze(capture)
    assert len(again) == sum(t.retransmitted_packets for t in found.transfers) > 0
    assert {e.fields["reason"] for e in again} <= {"nak", "timeout"}
    # Its address is the first that no other soft device of this machine has.
    (device,) = {e.qp[0] for e in again if e.qp}
    assert f"client: {device} " in result.output
    totals = {
        e.fields["flow"]: e.fields["totals"] for e in read_journal(journal).events if "totals" in e.fields
    }
    assert len(totals) == 2
    assert totals[device]["sent_pkts"] + totals[device]["rcvd_pkts"] == len(found.packets.psn)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--packets 5 --pattern ring", "--packets does not go with --pattern"),
        ("--tap host1", "--tap goes with --pattern or --otg"),
        (f"--otg {OTG} --size 4", "--size does not go with --otg: the configuration says it"),
        (f"--otg {OTG} --pattern ring", "give one"),
        ("--pattern ring --kmin 9 --kmax 5", "kmin is 0 to kmax, 5, not 9"),
        ("--pattern ring --tap host9", "a capture is taken at sent, delivered, host1"),
        ("--pattern ring --transport UD", "UD has only SEND"),
    ],
)
def test_options_that_mean_nothing_together_are_refused(tmp_path: Path, words: str, said: str) -> None:
    result = CliRunner().invoke(cli.rocekit, ["generate", str(tmp_path / "x.pcapng"), *words.split()])
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert said in result.output


def test_capture_and_journal_go_to_different_files(tmp_path: Path) -> None:
    path = str(tmp_path / "x.pcapng")
    result = CliRunner().invoke(cli.rocekit, ["generate", path, "--pattern", "ring", "--journal", path])
    assert result.exit_code != 0
    assert not list(tmp_path.iterdir())
