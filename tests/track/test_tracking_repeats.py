"""What is sent again, and why: refusals, timeouts, lost answers, and what only looks like it."""

from __future__ import annotations

import pytest
from story import Story, track

# ---------------------------------------------------------------------- a request is lost


def test_lost_behind_the_capture_a_nak_makes_the_requester_go_back() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64  # lost on its way to B
        a RC_SEND_ONLY 7 64
        b NAK 6
        a RC_SEND_ONLY 6 64
        a RC_SEND_ONLY 7 64
        b ACK 7
        """
    )
    assert told.transfers == [
        "a SEND 5 64 bytes: acked",
        "a SEND 6 64 bytes: acked, 1 again, 1 nak",
        "a SEND 7 64 bytes: acked, 1 again",
    ]
    assert told.events == ["1 nak 6", "1 repeat 6 by nak", "2 repeat 7 by nak"]


def test_lost_before_the_capture_what_comes_again_was_sent_again_though_seen_once() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        # PSN 6 lost on its way to the capture
        a RC_SEND_ONLY 7 64
        b NAK 6
        a RC_SEND_ONLY 6 64
        a RC_SEND_ONLY 7 64
        b ACK 7
        """
    )
    assert told.transfers == [
        "a SEND 5 64 bytes: acked",
        "a SEND 6 64 bytes: acked, 1 again, 1 nak",
        "a SEND 7 64 bytes: acked, 1 again",
    ]
    assert told.missed == []
    assert [e.first_sight for e in told[1].events if e.kind == "repeat"] == [1]


def test_a_loss_inside_a_message_repeats_its_rest_and_keeps_it_one_message() -> None:
    told = track(
        """
        a RC_RDMA_WRITE_FIRST  5 1024 of=4096
        a RC_RDMA_WRITE_MIDDLE 7 1024
        a RC_RDMA_WRITE_LAST   8 1024
        b NAK 6
        a RC_RDMA_WRITE_MIDDLE 6 1024
        a RC_RDMA_WRITE_MIDDLE 7 1024
        a RC_RDMA_WRITE_LAST   8 1024
        b ACK 8
        """
    )
    assert told.transfers == ["a WRITE 5..8 4096 bytes in 4 packets: acked, 3 again, 1 nak"]


def test_the_very_first_packet_of_the_capture_may_be_the_one_behind_a_loss() -> None:
    told = track(
        """
        # PSN 5 lost on its way to the capture
        a RC_SEND_ONLY 6 64
        b NAK 5
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64
        b ACK 6
        """
    )
    assert told.transfers == [
        "a SEND 5 64 bytes: acked, 1 again, 1 nak",
        "a SEND 6 64 bytes: acked, 1 again",
    ]


def test_a_loss_at_the_wrap_is_a_loss_like_any_other() -> None:
    told = track(
        """
        a RC_SEND_FIRST  0xFFFFFE 1024
        a RC_SEND_LAST   0 1024
        b NAK 0xFFFFFF
        a RC_SEND_MIDDLE 0xFFFFFF 1024
        a RC_SEND_LAST   0 1024
        b ACK 0
        """
    )
    assert told.transfers == ["a SEND 16777214..0 3072 bytes in 3 packets: acked, 2 again, 1 nak"]


def test_the_last_packet_lost_shows_after_a_silence() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        b ACK 5
        a RC_SEND_ONLY 6 64
        +70ms
        a RC_SEND_ONLY 6 64
        b ACK 6
        """
    )
    assert told.transfers == ["a SEND 5 64 bytes: acked", "a SEND 6 64 bytes: acked, 1 again, 1 timeout"]
    (event,) = told[1].events
    assert (event.kind, event.cause) == ("repeat", "timeout")
    assert 70_000_000 <= event.waited_ns <= 70_002_000


def test_the_silence_is_as_long_as_the_timer_says() -> None:
    """A timeout of code 14 is 67.1 ms; a requester waits so long, or up to four times (9.7.6.1.3)."""
    story = Story().connect(5, 900, primary_local_ack_timeout=14)
    told = story.lines(
        """
        a RC_SEND_ONLY 5 64
        +68ms
        a RC_SEND_ONLY 5 64
        +68ms
        a RC_SEND_ONLY 5 64
        b ACK 5
        """
    ).track()
    assert told.transfers == ["a SEND 5 64 bytes: acked, 2 again, 2 timeout"]


def test_a_lost_acknowledgement_makes_the_requester_repeat_what_had_arrived() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        b ACK 5  # lost on its way to A
        +70ms
        a RC_SEND_ONLY 5 64
        b ACK 5
        """
    )
    assert told.transfers == ["a SEND 5 64 bytes: acked, 1 again, 1 timeout"]
    assert [e.after_ack for e in told[0].events] == [True]


