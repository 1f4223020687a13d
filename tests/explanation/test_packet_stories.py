"""What each packet is said to be is what the transfers say of it, and what the transcript made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amount import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from places import PCAPS
from story import Story

import rocekit
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.explanation.packet_words import describe, ordinal
from rocekit.explanation.packets import CAUSES, REQUEST, RESPONSE, ROLES, PacketStories, packet_stories
from rocekit.report.collector import DUPLICATE, Collector
from rocekit.report.lane_columns import build_lanes
from rocekit.soft.engine.prng import Prng
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import random_program
from rocekit.soft.wires.faults import at_random
from rocekit.wire.psn import MASK


def told(folder: Path, text: str, **how: Any) -> PacketStories:
    return packet_stories(Story(text, **how).analyze(folder))


def lines(stories: PacketStories) -> list[str]:
    """A line a packet: role, transfer, unwrapped PSN, round, why again and because of which frame."""
    found = []
    for i in range(len(stories)):
        line = f"{ROLES[stories.role[i]]} {stories.transfer[i]} {stories.psn[i]} x{stories.round[i]}"
        if stories.cause[i]:
            line += f" {CAUSES[stories.cause[i]]}"
            if stories.cause_row[i] >= 0:
                line += f"@{stories.packets.frame[stories.cause_row[i]]}"
        found.append(line + (" doubled" if stories.duplicate[i] else ""))
    return found


def test_a_go_back_after_a_nak_is_the_second_round_of_what_it_repeats(tmp_path: Path) -> None:
    stories = told(
        tmp_path,
        """
        a RC_SEND_FIRST  5 1024
        a RC_SEND_MIDDLE 6 1024  # lost on its way to B
        a RC_SEND_LAST   7 10
        b NAK 6
        a RC_SEND_MIDDLE 6 1024
        a RC_SEND_LAST   7 10
        b ACK 7
        """,
    )
    assert lines(stories) == [
        "request 0 5 x1",
        "request 0 6 x1",
        "request 0 7 x1",
        "nak 0 6 x0",
        "request 0 6 x2 nak@4",
        "request 0 7 x2 nak@4",
        "ack 0 7 x0",
    ]
    assert list(describe(stories))[3:] == [
        "NAK PSN sequence error: expects PSN 6; transfer 0, connection 0",
        "transfer 0, PSN 6 again (2nd), after the NAK (frame 4); SEND packet 2 of 3, connection 0",
        "transfer 0, PSN 7 again (2nd), after the NAK (frame 4); SEND packet 3 of 3, connection 0",
        "ACK to PSN 7, completes transfer 0, connection 0",
    ]
    assert stories.sender.tolist() == [0, 0, 0, 1, 0, 0, 1]
    assert stories.requester.tolist() == [0] * 7


def test_what_was_lost_before_the_capture_comes_in_its_second_round(tmp_path: Path) -> None:
    stories = told(
        tmp_path,
        """
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 7 64   # 6 never came by
        b NAK 6
        a RC_SEND_ONLY 6 64
        a RC_SEND_ONLY 7 64
        b ACK 7
        """,
    )
    assert lines(stories)[3:5] == ["request 1 6 x2 nak@3", "request 2 7 x2 nak@3"]
    words = list(describe(stories))
    assert "PSN 7, PSN 6 missing before it;" in words[1]
    assert "PSN 6 again (2nd, the first is not in the capture), after the NAK (frame 3);" in words[3]


def test_rounds_are_counted_up_through_rnr_waits_and_timeouts(tmp_path: Path) -> None:
    stories = told(
        tmp_path,
        """
        a RC_SEND_ONLY 5 64
        b RNR 5 timer=1
        +20us
        a RC_SEND_ONLY 5 64
        +70ms
        a RC_SEND_ONLY 5 64
        +70ms
        a RC_SEND_ONLY 5 64
        b ACK 5
        """,
    )
    assert lines(stories) == [
        "request 0 5 x1",
        "rnr_nak 0 5 x0",
        "request 0 5 x2 rnr@2",
        "request 0 5 x3 timeout",
        "request 0 5 x4 timeout",
        "ack 0 5 x0",
    ]
    words = list(describe(stories))
    assert "RNR NAK: no receive for PSN 5, wait 10 µs" in words[1]
    assert "again (2nd), 21 µs after the RNR NAK (frame 2)" in words[2]
    assert "again (4th), probably after a timeout (70.00 ms after its last request);" in words[4]


def test_a_read_asked_again_from_the_middle_repeats_its_responses_from_there(tmp_path: Path) -> None:
    stories = told(
        tmp_path,
        """
        a RC_RDMA_READ_REQUEST 10 3072
        b RC_RDMA_READ_RESPONSE_FIRST  10 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 11 1024  # lost on its way to A
        b RC_RDMA_READ_RESPONSE_LAST   12 1024
        a RC_RDMA_READ_REQUEST 11 2048
        b RC_RDMA_READ_RESPONSE_FIRST  11 1024
        b RC_RDMA_READ_RESPONSE_LAST   12 1024
        """,
    )
    assert lines(stories) == [
        "request 0 10 x1",
        "response 0 10 x1",
        "response 0 11 x1",
        "response 0 12 x1",
        "request 0 11 x2 implied_nak@4",
        "response 0 11 x2 asked_again@5",
        "response 0 12 x2 asked_again@5",
    ]
    assert stories.requester.tolist() == [0] * 7
    words = list(describe(stories))
    assert "READ request for 3,072 bytes" in words[0]
    missing = "probably after a response that was lost or overtaken behind the capture point"
    assert f"{missing} (last response: frame 4); READ request, from response 2 on" in words[4]
    assert "again (2nd), because the request was sent again (frame 5); READ response 2 of 3" in words[5]


def test_a_copy_keeps_its_originals_round_and_names_it(tmp_path: Path) -> None:
    stories = told(tmp_path, "a RC_SEND_ONLY 5 64\nagain\nb ACK 5\na RC_SEND_ONLY 6 64\nb ACK 6")
    assert lines(stories)[:2] == ["request 0 5 x1", "request 0 5 x1 doubled"]
    assert "PSN 5, the same datagram as frame 1: its sender sent it once;" in list(describe(stories))[1]


@pytest.mark.parametrize("proven", [True, False])
def test_a_packet_that_came_twice_was_sent_once_only_if_its_identification_proves_it(
    tmp_path: Path, *, proven: bool
) -> None:
    """Neither tells whether the network made the copy, or the capture."""
    text = "a RC_SEND_ONLY 5 64\nb ACK 5\na RC_SEND_ONLY 6 64\nagain\nb ACK 6"
    analysis = Story(text, ip_ids=proven).analyze(tmp_path)
    stories = packet_stories(analysis)
    said = "the same datagram" if proven else "the same PSN"
    why = "its sender sent it once" if proven else "sent once, or sent again"
    assert f"PSN 6, {said} as frame 3: {why};" in list(describe(stories))[3]
    steps = [step.detail for step in analysis.explain(1).steps]
    assert f"{said} again, frame 4: {why}" in steps
    assert "network" not in " ".join([*steps, *describe(stories), *(f.title for f in analysis.findings)])


def test_datagrams_are_known_by_their_frames(tmp_path: Path) -> None:
    stories = told(
        tmp_path,
        """
        a UD_SEND_ONLY 5 64
        a UD_SEND_ONLY 6 64
        again
        b UD_SEND_ONLY 5 64
        """,
    )
    assert lines(stories) == [
        "datagram 0 5 x1",
        "datagram 1 6 x1",
        "datagram 1 6 x1 doubled",
        "datagram 2 5 x1",
    ]
    assert stories.sender.tolist() == [0, 0, 0, 1]


def test_psns_that_wrap_go_on_growing(tmp_path: Path) -> None:
    stories = told(
        tmp_path,
        f"""
        a RC_SEND_FIRST  {MASK} 1024
        a RC_SEND_LAST   0 10
        b ACK 0
        a RC_SEND_ONLY   1 10
        b ACK 1
        """,
    )
    assert stories.psn.tolist() == [MASK, MASK + 1, MASK + 1, MASK + 2, MASK + 2]
    assert stories.transfer.tolist() == [0, 0, 0, 1, 1]


def test_a_corrupted_packet_is_in_no_transfer(tmp_path: Path) -> None:
    story = (
        Story("a RC_SEND_ONLY 5 64\nb ACK 5\na RC_SEND_ONLY 6 64")
        .corrupt()
        .lines("b NAK 6\na RC_SEND_ONLY 6 64")
    )
    stories = packet_stories(story.analyze(tmp_path))
    assert lines(stories)[2] == "ignored -1 -1 x0"
    assert list(describe(stories))[2] == "wrong ICRC: the receiver drops it"


def test_a_qpn_that_lives_anew_starts_another_story(tmp_path: Path) -> None:
    story = Story().connect(5, 500)
    story.lines("a RC_SEND_ONLY 5 64\nb ACK 5\n+1s")
    story.connect(5, 500, comm_id=2).lines("a RC_SEND_ONLY 5 64\nb ACK 5")
    stories = packet_stories(story.analyze(tmp_path))
    assert stories.connection.tolist() == [0] * 5 + [1] * 5
    assert stories.transfer.tolist() == [-1, -1, -1, 0, 0, -1, -1, -1, 1, 1]
    assert stories.round.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
    assert next(iter(describe(stories))) == "CM REQ, connection 0"


def test_a_psn_far_away_begins_anew_and_finds_the_new_transfers(tmp_path: Path) -> None:
    stories = told(
        tmp_path,
        """
        a RC_SEND_ONLY 9000000 64
        b ACK 9000000
        a RC_SEND_ONLY 5 64
        b ACK 5
        a RC_SEND_ONLY 6 64
        b ACK 6
        """,
    )
    assert stories.transfer.tolist() == [0, 0, 1, 1, 2, 2]
    assert stories.round.max() == 1


def test_of_two_captures_a_packet_is_told_once(tmp_path: Path) -> None:
    story = Story("a RC_SEND_ONLY 5 64\nb ACK 5\na RC_SEND_ONLY 6 64\nb ACK 6")
    first, second = tmp_path / "one.pcapng", tmp_path / "two.pcapng"
    story.write(first)
    story.write(second)
    stories = packet_stories(rocekit.analyze(first, second))
    assert lines(stories) == ["request 0 5 x1", "ack 0 5 x0", "request 1 6 x1", "ack 1 6 x0"]


def test_the_wr_stands_in_front_where_the_journal_tells_it(tmp_path: Path) -> None:
    stories = told(
        tmp_path,
        """
        A created
        B created
        A modified state=RTS dest_qpn=0x12 sq_psn=5
        A wr 7 SEND 64
        a RC_SEND_ONLY 5 64
        b ACK 5
        A wc 7 SUCCESS
        """,
    )
    assert [stories.wr_id(i) for i in range(len(stories))] == [7, 7]
    assert list(describe(stories)) == [
        "WR 7 (transfer 0), PSN 5; SEND of 64 bytes, connection 0",
        "ACK to PSN 5, completes WR 7 (transfer 0), connection 0",
    ]


def test_without_all_transfers_there_is_nothing_to_tell(pcaps: Path) -> None:
    with pytest.raises(ValueError, match="without plain"):
        packet_stories(rocekit.analyze(pcaps / "ping-sr-clean.pcapng", journals=(), plain=2))


def captures() -> list[str]:
    folder = PCAPS
    return sorted(p.name for p in folder.iterdir() if p.suffix in (".pcap", ".pcapng"))


def check(stories: PacketStories) -> None:
    """What the columns say of all packets is what the transfers say of themselves."""
    analysis = stories.analysis
    again = (stories.round > 1) & ~stories.duplicate
    for transfer in analysis.transfers:
        mine = stories.transfer == transfer.id
        assert np.count_nonzero(mine & again) == transfer.retransmitted_packets
        for role, told in (("nak", transfer.naks), ("rnr_nak", transfer.rnr_naks)):
            # Copies that the network made have the identification of what was sent, and are no NAKs more.
            sent = stories.packets.ip_id[mine & (stories.role == ROLES.index(role))].tolist()
            assert len({*sent} - {0}) + sent.count(0) == told
        psn = stories.psn[mine]
        assert ((psn >= transfer.first_psn) & (psn <= transfer.last_psn)).all()
    assert ((stories.cause > 0) == again).all()
    placed = stories.psn >= 0
    assert (stories.psn[placed] & MASK == stories.packets.psn[placed]).all()
    for words in describe(stories):
        assert "\n" not in words
        assert ", cause unknown" not in words


@pytest.mark.parametrize("name", captures())
def test_it_adds_up_to_the_transfers_of_real_captures(pcaps: Path, name: str) -> None:
    analysis = rocekit.analyze(pcaps / name)
    stories = packet_stories(analysis)
    check(stories)
    if any(c.paired_by for c in analysis.connections):
        assert not (stories.transfer[stories.role == ROLES.index("request")] < 0).any()


@settings(max_examples=examples(15))
@given(seed=st.integers(0, 1 << 30), loss=st.sampled_from([0.0, 0.02, 0.2]))
def test_it_adds_up_to_the_transfers_of_any_traffic(
    tmp_path_factory: pytest.TempPathFactory, seed: int, loss: float
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.pcap"
    generate(
        path, Traffic(packets=600, operations=OPERATIONS, sizes=(0, 64, 5000), pairs=3, loss=loss, seed=seed)
    )
    check(packet_stories(rocekit.analyze(path)))


WEATHER = ("drop", "ecn", "bit-error", "duplicate", "reorder", "delay")


def in_any_weather(folder: Path, seed: int) -> rocekit.Analysis:
    """Random programs of soft endpoints, of whose packets up to half meet with each kind of fault."""
    draw = Prng(seed, "weather")
    rates = {kind: draw.choice((0.0, 0.05, 0.15, 0.3, 0.5)) for kind in WEATHER}
    faults = at_random({kind: rate for kind, rate in rates.items() if rate})
    tap = draw.choice(("sent", "delivered", "soft_a"))
    program = random_program(seed, transports=draw.choice((("RC",), ("RC",), ("RC", "UC", "UD"))))
    capture, journal = folder / "x.pcapng", folder / "x.journal.jsonl"
    run(program, faults, seed, capture=capture, journal=journal if seed % 2 else None, tap=tap)
    return rocekit.analyze(capture)


@pytest.mark.parametrize("seed", [5, 40, 264, 368, 509, 880, 906, 2023])
def test_it_adds_up_to_the_transfers_of_runs_that_once_did_not(tmp_path: Path, seed: int) -> None:
    check(packet_stories(in_any_weather(tmp_path, seed)))


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 1 << 30))
def test_it_adds_up_to_the_transfers_in_any_weather(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    check(packet_stories(in_any_weather(tmp_path_factory.mktemp("any"), seed)))


@pytest.mark.parametrize(
    ("n", "said"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (112, "112th"), (122, "122nd")]
)
def test_ordinals(n: int, said: str) -> None:
    assert ordinal(n) == said


@pytest.mark.parametrize("name", captures())
def test_the_report_draws_what_is_told(pcaps: Path, name: str) -> None:
    """The report makes its columns while the capture is read; both tell the same of each packet."""
    collector = Collector()
    analysis = rocekit.analyze(pcaps / name, watch=collector)
    lanes, stories = build_lanes(collector, analysis), packet_stories(analysis)
    rows = stories.rows_of(lanes.frame)
    assert (rows >= 0).all()
    assert lanes.psn.tolist() == stories.psn[rows].tolist()
    sent = np.isin(stories.role[rows], (REQUEST, RESPONSE))
    drawn, told = lanes.round[sent].astype(int), stories.round[rows][sent]
    assert ((drawn > 1) == (told > 1)).all()
    # The report counts from the first that was captured; a story also the one that was lost before.
    assert np.isin(told - drawn, (0, 1)).all()
    assert (told == drawn)[told <= 2].all()
    assert ((lanes.flags & DUPLICATE) != 0).tolist() == stories.duplicate[rows].tolist()
