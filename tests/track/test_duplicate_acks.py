"""ACKs that say the same again: counted, and told apart by their IPv4 identifications."""

from __future__ import annotations

from talk import MS, TIMEOUT, Talk, settled

from rocekit.track.events import Event


def openers(t: Talk) -> list[Event]:
    return [e for tr in t.evidence().transfers for e in tr.events if e.kind == "repeat" and e.opens]


def test_an_ack_that_the_network_doubles() -> None:
    t = settled(Talk(), 99)
    t.write(100, 4)
    t.again(t.ack(103, msn=2))
    (connection,) = t.evidence().connections
    assert (connection.duplicate_acks, connection.copied_ack_count) == (1, 1)
    assert connection.to_dict()["duplicate_acks"] == 1
    (found,) = t.findings()
    assert (found.rule, found.severity) == ("duplicate", "info")
    assert (
        found.title == "1 acknowledgement came again between 10.9.0.1 and 10.9.0.2: its sender sent it once"
    )
    assert found.frames == (len(t.frames),)


def test_acks_that_a_responder_sends_again_are_counted_and_no_finding() -> None:
    t = settled(Talk(), 99)
    t.write(100, 4)
    for _ in range(3):
        t.ack(103, msn=2)
    (connection,) = t.evidence().connections
    assert (connection.duplicate_acks, connection.copied_ack_count) == (2, 0)
    assert t.findings() == []


def test_without_identifications_they_are_only_counted() -> None:
    t = Talk()
    t.common = {"identification": 0}
    settled(t, 99)
    t.write(100, 4)
    t.again(t.ack(103, msn=2))
    (connection,) = t.evidence().connections
    assert (connection.duplicate_acks, connection.copied_ack_count) == (1, 0)


def test_an_ack_of_one_psn_with_another_msn_is_another() -> None:
    t = settled(Talk(), 99)
    t.write(100, 4)
    t.ack(103, msn=2)
    t.ack(103, msn=3)
    assert t.evidence().connections[0].duplicate_acks == 0


def test_an_ack_after_a_nak_of_its_psn_is_none() -> None:
    t = settled(Talk(), 99)
    t.write(100, 4, lost={101})
    t.ack(100, msn=1)
    t.nak(101)
    t.write(100, 4, only=[101, 102, 103])
    t.ack(103, msn=2)
    assert t.evidence().connections[0].duplicate_acks == 0


def test_each_packet_that_comes_twice_is_acknowledged_again() -> None:
    """The ACK of 100 and 101 was lost: the responder acknowledges each repeated packet with the last PSN."""
    t = settled(Talk(), 99)
    t.write(100, 2)
    t.wait(TIMEOUT)
    t.write(100, 2)
    t.ack(101, msn=2)
    t.ack(101, msn=2)
    (opener,) = openers(t)
    assert (opener.answer_psn, opener.same_answers) == (101, 2)


def test_packets_that_had_been_lost_are_acknowledged_once() -> None:
    t = settled(Talk(), 99)
    t.write(100, 2)
    t.wait(TIMEOUT)
    t.write(100, 2)
    t.again(t.ack(101, msn=2))  # a copy by the network is no answer
    t.wait(MS)
    t.write(102, 2)
    t.ack(103, msn=3)
    (opener,) = openers(t)
    assert (opener.answer_psn, opener.same_answers) == (101, 1)
