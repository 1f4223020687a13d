"""Where a capture was taken: inferred from what its packets show, and never guessed."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from story import Story
from talk import MS, US, A, B, Talk

import rocekit
from rocekit.analysis import Analysis
from rocekit.files.frames import LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2
from rocekit.points.vantage import Vantage
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import Post, Program, QpSetup

#: One way between the soft devices.
FLIGHT_NS = 50_000


def place_of(analysis: Analysis) -> Vantage:
    """The place as the one connection shows it; the capture as a whole must say the same."""
    (of_connection,) = analysis.vantages().of_connections()[0]
    (of_file,) = analysis.vantages().of_files()[0]
    assert (of_connection.host, of_connection.grounds) == (of_file.host, of_file.grounds)
    assert of_connection.role == of_file.role
    return of_connection


def soft(
    folder: Path, tap: str, *, both: bool = False, journal: bool = False, opcode: str = "RDMA_WRITE"
) -> Analysis:
    """Forty messages of one request each in turn, a's, or both hosts'."""
    sides = "ab" if both else "a"
    posts = tuple(
        Post(side=side, opcode=opcode, length=2048, at_ns=n * 300 * US + 100 * US * (side == "b"))
        for n in range(40)
        for side in sides
    )
    program = Program((QpSetup(timeout=14),), posts)
    capture, record = folder / "x.pcapng", folder / "x.journal.jsonl"
    run(program, (), 1, capture=capture, journal=record if journal else None, tap=tap, delay_ns=FLIGHT_NS)
    return rocekit.analyze(capture)


class TestTiming:
    @pytest.mark.parametrize(("tap", "host"), [("soft_a", A), ("soft_b", B)])
    def test_the_host_whose_acknowledgements_come_at_once(self, tmp_path: Path, tap: str, host: str) -> None:
        """Both ask, and both acknowledge alike: one of them at once, the other a round trip later."""
        found = place_of(soft(tmp_path, tap, both=True))
        assert (found.host, found.role, found.grounds) == (host, "both", "timing")
        assert not found.certain
        near = found.hosts.index(host)
        assert found.floors[near].min_ns < US
        assert found.floors[1 - near].min_ns >= 2 * FLIGHT_NS

    def test_the_requester_s_side_by_its_program_and_the_way_to_the_responder(self, tmp_path: Path) -> None:
        found = place_of(soft(tmp_path, "soft_a", journal=True))
        assert (found.host, found.role) == (A, "requester")
        assert found.floors[0].kind == "program"
        assert found.floors[0].min_ns < 2 * US  # posting and polling take 400 ns each

    def test_the_responder_s_side_by_the_same(self, tmp_path: Path) -> None:
        found = place_of(soft(tmp_path, "soft_b", journal=True))
        assert (found.host, found.role) == (B, "responder")
        assert found.floors[0].min_ns >= 2 * FLIGHT_NS

    def test_reads_from_the_responder_s_side(self, tmp_path: Path) -> None:
        found = place_of(soft(tmp_path, "soft_b", journal=True, opcode="RDMA_READ"))
        assert (found.host, found.role) == (B, "responder")
        assert found.floors[1].kind == "response"

    def test_in_the_middle_nothing_is_claimed(self, tmp_path: Path) -> None:
        """Each packet stamped as it is sent: both ends seem as far."""
        found = place_of(soft(tmp_path, "sent", both=True))
        assert (found.place, found.role, found.grounds) == (None, None, None)
        assert "both hosts respond equally fast" in found.reason

    def test_long_steady_ways_to_both_ends_are_in_between(self) -> None:
        t = Talk()
        for psn in range(10):
            for by, other in (("a", "b"), ("b", "a")):
                t.send(psn, by=by)
                t.wait(3 * MS + psn * US)
                t.ack(psn, by=other)
                t.wait(MS)
        assert at(t).place == "between"

    def test_a_program_that_takes_its_time_is_not_far_away(self) -> None:
        """A asks every 50 µs, B answers within 5 µs: nothing says that A is any further away."""
        t = Talk()
        for psn in range(40):
            t.send(psn)
            t.wait(4 * US)
            t.ack(psn)
            t.wait(44 * US)
        assert at(t).place is None

    def test_a_requester_that_keeps_time_does_not_react(self) -> None:
        """A asks every 10 µs, whatever B does: its next request comes behind an answer by chance."""
        t = Talk()
        start = t.now
        for psn in range(60):
            t.now = start + psn * 10 * US
            t.send(psn)
            t.now += (4 + psn % 5) * US
            t.ack(psn)
        found = at(t)
        assert found.place is None
        assert 0 not in found.floors

    def test_who_was_asked_twice_is_not_timed(self) -> None:
        """The acknowledgement right behind a repeat may answer the first transmission (Karn)."""
        t = Talk()
        for psn in range(8):
            t.send(psn)
            t.wait(MS)
            t.send(psn)
            t.ack(psn)
        assert at(t).floors == {}

    def test_too_few_answers_say_nothing(self) -> None:
        t = Talk()
        t.send(0)
        t.ack(0)
        found = at(t)
        assert found.place is None
        assert "too few" in found.reason

    def test_uc_answers_nothing(self) -> None:
        t = Talk(transport="UC")
        for psn in range(30):
            t.send(psn)
        found = at(t)
        assert found.place is None


class TestHops:
    @staticmethod
    def seen(a_limit: int, b_limit: int) -> Vantage:
        t = Talk()
        for psn in range(2):
            t.send(psn, ttl=a_limit)
            t.packet("RC_ACKNOWLEDGE", psn, by="b", syndrome=31, ttl=b_limit)
        return at(t)

    def test_one_host_s_packets_have_passed_no_router(self) -> None:
        found = self.seen(64, 61)
        assert (found.host, found.role, found.grounds, found.certain) == (A, "requester", "hops", True)
        assert found.hops == {0: 0, 1: 3}
        assert self.seen(254, 64).host == B

    def test_both_have(self) -> None:
        assert self.seen(63, 254).place == "between"

    @pytest.mark.parametrize("limit", [1, 40])
    def test_a_limit_that_no_host_begins_with_says_nothing(self, limit: int) -> None:
        assert self.seen(64, limit).place is None

    def test_on_one_link_it_says_nothing(self) -> None:
        assert self.seen(64, 255).place is None


class TestDirection:
    @pytest.mark.parametrize("linktype", [LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2])
    @pytest.mark.parametrize("host", [A, B])
    def test_a_cooked_capture_marks_what_its_host_sent(
        self, tmp_path: Path, linktype: int, host: str
    ) -> None:
        t = Talk()
        t.send(0)
        t.ack(0)
        found = place_of(cooked(tmp_path, t, linktype, host))
        assert (found.host, found.grounds, found.certain) == (host, "direction", True)

    def test_one_that_sends_nothing_itself_says_nothing(self, tmp_path: Path) -> None:
        t = Talk()
        t.send(0)
        t.ack(0)
        assert place_of(cooked(tmp_path, t, LINKTYPE_LINUX_SLL, "10.9.0.99")).place is None


class TestClock:
    @staticmethod
    def seen(folder: Path, **ahead: int) -> Vantage:
        """A and B both ask, and write journals; their clocks are so much ahead of the capture's."""
        story = Story("A created\nA modified sq_psn=0 dest_qpn=0x12\nB created\n", clocks=ahead)
        story.lines("B modified sq_psn=0 dest_qpn=0x11")
        for n in range(4):
            for who, peer in ("ab", "ba"):
                story.lines(f"{who.upper()} wr {n} RDMA_WRITE 64\n +3us\n {who} RC_RDMA_WRITE_ONLY {n} 64")
                story.lines(f"+3us\n {peer} ACK {n}\n +3us\n {who.upper()} wc {n} SUCCESS")
        (found,) = story.analyze(folder).vantages().of_connections()[0]
        return found

    def test_the_capture_has_one_host_s_clock(self, tmp_path: Path) -> None:
        found = self.seen(tmp_path, b=4_000_000)
        assert (found.place, found.grounds, found.certain) == ("a", "clock", True)
        assert "host-b" in found.reason

    def test_clocks_that_agree_say_nothing(self, tmp_path: Path) -> None:
        assert self.seen(tmp_path, b=1_000).place is None

    def test_nor_does_a_capture_with_a_clock_of_its_own(self, tmp_path: Path) -> None:
        assert self.seen(tmp_path, a=-9_000_000, b=4_000_000).place is None


