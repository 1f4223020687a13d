"""Transfers beside the journal: the work request of each, how it was matched, and where its time went."""

from __future__ import annotations

import pytest
from story import STEP_NS, Story, Tracked

from rocekit.correlate import Correlation, timing

KNOWN = """
    A created
    A modified state=RTR dest_qpn=0x12 path_mtu=1024 dest_ip=10.0.0.2 local_ip=10.0.0.1
    A modified state=RTS sq_psn=5
"""
UNKNOWN = "A created"


def matches(tracked: Tracked, correlation: Correlation) -> list[str]:
    """A line for each WR: ``7 psn SEND 5..6``, or ``7 -`` without a transfer."""
    lines = []
    for wr in correlation.work_requests:
        transfer = correlation.transfer_of(wr)
        words = "-" if transfer is None else f"{wr.matched_by} {tracked.line(transfer).split()[1:3]}"
        lines.append(
            f"{wr.wr_id} {words}".replace("'", "").replace("[", "").replace("]", "").replace(",", "")
        )
    return lines


def matched(text: str, **how: object) -> list[str]:
    return matches(*Story(text, **how).correlated())  # type: ignore[arg-type]


TRAFFIC = """
    A wr 1 SEND 2000
    A wr 2 RDMA_READ 3000
    A wr 3 ATOMIC_FETCH_AND_ADD 8
    A wr 4 RDMA_WRITE 0
    A wr 5 SEND 64
    a RC_SEND_FIRST 5 1024
    a RC_SEND_LAST  6 976
    a RC_RDMA_READ_REQUEST 7 3000
    a RC_FETCH_ADD 10
    a RC_RDMA_WRITE_ONLY 11 0
    a RC_SEND_ONLY 12 64
    b ACK 6
    b RC_RDMA_READ_RESPONSE_FIRST  7 1024
    b RC_RDMA_READ_RESPONSE_MIDDLE 8 1024
    b RC_RDMA_READ_RESPONSE_LAST   9 952
    b RC_ATOMIC_ACKNOWLEDGE 10
    b ACK 12
    +5us
    A wc 1 SUCCESS opcode=SEND
    A wc 2 SUCCESS opcode=RDMA_READ
    A wc 3 SUCCESS opcode=FETCH_ADD
    A wc 4 SUCCESS opcode=RDMA_WRITE
    A wc 5 SUCCESS opcode=SEND
"""
MATCHED = ["SEND 5..6", "READ 7..9", "FETCH_ADD 10", "WRITE 11", "SEND 12"]


def test_from_the_starting_psn_every_requests_psns_follow_by_arithmetic() -> None:
    assert matched(KNOWN + TRAFFIC) == [f"{n} psn {words}" for n, words in enumerate(MATCHED, 1)]


def test_they_follow_from_the_cm_exchange_as_well() -> None:
    story = Story(UNKNOWN).connect(5, 900).lines(TRAFFIC)
    assert matches(*story.correlated()) == [f"{n} psn {words}" for n, words in enumerate(MATCHED, 1)]


def test_without_a_starting_psn_operations_and_lengths_in_order_must_agree() -> None:
    assert matched(UNKNOWN + TRAFFIC) == [f"{n} order {words}" for n, words in enumerate(MATCHED, 1)]


def test_the_completion_comes_with_the_request() -> None:
    tracked, _ = Story(KNOWN + TRAFFIC).correlated()
    assert [(t.wr.wr_id, t.wc.status) for t in tracked.tracker.transfers if t.wr and t.wc] == [
        (n, "SUCCESS") for n in range(1, 6)
    ]


def test_arithmetic_holds_across_the_wrap() -> None:
    assert matched(
        KNOWN.replace("sq_psn=5", "sq_psn=0xFFFFFF")
        + """
        A wr 1 SEND 3000
        A wr 2 SEND 64
        a RC_SEND_FIRST 0xFFFFFF 1024
        a RC_SEND_MIDDLE 0 1024
        a RC_SEND_LAST 1 952
        a RC_SEND_ONLY 2 64
        b ACK 2
        """
    ) == ["1 psn SEND 16777215..1", "2 psn SEND 2"]


