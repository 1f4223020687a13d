"""Counts and times of flows, held to conversations whose every nanosecond is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from places import PCAPS
from talk import MS, TIMEOUT, US, Talk, evidence_of, named, settled

from rocekit import analyze, cli
from rocekit.explanation.statistics import FlowStatistics, Statistics, statistics
from rocekit.flows.spread import Spread


def count(talk: Talk) -> Statistics:
    return statistics(talk.evidence())


def flow(talk: Talk, requester: str = "10.9.0.1") -> FlowStatistics:
    found = [f for f in count(talk).flows if f.connection.ips[f.side] == requester]
    assert len(found) == 1
    return found[0]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300))
def test_a_spread_is_made_of_values_that_were_measured(times: list[int]) -> None:
    spread = Spread.of(times)
    assert spread is not None
    assert spread.count == len(times)
    assert spread.min_ns <= spread.median_ns <= spread.p99_ns <= spread.max_ns
    assert {spread.min_ns, spread.median_ns, spread.p99_ns, spread.max_ns} <= set(times)
    # Half of them are no larger than the median, and 99 in a hundred no larger than the 99th percentile.
    assert sum(t <= spread.median_ns for t in times) * 2 >= len(times)
    assert sum(t <= spread.p99_ns for t in times) * 100 >= 99 * len(times)


def test_nothing_has_no_spread() -> None:
    assert Spread.of([]) is None


def test_a_plain_message() -> None:
    t = Talk()
    t.send(100, 4)
    t.wait(9 * US)
    t.ack(103)
    found = flow(t)
    assert found.counts["data_frames_tx"] == 4
    assert found.counts["tx_bytes"] == 4096
    assert found.counts["message_tx"] == found.counts["message_complete_rx"] == 1
    assert found.counts["ack_rx"] == 1
    assert found.counts["outstanding_packets_max"] == 4
    assert found.times["ack_round_trip"].median_ns == 10 * US
    assert found.times["message_latency"].median_ns == 13 * US


def test_a_read() -> None:
    t = settled(Talk(), 99)
    t.read(100, 3)
    t.wait(49 * US)
    t.responses(100, 3)
    assert flow(t).times["read_response_time"].max_ns == 52 * US


def test_a_loss_gives_nak_generation_reaction_and_the_repeats_latency() -> None:
    t = settled(Talk(), 99)
    t.send(100, 4, lost={101})
    t.wait(4 * US)
    t.nak(101)
    t.wait(19 * US)
    t.send(100, 4, only=[101, 102, 103])
    t.ack(103)
    found = flow(t)
    assert found.times["nak_generation"].median_ns == 6 * US  # from PSN 102, which showed the hole
    assert found.times["nak_reaction"].median_ns == 20 * US
    assert found.times["retransmission_latency"].median_ns == 26 * US
    assert found.counts["frame_sequence_error"] == found.counts["nak_rx"] == 1
    assert found.counts["data_frames_retransmitted"] == 3
    assert found.counts["resent_per_loss"] == 3
    # Its acknowledgement may be the repeat's: no round trip is taken from it.
    assert found.times["ack_round_trip"].count == 1


def test_an_rnr_wait_beside_what_was_advertised() -> None:
    t = settled(Talk(), 99)
    t.send(100)
    t.rnr(100, 12)
    t.wait(700 * US)
    t.send(100)
    t.ack(100)
    assert flow(t).times["rnr_wait"].median_ns == 701 * US


def test_a_timeout_beside_what_was_configured() -> None:
    t = Talk()
    t.connect(primary_local_ack_timeout=14)
    t.send(0, 2)
    t.wait(TIMEOUT)
    t.send(0, 2, only=[0])
    t.ack(0)
    t.send(0, 2, only=[1])
    t.ack(1)
    found = flow(t)
    assert found.times["ack_timeout"].median_ns == TIMEOUT + US
    assert found.agreed["ack_timeout_us"] == pytest.approx(67_108.864)


def test_cnps_are_timed_at_the_one_they_slow_down() -> None:
    t = settled(Talk(), 99)
    t.send(100, ecn=3)
    for _ in range(3):
        t.wait(9 * US)
        t.packet("CNP", 0, by="b", becn=1)
    t.ack(100)
    found = flow(t)
    assert found.counts["cnp_rx"] == 3
    assert found.counts["ecn_ce_rx"] == 1
    assert found.times["cnp_spacing"].median_ns == 10 * US


def test_the_rate_before_cnps_and_while_they_come() -> None:
    t = settled(Talk(), 99)
    psn = 100
    for millisecond in range(20):
        for _ in range(10 if millisecond < 10 else 5):
            t.send(psn, ecn=3 if millisecond >= 10 else 2)
            t.ack(psn)
            psn += 1
            t.wait(98 * US if millisecond < 10 else 198 * US)
        if millisecond >= 10:
            t.packet("CNP", 0, by="b", becn=1)
    found = flow(t).counts
    assert found["rate_before_cnps_bps"] == pytest.approx(10 * 1024 * 8e3, rel=0.1)
    assert found["rate_during_cnps_bps"] == pytest.approx(5 * 1024 * 8e3, rel=0.1)


def test_lost_frames_are_the_frame_delta() -> None:
    t = settled(Talk(), 99)
    t.send(100, 8, lost={102, 103})
    t.nak(102)
    t.send(100, 8, only=range(102, 108))
    t.ack(107)
    assert flow(t).counts["frame_delta"] == 2


def test_the_frame_delta_is_what_the_finding_counts() -> None:
    analysis = analyze(PCAPS / "blast-sr-loss.pcap")
    found = next(f for f in analysis.findings if f.rule == "loss")
    (counted,) = analysis.statistics().flows
    assert counted.counts["frame_delta"] == found.evidence["lost_packets"] == 21


def test_a_loss_that_may_be_of_the_response_is_in_no_frame_delta() -> None:
    analysis = analyze(PCAPS / "atomic-response-loss.pcap")
    assert [f.evidence["or_acknowledgement_lost"] for f in analysis.findings if f.rule == "tail-loss"] == [3]
    assert [flow.counts["frame_delta"] for flow in analysis.statistics().flows] == [0]


def test_nothing_tells_how_many_datagrams_were_lost() -> None:
    t = Talk(transport="UC")
    for psn in (0, 1, 4):
        t.packet("UC_SEND_ONLY", psn, bytes(64))
    assert flow(t).counts["frame_delta"] is None


def test_a_nak_for_a_packet_that_is_not_in_the_capture_is_no_ack() -> None:
    t = settled(Talk(), 99)
    t.nak(3_000_000)
    t.rnr(3_000_000)
    t.send(100)
    t.ack(100)
    found = flow(t)
    assert (found.counts["ack_rx"], found.counts["nak_rx"], found.counts["rnr_nak_rx"]) == (2, 1, 1)
    assert (found.connection.naks, found.connection.rnr_naks) == (1, 1)


def test_naks_of_a_capture_that_has_the_responder_only() -> None:
    t = Talk()
    t.ack(10)
    t.nak(11)
    t.rnr(14)
    t.nak(17)
    t.ack(20)
    (connection,) = t.evidence().connections
    assert (connection.packets, connection.naks, connection.rnr_naks) == (5, 2, 1)


def test_a_message_that_began_before_the_capture_has_no_latency() -> None:
    t = Talk()
    t.send(10, 4, only=[12, 13])
    t.ack(13)
    t.send(14)
    t.wait(5 * US)
    t.ack(14)
    found = flow(t)
    assert found.counts["message_tx"] == 2
    assert found.times["message_latency"].count == 1
    assert found.counts["min_latency_ns"] == found.counts["max_latency_ns"] == 6 * US


def test_a_read_whose_request_is_not_in_the_capture_has_no_response_time() -> None:
    t = Talk()
    t.responses(10, 4)
    t.read(14, 2)
    t.responses(14, 2)
    found = flow(t)
    assert found.counts["message_tx"] == 2
    assert found.times["read_response_time"].count == found.times["message_latency"].count == 1


def test_an_ack_that_the_capture_has_without_its_last_packet_gives_no_round_trip() -> None:
    t = settled(Talk(), 99)
    t.send(100, 4, lost={103})
    t.wait(MS)
    t.ack(103)
    assert flow(t).times["ack_round_trip"].max_ns == US


def test_a_wait_on_a_clock_that_was_set_back_is_none() -> None:
    t = settled(Talk(), 99)
    t.connect(primary_local_ack_timeout=14)
    t.send(100, 2)
    t.wait(TIMEOUT)
    t.send(100, 2)
    t.ack(101)
    last = [Frame(f.data, f.time_ns - (n > 6) * 3_000 * MS) for n, f in enumerate(t.frames)]
    times = statistics(evidence_of(last)).flows[0].times
    assert all(spread.min_ns >= 0 for spread in times.values())


class TestQpnUsedAgain:
    @staticmethod
    def talk() -> Talk:
        """Two programs in turn, whose QPs have the same numbers; the second has another MTU and class."""
        t = Talk(mtu=1024)
        t.connect()
        t.write(0, 4)
        t.ack(3)
        t.cm("DREQ", local_comm_id=1, remote_comm_id=2, remote_qpn=0x12)
        t.cm("DREP", by="b", local_comm_id=2, remote_comm_id=1)
        again = Talk(mtu=4096)
        again.frames, again.ident, again.now, again.common = (
            t.frames,
            t.ident,
            t.now + 1_000 * MS,
            {"dscp": 26},
        )
        again.request(transaction_id=9, local_comm_id=3)
        again.reply(transaction_id=9, local_comm_id=4, remote_comm_id=3, starting_psn=5000)
        again.cm("RTU", transaction_id=9, local_comm_id=3, remote_comm_id=4)
        again.write(5000, 4, ecn=3)
        again.ack(5003)
        again.wait(10 * MS)
        again.write(5004)
        again.ack(5004)
        return again

    def test_each_message_is_of_its_connection(self) -> None:
        first, second = count(self.talk()).flows
        assert (first.counts["message_bytes"], second.counts["message_bytes"]) == (4 * 1024, 5 * 4096)

    def test_packets_of_both_are_counted_for_neither(self) -> None:
        for found in count(self.talk()).flows:
            unknown = ("data_frames_tx", "tx_bytes", "data_tx_rate_bps", "ack_rx", "ecn_ce_rx", "cnp_rx")
            assert {found.counts[name] for name in unknown} == {None}

    def test_nothing_is_said_of_one_connection_that_two_did(self) -> None:
        assert not named(self.talk().findings())


def test_hosts_with_their_qps_and_cm_messages() -> None:
    t = Talk()
    t.connect()
    t.send(0)
    t.ack(0)
    t.cm("DREQ", by="b", local_comm_id=2, remote_comm_id=1, remote_qpn=0x11)
    t.cm("DREP", local_comm_id=1, remote_comm_id=2)
    a, b = count(t).peers
    assert (a["ip"], a["qp_configured"], a["qp_up"], a["qp_down"]) == ("10.9.0.1", 1, 0, 1)
    assert (a["connect_request_tx"], a["connect_reply_rx"], a["connect_ready_tx"]) == (1, 1, 1)
    assert (b["disconnect_request_tx"], b["disconnect_reply_rx"], b["connect_request_tx"]) == (1, 1, 0)


def test_a_qp_that_still_works_is_up() -> None:
    t = settled(Talk(), 99)
    assert [(p["qp_up"], p["qp_down"]) for p in count(t).peers] == [(1, 0), (1, 0)]


def test_the_steps_of_a_handshake() -> None:
    t = Talk()
    t.request()
    t.wait(2 * MS)
    t.reply()
    t.cm("RTU", local_comm_id=1, remote_comm_id=2)
    found = count(t)
    assert found.cm_counts == {"connect_request": 1, "connect_reply": 1, "connect_ready": 1}
    assert found.cm_steps["REQ_to_REP"].median_ns == 2 * MS + US
    assert found.cm_steps["REP_to_RTU"].median_ns == US


def test_the_command_prints_both_ways(tmp_path: Path) -> None:
    t = settled(Talk(), 99)
    t.send(100, 4, lost={101})
    t.nak(101)
    t.send(100, 4, only=[101, 102, 103])
    t.ack(103)
    file = tmp_path / "x.pcap"
    file.write_bytes(pcap(t.frames, unit="ns"))
    result = CliRunner().invoke(cli.rocekit, ["stats", str(file)])
    assert result.exit_code == 0
    assert "nak_reaction" in result.output
    assert "data_frames_retransmitted 3" in result.output
    document = json.loads(CliRunner().invoke(cli.rocekit, ["stats", str(file), "--format", "json"]).output)
    analysis = analyze(file)
    assert document == analysis.statistics().to_dict() | {"capture": analysis.capture.to_dict()}
    assert document["flows"][0]["times"]["nak_reaction"]["count"] == 1


def test_a_capture_without_transfers_says_so(tmp_path: Path) -> None:
    file = tmp_path / "x.pcap"
    file.write_bytes(pcap([]))
    said = CliRunner().invoke(cli.rocekit, ["stats", str(file)]).output
    assert said.startswith(f"{file}: No RoCE v2 packets: nothing to judge.")
