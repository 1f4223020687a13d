"""Findings about congestion, held to captures whose causes are known: each is where its cause is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocekit.analysis import Analysis, analyze
from rocekit.soft.traffic import FlowPlan, PatternSettings, TrafficPlan, pattern, run_traffic
from rocekit.soft.traffic.run import TrafficRun
from rocekit.soft.wires.switch import SwitchSettings

FLOW = FlowPlan("", 0, 0, path_mtu=4096, sizes=(65_536,))
#: Without ``incast``, which is in all of these incasts that are marked.
CONGESTION = frozenset({"ecn-unanswered", "cnp-storm", "pause-stall", "low-entropy"})


def plan_of(name: str = "incast", **more: Any) -> TrafficPlan:
    return pattern(name, replace(PatternSettings(duration_ns=1_200_000, hosts=4, flow=FLOW), **more))


def found(folder: Path, plan: TrafficPlan) -> tuple[TrafficRun, Analysis, set[str]]:
    """The run, the analysis of its capture without its journal, and the rules that were found."""
    capture = folder / "x.pcapng"
    run = run_traffic(plan, capture=capture)
    analysis = analyze(capture)
    return run, analysis, {f.rule for f in analysis.findings}


def test_an_incast_whose_senders_react_is_no_problem(tmp_path: Path) -> None:
    run, _, rules = found(tmp_path, plan_of())
    assert run.marked > 0
    assert all(f.counts.cnp_rx > 5 for f in run.flows)
    assert not rules & CONGESTION


def test_marks_without_cnps_are_unanswered_on_every_flow_that_was_marked(tmp_path: Path) -> None:
    run, analysis, rules = found(tmp_path, plan_of(cnps=False))
    assert rules & CONGESTION == {"ecn-unanswered"}
    told = [f for f in analysis.findings if f.rule == "ecn-unanswered"]
    marks = sorted(f.counts.ecn_ce_rx for f in run.flows)
    assert sorted(f.evidence["marked_packets"] for f in told) == marks


def test_cnps_to_senders_that_do_not_react_are_a_storm(tmp_path: Path) -> None:
    """Three senders of a little more than a third of the link each; two of them join the first."""

    def plan(**more: Any) -> TrafficPlan:
        plan = plan_of(rate=0.36, rate_bps=10_000_000_000, duration_ns=12_000_000, **more)
        late = (plan.flows[0], *(replace(f, start_ns=2_500_000) for f in plan.flows[1:]))
        return replace(plan, flows=late)

    run, analysis, rules = found(tmp_path, plan(dcqcn=None))
    assert rules & CONGESTION == {"cnp-storm"}
    told = next(f for f in analysis.findings if f.rule == "cnp-storm").evidence
    assert told["cnps"] == run.flows[0].counts.cnp_rx
    assert told["rate_after_bps"] > 0.9 * told["rate_before_bps"]
    run, _, rules = found(tmp_path, plan())
    assert run.flows[0].counts.cnp_rx > 10
    assert not rules & CONGESTION


def test_no_mark_and_no_cnp_is_found_where_the_switch_does_not_mark(tmp_path: Path) -> None:
    run, _, rules = found(tmp_path, plan_of(switch=SwitchSettings(ecn=False), dcqcn=None))
    assert run.most_queued["host1"] > 200_000
    assert not rules & {"ecn-unanswered", "cnp-storm"}


def test_pauses_of_a_senders_link_are_found_with_the_class_that_was_silent(tmp_path: Path) -> None:
    run, analysis, rules = found(tmp_path, plan_of(dcqcn=None, tap="host2"))
    assert "pause-stall" in rules
    finding = next(f for f in analysis.findings if f.rule == "pause-stall")
    asked = run.pauses["host2"]
    assert finding.evidence["pause_frames"] + finding.evidence["release_frames"] == asked
    assert finding.evidence["priorities"] == [3]
    silent = finding.evidence["silent_classes"]
    assert {(c["host"], c["dscp"]) for c in silent} <= {("10.9.0.2", 24)}


@pytest.mark.parametrize("tap", ["host1", "host2"])
def test_a_link_that_is_not_paused_has_no_pause_stall(tmp_path: Path, tap: str) -> None:
    """Without PFC no link is paused; with it, the receiver's own link is not."""
    switch = SwitchSettings() if tap == "host1" else SwitchSettings(lossless=frozenset())
    run, _, rules = found(tmp_path, plan_of(dcqcn=None, tap=tap, switch=switch))
    assert (run.pause_frames > 0) == (tap == "host1")
    assert "pause-stall" not in rules


