"""What a capture does not show: its edges, its own losses, one direction alone, and how it is cut up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from amount import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from story import Shot, Story, Tracked, track

from rocekit import wire
from rocekit.capture import open_capture
from rocekit.files.frame_names import FRAME_MASK
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import random_program
from rocekit.soft.wires.faults import at_random

# ---------------------------------------------------------------------- edges


def test_a_message_that_began_before_the_capture_is_incomplete_and_the_next_ones_are_whole() -> None:
    told = track(
        """
        a RC_SEND_MIDDLE 6 1024
        a RC_SEND_LAST   7 1024
        b ACK 7
        a RC_SEND_ONLY 8 64
        b ACK 8
        """
    )
    assert told.transfers == [
        "a SEND 6..7 2048 bytes in 2 packets: incomplete",
        "a SEND 8 64 bytes: acked",
    ]


def test_responses_to_a_read_asked_before_the_capture_are_a_read_in_part() -> None:
    told = track(
        """
        b RC_RDMA_READ_RESPONSE_MIDDLE 6 1024
        b RC_RDMA_READ_RESPONSE_LAST   7 1024
        a RC_SEND_ONLY 8 64
        b ACK 8
        """
    )
    assert told.transfers == [
        "a READ 6..7 2048 bytes in 2 packets: incomplete",
        "a SEND 8 64 bytes: acked",
    ]
    assert told[0].remote_va is None


def test_a_capture_that_begins_with_an_acknowledgement_loses_nothing_for_it() -> None:
    told = track("b ACK 4\n a RC_SEND_ONLY 5 64\n b ACK 5")
    assert told.transfers == ["a SEND 5 64 bytes: acked"]
    assert told.missed == []


def test_a_capture_that_begins_among_repeats_counts_them_as_it_can() -> None:
    told = track("b NAK 5\n a RC_SEND_ONLY 5 64\n a RC_SEND_ONLY 6 64\n b ACK 6")
    assert [line.split(": ")[1][:5] for line in told.transfers] == ["acked", "acked"]


def test_a_message_that_the_capture_does_not_see_end_is_incomplete() -> None:
    told = track("a RC_SEND_ONLY 5 64\n b ACK 5\n a RC_SEND_FIRST 6 1024\n a RC_SEND_MIDDLE 7 1024")
    assert told.transfers == [
        "a SEND 5 64 bytes: acked",
        "a SEND 6..7 2048 bytes in 2 packets: incomplete",
    ]


def test_a_capture_that_ends_before_the_acknowledgement_leaves_a_transfer_unacknowledged() -> None:
    assert track("a RC_SEND_ONLY 5 64").transfers == ["a SEND 5 64 bytes: unacknowledged"]


def test_a_capture_that_ends_among_responses_leaves_a_read_incomplete() -> None:
    told = track("a RC_RDMA_READ_REQUEST 5 3072\n b RC_RDMA_READ_RESPONSE_FIRST 5 1024")
    assert told.transfers == ["a READ 5..7 3072 bytes in 3 packets: incomplete"]


# ---------------------------------------------------------------------- the capture's own losses


def test_an_acknowledgement_that_covers_a_psn_never_shown_proves_that_the_capture_missed_it() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 7 64
        b ACK 7
        """
    )
    assert told.transfers == ["a SEND 5 64 bytes: acked", "a SEND 7 64 bytes: acked"]
    assert told.missed == ["6"]
    assert told.tracker.connections[0].retransmitted_packets == 0


def test_packets_missed_inside_a_message_leave_it_whole_for_those_who_acknowledged_it() -> None:
    told = track(
        """
        a RC_RDMA_WRITE_FIRST 5 1024 of=4096
        a RC_RDMA_WRITE_LAST  8 1024
        b ACK 8
        """
    )
    assert told.transfers == ["a WRITE 5..8 4096 bytes in 4 packets: acked"]
    assert told.missed == ["6..7"]
    assert told[0].missing == {6, 7}


def test_a_missed_last_packet_ends_a_write_whose_length_was_announced() -> None:
    told = track(
        """
        a RC_RDMA_WRITE_FIRST 5 1024 of=3000
        a RC_RDMA_WRITE_MIDDLE 6 1024
        # PSN 7 missed by the capture
        a RC_SEND_ONLY 8 64
        b ACK 8
        """
    )
    assert told.transfers == [
        "a WRITE 5..7 3000 bytes in 3 packets: acked",
        "a SEND 8 64 bytes: acked",
    ]
    assert told.missed == ["7"]


