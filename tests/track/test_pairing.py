"""Which flow answers which where only PSNs say so: a packet names the QP it goes to, never its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from story import Story, Tracked, track

from rocekit.capture import open_capture
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.decode import Decoder
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import random_program
from rocekit.soft.wires.faults import at_random
from rocekit.track.connections import Connection, Negotiated
from rocekit.track.lobby import Lobby
from rocekit.track.pairs.known_pairs import Pair
from rocekit.track.pairs.waiting import Flow
from rocekit.track.tracker import Tracker
from rocekit.track.transfers import Transfer

SECOND = {"cd": (("10.0.0.1", 0x21), ("10.0.0.2", 0x22))}
#: QPN 0x11 on every one of three hosts that make a ring.
RING: dict[str, Any] = {
    "qpns": (0x11, 0x11),
    "others": {
        "cd": (("10.0.0.2", 0x22), ("10.0.0.3", 0x11)),
        "ef": (("10.0.0.3", 0x22), ("10.0.0.1", 0x22)),
    },
}


def pairs(told: Tracked) -> set[str]:
    return set(told.connections)


def test_an_acknowledgement_answers_the_flow_that_sent_its_psn() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5000 64
        c RC_SEND_ONLY 900000 64
        d ACK 900000
        b ACK 5000
        """,
        others=SECOND,
    )
    assert pairs(told) == {"RC a=b by psn", "RC c=d by psn"}
    assert all(line.endswith("acked") for line in told.transfers)


@pytest.mark.parametrize(
    "answer",
    [
        "b RC_RDMA_READ_RESPONSE_ONLY 6 100",
        "b RC_ATOMIC_ACKNOWLEDGE 7",
        "b NAK 6",
        "b RNR 5",
        "b ACK 7",
    ],
)
def test_every_kind_of_answer_pairs(answer: str) -> None:
    told = track(
        f"""
        a RC_SEND_ONLY 5 64
        a RC_RDMA_READ_REQUEST 6 100
        a RC_FETCH_ADD 7
        {answer}
        """
    )
    assert pairs(told) == {"RC a=b by psn"}


@pytest.mark.parametrize(
    ("first", "asked", "found"),
    [
        (900, 899, "RC a=b by psn"),
        (900, 850, "RC a=b by psn"),
        (5_000, 4_000, "RC a=b by psn"),
        (3, 0xFFFF00, "RC a=b by psn"),
        (50_000, 900, "RC a=b?"),
    ],
)
def test_a_nak_for_what_was_lost_before_the_capture_pairs(first: int, asked: int, found: str) -> None:
    """It asks for the first PSN lost, which may be as many packets back as a sender has under way."""
    told = track(f"a RC_SEND_ONLY {first} 64\n b NAK {asked}")
    assert found in pairs(told)
    assert ("by psn" in found) == (len(pairs(told)) == 1)


def test_the_side_seen_requesting_first_is_a() -> None:
    told = track("b RC_SEND_ONLY 900 64\n a RC_SEND_ONLY 5 64\n b ACK 5\n a ACK 900")
    assert pairs(told) == {"RC b=a by psn"}


def test_an_answer_that_fits_nobody_pairs_nobody() -> None:
    told = track("a RC_SEND_ONLY 5 64\n b ACK 7000000")
    assert "by" not in " ".join(told.connections)
    assert told.transfers == ["a SEND 5 64 bytes: unacknowledged"]


def test_qps_that_all_begin_at_psn_zero_are_told_apart_by_how_far_they_got() -> None:
    story = Story(others=SECOND)
    for p in range(12):
        story.a("RC_SEND_ONLY", p, 64)
        if p < 5:
            story.packet("c", "RC_SEND_ONLY", p, 64).packet("d", "ACK", p)
        story.b("ACK", p)
    told = story.track()
    assert pairs(told) == {"RC a=b by psn", "RC c=d by psn"}
    assert [line for line in told.transfers if not line.endswith("acked")] == []
    assert len(told.transfers) == 17