def test_flows_of_one_source_port_have_low_entropy(tmp_path: Path) -> None:
    plan = plan_of("ring", hosts=2, dcqcn=None, duration_ns=50_000)
    one = replace(plan.flows[0], rate=0.1)
    same = tuple(replace(one, name=f"f{n}", udp_sport=50_000) for n in range(8))
    _, analysis, rules = found(tmp_path, replace(plan, flows=same))
    assert rules & CONGESTION == {"low-entropy"}
    told = next(f for f in analysis.findings if f.rule == "low-entropy").evidence
    assert (told["qps"], told["udp_source_ports"]) == (8, [50_000])
    own = tuple(replace(one, name=f"f{n}") for n in range(8))
    _, _, rules = found(tmp_path, replace(plan, flows=own))
    assert not rules & CONGESTION


def test_losses_in_a_full_buffer_are_found_and_no_more_than_there_were(tmp_path: Path) -> None:
    """The switch counts what it dropped. A capture at the senders shows at least one of each silence."""
    switch = SwitchSettings(lossless=frozenset(), buffer_bytes=150_000)
    run, analysis, rules = found(
        tmp_path, plan_of(dcqcn=None, switch=switch, tap="sent", duration_ns=300_000)
    )
    assert run.lost["buffer_full"] > 0
    assert rules & {"loss", "tail-loss"}
    told = sum(
        f.evidence.get("lost_packets", 1) for f in analysis.findings if f.rule in ("loss", "tail-loss")
    )
    assert told <= run.lost["buffer_full"]


def test_an_ack_sooner_than_those_that_a_queue_held_up_is_not_to_the_first_transmission(
    tmp_path: Path,
) -> None:
    """A queue makes the responses before the loss slow. After the silence it is empty, and they are fast."""
    switch = SwitchSettings(lossless=frozenset(), buffer_bytes=150_000)
    _, analysis, rules = found(tmp_path, plan_of(dcqcn=None, switch=switch, tap="sent", duration_ns=300_000))
    assert "timeout-too-short" not in rules
    assert not [f.title for f in analysis.findings if "nothing was lost" in f.title]


def test_where_only_the_time_of_an_ack_speaks_a_loss_is_left_open(tmp_path: Path) -> None:
    """Messages of one packet: nothing but its time tells whether an ACK is to the repeat."""
    switch = SwitchSettings(lossless=frozenset(), buffer_bytes=60_000)
    flow = replace(FLOW, sizes=(4096,), depth=64)
    run, analysis, _ = found(
        tmp_path, plan_of(flow=flow, dcqcn=None, switch=switch, tap="sent", duration_ns=300_000)
    )
    assert run.lost["buffer_full"] > 0
    late = [f for f in analysis.findings if f.rule == "timeout-too-short"]
    assert late
    assert all("or the requests were lost" in f.title and "“Probably” means" in f.advice for f in late)
    assert not [f.title for f in analysis.findings if "nothing was lost" in f.title]


def test_a_read_answered_at_the_time_of_its_request_is_not_outstanding_for_ever(tmp_path: Path) -> None:
    flow = replace(FLOW, verb="RDMA_READ", sizes=(1000,), depth=4)
    _, _, rules = found(tmp_path, plan_of(flow=flow, duration_ns=50_000))
    assert "read-depth" not in rules


def test_marks_of_all_senders_at_once_are_an_incast_to_its_receiver(tmp_path: Path) -> None:
    run, analysis, _ = found(tmp_path, plan_of())
    told = [f.evidence for f in analysis.findings if f.rule == "incast"]
    assert [(t["receiver"], t["senders_at_once"]) for t in told] == [("10.9.0.1", 3)]
    assert told[0]["senders"] == ["10.9.0.2", "10.9.0.3", "10.9.0.4"]
    assert told[0]["marked_packets"] <= run.marked


@pytest.mark.parametrize("name", ["incast of two", "ring", "unmarked"])
def test_without_marks_of_three_senders_to_one_there_is_no_incast(tmp_path: Path, name: str) -> None:
    """Two senders; every host's own receiver; an incast that the switch does not mark."""
    plan = {
        "incast of two": plan_of(hosts=3),
        "ring": plan_of("ring", switch=SwitchSettings(kmin_bytes=0, kmax_bytes=0)),
        "unmarked": plan_of(switch=SwitchSettings(ecn=False)),
    }[name]
    run, _, rules = found(tmp_path, plan)
    assert (run.marked > 0) == (name != "unmarked")
    assert "incast" not in rules