def test_a_missed_response_that_nobody_asked_again_had_arrived() -> None:
    told = track(
        """
        a RC_RDMA_READ_REQUEST 5 4096
        b RC_RDMA_READ_RESPONSE_FIRST  5 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 7 1024
        b RC_RDMA_READ_RESPONSE_LAST   8 1024
        a RC_SEND_ONLY 9 64
        b ACK 9
        """
    )
    assert told.transfers == [
        "a READ 5..8 4096 bytes in 4 packets: acked",
        "a SEND 9 64 bytes: acked",
    ]


def test_a_read_of_unknown_path_mtu_between_holes_keeps_what_follows() -> None:
    told = track("a RC_SEND_ONLY 9 4\n a RC_RDMA_READ_REQUEST 11 513\n a RC_SEND_ONLY 15 5")
    assert told.transfers == [
        "a SEND 9 4 bytes: unacknowledged",
        "a READ 11 513 bytes: unacknowledged",
        "a SEND 15 5 bytes: unacknowledged",
    ]


def test_a_missed_packet_at_the_wrap_is_still_only_missed() -> None:
    told = track("a RC_SEND_FIRST 0xFFFFFF 1024\n a RC_SEND_LAST 1 1024\n b ACK 1")
    assert told.missed == ["0"]
    assert told[0].status == "acked"


def test_a_capture_that_drops_at_random_never_makes_a_loss_of_it() -> None:
    story = Story()
    for p in range(3000):
        if p % 7 and p % 11:
            story.a("RC_SEND_ONLY", p, 64)
        if p % 16 == 15:
            story.b("ACK", p)
    told = story.track()
    connection = told.tracker.connections[0]
    assert connection.retransmitted_packets == 0
    assert connection.naks == 0
    assert all(t.timeouts == 0 for t in told.tracker.transfers)
    missed = {p for e in connection.missed for p in range(e.psn, e.last_psn + 1) if p < 2992}
    assert missed == {p for p in range(1, 2992) if not (p % 7 and p % 11)}


def test_a_hole_that_no_acknowledgement_covers_proves_nothing() -> None:
    told = track("a RC_SEND_ONLY 5 64\n b ACK 5\n a RC_SEND_ONLY 7 64")
    assert told.transfers == ["a SEND 5 64 bytes: acked", "a SEND 7 64 bytes: unacknowledged"]
    assert told.missed == []


# ---------------------------------------------------------------------- one direction


def test_requests_alone_are_tracked_and_never_answered() -> None:
    told = track(
        """
        a RC_SEND_FIRST 5 1024
        a RC_SEND_LAST  6 1024
        a RC_RDMA_READ_REQUEST 7 1000
        a RC_SEND_ONLY 8 64
        """
    )
    assert told.transfers == [
        "a SEND 5..6 2048 bytes in 2 packets: unacknowledged",
        "a READ 7 1000 bytes: unacknowledged",
        "a SEND 8 64 bytes: unacknowledged",
    ]
    assert told.connections == ["RC a?=b"]
    assert told[0].requester["qpn"] is None


def test_requests_alone_show_what_was_sent_again() -> None:
    told = track(
        """
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64
        +100ms
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64
        """
    )
    assert told.transfers == [
        "a SEND 5 64 bytes: unacknowledged, 1 again, 1 timeout",
        "a SEND 6 64 bytes: unacknowledged, 1 again",
    ]


def test_acknowledgements_alone_are_a_connection_without_transfers() -> None:
    told = track("b ACK 5\n b ACK 6\n b ACK 7")
    assert told.transfers == []
    assert told.connections == ["RC a=b?"]
    assert told.tracker.connections[0].packets == 3


def test_responses_alone_show_the_reads_data() -> None:
    told = track(
        """
        b RC_RDMA_READ_RESPONSE_FIRST 5 1024
        b RC_RDMA_READ_RESPONSE_LAST  6 1024
        b RC_RDMA_READ_RESPONSE_ONLY  7 100
        """
    )
    assert told.connections == ["RC a=b?"]
    assert [(t.operation, t.bytes, t.first_psn, t.last_psn) for t in told.tracker.transfers] == [
        ("READ", 2048, 5, 6),
        ("READ", 100, 7, 7),
    ]


# ---------------------------------------------------------------------- however it is cut up


def dicts(told: Tracked) -> dict[str, Any]:
    """Everything tracking says."""
    tracker = told.tracker
    return {
        "transfers": [t.to_dict() for t in tracker.transfers],
        "connections": [c.to_dict() for c in tracker.connections],
        "events": told.events,
        "missed": told.missed,
        "cm": [r.to_dict() for r in tracker.cm.records],
        "bad": tracker.bad_icrc,
    }