def test_arithmetic_finds_the_requests_of_a_capture_that_begins_late() -> None:
    assert matched(
        KNOWN
        + """
        A wr 1 SEND 5000
        A wr 2 SEND 64
        A wr 3 SEND 64
        +1ms
        a RC_SEND_ONLY 11 64
        b ACK 11
        """
    ) == ["1 -", "2 -", "3 psn SEND 11"]


def test_a_request_not_in_the_capture_has_no_transfer_and_shifts_nothing() -> None:
    assert matched(
        KNOWN
        + """
        A wr 1 SEND 64
        A wr 2 SEND 64
        A wr 3 SEND 64
        a RC_SEND_ONLY 5 64
        # PSN 6 is not in the capture
        a RC_SEND_ONLY 7 64
        b ACK 7
        """
    ) == ["1 psn SEND 5", "2 -", "3 psn SEND 7"]


def test_requests_that_were_never_sent_have_no_transfer() -> None:
    tracked, correlation = Story(
        KNOWN
        + """
        A wr 1 SEND 64
        A wr 2 SEND 64 errno=12
        A wr 3 SEND 64
        a RC_SEND_ONLY 5 64
        b NAK 5 remote_operational_error
        A wc 1 REM_OP_ERR
        A wc 3 WR_FLUSH_ERR
        """
    ).correlated()
    assert matches(tracked, correlation) == ["1 psn SEND 5", "2 -", "3 -"]
    assert [(wr.wr_id, wr.refused) for wr in correlation.unmatched] == [(2, True), (3, False)]
    unmatched = correlation.to_dict()["unmatched"]
    assert [(u["wr"]["wr_id"], u["wc"] and u["wc"]["status"]) for u in unmatched] == [
        (2, None),
        (3, "WR_FLUSH_ERR"),
    ]


def test_a_starting_psn_that_fits_nothing_is_not_used() -> None:
    """A journal of another run, or a device that counts differently: order and length decide."""
    wrong = KNOWN.replace("sq_psn=5", "sq_psn=70000").replace(
        "A modified state=RTR dest_qpn=0x12", "A modified"
    )
    assert [line.split()[1] for line in matched(wrong + TRAFFIC)] == ["order"] * 5


@pytest.mark.parametrize("posted", ["RDMA_WRITE 64", "SEND 65"])
def test_what_differs_in_operation_or_length_is_never_matched(posted: str) -> None:
    assert matched(f"{UNKNOWN}\n A wr 1 {posted}\n a RC_SEND_ONLY 5 64\n b ACK 5") == ["1 -"]


def test_order_finds_the_requests_of_a_capture_that_begins_late() -> None:
    assert matched(
        UNKNOWN
        + """
        A wr 1 SEND 10
        A wr 2 SEND 20
        A wr 3 RDMA_WRITE 30
        A wr 4 SEND 40
        a RC_RDMA_WRITE_ONLY 900 30
        a RC_SEND_ONLY 901 40
        b ACK 901
        """
    ) == ["1 -", "2 -", "3 order WRITE 900", "4 order SEND 901"]


def test_of_equal_requests_none_is_matched_to_a_transfer_sent_before_it_was_posted() -> None:
    story = Story(
        UNKNOWN + "\n a RC_SEND_ONLY 5 64\n b ACK 5\n +10us\n A wr 1 SEND 64\n a RC_SEND_ONLY 6 64\n b ACK 6"
    )
    assert matches(*story.correlated()) == ["1 order SEND 6"]


def test_both_sides_of_a_connection_match_their_own_transfers() -> None:
    assert matched(
        """
        A created
        A modified dest_qpn=0x12 path_mtu=1024 sq_psn=5 rq_psn=900
        B created
        B modified dest_qpn=0x11 path_mtu=1024 sq_psn=900 rq_psn=5
        A wr 1 SEND 64
        B wr 2 SEND 32
        a RC_SEND_ONLY 5 64
        b RC_SEND_ONLY 900 32
        b ACK 5
        a ACK 900
        """
    ) == ["1 psn SEND 5", "2 psn SEND 900"]