def test_an_answer_that_fits_one_flow_only_because_the_capture_missed_anothers_decides_nothing() -> None:
    story = Story(others=SECOND)
    for p in range(10):
        story.a("RC_SEND_ONLY", p, 64)
        if p < 4:
            story.packet("c", "RC_SEND_ONLY", p, 64)
    story.packet("d", "ACK", 5)  # the capture missed C's 4 and 5
    for p in range(12, 24):
        story.packet("c", "RC_SEND_ONLY", p, 64).packet("d", "ACK", p)
    assert pairs(story.b("ACK", 9).track()) == {"RC a=b by psn", "RC c=d by psn"}


def test_flows_that_look_alike_are_told_apart_while_they_last() -> None:
    """Live, nobody waits for the end."""
    story = Story(others=SECOND)
    for p in range(20):
        story.a("RC_SEND_ONLY", p, 64)
        if p < 5:
            story.packet("c", "RC_SEND_ONLY", p, 64).packet("d", "ACK", p)
        story.b("ACK", p)
    decoder, tracker = Decoder(), Tracker()
    for batch in story.batches():
        tracker.feed(decoder.decode(batch))
    assert "RC a=b by psn" in Tracked(tracker, story.ends).connections


def test_many_qps_from_psn_zero_in_step_keep_equal_source_ports_together() -> None:
    """Nothing but the UDP source port tells them apart: both directions of a QP pair often share it."""
    story = Story(others=SECOND)
    for p in range(20):
        story.packet("a", "RC_SEND_ONLY", p, 64, sport=50001).packet("c", "RC_SEND_ONLY", p, 64, sport=50002)
        story.packet("d", "ACK", p, sport=50002).packet("b", "ACK", p, sport=50001)
    told = story.track()
    assert pairs(told) == {"RC a=b by source port", "RC c=d by source port"}
    assert [line for line in told.transfers if not line.endswith("acked")] == []


def test_what_cannot_be_decided_stays_unpaired_rather_than_guessed() -> None:
    story = Story(others=SECOND)
    for p in range(20):
        story.a("RC_SEND_ONLY", p, 64).packet("c", "RC_SEND_ONLY", p, 64)
        story.packet("d", "ACK", p).b("ACK", p)
    told = story.track()
    assert {c.paired_by for c in told.tracker.connections} == {None}
    assert len(told.transfers) == 40
    assert all(line.endswith("unacknowledged") for line in told.transfers)


def test_the_same_qpn_on_several_hosts_is_several_qps() -> None:
    story = Story(**RING)
    for p in range(10):
        for asks, answers in ("ab", "cd", "ef"):
            story.packet(asks, "RC_RDMA_WRITE_ONLY", p, 256).packet(answers, "ACK", p)
    told = story.track()
    assert pairs(told) == {"RC a=b by psn", "RC c=d by psn", "RC e=f by psn"}
    assert len(told.transfers) == 30
    assert all(line.endswith("acked") for line in told.transfers)


def test_transports_never_pair_with_each_other() -> None:
    told = track("a UC_SEND_ONLY 5 64\n b ACK 5")
    assert "by" not in " ".join(told.connections)
    assert told.transfers == ["a SEND 5 64 bytes: sent"]


def test_flows_wait_for_their_answer_only_so_long() -> None:
    """Live, a transfer whose other direction is not captured is told of after seconds, not at the end."""
    story = Story(others=SECOND).a("RC_SEND_ONLY", 5, 64).wait(s=6).packet("c", "RC_SEND_ONLY", 900_000, 64)
    decoder, known = Decoder(), []
    tracker = Tracker(on_connection=lambda c: known.append(c.ips[0]))
    for batch in story.batches():
        tracker.feed(decoder.decode(batch))
    assert known == ["10.0.0.1"] * 2


def test_a_flow_let_go_alone_is_paired_when_its_answer_comes_at_last() -> None:
    story = Story().a("RC_SEND_ONLY", 5, 64).wait(s=6).a("RC_SEND_ONLY", 6, 64).wait(s=1)
    told = story.a("RC_SEND_ONLY", 7, 64).b("ACK", 7).track()
    assert told.connections == ["RC a=b by psn"]
    assert all(line.endswith("acked") for line in told.transfers)