FAULTS = [
    {},
    {"drop": 0.03},
    {"drop": 0.02, "duplicate": 0.02, "reorder": 0.02},
    {"drop": 0.05, "delay": 0.01},
    {"bit-error": 0.03},
]


@dataclass(frozen=True)
class Soft:
    """What soft endpoints made of a random program under random faults: its frames and its QP pairs' QPNs."""

    shots: list[Shot]
    pairs: list[tuple[int, int]]

    def track(self, **how: Any) -> Tracked:
        return tracked(self.shots, **how)


def tracked(shots: list[Shot], **how: Any) -> Tracked:
    story = Story()
    story.shots = list(shots)
    return story.track(**how)


def soft(seed: int, faults: dict[str, float], tap: str = "sent", ip_version: int = 4) -> Soft:
    program = replace(random_program(seed), ip_version=ip_version)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.pcapng"
        result = run(program, at_random(faults), seed, capture=path, tap=tap)
        return Soft(read(path), [(a.qpn, b.qpn) for a, b in result.pairs])


def read(path: Path) -> list[Shot]:
    with open_capture(path) as capture:
        return [
            Shot(frame, time_ns)
            for batch in capture
            for frame, time_ns in zip(batch.frames(), batch.time_ns.tolist(), strict=True)
        ]


SEEDS = st.integers(0, 10_000)
TAPS = st.sampled_from(["sent", "delivered"])


@settings(max_examples=examples(40))
@given(SEEDS, st.sampled_from(FAULTS[:4]), st.lists(st.integers(1, 1000), max_size=20), TAPS)
def test_a_capture_in_pieces_says_what_it_says_whole(
    seed: int, faults: dict[str, float], cuts: list[int], tap: str
) -> None:
    capture = soft(seed, faults, tap)
    assert dicts(capture.track(cuts=cuts)) == dicts(capture.track())


def test_a_capture_frame_by_frame_says_what_it_says_whole() -> None:
    capture = soft(5, FAULTS[2])
    assert dicts(capture.track(cuts=range(len(capture.shots)))) == dicts(capture.track())


def test_where_wrong_icrcs_are_noted_does_not_depend_on_the_pieces() -> None:
    capture = soft(0, {"bit-error": 0.03}, "delivered")
    assert dicts(capture.track(cuts=[3])) == dicts(capture.track())


def test_a_live_trace_whose_first_packet_is_corrupted_still_heeds_icrcs() -> None:
    story = Story("a RC_SEND_ONLY 5 64\n corrupt\n a RC_SEND_ONLY 5 64\n b ACK 5")
    story.lines("\n".join(f"a RC_SEND_ONLY {p} 64\n b ACK {p}" for p in range(6, 30)))
    assert not story.track(cuts=[1]).tracker.icrc_ignored


@settings(max_examples=examples(40))
@given(SEEDS, st.sampled_from(FAULTS), st.floats(0, 1), TAPS)
def test_of_any_beginning_of_a_capture_what_was_done_stays_done(
    seed: int, faults: dict[str, float], part: float, tap: str
) -> None:
    capture = soft(seed, faults, tap)
    whole = {(t.first_frame, t.operation): t.to_dict() for t in capture.track().tracker.transfers}
    begun = tracked(capture.shots[: int(len(capture.shots) * part)])
    kept = ("operation", "bytes", "packets", "first_psn", "last_psn", "status", "first_ns", "acked_ns")
    for transfer in begun.tracker.transfers:
        if transfer.status == "acked" and not transfer.responses_missing:
            then, now = transfer.to_dict(), whole[transfer.first_frame, transfer.operation]
            assert {k: then[k] for k in kept} == {k: now[k] for k in kept}


def facts(*told: Tracked) -> list[str]:
    """Every transfer, whatever its number and its frames' numbers."""
    names = ("id", "connection", "frames")
    return sorted(
        str({k: v for k, v in t.to_dict().items() if k not in names})
        for each in told
        for t in each.tracker.transfers
    )


