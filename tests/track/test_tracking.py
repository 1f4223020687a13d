"""What becomes a transfer: messages of every operation and transport, put together from their packets."""

from __future__ import annotations

from typing import Any

import pytest
from story import REMOTE_VA, RKEY, START_NS, Story, track

# ---------------------------------------------------------------------- one message


@pytest.mark.parametrize("transport", ["RC", "XRC"])
def test_packets_from_first_to_last_are_one_send_and_an_acknowledgement_of_the_last_ends_it(
    transport: str,
) -> None:
    told = track(
        f"""
        a {transport}_SEND_FIRST  5 1024
        a {transport}_SEND_MIDDLE 6 1024
        a {transport}_SEND_LAST   7 100
        b ACK 7
        """,
        transport=transport,
    )
    assert told.transfers == ["a SEND 5..7 2148 bytes in 3 packets: acked"]
    assert told.connections == [f"{transport} a=b by psn"]
    assert told.events == []


@pytest.mark.parametrize("operation", ["SEND", "RDMA_WRITE"])
def test_nobody_acknowledges_uc_and_its_messages_are_sent(operation: str) -> None:
    told = track(
        f"""
        a UC_{operation}_FIRST 5 1024 {"of=1124" if operation != "SEND" else ""}
        a UC_{operation}_LAST  6 100
        a UC_{operation}_ONLY  7 64
        """
    )
    name = operation.removeprefix("RDMA_")
    assert told.transfers == [f"a {name} 5..6 1124 bytes in 2 packets: sent", f"a {name} 7 64 bytes: sent"]


def test_every_ud_packet_is_a_message_and_both_ways_are_one_connection() -> None:
    told = track(
        """
        a UD_SEND_ONLY 1 64
        b UD_SEND_ONLY_WITH_IMMEDIATE 8 10 immediate=9
        a UD_SEND_ONLY 2 0
        """
    )
    assert told.transfers == [
        "a SEND 1 64 bytes: sent",
        "b SEND 8 10 bytes imm 0x9: sent",
        "a SEND 2 0 bytes: sent",
    ]
    assert told.connections == ["UD a=b"]


def test_a_write_names_the_memory_it_goes_to_once_in_its_first_packet() -> None:
    told = track(
        """
        a RC_RDMA_WRITE_FIRST  5 1024 of=2500
        a RC_RDMA_WRITE_MIDDLE 6 1024
        a RC_RDMA_WRITE_LAST   7 452
        b ACK 7
        """
    )
    assert told.transfers == ["a WRITE 5..7 2500 bytes in 3 packets: acked"]
    assert (told[0].remote_va, told[0].rkey) == (REMOTE_VA, RKEY)


@pytest.mark.parametrize(
    ("last", "suffix"),
    [
        ("RDMA_WRITE_LAST_WITH_IMMEDIATE 6 9 immediate=0xA", "WRITE 5..6 1033 bytes in 2 packets imm 0xa"),
        ("SEND_LAST_WITH_IMMEDIATE 6 100 immediate=0", "SEND 5..6 1124 bytes in 2 packets imm 0x0"),
        ("SEND_LAST_WITH_INVALIDATE 6 9 invalidate_rkey=0x77", "SEND 5..6 1033 bytes in 2 packets inv 0x77"),
    ],
)  # fmt: skip
def test_the_last_packet_carries_immediate_or_the_rkey_to_invalidate(last: str, suffix: str) -> None:
    operation = last.partition("_LAST")[0]
    announced = "of=1033" if "WRITE" in last else ""
    told = track(f"a RC_{operation}_FIRST 5 1024 {announced}\n a RC_{last} \n b ACK 6")
    assert told.transfers == [f"a {suffix}: acked"]


@pytest.mark.parametrize(
    ("only", "line"),
    [
        ("SEND_ONLY 5 64", "SEND 5 64 bytes"),
        ("SEND_ONLY_WITH_IMMEDIATE 5 64 immediate=3", "SEND 5 64 bytes imm 0x3"),
        ("SEND_ONLY_WITH_INVALIDATE 5 64 invalidate_rkey=3", "SEND 5 64 bytes inv 0x3"),
        ("RDMA_WRITE_ONLY 5 64", "WRITE 5 64 bytes"),
        ("RDMA_WRITE_ONLY_WITH_IMMEDIATE 5 0 immediate=3", "WRITE 5 0 bytes imm 0x3"),
    ],
)
@pytest.mark.parametrize("transport", ["RC", "XRC"])
def test_a_message_of_one_packet(transport: str, only: str, line: str) -> None:
    told = track(f"a {transport}_{only} \n b ACK 5", transport=transport)
    assert told.transfers == [f"a {line}: acked"]