def test_psns_pair_across_the_wrap() -> None:
    told = track(
        """
        a RC_SEND_ONLY 0xFFFFFF 64
        a RC_SEND_ONLY 0 64
        c RC_SEND_ONLY 0x800000 64
        b ACK 0
        d ACK 0x800000
        """,
        others=SECOND,
    )
    assert pairs(told) == {"RC a=b by psn", "RC c=d by psn"}


# ---------------------------------------------------------------------- a journal says it


def test_a_journal_that_names_both_qps_pairs_them_whatever_their_psns() -> None:
    story = Story(others=SECOND)
    for p in range(20):  # in step, from PSN 0: the PSNs decide nothing
        story.a("RC_SEND_ONLY", p, 64).packet("c", "RC_SEND_ONLY", p, 64)
        story.packet("d", "ACK", p).b("ACK", p)
    told = story.track(
        pairs=[
            Pair("RC", ("10.0.0.1", "10.0.0.2"), (0x11, 0x12), (Negotiated(0), Negotiated(0))),
            Pair("RC", (None, "10.0.0.2"), (0x21, 0x22), (Negotiated(0), Negotiated(0))),
        ]
    )
    assert pairs(told) == {"RC a=b by journal", "RC c=d by journal"}
    assert all(line.endswith("acked") for line in told.transfers)


def test_a_journal_of_other_hosts_pairs_nothing_here() -> None:
    story = Story("a RC_SEND_ONLY 5 64\n b ACK 5")
    told = story.track(
        pairs=[Pair("RC", ("10.0.0.8", "10.0.0.9"), (0x11, 0x12), (Negotiated(), Negotiated()))]
    )
    assert told.connections == ["RC a=b by psn"]


def test_a_journals_path_mtu_tells_how_many_psns_a_read_takes_before_any_response() -> None:
    known = Negotiated(starting_psn=5, path_mtu=256)
    told = Story("a RC_RDMA_READ_REQUEST 5 1000").track(
        pairs=[Pair("RC", ("10.0.0.1", "10.0.0.2"), (0x11, 0x12), (known, Negotiated()))]
    )
    assert told.transfers == ["a READ 5..8 1000 bytes in 4 packets: unacknowledged"]


class Holding(Tracker):
    """Holds requests until their first answer although that is known to have come."""

    def _is_first_response(self, lobby: Lobby, requester: Flow, responder: Flow) -> bool:
        self.first = getattr(self, "first", 0) + super()._is_first_response(lobby, requester, responder)
        return False


@pytest.mark.parametrize("weather", [{}, {"drop": 0.05}, {"reorder": 0.05}, {"drop": 0.1, "duplicate": 0.03}])
def test_a_first_answer_that_fixes_the_starting_psn_says_what_holding_the_requests_does(
    tmp_path: Path, weather: dict[str, float]
) -> None:
    paths = [tmp_path / "many.pcap"]
    traffic = Traffic(packets=4000, pairs=100, operations=OPERATIONS, sizes=(100, 9000, 30_000), loss=0.02)
    generate(paths[0], traffic)
    for seed in range(15):
        paths.append(tmp_path / f"{seed}.pcapng")
        run(random_program(seed), at_random(weather), seed, capture=paths[-1])
    first = 0
    for path in paths:
        told = []
        for tracker in (Tracker(), Holding()):
            decoder = Decoder()
            with open_capture(path) as reader:
                for batch in reader:
                    tracker.feed(decoder.decode(batch))
            tracker.finish()
            records: list[Connection | Transfer] = [*tracker.connections, *tracker.transfers]
            events = [repr(t.events) for t in tracker.transfers]
            told.append(([r.to_dict() for r in records], events))
        assert told[0] == told[1], path.name
        first += getattr(tracker, "first", 0)
    assert first > 50