def test_a_requester_that_gives_up_leaves_its_transfer_unacknowledged() -> None:
    story = Story().connect(5, 900)
    story.a("RC_SEND_ONLY", 5, 64)
    for _ in range(7):
        story.wait(ms=268).a("RC_SEND_ONLY", 5, 64)
    assert story.track().transfers == ["a SEND 5 64 bytes: unacknowledged, 7 again, 7 timeout"]


def test_a_nak_that_is_lost_ends_in_a_timeout() -> None:
    story = Story().connect(5, 900, primary_local_ack_timeout=14)
    told = story.lines(
        """
        a RC_SEND_ONLY 6 64
        b NAK 5  # lost on its way to A
        +80ms
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64
        b ACK 6
        """
    ).track()
    assert told.transfers[0] == "a SEND 5 64 bytes: acked, 1 again, 1 nak, 1 timeout"
    assert told.transfers[1] == "a SEND 6 64 bytes: acked, 1 again"


def test_two_losses_are_two_naks() -> None:
    told = track(
        """
        a RC_SEND_ONLY 4 64
        b ACK 4
        a RC_SEND_ONLY 6 64
        b NAK 5
        a RC_SEND_ONLY 6 64  # its PSN 5 lost again
        b NAK 5
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64
        b ACK 6
        """
    )
    assert told.tracker.connections[0].naks == 2
    assert told.transfers[1] == "a SEND 5 64 bytes: acked, 1 again, 2 nak"
    assert told.transfers[2] == "a SEND 6 64 bytes: acked, 2 again"


def test_what_was_sent_before_the_nak_came_is_no_repeat() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64  # lost on its way to B
        a RC_SEND_ONLY 7 64
        b NAK 6
        a RC_SEND_ONLY 8 64  # under way already
        a RC_SEND_ONLY 6 64
        a RC_SEND_ONLY 7 64
        a RC_SEND_ONLY 8 64
        a RC_SEND_ONLY 9 64
        b ACK 9
        """
    )
    assert [line.split("acked")[1] for line in told.transfers] == [
        "",
        ", 1 again, 1 nak",
        ", 1 again",
        ", 1 again",
        "",
    ]


def test_repeats_stop_where_new_packets_begin() -> None:
    told = track(
        """
        a RC_SEND_ONLY 6 64
        b NAK 5
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64
        a RC_SEND_ONLY 7 64
        a RC_SEND_ONLY 8 64
        b ACK 8
        """
    )
    assert told.tracker.connections[0].retransmitted_packets == 2


# ---------------------------------------------------------------------- nobody was ready to receive


def test_after_an_rnr_nak_the_requester_waits_and_sends_again() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        b RNR 5 timer=12  # 640 µs
        +650us
        a RC_SEND_ONLY 5 64
        b ACK 5
        """
    )
    assert told.transfers == ["a SEND 5 64 bytes: acked, 1 again, 1 rnr"]
    (refusal, repeat) = told[0].events
    assert (refusal.kind, repeat.kind, repeat.cause) == ("rnr_nak", "repeat", "rnr")
    assert 650_000 <= repeat.waited_ns <= 652_000