@pytest.mark.parametrize("name", ["SEND_ONLY", "RDMA_WRITE_ONLY"])
def test_a_message_of_no_bytes_takes_a_packet_and_a_psn(name: str) -> None:
    told = track(f"a RC_{name} 5 0\n a RC_{name} 6 0\n b ACK 6")
    operation = name.removeprefix("RDMA_").removesuffix("_ONLY")
    assert told.transfers == [f"a {operation} 5 0 bytes: acked", f"a {operation} 6 0 bytes: acked"]


def test_pad_bytes_are_not_payload() -> None:
    assert track("a RC_SEND_ONLY 5 1\n b ACK 5").transfers == ["a SEND 5 1 bytes: acked"]


# ---------------------------------------------------------------------- READs


def test_a_read_is_its_request_and_its_responses_and_takes_a_psn_for_each_response() -> None:
    told = track(
        """
        a RC_RDMA_READ_REQUEST 5 2500
        b RC_RDMA_READ_RESPONSE_FIRST  5 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 6 1024
        b RC_RDMA_READ_RESPONSE_LAST   7 452
        a RC_SEND_ONLY 8 64
        b ACK 8
        """
    )
    assert told.transfers == ["a READ 5..7 2500 bytes in 3 packets: acked", "a SEND 8 64 bytes: acked"]
    assert told.events == []
    assert (told[0].remote_va, told[0].rkey) == (REMOTE_VA, RKEY)


