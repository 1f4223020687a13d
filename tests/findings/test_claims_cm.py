"""What the findings claim of CM messages: no more than the messages prove.

The conversations are those of rdma_cm programs on rxe (Linux 6.1) that rejected, were killed or lost some.
"""

from __future__ import annotations

import pytest
from capture_bytes import Frame
from encapsulated import ethernet, ipv4, udp, vxlan
from talk import MS, Talk, named, only

from rocekit.explanation.event_steps import message_again

SECOND = 1_000 * MS
#: Response timeout code 20 is 4.3 s; the kernel sends again after 4.1 s or more.
AGAIN = 4_200 * MS


def rej(t: Talk, by: str, reason: int, rejected: int, data: bytes = b"") -> int:
    """A REJ as the kernel sends it, by the client (a) or the server (b)."""
    local, remote = (1, 2 if rejected == 1 else 0) if by == "a" else (2, 1)
    return t.cm(
        "REJ",
        by=by,
        local_comm_id=local,
        remote_comm_id=remote,
        message_rejected=rejected,
        reason=reason,
        private_data=data,
    )


class TestWhoSentTheRej:
    def test_a_client_that_gave_up_did_not_reject_the_server(self) -> None:
        t = Talk()
        req = t.request()
        t.wait(2 * SECOND)
        found_frame = rej(t, "a", 4, 2)
        found = only(t.findings(), "cm-rejected")
        assert found.title.startswith(
            "10.9.0.1 gave up its own connection to port 18515 at 10.9.0.2: timeout"
        )
        assert found.evidence["sent_by"] == "client"
        assert found.frames == (req, found_frame)
        assert "No program listens" not in found.advice

    def test_a_client_killed_between_rep_and_rtu_rejects_the_rep(self) -> None:
        t = Talk()
        t.request()
        t.reply()
        t.wait(SECOND)
        rej(t, "a", 28, 1)
        found = only(t.findings(), "cm-rejected")
        assert found.title.startswith("10.9.0.1 rejected 10.9.0.2's REP for its own connection to port 18515")

    def test_a_server_that_rejects(self) -> None:
        t = Talk()
        t.request()
        rej(t, "b", 28, 0)
        found = only(t.findings(), "cm-rejected")
        assert found.title.startswith(
            "10.9.0.2 rejected 10.9.0.1's connection to port 18515: consumer reject"
        )
        assert found.evidence["sent_by"] == "server"

    @pytest.mark.parametrize(
        ("rejected", "sender", "words"),
        [(0, "server", "rejected"), (1, "client", "REP"), (2, None, "sent a REJ to")],
    )
    def test_without_the_req_the_rej_itself_says_who(
        self, rejected: int, sender: str | None, words: str
    ) -> None:
        t = Talk()
        rej(t, "b", 4, rejected)
        found = only(t.findings(), "cm-rejected")
        assert found.evidence["sent_by"] == sender
        assert words in found.title

    def test_both_on_one_host(self) -> None:
        t = Talk(a="10.9.0.1", b="10.9.0.1")
        t.request()
        rej(t, "b", 28, 0)
        assert only(t.findings(), "cm-rejected").evidence["sent_by"] == "server"

    def test_a_rej_that_crosses_another_is_not_a_second_problem(self) -> None:
        t = Talk()
        t.request()
        t.wait(2 * SECOND)
        rej(t, "b", 28, 0)
        rej(t, "a", 4, 2)
        assert only(t.findings(), "cm-rejected").evidence["sent_by"] == "server"


class TestReason28:
    def test_private_data_is_the_programs(self) -> None:
        t = Talk()
        t.request()
        rej(t, "b", 28, 0, b"not today")
        assert "private data is from the program" in only(t.findings(), "cm-rejected").advice

    def test_without_private_data_a_killed_program_looks_the_same(self) -> None:
        t = Talk()
        t.request()
        t.wait(2 * SECOND)
        rej(t, "b", 28, 0)
        found = only(t.findings(), "cm-rejected")
        assert "said no" not in found.title
        assert "Open: " in found.advice
        assert "the program ended" in found.advice


