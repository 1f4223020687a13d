"""What packets written one by one make each counter go up by."""

from __future__ import annotations

from pathlib import Path

from counted import AT_B, plain, predicted, tried
from talk import MS, Talk

from rocekit import wire


def lossy() -> Talk:
    """PSN 2 of five is lost before the capture at b; the rest of the pass is dropped, and all comes again."""
    talk = Talk()
    talk.connect()
    talk.send(0, 5, lost=[2])
    talk.nak(2)
    talk.wait(MS)
    talk.send(0, 5, only=[2, 3, 4])
    talk.ack(4)
    return talk


def test_a_clean_conversation_counts_its_packets(tmp_path: Path) -> None:
    found = tried(tmp_path, plain(Talk()))
    assert predicted(found) == {"sent_pkts": 8, "rcvd_pkts": 3, "rdma_sends": 3, "rdma_recvs": 1}
    found = tried(tmp_path, plain(Talk()), AT_B)
    assert predicted(found) == {"sent_pkts": 3, "rcvd_pkts": 8, "rdma_sends": 1, "rdma_recvs": 3}


def test_a_gap_counts_once_and_the_go_back_too(tmp_path: Path) -> None:
    at_b = predicted(tried(tmp_path, lossy(), AT_B))
    assert at_b["out_of_seq_request"] == 1
    assert "duplicate_request" not in at_b
    assert at_b["rdma_recvs"] == 3  # the message and two MADs
    at_a = predicted(tried(tmp_path, lossy()))
    assert at_a["completer_retry_err"] == 1
    assert at_a["rcvd_seq_err"] == 1


def test_a_nak_of_the_oldest_request_is_not_counted_by_rxe(tmp_path: Path) -> None:
    talk = Talk()
    talk.connect()
    talk.write(0)
    talk.ack(0)
    talk.write(1, 3, lost=[1])
    talk.nak(1)
    talk.write(1, 3)
    talk.ack(3)
    found = predicted(tried(tmp_path, talk))
    assert "rcvd_seq_err" not in found
    assert found["completer_retry_err"] == 1


def test_the_first_request_lost_is_known_by_its_nak(tmp_path: Path) -> None:
    talk = Talk()
    talk.connect()
    talk.write(0, 3, lost=[0])
    talk.nak(0)
    talk.write(0, 3)
    talk.ack(2)
    found = predicted(tried(tmp_path, talk, AT_B))
    assert found["out_of_seq_request"] == 1
    assert "duplicate_request" not in found


def test_a_lost_acknowledgement_makes_duplicates_and_a_go_back_by_the_timer(tmp_path: Path) -> None:
    talk = Talk()
    talk.connect()
    talk.write(0, 3)
    talk.wait(67 * MS)
    talk.write(0, 3)
    for _ in range(3):
        talk.ack(2)
    assert predicted(tried(tmp_path, talk, AT_B))["duplicate_request"] == 3
    assert predicted(tried(tmp_path, talk))["completer_retry_err"] == 1


def test_a_packet_doubled_by_the_network_is_a_duplicate_and_no_go_back(tmp_path: Path) -> None:
    talk = Talk()
    talk.connect()
    talk.again(talk.write(0)[0])
    talk.ack(0)
    talk.ack(0)
    assert predicted(tried(tmp_path, talk, AT_B))["duplicate_request"] == 1
    assert "completer_retry_err" not in predicted(tried(tmp_path, talk))


def waiting() -> Talk:
    """An RNR NAK, and the message again after its wait."""
    talk = Talk()
    talk.connect()
    talk.send(0)
    talk.rnr(0)
    talk.wait(MS)
    talk.send(0)
    talk.ack(0)
    return talk


def test_an_rnr_nak_moves_nothing_and_its_repeat_is_no_go_back(tmp_path: Path) -> None:
    at_b = predicted(tried(tmp_path, waiting(), AT_B))
    assert at_b["send_rnr_err"] == 1
    assert at_b["rdma_recvs"] == 3
    assert "duplicate_request" not in at_b
    at_a = predicted(tried(tmp_path, waiting()))
    assert at_a["rcvd_rnr_err"] == 1
    assert "completer_retry_err" not in at_a


def test_a_nak_in_the_wait_after_an_rnr_nak_leaves_the_go_backs_open(tmp_path: Path) -> None:
    talk = Talk()
    talk.connect()
    talk.send(0)
    talk.send(1)
    talk.rnr(0)
    talk.nak(0)
    talk.wait(MS)
    talk.send(0)
    talk.send(1)
    talk.ack(1)
    found = tried(tmp_path, talk)["completer_retry_err"]
    assert found.predicted is None
    assert found.words.endswith("a NAK came in the wait after an RNR NAK")
    # The responder took neither: the second was behind a gap.
    assert predicted(tried(tmp_path, talk, AT_B))["out_of_seq_request"] == 1


def test_a_read_takes_the_psns_of_its_responses(tmp_path: Path) -> None:
    talk = Talk()
    talk.connect()
    talk.read(0, 4)
    talk.responses(0, 4, lost=[2])
    talk.wait(67 * MS)
    talk.read(0, 4, skip=2)
    talk.responses(0, 4, skip=2)
    talk.write(4)
    talk.ack(4)
    at_b = predicted(tried(tmp_path, talk, AT_B))
    assert at_b["duplicate_request"] == 1
    assert "out_of_seq_request" not in at_b
    assert predicted(tried(tmp_path, talk))["completer_retry_err"] == 1


def test_a_wrong_icrc_is_not_received(tmp_path: Path) -> None:
    talk = Talk()
    talk.connect()
    talk.corrupted(talk.write(0, 2)[0])
    talk.nak(0)
    talk.write(0, 2)
    talk.ack(1)
    found = predicted(tried(tmp_path, talk, AT_B))
    assert found["rcvd_pkts"] == 5
    assert found["out_of_seq_request"] == 1


def test_requests_without_an_answer_at_the_end_may_have_found_no_qp(tmp_path: Path) -> None:
    talk = plain(Talk())
    talk.write(6)
    found = tried(tmp_path, talk, AT_B)
    assert found["rcvd_pkts"].predicted is None
    assert found["rcvd_pkts"].words.endswith("the QP may have been gone")
    assert found["sent_pkts"].predicted == 3


def test_after_a_fatal_nak_the_qp_takes_no_more_packets(tmp_path: Path) -> None:
    talk = Talk()
    talk.connect()
    talk.write(0, 3)
    talk.nak(1, wire.NAK_REMOTE_ACCESS)
    found = tried(tmp_path, talk, AT_B)
    assert found["rcvd_pkts"].predicted is None
    assert found["out_of_seq_request"].predicted == 0
    assert tried(tmp_path, talk)["rdma_sends"].predicted is None


def test_with_no_repeat_and_all_acknowledged_nobody_gave_up(tmp_path: Path) -> None:
    assert tried(tmp_path, plain(Talk()))["retry_exceeded_err"].predicted == 0
    unanswered = plain(Talk())
    unanswered.write(6)
    found = tried(tmp_path, unanswered)["retry_exceeded_err"]
    assert (found.predicted, found.verdict) == (None, "unknown")