def test_a_read_of_nothing_has_one_empty_response() -> None:
    told = track(
        "a RC_RDMA_READ_REQUEST 5 0\n b RC_RDMA_READ_RESPONSE_ONLY 5 0\n a RC_SEND_ONLY 6 4\n b ACK 6"
    )
    assert told.transfers == ["a READ 5 0 bytes: acked", "a SEND 6 4 bytes: acked"]


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
def test_how_many_psns_a_read_takes_follows_from_the_path_mtu_however_it_becomes_known(mtu: int) -> None:
    count = -(-4000 // mtu)
    line = f"a READ 5..{4 + count} 4000 bytes in {count} packets: acked"
    line = line if count > 1 else "a READ 5 4000 bytes: acked"
    middle = "\n".join(f"b RC_RDMA_READ_RESPONSE_MIDDLE {5 + k} {mtu}" for k in range(1, count - 1))
    last = 4000 - (count - 1) * mtu
    responses = (
        f"b RC_RDMA_READ_RESPONSE_FIRST 5 {mtu}\n{middle}\nb RC_RDMA_READ_RESPONSE_LAST {4 + count} {last}"
        if count > 1
        else "b RC_RDMA_READ_RESPONSE_ONLY 5 4000"
    )
    request, following = "a RC_RDMA_READ_REQUEST 5 4000", f"a RC_SEND_ONLY {5 + count} 64"
    acked = f"b ACK {5 + count}"
    by_response = track("\n".join([request, responses, following, acked]))
    by_next_request = track("\n".join([request, following, responses, acked]))
    assert by_response.transfers == by_next_request.transfers == [line, f"a SEND {5 + count} 64 bytes: acked"]
    assert by_response.events == by_next_request.events == []


def test_reads_under_way_at_once_keep_their_responses_apart() -> None:
    told = track(
        """
        a RC_SEND_FIRST 1 1024
        a RC_SEND_LAST  2 1
        a RC_RDMA_READ_REQUEST 3 2048
        a RC_RDMA_READ_REQUEST 5 2048
        a RC_RDMA_READ_REQUEST 7 100
        b ACK 2
        b RC_RDMA_READ_RESPONSE_FIRST 3 1024
        b RC_RDMA_READ_RESPONSE_LAST  4 1024
        b RC_RDMA_READ_RESPONSE_FIRST 5 1024
        b RC_RDMA_READ_RESPONSE_LAST  6 1024
        b RC_RDMA_READ_RESPONSE_ONLY  7 100
        """
    )
    assert told.transfers == [
        "a SEND 1..2 1025 bytes in 2 packets: acked",
        "a READ 3..4 2048 bytes in 2 packets: acked",
        "a READ 5..6 2048 bytes in 2 packets: acked",
        "a READ 7 100 bytes: acked",
    ]
    assert told.events == []


def test_a_read_request_that_overtakes_others_says_nothing_of_the_path_mtu() -> None:
    """READs of 2,048 bytes in 1,024-byte packets; the gap to the third's PSN would fit a path MTU of 512."""
    told = track(
        """
        a RC_RDMA_READ_REQUEST 0 2048
        a RC_RDMA_READ_REQUEST 4 2048 identification=3  # overtook the one with PSN 2
        a RC_RDMA_READ_REQUEST 2 2048 identification=2
        b RC_RDMA_READ_RESPONSE_FIRST 0 1024
        b RC_RDMA_READ_RESPONSE_LAST 1 1024
        b RC_RDMA_READ_RESPONSE_FIRST 2 1024
        b RC_RDMA_READ_RESPONSE_LAST 3 1024
        b RC_RDMA_READ_RESPONSE_FIRST 4 1024
        b RC_RDMA_READ_RESPONSE_LAST 5 1024
        """
    )
    assert told.transfers == [
        "a READ 0..1 2048 bytes in 2 packets: acked",
        "a READ 2..3 2048 bytes in 2 packets: acked",
        "a READ 4..5 2048 bytes in 2 packets: acked",
    ]


def test_an_acknowledgement_behind_a_read_does_not_stand_in_for_its_data() -> None:
    told = track(
        """
        a RC_RDMA_READ_REQUEST 5 64
        a RC_SEND_ONLY 6 64
        b ACK 6
        """
    )
    assert told.transfers == ["a READ 5 64 bytes: unacknowledged", "a SEND 6 64 bytes: acked"]


# ---------------------------------------------------------------------- atomics and memory placement


@pytest.mark.parametrize("transport", ["RC", "XRC"])
def test_an_atomic_moves_eight_bytes_and_its_answer_is_the_value_before(transport: str) -> None:
    told = track(
        f"""
        a {transport}_FETCH_ADD    5 swap_add=1 remote_va=0x1000 rkey=7
        a {transport}_COMPARE_SWAP 6 swap_add=9 compare=42 remote_va=0x1008 rkey=7
        b {transport}_ATOMIC_ACKNOWLEDGE 5 original=41
        b {transport}_ATOMIC_ACKNOWLEDGE 6 original=42
        """
    )
    assert told.transfers == ["a FETCH_ADD 5 8 bytes: acked", "a CMP_SWAP 6 8 bytes: acked"]
    assert [(t.original, t.remote_va, t.rkey) for t in told.tracker.transfers] == [
        (41, 0x1000, 7),
        (42, 0x1008, 7),
    ]


def test_a_flush_is_answered_by_a_read_response_without_data() -> None:
    told = track(
        """
        a RC_RDMA_WRITE_ONLY 5 64
        a RC_FLUSH 6 of=64
        b ACK 5
        b RC_RDMA_READ_RESPONSE_ONLY 6 0
        """
    )
    assert told.transfers[0] == "a WRITE 5 64 bytes: acked"
    assert told.transfers[1].startswith("a FLUSH 6 ")
    assert told.transfers[1].endswith(": acked")


def test_an_atomic_write_moves_eight_bytes_and_is_answered_by_a_read_response() -> None:
    told = track("a RC_ATOMIC_WRITE 5 8\n b RC_RDMA_READ_RESPONSE_ONLY 5 0")
    assert told.transfers == ["a ATOMIC_WRITE 5 8 bytes: acked"]


# ---------------------------------------------------------------------- PSNs and acknowledgements


def test_psns_wrap_at_24_bits_inside_a_message() -> None:
    told = track(
        """
        a RC_SEND_FIRST  0xFFFFFE 1024
        a RC_SEND_MIDDLE 0xFFFFFF 1024
        a RC_SEND_MIDDLE 0 1024
        a RC_SEND_LAST   1 7
        b ACK 1
        """
    )
    assert told.transfers == ["a SEND 16777214..1 3079 bytes in 4 packets: acked"]
    assert told[0].last_psn - told[0].first_psn == 3


def test_psns_wrap_between_messages_and_inside_a_read() -> None:
    told = track(
        """
        a RC_SEND_ONLY 0xFFFFFD 64
        a RC_RDMA_READ_REQUEST 0xFFFFFE 4096
        b ACK 0xFFFFFD
        b RC_RDMA_READ_RESPONSE_FIRST  0xFFFFFE 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 0xFFFFFF 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 0 1024
        b RC_RDMA_READ_RESPONSE_LAST   1 1024
        a RC_SEND_ONLY 2 64
        b ACK 2
        """
    )
    assert told.transfers == [
        "a SEND 16777213 64 bytes: acked",
        "a READ 16777214..1 4096 bytes in 4 packets: acked",
        "a SEND 2 64 bytes: acked",
    ]
    assert told.events == []


def test_psns_that_go_round_more_than_once_still_grow() -> None:
    story = Story()
    step = 0x10000
    for p in range(0, 0x2800000, step):  # holes of 64 Ki, as in a capture that keeps one packet of many
        story.a("RC_SEND_ONLY", p, 64).b("ACK", p)
    told = story.track()
    assert [t.first_psn for t in told.tracker.transfers] == list(range(0, 0x2800000, step))
    assert all(line.endswith("acked") for line in told.transfers)


def test_an_acknowledgement_acknowledges_all_before_it() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64
        a RC_RDMA_WRITE_ONLY 7 64
        +5us
        b ACK 7
        """
    )
    assert [line.split(": ")[1] for line in told.transfers] == ["acked"] * 3
    assert {t.acked_ns for t in told.tracker.transfers} == {START_NS + 8_000}


def test_an_acknowledgement_inside_a_message_does_not_end_it() -> None:
    told = track(
        """
        a RC_SEND_FIRST  5 1024
        a RC_SEND_MIDDLE 6 1024
        b ACK 6
        a RC_SEND_LAST   7 1024
        """
    )
    assert told.transfers == ["a SEND 5..7 3072 bytes in 3 packets: unacknowledged"]


def test_a_read_response_acknowledges_what_was_asked_before_the_read() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        a RC_RDMA_READ_REQUEST 6 64
        b RC_RDMA_READ_RESPONSE_ONLY 6 64
        """
    )
    assert told.transfers == ["a SEND 5 64 bytes: acked", "a READ 6 64 bytes: acked"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("invalid_request", "nak:invalid_request"),
        ("remote_access_error", "nak:remote_access_error"),
        ("remote_operational_error", "nak:remote_operational_error"),
    ],
)
def test_a_refusal_that_ends_the_connection_is_the_transfers_status(code: str, status: str) -> None:
    told = track(
        f"""
        a RC_SEND_ONLY 5 64
        a RC_RDMA_WRITE_ONLY 6 64
        a RC_SEND_ONLY 7 64
        b NAK 6 {code}
        """
    )
    assert told.transfers == [
        "a SEND 5 64 bytes: acked",  # a NAK acknowledges what is before it (9.7.5.2.1)
        f"a WRITE 6 64 bytes: {status}, 1 nak",
        "a SEND 7 64 bytes: unacknowledged",
    ]