class TestRejAfterSilence:
    def test_the_unanswered_req_is_the_cause(self) -> None:
        t = Talk()
        for _ in range(2):
            t.request()
            t.wait(AGAIN)
        rej(t, "a", 4, 2)
        t.wait(60 * SECOND)
        t.send(900)  # other packets, long after
        findings = t.findings()
        found = only(findings, "cm-unanswered")
        assert findings[0] is found
        assert found.evidence["silent_for_ns"] < 5 * SECOND  # until the REJ
        (rejected,) = [f for f in findings if f.rule == "cm-rejected"]
        assert rejected.severity == "info"
        assert rejected.evidence["unanswered_before"]

    def test_the_rep_that_came_again_and_the_killed_server(self) -> None:
        t = Talk()
        t.request()
        for _ in range(3):
            t.reply()
            t.wait(AGAIN)
        rej(t, "b", 28, 2)
        findings = t.findings()
        found = only(findings, "cm-unanswered")
        assert "No RTU" in found.title
        assert not found.evidence["req_again_after_rep"]

    @pytest.mark.parametrize("retries", [15, 0])
    def test_a_rep_that_did_not_come_again_may_have_got_its_rtu(self, retries: int) -> None:
        """A server sends its REP again until the RTU is there, as often as the REQ allows."""
        t = Talk()
        t.request(max_cm_retries=retries)
        t.reply()
        t.wait(60 * SECOND)
        t.send(0, by="b")
        found = only(t.findings(), "cm-unanswered")
        assert found.severity == ("warning" if retries else "error")
        assert ("the capture missed it" in found.advice) == (retries > 0)
        assert ("was lost" in found.advice) == (retries == 0)

    def test_of_a_req_that_is_cut_the_retries_are_not_known(self) -> None:
        t = Talk()
        number = t.request()
        frame = t.frames[number - 1]
        # Its timeouts are at hand, the byte with Max CM Retries (12.6.5) is not.
        t.frames[number - 1] = Frame(frame.data[:137], frame.time_ns, len(frame.data))
        t.reply()
        t.wait(60 * SECOND)
        t.send(0, by="b")
        (found,) = [f for f in t.findings() if f.rule == "cm-unanswered"]
        assert found.evidence["max_retries"] is None
        assert "the capture missed it" in found.advice
        assert "was lost" not in found.advice

    def test_a_req_again_after_the_rep_proves_the_rep_lost(self) -> None:
        t = Talk()
        t.request()
        t.reply()
        t.wait(AGAIN)
        t.request()
        t.reply()
        t.wait(AGAIN)
        rej(t, "a", 4, 2)
        found = only(t.findings(), "cm-unanswered")
        assert found.evidence["req_again_after_rep"]
        assert found.title.startswith("No RTU from 10.9.0.1")
        assert "REP did not arrive at the REQ's sender" in found.advice

    def test_rtus_that_did_not_arrive(self) -> None:
        t = Talk()
        t.request()
        for _ in range(3):
            t.reply()
            t.cm("RTU", local_comm_id=1, remote_comm_id=2)
            t.wait(AGAIN)
        rej(t, "b", 28, 2)
        found = only(t.findings(), "cm-unanswered")
        assert found.severity == "error"
        assert found.evidence["lost_rtus"] == 2
        assert "had not got 10.9.0.1's RTU" in found.title

    def test_one_rtu_lost_costs_time_only(self) -> None:
        t = Talk()
        t.request()
        for _ in range(2):
            t.reply()
            t.cm("RTU", local_comm_id=1, remote_comm_id=2)
            t.wait(AGAIN)
        assert only(t.findings(), "cm-unanswered").severity == "warning"

    def test_an_rtu_proves_a_rep_that_the_capture_does_not_have(self) -> None:
        t = Talk()
        t.request()
        t.wait(AGAIN)
        t.request()
        t.cm("RTU", local_comm_id=1, remote_comm_id=2)
        t.wait(20 * SECOND)
        t.send(900)
        assert "cm-unanswered" not in named(t.findings())