def at(talk: Talk) -> Vantage:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.pcap"
        path.write_bytes(pcap(talk.frames, unit="ns"))
        return place_of(rocekit.analyze(path))


def cooked(folder: Path, talk: Talk, linktype: int, host: str) -> Analysis:
    """The same packets as ``tcpdump -i any`` on ``host`` has them."""
    frames = []
    for frame in talk.frames:
        source = ".".join(str(b) for b in frame.data[26:30])
        kind = 4 if source == host else 0
        if linktype == LINKTYPE_LINUX_SLL:
            head = struct.pack("!HHH8sH", kind, 1, 6, bytes(8), 0x0800)
        else:
            head = struct.pack("!HHIHBB8s", 0x0800, 0, 1, 1, kind, 6, bytes(8))
        frames.append(Frame(head + frame.data[14:], frame.time_ns))
    path = folder / "x.pcap"
    path.write_bytes(pcap(frames, unit="ns", linktype=linktype))
    return rocekit.analyze(path)


def test_it_is_said_in_text_and_json(tmp_path: Path) -> None:
    analysis = soft(tmp_path, "soft_b", both=True)
    document = json.loads(json.dumps(analysis.to_dict()))
    (taken,) = document["vantages"]
    assert (taken["connection"], taken["file"]) == (0, 0)
    assert (taken["place"], taken["ip"], taken["role"]) == ("b", B, "both")
    assert document["capture"]["taken_at"][0]["ip"] == B
    assert f"\n  Capture point: probably at {B} (" in str(analysis)


def test_hosts_that_ask_each_other_by_several_connections_are_judged_together(tmp_path: Path) -> None:
    """Each asks on a connection of its own: alone neither shows both hosts' acknowledgements."""
    posts = tuple(
        Post(c, side, "RDMA_WRITE", 64, at_ns=n * 300 * US + c * 70 * US)
        for n in range(6)
        for c, side in enumerate("ab")
    )
    capture = tmp_path / "x.pcapng"
    run(Program((QpSetup(), QpSetup()), posts), capture=capture, tap="soft_b", delay_ns=FLIGHT_NS)
    analysis = rocekit.analyze(capture)
    assert {v.place for vs in analysis.vantages().of_connections().values() for v in vs} == {None}
    (found,) = analysis.vantages().of_files()[0]
    assert (found.host, found.role) == (B, "both")


def test_an_allreduce_captured_at_each_of_its_three_hosts(others: Path) -> None:
    """The ring's captures by others, with what is known of them: node0 is 172.30.0.25, then .11 and .12."""
    for node, host in enumerate(("172.30.0.25", "172.30.0.11", "172.30.0.12")):
        analysis = rocekit.analyze(others / f"nccl_ring_node{node}.pcap")
        found = analysis.vantages().of_files()[0]
        assert [v.host for v in found] == [host, host]
        assert all("172.30.0" in v.reason for v in found)