def test_a_read_can_be_refused_in_the_middle() -> None:
    told = track(
        """
        a RC_RDMA_READ_REQUEST 5 3072
        b RC_RDMA_READ_RESPONSE_FIRST 5 1024
        b NAK 6 remote_access_error
        """
    )
    assert told.transfers == ["a READ 5..7 3072 bytes in 3 packets: nak:remote_access_error, 1 nak"]


def test_two_sides_that_request_at_once_are_one_connection_with_psns_of_their_own() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        b RC_SEND_ONLY 900 32
        b ACK 5
        a ACK 900
        a RC_SEND_ONLY 6 64
        b RC_SEND_ONLY 901 32
        a ACK 901
        b ACK 6
        """
    )
    assert told.connections == ["RC a=b by psn"]
    assert told.transfers == [
        "a SEND 5 64 bytes: acked",
        "b SEND 900 32 bytes: acked",
        "a SEND 6 64 bytes: acked",
        "b SEND 901 32 bytes: acked",
    ]


# ---------------------------------------------------------------------- times and frames


def test_a_transfer_lasts_from_its_first_packet_to_its_last_acknowledgement() -> None:
    told = track(
        """
        a RC_SEND_FIRST 5 1024
        +9us
        a RC_SEND_LAST 6 1024
        +99us
        b ACK 6
        """
    )
    transfer = told[0].to_dict()
    assert transfer["first_ns"] == START_NS
    assert transfer["last_ns"] == START_NS + 10_000
    assert transfer["acked_ns"] == START_NS + 110_000
    assert transfer["frames"] == [1, 3]


def test_a_reads_last_packet_is_its_last_response() -> None:
    told = track(
        """
        a RC_RDMA_READ_REQUEST 5 2048
        +9us
        b RC_RDMA_READ_RESPONSE_FIRST 5 1024
        b RC_RDMA_READ_RESPONSE_LAST 6 1024
        """
    )
    transfer = told[0].to_dict()
    assert (transfer["first_ns"], transfer["last_ns"]) == (START_NS, START_NS + 11_000)
    assert transfer["acked_ns"] == START_NS + 11_000
    assert transfer["frames"] == [1, 3]


# ---------------------------------------------------------------------- what carries the packets


@pytest.mark.parametrize(
    "network",
    [
        {"a": "fd00::1", "b": "fd00::2"},
        {"a": "fe80::1", "b": "fe80::2", "roce_version": 1},
        {"vlan": 100, "priority": 3},
        {"vlan": (200, 100)},
        {"ip_ids": False},
        {"ip_options": b"\x94\x04\x00\x00"},
    ],
    ids=["IPv6", "RoCE v1", "VLAN", "QinQ", "IP identification 0", "IP options"],
)
def test_the_network_below_changes_nothing(network: dict[str, Any]) -> None:
    text = """
        a RC_SEND_FIRST 5 1024
        a RC_SEND_LAST 6 100
        a RC_RDMA_READ_REQUEST 7 2048
        b ACK 6
        b RC_RDMA_READ_RESPONSE_FIRST 7 1024
        b RC_RDMA_READ_RESPONSE_LAST 8 1024
    """
    told = track(text, **network)
    plain = track(text)
    assert (told.transfers, told.connections, told.events) == (
        plain.transfers,
        plain.connections,
        plain.events,
    )


def test_congestion_notifications_and_marks_are_counted_where_they_belong() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64 ecn=2
        a RC_SEND_ONLY 6 64 ecn=3
        b CNP 0
        b ACK 6
        b CNP 0
        """
    )
    connection = told.tracker.connections[0]
    assert (connection.ce_marked, connection.cnps) == (1, 2)