def test_a_ud_qp_counts_its_psns_over_all_its_peers() -> None:
    story = Story(
        "A created\n A modified sq_psn=5 local_ip=10.0.0.1\n"
        "A wr 1 SEND 64\n A wr 2 SEND 64\n A wr 3 SEND 32\n"
        "a UD_SEND_ONLY 5 64\n c UD_SEND_ONLY 6 64\n a UD_SEND_ONLY 7 32",
        transport="UD",
        others={"cd": (("10.0.0.1", 0x11), ("10.0.0.3", 0x12))},
    )
    tracked, correlation = story.correlated()
    assert matches(tracked, correlation) == ["1 psn SEND 5", "2 psn SEND 6", "3 psn SEND 7"]
    assert {c.ips[1] for c in tracked.tracker.connections} == {"10.0.0.2", "10.0.0.3"}


# ---------------------------------------------------------------------- receives


def test_each_send_takes_one_receive_in_order_and_so_does_a_write_with_immediate() -> None:
    tracked, _ = Story(
        """
        B created
        B recv 11 4096
        B recv 12 4096
        a RC_SEND_ONLY 5 64
        a RC_RDMA_WRITE_ONLY 6 64
        a RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE 7 32 immediate=1
        b ACK 7
        B wc 11 SUCCESS opcode=RECV byte_len=64
        B wc 12 SUCCESS opcode=RECV_RDMA_WITH_IMM byte_len=32
        """
    ).correlated()
    received = [t.recv_wr.wr_id if t.recv_wr else None for t in tracked.tracker.transfers]
    assert received == [11, None, 12]


def test_as_many_receives_as_messages_are_no_match_where_the_first_messages_are_missing() -> None:
    """The capture lacks the first two of four, and the program polled the first two completions only."""
    tracked, _ = Story(
        """
        B created
        B modified state=RTR dest_qpn=0x11 path_mtu=1024 rq_psn=5 dest_ip=10.0.0.1 local_ip=10.0.0.2
        B recv 11 4096
        B recv 12 4096
        B wc 11 SUCCESS opcode=RECV byte_len=64
        a RC_SEND_ONLY 7 64
        b ACK 7
        a RC_SEND_ONLY 8 64
        b ACK 8
        B wc 12 SUCCESS opcode=RECV byte_len=64
        """
    ).correlated()
    assert [t.recv_wc for t in tracked.tracker.transfers] == [None, None]


def test_a_ud_receive_counts_the_forty_bytes_of_the_grh() -> None:
    tracked, _ = Story(
        "B created\n B recv 11 4096\n a UD_SEND_ONLY 5 64\n B wc 11 SUCCESS opcode=RECV byte_len=104",
        transport="UD",
    ).correlated()
    assert tracked[0].recv_wc is not None
    assert tracked[0].recv_wc.wr_id == 11


# ---------------------------------------------------------------------- clocks and time


ROUND_TRIP = (
    KNOWN
    + """
    A wr 1 SEND 64
    +6us
    a RC_SEND_ONLY 5 64
    +9us
    b ACK 5
    +19us
    A wc 1 SUCCESS opcode=SEND
    """
)


def test_time_is_split_into_software_wire_and_completion() -> None:
    tracked, correlation = Story(ROUND_TRIP).correlated()
    time = timing(tracked[0], correlation.clocks)
    assert time.software_ns == 6_000
    assert time.wire_ns == 9_000 + STEP_NS
    assert time.completion_ns == 19_000 + STEP_NS
    assert time.total_ns == 6_000 + 10_000 + 20_000
    assert time.recovery_ns == 0


@pytest.mark.parametrize("ahead_ns", [0, 5_000, -5_000])
def test_zero_is_assumed_where_the_bounds_of_a_clock_allow_it(ahead_ns: int) -> None:
    _, correlation = Story(ROUND_TRIP, clocks={"a": ahead_ns}).correlated()
    clock = correlation.clocks["host-a"]
    assert clock.offset_ns == 0
    assert (clock.low_ns, clock.high_ns) == (ahead_ns - 6_000, ahead_ns + 20_000)


