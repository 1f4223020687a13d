"""Connections that the CM set up: what its messages say of QP pairs, PSNs, limits and ends."""

from __future__ import annotations

from typing import Any

import pytest
from story import Story

SECOND = {"cd": (("10.0.0.1", 0x21), ("10.0.0.2", 0x22))}


def test_req_and_rep_name_both_qps() -> None:
    told = Story().connect(5, 900).lines("a RC_SEND_ONLY 5 64\n b ACK 5").track()
    assert told.connections == ["RC a=b by cm"]
    assert told.transfers == ["a SEND 5 64 bytes: acked"]
    assert told[0].requester == {"ip": "10.0.0.1", "qpn": 0x11}


@pytest.mark.parametrize("who", ["a", "b"])
def test_the_side_that_asked_to_connect_is_a_whoever_sends_first(who: str) -> None:
    story = Story().connect(5, 5, who=who)
    told = story.lines("b RC_SEND_ONLY 5 64\n a ACK 5\n a RC_SEND_ONLY 5 64\n b ACK 5").track()
    assert told.connections == [f"RC {who}={'b' if who == 'a' else 'a'} by cm"]


def test_a_message_says_from_which_psn_its_receiver_sends() -> None:
    """IBA Vol. 1, 12.6.5 and 12.6.8: the REQ's starting PSN is the passive side's first."""
    told = Story().connect(a_psn=5, b_psn=900).track()
    asked, answered = told.tracker.connections[0].negotiated
    assert (asked.starting_psn, answered.starting_psn) == (5, 900)
    request, reply = told.tracker.cm.records[:2]
    assert (request.message, request.cm.number("starting_psn")) == ("REQ", 900)
    assert (reply.message, reply.cm.number("starting_psn")) == ("REP", 5)


def test_a_starting_psn_shows_that_the_first_packet_was_lost() -> None:
    told = (
        Story()
        .connect(5, 900)
        .lines(
            """
            a RC_SEND_ONLY 6 64
            b NAK 5
            a RC_SEND_ONLY 5 64
            a RC_SEND_ONLY 6 64
            b ACK 6
            """
        )
        .track()
    )
    assert told.transfers == [
        "a SEND 5 64 bytes: acked, 1 again, 1 nak",
        "a SEND 6 64 bytes: acked, 1 again",
    ]


def test_a_starting_psn_shows_that_the_capture_missed_the_first_packet() -> None:
    told = Story().connect(5, 900).lines("a RC_SEND_ONLY 6 64\n b ACK 6").track()
    assert told.transfers == ["a SEND 6 64 bytes: acked"]
    assert told.missed == ["5"]


def test_the_path_mtu_of_the_req_tells_how_many_psns_a_read_takes() -> None:
    story = Story().connect(5, 900, path_mtu_code=1)  # 256 bytes
    told = story.lines("a RC_RDMA_READ_REQUEST 5 1000\n a RC_SEND_ONLY 9 64").track()
    assert told.transfers[0] == "a READ 5..8 1000 bytes in 4 packets: unacknowledged"
    assert told.tracker.connections[0].path_mtu == 256


def test_the_exchange_says_each_sides_limits() -> None:
    story = Story()
    story.a("REQ", local_comm_id=1, starting_psn=9, retry_count=3, rnr_retry_count=2,
            responder_resources=16, initiator_depth=8, primary_local_ack_timeout=14)  # fmt: skip
    story.b("REP", local_comm_id=2, remote_comm_id=1, starting_psn=5, rnr_retry_count=6,
            responder_resources=4, initiator_depth=2)  # fmt: skip
    asked, answered = story.track().tracker.connections[0].negotiated
    assert (asked.retry_count, answered.retry_count) == (3, 3)
    assert (asked.rnr_retry_count, answered.rnr_retry_count) == (
        6,
        2,
    )  # each says how often the other retries
    assert (asked.responder_resources, asked.initiator_depth) == (16, 8)
    assert (answered.responder_resources, answered.initiator_depth) == (4, 2)
    assert (asked.ack_timeout, asked.path_mtu) == (14, 1024)


def test_data_before_the_rtu_belongs_to_the_connection() -> None:
    story = Story()
    story.a("REQ", local_comm_id=1, starting_psn=900)
    story.b("REP", local_comm_id=2, remote_comm_id=1, starting_psn=5)
    told = story.lines("a RC_SEND_ONLY 5 64\n b ACK 5").a("RTU", local_comm_id=1, remote_comm_id=2).track()
    assert told.connections == ["RC a=b by cm"]
    assert told.transfers == ["a SEND 5 64 bytes: acked"]


def test_data_that_the_capture_shows_before_the_rep_belongs_to_the_connection_too() -> None:
    story = Story().lines("a RC_SEND_ONLY 5 64")  # captured out of order
    told = story.connect(5, 900).lines("b ACK 5").track()
    assert told.connections == ["RC a=b by cm"]
    assert told.transfers == ["a SEND 5 64 bytes: acked"]


def test_messages_stand_in_order_each_with_its_connection() -> None:
    story = Story().connect(5, 900).lines("a RC_SEND_ONLY 5 64\n b ACK 5")
    story.a("DREQ", local_comm_id=1, remote_comm_id=1001, remote_qpn=0x12)
    story.b("DREP", local_comm_id=1001, remote_comm_id=1)
    records = [r.to_dict() for r in story.track().tracker.cm.records]
    assert [(r["message"], r["frame"], r["src"]["ip"][-1]) for r in records] == [
        ("REQ", 1, "1"),
        ("REP", 2, "2"),
        ("RTU", 3, "1"),
        ("DREQ", 6, "1"),
        ("DREP", 7, "2"),
    ]
    assert {r["connection"] for r in records} == {0}
    assert {r["transaction_id"] for r in records} == {1, 1001}