# ---------------------------------------------------------------------- damaged packets


BROKEN = """
    a RC_SEND_ONLY 5 64
    b ACK 5
    a RC_SEND_ONLY 6 64
    corrupt
    a RC_SEND_ONLY 7 64
    b NAK 6
    a RC_SEND_ONLY 6 64
    a RC_SEND_ONLY 7 64
    b ACK 7
"""


def test_a_packet_with_a_wrong_icrc_is_as_good_as_lost() -> None:
    told = track(BROKEN)
    assert told.transfers == [
        "a SEND 5 64 bytes: acked",
        "a SEND 6 64 bytes: acked, 1 again, 1 nak",
        "a SEND 7 64 bytes: acked, 1 again",
    ]


def test_a_packet_with_a_wrong_icrc_is_noted_on_its_connection() -> None:
    assert track(BROKEN).tracker.connections[0].bad_icrc == [3]


def test_where_every_icrc_is_wrong_the_capture_is_tracked_nevertheless() -> None:
    text = """
        a RC_SEND_FIRST 5 1024
        a RC_SEND_LAST 6 1024
        b ACK 6
    """
    told = track(text, icrc=0)
    assert told.transfers == track(text).transfers
    assert told.tracker.icrc_ignored
    assert not track(text).tracker.icrc_ignored