@pytest.mark.parametrize("ahead_ns", [3_000_000, -3_000_000])
def test_a_clock_whose_bounds_exclude_zero_is_corrected_within_them(ahead_ns: int) -> None:
    tracked, correlation = Story(ROUND_TRIP, clocks={"a": ahead_ns}).correlated()
    clock = correlation.clocks["host-a"]
    assert clock.low_ns is not None
    assert clock.high_ns is not None
    assert clock.low_ns <= ahead_ns <= clock.high_ns
    assert clock.low_ns <= clock.offset_ns <= clock.high_ns
    time = timing(tracked[0], correlation.clocks)
    assert time.software_ns is not None
    assert time.completion_ns is not None
    assert time.software_ns >= 0
    assert time.completion_ns >= 0
    assert time.total_ns == 36_000  # measured by one clock: no offset changes it


def test_of_two_lives_of_a_qp_pair_a_request_belongs_to_the_one_at_its_time() -> None:
    """QPNs are used again: the program that posts in the second life has nothing to do with the first."""
    story = Story().connect(5, 900, comm_id=1).lines("a RC_SEND_ONLY 5 64\nb ACK 5\n+2s")
    story.connect(70_000, 80_000, comm_id=2).lines(
        """
        A created
        A wr 1 SEND 64
        a RC_SEND_ONLY 70000 64
        b ACK 70000
        A wc 1 SUCCESS opcode=SEND
        """
    )
    told, correlation = story.correlated()
    assert len(told.tracker.connections) == 2
    assert matches(told, correlation) == ["1 psn SEND 70000"]
    assert correlation.to_dict()["matched"] == 1
    assert told[0].wr is None


@pytest.mark.parametrize(("who", "psn"), [("a", 6), ("b", 901)])
def test_a_ud_qp_s_requests_are_found_whichever_side_of_the_connection_it_is(who: str, psn: int) -> None:
    program = who.upper()
    text = f"""
        a UD_SEND_ONLY 5 64
        b UD_SEND_ONLY 900 32
        {program} created
        {program} modified sq_psn={psn}
        {program} wr 1 SEND 48
        {who} UD_SEND_ONLY {psn} 48
    """
    assert matched(text, transport="UD") == [f"1 psn SEND {psn}"]


def test_a_cm_event_with_a_qp_belongs_to_that_qp_s_connection() -> None:
    """Whether or not the capture has the exchange of messages."""
    story = Story(KNOWN).entry("a", "cm_event", type="ESTABLISHED")
    told, correlation = story.lines("A wr 1 SEND 64\na RC_SEND_ONLY 5 64\nb ACK 5").correlated()
    (event,) = correlation.cm_events
    assert event.connection is told.tracker.connections[0]
    assert event.record is None


def test_each_request_narrows_the_bounds_of_the_clock() -> None:
    """Every WR is posted before its first packet, every WC polled after its last acknowledgement: the
    shortest of these times bound the clock, whichever request they belong to.
    """
    _, correlation = Story(
        KNOWN
        + """
        A wr 1 SEND 64
        +2us
        a RC_SEND_ONLY 5 64
        b ACK 5
        +29us
        A wc 1 SUCCESS opcode=SEND
        A wr 2 SEND 64
        +9us
        a RC_SEND_ONLY 6 64
        b ACK 6
        +3us
        A wc 2 SUCCESS opcode=SEND
        A wr 3 SEND 64
        +7us
        a RC_SEND_ONLY 7 64
        b ACK 7
        +14us
        A wc 3 SUCCESS opcode=SEND
        """
    ).correlated()
    clock = correlation.clocks["host-a"]
    assert (clock.low_ns, clock.high_ns) == (-2_000, 3_000 + STEP_NS)


def test_each_receive_narrows_the_upper_bound_of_the_receiver_s_clock() -> None:
    """A receive completes after its message's last packet."""
    _, correlation = Story(
        """
        B created
        B recv 11 4096
        B recv 12 4096
        B recv 13 4096
        a RC_SEND_ONLY 5 64
        +30us
        B wc 11 SUCCESS opcode=RECV byte_len=64
        a RC_SEND_ONLY 6 32
        +4us
        B wc 12 SUCCESS opcode=RECV byte_len=32
        a RC_SEND_ONLY 7 16
        b ACK 7
        +12us
        B wc 13 SUCCESS opcode=RECV byte_len=16
        """
    ).correlated()
    clock = correlation.clocks["host-b"]
    assert (clock.low_ns, clock.high_ns) == (None, 4_000 + STEP_NS)