def test_managements_packets_are_no_transfers_and_no_packets_of_a_connection() -> None:
    told = Story().connect(5, 900).track()
    assert told.transfers == []
    assert told.tracker.connections[0].packets == 0


def test_a_rejection_makes_no_connection() -> None:
    story = Story().a("REQ", local_comm_id=1, starting_psn=900)
    story.b("REJ", remote_comm_id=1, reason=8, message_rejected=0)
    told = story.track()
    assert told.connections == []
    assert [r.connection for r in told.tracker.cm.records] == [None, None]
    (exchange,) = told.tracker.cm.exchanges
    assert [r.message for r in exchange.records] == ["REQ", "REJ"]


def test_a_req_sent_again_is_the_same_exchange() -> None:
    story = Story()
    for _ in range(3):
        story.a("REQ", local_comm_id=1, starting_psn=900, tid=7).wait(s=4)
    story.b("REP", local_comm_id=2, remote_comm_id=1, starting_psn=5, tid=7)
    told = story.track()
    assert len(told.tracker.cm.exchanges) == 1
    assert [r.repeated for r in told.tracker.cm.records] == [False, True, True, False]
    assert told.connections == ["RC a=b by cm"]


def test_a_rep_sent_again_makes_no_second_connection() -> None:
    story = Story().a("REQ", local_comm_id=1, starting_psn=900)
    for _ in range(2):
        story.b("REP", local_comm_id=2, remote_comm_id=1, starting_psn=5)
    assert story.track().connections == ["RC a=b by cm"]


def test_exchanges_that_run_at_once_are_kept_apart_by_their_communication_ids() -> None:
    story = Story(others=SECOND)
    story.a("REQ", local_comm_id=1, starting_psn=100)
    story.packet("c", "REQ", 0, local_comm_id=2, starting_psn=100)
    story.packet("d", "REP", 0, local_comm_id=12, remote_comm_id=2, starting_psn=100)
    story.b("REP", local_comm_id=11, remote_comm_id=1, starting_psn=100)
    for p in range(100, 104):  # the same PSNs on both
        story.lines(f"a RC_SEND_ONLY {p} 64\n c RC_SEND_ONLY {p} 32\n b ACK {p}\n d ACK {p}")
    told = story.track()
    assert set(told.connections) == {"RC a=b by cm", "RC c=d by cm"}
    assert [t.bytes for t in told.tracker.transfers if t.connection.qpns == [0x11, 0x12]] == [64] * 4
    assert all(line.endswith("acked") for line in told.transfers)


def test_dreqs_that_cross_end_one_connection() -> None:
    story = Story().connect(5, 900).lines("a RC_SEND_ONLY 5 64\n b ACK 5")
    story.a("DREQ", local_comm_id=1, remote_comm_id=1001).b("DREQ", local_comm_id=1001, remote_comm_id=1)
    story.b("DREP", local_comm_id=1001, remote_comm_id=1).a("DREP", local_comm_id=1, remote_comm_id=1001)
    told = story.track()
    assert {r.connection for r in told.tracker.cm.records} == {told.tracker.connections[0]}
    assert told.tracker.connections[0].closed_frame == 6


def test_a_qpn_that_lives_again_through_a_new_exchange_is_a_new_connection() -> None:
    story = Story().connect(5, 900, comm_id=1).lines("a RC_SEND_ONLY 5 64\n b ACK 5")
    story.a("DREQ", local_comm_id=1, remote_comm_id=1001).b("DREP", local_comm_id=1001, remote_comm_id=1)
    story.wait(ms=10).connect(6000, 7000, comm_id=2)
    told = story.lines("a RC_SEND_ONLY 6000 32\n b ACK 6000").track()
    assert told.connections == ["RC a=b by cm", "RC a=b by cm"]
    assert [(t.connection.id, t.first_psn, t.status) for t in told.tracker.transfers] == [
        (0, 5, "acked"),
        (1, 6000, "acked"),
    ]
    assert told.missed == []


def test_a_qpn_that_lives_again_on_the_same_psns_repeats_nothing() -> None:
    story = Story()
    for life in (1, 2, 3):
        story.connect(5, 900, comm_id=life).lines("a RC_SEND_ONLY 5 64\n b ACK 5").wait(ms=1)
    told = story.track()
    assert [c.retransmitted_packets for c in told.tracker.connections] == [0, 0, 0]
    assert told.transfers == ["a SEND 5 64 bytes: acked"] * 3


def test_data_of_a_connection_whose_exchange_was_not_captured_pairs_by_psn() -> None:
    story = Story(others=SECOND).connect(5, 900)
    story.lines("a RC_SEND_ONLY 5 64\n c RC_SEND_ONLY 70000 64\n d ACK 70000\n b ACK 5")
    assert set(story.track().connections) == {"RC a=b by cm", "RC c=d by psn"}


@pytest.mark.parametrize(("service", "transport"), [(0, "RC"), (1, "UC")])
def test_the_req_names_the_transport(service: int, transport: str) -> None:
    story = Story().connect(5, 900, transport_service_type=service)
    story.a(f"{transport}_SEND_ONLY", 5, 64)
    assert story.track().connections == [f"{transport} a=b by cm"]


@pytest.mark.parametrize("network", [{"a": "fd00::1", "b": "fd00::2"}, {"vlan": 7}])
def test_over_any_network(network: dict[str, Any]) -> None:
    told = Story(**network).connect(5, 900).lines("a RC_SEND_ONLY 5 64\n b ACK 5").track()
    assert told.connections == ["RC a=b by cm"]
    assert told.transfers == ["a SEND 5 64 bytes: acked"]
