"""What the findings claim where a capture has one direction of a connection, or lacks packets of it."""

from __future__ import annotations

from talk import MS, TIMEOUT, US, Talk, only


def test_a_read_requested_again_in_part_shows_the_path_mtu() -> None:
    """No response is in the capture: the address moves by one path MTU a PSN (9.4.4)."""
    t = Talk()
    for psn in (100, 104, 108):
        t.read(psn, 4)
        t.wait(20 * US)
    t.wait(TIMEOUT)
    t.read(104, 4, skip=2)
    t.read(108, 4)
    t.wait(MS)
    t.read(112, 4)
    evidence = t.evidence()
    (connection,) = evidence.connections
    assert connection.path_mtu == t.mtu
    assert [(x.first_psn, x.packets) for x in evidence.transfers] == [(n, 4) for n in (100, 104, 108, 112)]
    found = t.findings()
    assert not [f for f in found if f.rule in ("loss", "retry-exceeded", "peer-silent")]
    assert "probably" in only(found, "implied-nak").title


def test_without_responses_a_repeat_leaves_open_what_was_lost() -> None:
    t = Talk()
    for psn in range(3):
        t.send(psn)
        t.wait(20 * US)
    t.wait(TIMEOUT)
    t.send(2)
    for psn in range(3, 30):
        t.send(psn)
        t.wait(20 * US)
    t.wait(2 * TIMEOUT)
    t.send(30)
    found = t.findings()
    assert {f.rule for f in found} <= {"tail-loss", "ack-loss"}
    assert all("or its response" in f.title or "probably" in f.title for f in found)


def test_a_requester_that_sends_on_did_not_give_up() -> None:
    """PSN 3 came five times, and later ones behind it: it was answered, though the capture has no answer."""
    t = Talk()
    t.connect(retry_count=3)
    for psn in range(3):
        t.send(psn)
        t.ack(psn)
    for _ in range(5):
        t.send(3)
        t.wait(TIMEOUT)
    for psn in range(4, 40):
        t.send(psn)
        t.wait(MS)
    t.wait(20 * TIMEOUT)
    t.send(40)
    assert not {f.rule for f in t.findings()} & {"retry-exceeded", "peer-silent"}


def test_a_nak_without_any_request_leaves_open_that_the_packet_was_overtaken() -> None:
    t = Talk()
    t.connect()
    for psn in range(4):
        t.ack(psn)
        t.wait(20 * US)
    t.nak(4)
    for psn in range(4, 9):
        t.wait(20 * US)
        t.ack(psn)
    found = only(t.findings(), "loss")
    assert found.title.startswith("PSN 4 was probably lost")
    assert found.evidence["or_overtaken"] == 1
    assert "only overtaken draws the same NAK" in found.advice


def test_requests_of_the_direction_make_it_certain() -> None:
    t = Talk()
    for psn in range(4):
        t.send(psn)
        t.ack(psn)
        t.wait(20 * US)
    t.send(4, 2, lost={4})
    t.nak(4)
    t.wait(20 * US)
    t.send(4, 2)
    t.ack(5)
    found = only(t.findings(), "loss")
    assert "probably" not in found.title + found.advice