def test_an_rnr_nak_sends_back_also_what_came_behind() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64
        a RC_RDMA_WRITE_ONLY 7 64
        b ACK 5
        b RNR 6 timer=1
        +20us
        a RC_SEND_ONLY 6 64
        a RC_RDMA_WRITE_ONLY 7 64
        b ACK 7
        """
    )
    assert told.transfers == [
        "a SEND 5 64 bytes: acked",
        "a SEND 6 64 bytes: acked, 1 again, 1 rnr",
        "a WRITE 7 64 bytes: acked, 1 again",
    ]


def test_a_receiver_that_stays_unready_refuses_again_and_again() -> None:
    story = Story().a("RC_SEND_ONLY", 5, 64)
    for _ in range(3):
        story.b("RNR", 5, timer=1).wait(us=20).a("RC_SEND_ONLY", 5, 64)
    assert story.b("ACK", 5).track().transfers == ["a SEND 5 64 bytes: acked, 3 again, 3 rnr"]


# ---------------------------------------------------------------------- a response is lost


def test_a_lost_response_is_asked_again_from_where_it_is_missing() -> None:
    told = track(
        """
        a RC_RDMA_READ_REQUEST 5 4096
        b RC_RDMA_READ_RESPONSE_FIRST  5 1024
        # PSN 6 lost on its way to the capture
        b RC_RDMA_READ_RESPONSE_MIDDLE 7 1024
        b RC_RDMA_READ_RESPONSE_LAST   8 1024
        a RC_RDMA_READ_REQUEST 6 3072
        b RC_RDMA_READ_RESPONSE_FIRST  6 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 7 1024
        b RC_RDMA_READ_RESPONSE_LAST   8 1024
        """
    )
    # The request again, and PSNs 6 to 8 answered twice.
    assert told.transfers == ["a READ 5..8 4096 bytes in 4 packets: acked, 4 again"]
    repeat = next(e for e in told[0].events if e.kind == "repeat")
    assert (repeat.cause, repeat.psn) == ("implied_nak", 6)


def test_responses_seen_and_asked_again_were_lost_behind_the_capture() -> None:
    told = track(
        """
        a RC_RDMA_READ_REQUEST 5 2048
        b RC_RDMA_READ_RESPONSE_FIRST 5 1024
        b RC_RDMA_READ_RESPONSE_LAST  6 1024  # lost on its way to A
        +70ms
        a RC_RDMA_READ_REQUEST 6 1024
        b RC_RDMA_READ_RESPONSE_ONLY 6 1024
        a RC_SEND_ONLY 7 64
        b ACK 7
        """
    )
    assert told.transfers == [
        "a READ 5..6 2048 bytes in 2 packets: acked, 2 again, 1 timeout",
        "a SEND 7 64 bytes: acked",
    ]


def test_a_read_request_lost_is_asked_again_whole() -> None:
    told = track(
        """
        a RC_SEND_ONLY 4 64
        b ACK 4
        a RC_RDMA_READ_REQUEST 5 2048
        +70ms
        a RC_RDMA_READ_REQUEST 5 2048
        b RC_RDMA_READ_RESPONSE_FIRST 5 1024
        b RC_RDMA_READ_RESPONSE_LAST  6 1024
        """
    )
    assert told.transfers[1] == "a READ 5..6 2048 bytes in 2 packets: acked, 1 again, 1 timeout"


def test_an_atomic_asked_again_is_answered_from_memory_and_done_once() -> None:
    told = track(
        """
        a RC_FETCH_ADD 5 swap_add=1
        b RC_ATOMIC_ACKNOWLEDGE 5 original=41  # lost on its way to A
        +70ms
        a RC_FETCH_ADD 5 swap_add=1
        b RC_ATOMIC_ACKNOWLEDGE 5 original=41
        """
    )
    assert told.transfers == ["a FETCH_ADD 5 8 bytes: acked, 2 again, 1 timeout"]
    assert told[0].original == 41


# ---------------------------------------------------------------------- what only looks like a loss


def test_the_same_datagram_twice_was_doubled_by_the_network_and_not_sent_again() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        again
        b ACK 5
        """
    )
    assert told.transfers == ["a SEND 5 64 bytes: acked, 1 doubled"]
    assert told.tracker.connections[0].retransmitted_packets == 0


def test_the_same_psn_in_another_datagram_was_sent_again() -> None:
    told = track("a RC_SEND_ONLY 5 64\n a RC_SEND_ONLY 5 64\n b ACK 5")
    assert told[0].retransmitted_packets == 1
    assert told[0].duplicates == 0


def test_a_doubled_datagram_in_the_middle_of_a_message_adds_no_bytes() -> None:
    told = track(
        """
        a RC_SEND_FIRST  5 1024
        a RC_SEND_MIDDLE 6 1024
        again
        a RC_SEND_LAST   7 1024
        b ACK 7
        """
    )
    assert told.transfers == ["a SEND 5..7 3072 bytes in 3 packets: acked, 1 doubled"]


@pytest.mark.parametrize("transport", ["UC", "UD"])
def test_a_doubled_datagram_without_acknowledgements_is_one_transfer(transport: str) -> None:
    told = track(f"a {transport}_SEND_ONLY 5 64\n again\n a {transport}_SEND_ONLY 6 64")
    assert told.transfers == ["a SEND 5 64 bytes: sent, 1 doubled", "a SEND 6 64 bytes: sent"]


def test_a_doubled_acknowledgement_changes_nothing() -> None:
    told = track("a RC_SEND_ONLY 5 64\n b ACK 5\n again\n a RC_SEND_ONLY 6 64\n b ACK 6")
    assert told.transfers == ["a SEND 5 64 bytes: acked", "a SEND 6 64 bytes: acked"]


def test_packets_that_change_places_are_late_and_not_sent_again() -> None:
    told = track(
        """
        a RC_SEND_FIRST  5 1024
        a RC_SEND_LAST   7 1024 identification=3
        a RC_SEND_MIDDLE 6 1024 identification=2  # overtaken
        b ACK 7
        """
    )
    assert told.transfers == ["a SEND 5..7 3072 bytes in 3 packets: acked"]
    assert [e.kind for e in told[0].events] == ["hole", "late"]


OVERTAKEN_BY_ITS_REPEAT = (
    ("RC_SEND_ONLY", 4, 100),
    ("RC_SEND_ONLY", 6, 102),  # 101 is held up
    ("NAK", 5, 0),
    ("RC_SEND_ONLY", 5, 103),
    ("RC_SEND_ONLY", 6, 104),
    ("RC_SEND_ONLY", 5, 101),  # here it is
    ("ACK", 6, 0),
)