def test_every_host_has_a_clock_of_its_own() -> None:
    story = Story(
        """
        A wr 1 SEND 64
        B wr 2 SEND 32
        +2us
        a RC_SEND_ONLY 5 64
        b RC_SEND_ONLY 900 32
        b ACK 5
        a ACK 900
        A wc 1 SUCCESS opcode=SEND
        B wc 2 SUCCESS opcode=SEND
        """,
        clocks={"b": 1_000_000_000},
    )
    _, correlation = story.correlated()
    assert correlation.clocks["host-a"].offset_ns == 0
    assert abs(correlation.clocks["host-b"].offset_ns - 1_000_000_000) <= 10_000


def test_the_time_that_a_loss_cost_is_counted_apart() -> None:
    tracked, correlation = Story(
        KNOWN
        + """
        A wr 1 SEND 64
        a RC_SEND_ONLY 5 64
        +500us
        a RC_SEND_ONLY 5 64
        b ACK 5
        """
    ).correlated()
    time = timing(tracked[0], correlation.clocks)
    assert time.recovery_ns == 500_000 + STEP_NS
    assert time.wire_ns == 500_000 + 2 * STEP_NS


def test_without_journal_there_is_still_the_time_on_the_wire() -> None:
    tracked = Story("a RC_SEND_FIRST 5 1024\n a RC_SEND_LAST 6 1024\n +8us\n b ACK 6").track()
    time = timing(tracked[0])
    assert (time.software_ns, time.completion_ns, time.total_ns) == (None, None, None)
    assert (time.sending_ns, time.acknowledging_ns, time.wire_ns) == (1_000, 9_000, 10_000)


def because(text: str) -> dict[int, str | None]:
    _, correlation = Story(text).correlated()
    return {u["wr"]["wr_id"]: u["because"] for u in correlation.to_dict()["unmatched"]}


@pytest.mark.parametrize(
    ("request_", "packet", "why"),
    [
        ("RDMA_WRITE_WITH_IMM 64 imm=7", "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE 5 64 immediate=8", "immediate"),
        ("RDMA_WRITE 64 imm=7", "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE 5 64 immediate=8", "an immediate"),
        ("SEND_WITH_IMM 64 imm=7", "RC_SEND_ONLY 5 64", "no immediate"),
        ("RDMA_WRITE 64 rkey=0x1A2C", "RC_RDMA_WRITE_ONLY 5 64", "another key (0x1a2b)"),
        ("RDMA_READ 64 remote_va=0x7000", "RC_RDMA_READ_REQUEST 5 64", "another address (0x7f0000001000)"),
        ("RDMA_WRITE 65", "RC_RDMA_WRITE_ONLY 5 64", "another length (64 bytes)"),
        (
            "SEND_WITH_INV 64 invalidate_rkey=9",
            "RC_SEND_ONLY_WITH_INVALIDATE 5 64 invalidate_rkey=8",
            "key to",
        ),
        ("SEND 64", "RC_RDMA_WRITE_ONLY 5 64", "another operation (WRITE)"),
    ],
)
def test_no_match_is_stated_that_the_packets_contradict(request_: str, packet: str, why: str) -> None:
    text = "".join(f"A wr {n} SEND 8\na RC_SEND_ONLY {5 + n} 8\n" for n in range(1, 40))
    opcode, length, *more = request_.split()
    found = because(
        f"{KNOWN}\nA wr 0 {opcode} {length} {' '.join(more)}\na {packet}\n{text}\nb ACK 44\n",
    )
    assert list(found) == [0]
    assert found[0] is not None
    assert why in found[0]
    assert "no packet" not in found[0]