@settings(max_examples=examples(30))
@given(SEEDS, SEEDS, st.sampled_from(FAULTS[:4]), st.integers(-200, 200), TAPS)
def test_what_other_hosts_do_at_the_same_time_changes_no_transfer(
    seed: int, other: int, faults: dict[str, float], shift_us: int, tap: str
) -> None:
    """Two captures woven into one, at any offset, hold the transfers of both."""
    one, two = soft(seed, faults, tap), soft(other, faults, tap, ip_version=6)
    moved = [Shot(s.data, s.time_ns + shift_us * 1000) for s in two.shots]
    both = sorted([*one.shots, *moved], key=lambda s: s.time_ns)
    assert facts(tracked(both)) == facts(one.track(), tracked(moved))


@settings(max_examples=examples(30))
@given(SEEDS, st.sampled_from(FAULTS[:4]), TAPS)
def test_what_other_qps_of_the_same_hosts_do_changes_no_transfer(
    seed: int, faults: dict[str, float], tap: str
) -> None:
    capture = soft(seed, faults, tap)
    parts = [
        tracked([s for s in capture.shots if (dest_qpn(s.data), s.data[33]) in {(a, 1), (b, 2)}])
        for a, b in capture.pairs
    ]
    assert facts(capture.track()) == facts(*parts)


def dest_qpn(frame: bytes) -> int:
    """Of RoCE v2 over IPv4 without options."""
    return int.from_bytes(frame[14 + 20 + 8 + 5 : 14 + 20 + 8 + 8], "big")


# ---------------------------------------------------------------------- whatever comes

OPCODES = sorted(o.name for o in wire.OPCODES.values())
WITHOUT_PAYLOAD = frozenset(o.name for o in wire.OPCODES.values() if not o.payload)
PSNS = st.one_of(
    st.integers(0, 12), st.sampled_from([0xFFFFFD, 0xFFFFFF, 0x800000, 0x7FFFFF]), st.integers(0, 0xFFFFFF)
)
PACKETS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.one_of(st.sampled_from(OPCODES), st.sampled_from([o for o in OPCODES if o.startswith("RC_")])),
        PSNS,
        st.sampled_from([0, 1, 64, 256, 1024]),
        st.integers(0, 255),
        st.sampled_from([0, 1, 1_000_000, 7_000_000_000]),
    ),
    max_size=60,
)


@settings(max_examples=examples(150))
@given(PACKETS, st.lists(st.integers(1, 60), max_size=5))
def test_any_packets_in_any_order_make_transfers_that_keep_the_contract(
    packets: list[tuple[str, str, int, int, int, int]], cuts: list[int]
) -> None:
    """Nobody promises that what is on an interface was sent by a QP that keeps the rules."""
    story = Story(others={"cd": (("10.0.0.1", 0x11), ("10.0.0.2", 0x13))})
    for who, opcode, psn, size, syndrome, pause_ns in packets:
        headers = wire.OPCODES[wire.OPCODE_NAMES[opcode]].headers
        fields = {"syndrome": syndrome} if wire.AETH in headers else {}
        payload = size if opcode not in WITHOUT_PAYLOAD or wire.RETH in headers else 0
        story.packet(who, opcode, psn, payload, **fields).wait(ns=pause_ns)
    told = story.track(cuts=cuts)
    tracker = told.tracker
    assert [t.id for t in tracker.transfers] == list(range(len(tracker.transfers)))
    for t in tracker.transfers:
        record = t.to_dict()
        assert record["status"] in {"acked", "unacknowledged", "incomplete", "sent"} or t.status.startswith(
            "nak:"
        )
        assert t.first_psn <= t.last_psn
        assert t.packets >= 1
        assert t.bytes >= 0
        assert t.first_ns <= t.last_ns
        assert (t.acked_ns is None) or t.acked_ns >= t.first_ns
        assert 1 <= (t.first_frame & FRAME_MASK) <= len(packets)
        assert 1 <= (t.last_frame & FRAME_MASK) <= len(packets)
    known = sum(c.packets for c in tracker.connections)
    assert known <= len(packets)
    for c in tracker.connections:
        own = [t for t in tracker.transfers if t.connection is c]
        assert (c.transfers, c.bytes) == (len(own), sum(t.bytes for t in own))


@settings(max_examples=examples(60))
@given(PACKETS)
def test_any_packets_in_pieces_make_what_they_make_whole(
    packets: list[tuple[str, str, int, int, int, int]],
) -> None:
    story = Story(others={"cd": (("10.0.0.1", 0x11), ("10.0.0.2", 0x13))})
    for who, opcode, psn, size, _, pause_ns in packets:
        payload = size if opcode not in WITHOUT_PAYLOAD else 0
        story.packet(who, opcode, psn, payload).wait(ns=pause_ns)
    assert dicts(story.track(cuts=range(len(packets)))) == dicts(story.track())