def overtaken(*identifications: int) -> list[str]:
    """The events of packets that change places, with these IP identifications of the requester's packets."""
    story, numbers = Story(), iter(identifications)
    for what, psn, _ in OVERTAKEN_BY_ITS_REPEAT:
        if what.startswith("RC"):
            story.a(what, psn, 64, identification=next(numbers))
        else:
            story.b(what, psn)
    return story.track().events


def test_a_packet_that_its_own_repeat_overtook_is_late_where_the_sender_counts() -> None:
    events = overtaken(*(number for what, _, number in OVERTAKEN_BY_ITS_REPEAT if number))
    assert [event.partition(" ")[2] for event in events] == [
        "hole 5",
        "nak 5",
        "repeat 5 by nak",
        "late 5",
        "repeat 6 by nak",
    ]


def test_the_count_may_run_over() -> None:
    assert overtaken(65533, 65535, 1, 2, 65534) == overtaken(100, 102, 103, 104, 101)


def test_identifications_that_are_no_count_tell_nothing() -> None:
    assert not any("late" in event for event in overtaken(105, 31_000, 9_000, 52_000, 101))
    assert not any("late" in event for event in overtaken(0, 0, 0, 0, 0))


@pytest.mark.parametrize("transport", ["RC", "UC"])
def test_messages_that_change_places_keep_their_own_packets(transport: str) -> None:
    told = track(
        f"""
        a {transport}_SEND_ONLY  4 8
        a {transport}_SEND_FIRST 5 1024
        a {transport}_SEND_ONLY  7 64   identification=4
        a {transport}_SEND_LAST  6 1024 identification=3
        {"b ACK 7" if transport == "RC" else ""}
        """
    )
    done = "acked" if transport == "RC" else "sent"
    assert told.transfers == [
        f"a SEND 4 8 bytes: {done}",
        f"a SEND 5..6 2048 bytes in 2 packets: {done}",
        f"a SEND 7 64 bytes: {done}",
    ]


def test_responses_that_change_places_are_not_sent_again() -> None:
    told = track(
        """
        a RC_RDMA_READ_REQUEST 5 3072
        b RC_RDMA_READ_RESPONSE_FIRST  5 1024
        b RC_RDMA_READ_RESPONSE_LAST   7 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 6 1024
        """
    )
    assert told.transfers == ["a READ 5..7 3072 bytes in 3 packets: acked"]


def test_a_uc_message_that_lost_a_packet_is_incomplete_and_the_next_one_whole() -> None:
    told = track(
        """
        a UC_SEND_FIRST 5 1024
        a UC_SEND_LAST  7 1024  # PSN 6 lost
        a UC_SEND_ONLY  8 64
        """
    )
    assert told.transfers[0].endswith(": incomplete")
    assert told.transfers[-1] == "a SEND 8 64 bytes: sent"
    assert "5..7" in told.transfers[0]


@pytest.mark.parametrize(
    ("request_", "answer", "told_as"),
    [
        ("RC_RDMA_READ_REQUEST 9 64", "RC_RDMA_READ_RESPONSE_ONLY 9 64", "a READ 9 64 bytes: acked"),
        ("RC_FETCH_ADD 9", "RC_ATOMIC_ACKNOWLEDGE 9", "a FETCH_ADD 9 8 bytes: acked"),
    ],
)
def test_an_answer_shows_that_the_capture_only_missed_what_came_before_its_request(
    request_: str, answer: str, told_as: str
) -> None:
    story = Story().connect(5, 900).lines(f"a {request_}\nb {answer}")
    told = story.track()
    assert told.transfers == [told_as]
    assert told.missed == ["5..8"]


BEHIND = """
    a RC_FETCH_ADD 5
    a RC_SEND_ONLY 6 64
    a RC_SEND_ONLY 7 64
    b ACK 6                       # says that 5 was executed: its answer must have been lost
    b RC_ATOMIC_ACKNOWLEDGE 5     # it was only late
    {}
    a RC_SEND_ONLY 7 64
    b ACK 7
"""


@pytest.mark.parametrize("said_again", ["", "b ACK 6"])
def test_a_requester_goes_back_behind_what_was_answered_before_it_got_round_to_it(said_again: str) -> None:
    """Without IP identifications the copy of a packet so soon might be the network's."""
    told = Story(BEHIND.format(said_again), ip_ids=False).track()
    assert told.events == ["2 repeat 7 by implied_nak"]


def test_unprovoked_it_was_doubled() -> None:
    text = BEHIND.format("").replace("b ACK 6 ", "# ")
    assert Story(text, ip_ids=False).track().events == ["2 duplicate 7"]