class TestCopiesOfTheNetwork:
    @pytest.mark.parametrize("ip_id", [0, 1234])
    def test_a_doubled_req_is_no_repeat(self, ip_id: int) -> None:
        t = Talk()
        req = t.cm(
            "REQ",
            ip_id=ip_id,
            local_comm_id=1,
            service_id=0x0106_4853,
            local_qpn=0x12,
            remote_cm_response_timeout=20,
        )
        t.again(req)
        t.wait(SECOND)
        t.reply()
        t.cm("RTU", local_comm_id=1, remote_comm_id=2)
        evidence = t.evidence()
        assert [(r.duplicated, r.repeated) for r in evidence.cm_records[:2]] == [
            (False, False),
            (True, False),
        ]
        assert named(t.findings()) == []
        words = [message_again(r, ", sent again") for r in evidence.cm_records[:2]]
        once = ", the same datagram again: its sender sent it once"
        assert words == ["", once if ip_id else ", again: sent once, or sent again"]

    def test_a_doubled_req_without_an_answer_was_sent_once(self) -> None:
        t = Talk()
        t.again(t.request())
        t.wait(SECOND)
        t.send(900)
        assert "cm-unanswered" not in named(t.findings())

    def test_a_doubled_rep_and_dreq_are_no_repeats(self) -> None:
        t = Talk()
        t.request()
        t.again(t.reply())
        t.cm("MRA", local_comm_id=1, remote_comm_id=2, message_mraed=1)
        t.cm("RTU", local_comm_id=1, remote_comm_id=2)
        t.again(t.cm("DREQ", local_comm_id=1, remote_comm_id=2, remote_qpn=0x12))
        assert [f.rule for f in t.findings() if f.rule.startswith("cm-")] == []

    def test_other_identifications_are_another_transmission(self) -> None:
        t = Talk()
        for ip_id in (5, 6):
            t.cm("REQ", ip_id=ip_id, local_comm_id=1, local_qpn=0x12, remote_cm_response_timeout=20)
        assert [r.repeated for r in t.evidence().cm_records] == [False, True]

    def test_one_identification_for_all_does_not_hide_a_repeat(self) -> None:
        t = Talk()
        for _ in range(3):
            t.cm("REQ", ip_id=77, local_comm_id=1, local_qpn=0x12, remote_cm_response_timeout=20)
            t.wait(AGAIN)
        assert only(t.findings(), "cm-unanswered").evidence["times_sent"] == 3


class TestRepsThatComeAgain:
    """The CM repeats after seconds, which a program's user sees as a slow connect."""

    def test_a_rep_that_was_lost_behind_the_capture(self) -> None:
        t = Talk()
        for _ in range(2):
            t.request()
            t.wait(MS)
            t.reply()
            t.wait(AGAIN)
        t.now -= AGAIN - MS
        t.cm("RTU", local_comm_id=1, remote_comm_id=2)
        found = only(t.findings(), "cm-unanswered")
        assert found.severity == "warning"
        assert found.title.startswith(
            "10.9.0.1's answer to 10.9.0.2's REP came only after it was sent 2 times: 4.2"
        )
        assert found.evidence["req_again_after_rep"]
        assert "the REP did not arrive at the REQ's sender" in found.advice

    def test_a_rep_that_its_server_sends_again(self) -> None:
        t = Talk()
        t.request()
        t.reply()
        t.wait(AGAIN)
        t.reply()
        t.cm("RTU", local_comm_id=1, remote_comm_id=2)
        found = only(t.findings(), "cm-unanswered")
        assert not found.evidence["req_again_after_rep"]
        assert "The REP or an RTU was lost, or the program that sent the REQ answered late" in found.advice

    def test_a_rep_that_comes_twice_at_once_was_not_sent_again(self) -> None:
        t = Talk()
        t.request()
        t.again(t.reply())
        t.cm("RTU", local_comm_id=1, remote_comm_id=2)
        assert named(t.findings()) == []