def test_what_both_sides_know_alike_is_matched() -> None:
    assert matched(
        KNOWN
        + """
        A wr 1 RDMA_WRITE_WITH_IMM 64 imm=7 rkey=0x1A2B remote_va=0x7F0000001000
        A wr 2 RDMA_READ 64 rkey=0x1A2B remote_va=0x7F0000001000
        A wr 3 SEND_WITH_INV 64 invalidate_rkey=8
        a RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE 5 64 immediate=7
        a RC_RDMA_READ_REQUEST 6 64
        a RC_SEND_ONLY_WITH_INVALIDATE 7 64 invalidate_rkey=8
        b ACK 5
        b RC_RDMA_READ_RESPONSE_ONLY 6 64
        b ACK 7
        """
    ) == ["1 psn WRITE 5", "2 psn READ 6", "3 psn SEND 7"]


TOGETHER = """
    A wr 1 SEND 64 psn=5
    A wr 2 RDMA_WRITE_WITH_IMM 64 imm=2 overlapped=true
    A wr 3 RDMA_WRITE_WITH_IMM 64 imm=3 overlapped=true
    A wr 4 SEND 64 psn=8
    a RC_SEND_ONLY 5 64
    a RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE 6 64 immediate=3
    a RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE 7 64 immediate=2
    a RC_SEND_ONLY 8 64
    b ACK 8
"""


def test_requests_posted_at_the_same_time_are_told_apart_by_their_contents() -> None:
    """Two threads on one QP: the journal has them in one order, the device took them in the other."""
    assert matched(KNOWN + TOGETHER) == [
        "1 psn SEND 5",
        "2 contents WRITE 7",
        "3 contents WRITE 6",
        "4 psn SEND 8",
    ]


def test_those_that_are_alike_are_left_apart_and_it_is_said_why() -> None:
    alike = TOGETHER.replace("imm=3", "imm=2").replace("immediate=3", "immediate=2")
    assert matched(KNOWN + alike) == ["1 psn SEND 5", "2 -", "3 -", "4 psn SEND 8"]
    assert set(because(KNOWN + alike)) == {2, 3}
    assert all("another thread" in str(why) for why in because(KNOWN + alike).values())


def test_of_three_at_once_one_that_is_certain_decides_the_others() -> None:
    """The middle one fits only one message; with it gone, each of the others fits one."""
    text = TOGETHER.replace(
        "A wr 4 SEND 64 psn=8", "A wr 9 SEND 32 overlapped=true\n    A wr 4 SEND 64 psn=9"
    )
    text = text.replace("a RC_SEND_ONLY 8 64", "a RC_SEND_ONLY 8 32\n    a RC_SEND_ONLY 9 64").replace(
        "ACK 8", "ACK 9"
    )
    assert matched(KNOWN + text)[1:4] == ["2 contents WRITE 7", "3 contents WRITE 6", "9 contents SEND 8"]


def test_bounds_of_a_clock_that_cross_are_said() -> None:
    """Its clock is set back while the program runs: no offset fits both before and after."""
    story = Story(KNOWN).lines("A wr 1 SEND 64\na RC_SEND_ONLY 5 64\nb ACK 5\nA wc 1 SUCCESS opcode=SEND\n")
    story.clocks["a"] = -50_000_000
    story.lines("A wr 2 SEND 64\na RC_SEND_ONLY 6 64\nb ACK 6\nA wc 2 SUCCESS opcode=SEND\n")
    _, correlation = story.correlated()
    (clock,) = correlation.clocks.values()
    assert 49_000_000 < clock.crossed_ns < 50_000_000
    assert "cross" in clock.crossing


def test_times_are_given_by_the_host_s_clock_and_by_the_capture_s() -> None:
    ahead = 700_000_000
    tracked, correlation = Story(KNOWN + TRAFFIC, clocks={"a": ahead}).correlated()
    transfer = tracked.tracker.transfers[0]
    told = transfer.to_dict()
    (clock,) = correlation.clocks.values()
    wr, wc = told["wr"], told["wc"]
    assert wr["host"] == clock.host == wc["host"]
    assert abs(wr["posted_ns"] - wr["posted_capture_ns"] - ahead) < 100_000
    assert (
        wr["posted_ns"] - wr["posted_capture_ns"]
        == clock.offset_ns
        == wc["polled_ns"] - wc["polled_capture_ns"]
    )
    assert wr["posted_capture_ns"] <= told["first_ns"] <= told["acked_ns"] <= wc["polled_capture_ns"]