@pytest.mark.parametrize("heard", [False, True])
def test_a_req_without_an_answer_may_be_refused_where_one_direction_is_captured(heard: bool) -> None:
    t = Talk()
    t.request()
    if heard:
        t.cm("SIDR_REQ", by="b", request_id=8, service_id=0x0106_1234)
    t.wait(20 * SECOND)
    t.cm("SIDR_REQ", request_id=5, service_id=0x0106_1234)
    found = only(t.findings(), "cm-unanswered")
    said = (
        "10.9.0.2 did not answer 10.9.0.1's"
        if heard
        else "The capture has no answer from 10.9.0.2 to 10.9.0.1's"
    )
    assert found.title.startswith(f"{said} REQ for port 18515: sent 1 time in 20.00 s")
    assert ("Open: whether the peer answered or refused." in found.advice) is not heard


class TestDatagrams:
    """SIDR_REQ and SIDR_REP (12.11) tell a UD program its peer's QP."""

    @staticmethod
    def asked(times: int) -> Talk:
        t = Talk()
        for _ in range(times):
            t.cm("SIDR_REQ", request_id=5, service_id=0x0106_1234)
            t.wait(AGAIN)
        return t

    def test_a_request_without_an_answer(self) -> None:
        t = self.asked(3)
        t.cm("SIDR_REQ", by="b", request_id=8, service_id=0x0106_1234)  # the peer's host is heard
        found = only(t.findings(), "cm-unanswered")
        assert found.severity == "error"
        assert found.title.startswith("10.9.0.2 did not answer 10.9.0.1's SIDR_REQ: sent 3 times in ")
        assert "Open:" not in found.advice

    def test_a_capture_of_one_direction_does_not_have_the_answer(self) -> None:
        found = only(self.asked(3).findings(), "cm-unanswered")
        said = "The capture has no answer from 10.9.0.2 to 10.9.0.1's SIDR_REQ: sent 3 times in "
        assert found.title.startswith(said)
        assert "Open: whether the peer answered or refused." in found.advice

    def test_a_request_that_was_answered_the_second_time(self) -> None:
        t = self.asked(2)
        t.cm("SIDR_REP", by="b", request_id=5, sidr_status=0, service_id=0x0106_1234, local_qpn=3)
        found = only(t.findings(), "cm-unanswered")
        assert found.severity == "warning"
        assert found.evidence["times_sent"] == 2

    def test_one_request_may_still_be_answered(self) -> None:
        assert named(self.asked(1).findings()) == []

    def test_a_request_that_crossed_its_answer(self) -> None:
        t = self.asked(1)
        t.cm("SIDR_REP", by="b", request_id=5, sidr_status=0, service_id=0x0106_1234, local_qpn=3)
        t.cm("SIDR_REQ", request_id=5, service_id=0x0106_1234)
        assert named(t.findings()) == []

    @pytest.mark.parametrize(("first", "second", "expected"), [(5, 6, []), (5, 5, ["cm-unanswered"])])
    def test_requests_of_two_virtual_networks_are_not_one(
        self, first: int, second: int, expected: list[str]
    ) -> None:
        """Each may have the same addresses and request IDs."""
        t = self.asked(2)
        t.frames = [
            Frame(ethernet(ipv4(17, udp(4789, vxlan(vni, frame.data)))), frame.time_ns)
            for vni, frame in zip((first, second), t.frames, strict=True)
        ]
        assert named(t.findings()) == expected

    def test_an_answer_in_another_tunnel_leaves_it_open(self) -> None:
        t = self.asked(2)
        t.cm("SIDR_REP", by="b", request_id=5, sidr_status=0, service_id=0x0106_1234, local_qpn=3)
        t.frames = [
            Frame(ethernet(ipv4(17, udp(4789, vxlan(vni, frame.data)))), frame.time_ns)
            for vni, frame in zip((5, 5, 6), t.frames, strict=True)
        ]
        assert named(t.findings()) == []
