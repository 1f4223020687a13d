"""Two captures: exactly which packets reached the second point, overtook, came twice, or are unknown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amount import examples
from capture_bytes import Frame, pcap
from hypothesis import given, settings
from hypothesis import strategies as st
from places import OTHERS
from story import Shot, Story
from two_points import both_ends, seen_at, source

import rocekit
from rocekit.analysis import Analysis
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.points.overtaken import DoubtfulPieces, overtaken
from rocekit.points.paths import CORRUPTED, MISSING, REACHED, UNKNOWN, Paths
from rocekit.points.paths import Path as Way

US, MS = 1_000, 1_000_000
A, B = "10.0.0.1", "10.0.0.2"
FLIGHT_NS = 5 * US
FIELD = OTHERS / "field"


def write(path: Path, shots: list[Shot]) -> Path:
    with PcapngWriter(path) as writer:
        for shot in sorted(shots, key=lambda s: s.time_ns):
            writer.write(shot.data, shot.time_ns)
    return path


def analyze(folder: Path, *captures: list[Shot]) -> Analysis:
    return rocekit.analyze(*(write(folder / f"{'abc'[n]}.pcapng", c) for n, c in enumerate(captures)))


def paths_of(analysis: Analysis) -> Paths:
    assert analysis.capture.paths is not None
    return analysis.capture.paths


def way(analysis: Analysis, src: str = A, dst: str = B) -> Way:
    (found,) = paths_of(analysis).of(src, dst)
    return found


def as_json(analysis: Analysis, src: str = A) -> dict[str, Any]:
    document = json.loads(json.dumps(analysis.to_dict()))
    (found,) = (p for p in document["paths"] if p["src"] == src)
    return dict(found)


# ---------------------------------------------------------------------- the kernel's truth


@pytest.mark.parametrize("turned", [False, True])
def test_what_netem_dropped_between_the_taps(turned: bool) -> None:
    if not FIELD.is_dir():
        pytest.skip("no ../shared/captures: captures that others made")
    truth = json.loads((FIELD / "A1-write-mid-loss.truth.json").read_text())
    taps = [FIELD / f"A1-write-mid-loss.{tap}.pcap.gz" for tap in ("va", "vb")]
    analysis = rocekit.analyze(*(taps[::-1] if turned else taps))
    there = way(analysis, "10.9.0.1", "10.9.0.2")
    assert there.missing == truth["tc"]["vb-port netem"]["drops"] == 17
    assert there.packets == truth["hw"]["rxe0"]["sent_pkts"]
    assert there.packets - there.missing == truth["hw"]["rxe1"]["rcvd_pkts"]
    assert (there.overtaken, there.doubled, there.only_second, there.outside) == (0, 0, 0, 0)
    assert there.kinds["requests"] == 17
    assert [(c.connection, c.missing) for c in there.connections] == [(0, 17)]
    back = way(analysis, "10.9.0.2", "10.9.0.1")
    assert (back.packets, back.missing, back.clean) == (337, 0, True)
    first, second = (f"A1-write-mid-loss.{tap}.pcap.gz" for tap in ("va", "vb"))
    words = f"of 559 packets seen at {first} 17 never reached {second}, 0 were overtaken, 0 came twice"
    assert f"  10.9.0.1 → 10.9.0.2: {words}\n" in str(analysis)


# ---------------------------------------------------------------------- made pairs with known fates


@dataclass(frozen=True)
class Fate:
    """What happens to one packet between the points; ``late``: how many packets overtake it."""

    lost: bool = False
    doubled: bool = False
    late: int = 0
    missed: bool = False  # by the first capture

    @property
    def plain(self) -> bool:
        return not (self.lost or self.doubled or self.late or self.missed)


FATES = st.one_of(
    st.just(Fate()),
    st.just(Fate()),
    st.just(Fate()),
    st.just(Fate(lost=True)),
    st.just(Fate(doubled=True)),
    st.builds(Fate, late=st.integers(1, 5)),
)
GAP_NS = 20 * US
AHEAD_NS = (0, 0, 70 * MS, -9_000 * MS)
AGAIN = st.lists(st.integers(0, 50), max_size=2, unique=True)


@dataclass
class Made:
    at_a: list[Shot]
    at_b: list[Shot]
    sent: int
    lost: int
    doubled: int
    moved: int
    missed: int


def made(fates: list[Fate], again: list[int], *, ids: bool, v6: bool, seed: int) -> Made:
    """UC SENDs from A, of which runs are sent again, and what B's capture has; some SENDs back of B.

    A packet each 20 µs; before and behind those with a fate there are some that arrive as they were sent.
    """
    a, b = ("fd00::1", "fd00::2") if v6 else (A, B)
    story = Story(a=a, b=b, ip_ids=ids)
    psns = [*range(20), *(100 + n for n in range(len(fates))), *range(40, 60)]
    hit = [Fate()] * 20 + fates + [Fate()] * 20
    # Runs that are sent again, all with fates, half a millisecond later: nothing tells them from the first.
    for start in sorted(again, reverse=True):
        if start + 6 <= len(fates):
            at = 20 + start + 6
            psns[at:at], hit[at:at] = psns[at - 6 : at], hit[at - 6 : at][::-1]
    shots: list[Shot] = []
    repeats: set[int] = set()
    for psn in psns:
        if psn in repeats:
            story.wait(us=500)
            repeats.clear()
        repeats.add(psn)
        story.a("UC_SEND_ONLY", psn, 64)
        story.wait(ns=GAP_NS - 1_000)
    shots = list(story.shots)
    story.shots.clear()
    for psn in range(20):
        story.b("UC_SEND_ONLY", psn, 32).wait(us=10)
    back = story.shots
    at_a = [s for s, f in zip(shots, hit, strict=True) if not f.missed]
    at_a += [Shot(s.data, s.time_ns + FLIGHT_NS) for s in back]
    at_b = list(back)
    arrivals = []
    for k, (shot, fate) in enumerate(zip(shots, hit, strict=True)):
        if fate.lost:
            continue
        arrived = shot.time_ns + FLIGHT_NS + (seed * (k + 1) * 7919) % (2 * US)
        if fate.late:
            arrived += fate.late * GAP_NS + GAP_NS // 2
        arrivals.append(arrived)
        at_b.append(Shot(shot.data, arrived))
        if fate.doubled:
            at_b.append(Shot(shot.data, arrived + 3 * US))
    kept = [a for a, f in zip(arrivals, [f for f in hit if not f.lost], strict=True) if not f.missed]
    return Made(
        at_a,
        at_b,
        sum(not f.missed for f in hit),
        sum(f.lost for f in hit),
        sum(f.doubled for f in hit),
        len(kept) - longest(kept),
        sum(f.missed for f in hit),
    )


def longest(values: list[int]) -> int:
    """The length of the longest subsequence that never falls, the plain way."""
    best: list[int] = []
    for k, value in enumerate(values):
        best.append(1 + max((best[i] for i in range(k) if values[i] <= value), default=0))
    return max(best, default=0)


def counts(path: Way) -> tuple[int, ...]:
    return path.packets, path.missing, path.overtaken, path.doubled, path.only_second, path.outside


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(FATES, min_size=6, max_size=60), st.integers(0, 9), st.sampled_from([0, 0, 70 * MS, -9_000 * MS])
)
def test_the_sets_are_what_was_done(
    tmp_path_factory: pytest.TempPathFactory, fates: list[Fate], seed: int, ahead_ns: int
) -> None:
    """With an identification that tells copies apart, whatever the clocks say."""
    fates = [Fate(missed=True) if f.plain and (k + seed) % 11 == 0 else f for k, f in enumerate(fates)]
    it = made(fates, [3, 12], ids=True, v6=False, seed=seed)
    at_b = [Shot(s.data, s.time_ns + ahead_ns) for s in it.at_b]
    found = way(analyze(tmp_path_factory.mktemp("paths"), it.at_a, at_b))
    assert counts(found) == (it.sent, it.lost, it.moved, it.doubled, it.missed, 0)


@pytest.mark.parametrize("late_ms", [15, 25, 400])
def test_a_packet_and_its_copy_that_both_come_late_are_that_packet(tmp_path: Path, late_ms: int) -> None:
    """A machine that stood still: its identification tells the packet, however late both come."""
    fates = [Fate()] * 20
    it = made(fates, [], ids=True, v6=False, seed=1)
    last = max(shot.time_ns for shot in it.at_b)
    at_a, at_b = list(it.at_a), list(it.at_b)
    story = Story(a=A, b=B, ip_ids=True)
    for _ in range(100):  # an identification that no other packet has
        story.a("UC_SEND_ONLY", 300, 64)
    shot = Shot(story.shots[-1].data, last + MS)
    at_a.append(shot)
    at_b += [Shot(shot.data, shot.time_ns + late_ms * MS + n * US) for n in (0, 1)]
    found = way(analyze(tmp_path, at_a, at_b))
    assert counts(found) == (it.sent + 1, 0, 0, 1, 0, 0)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(FATES, min_size=6, max_size=60), AGAIN, st.booleans(), st.integers(0, 9))
def test_without_identification_the_counts_are_what_was_done(
    tmp_path_factory: pytest.TempPathFactory, fates: list[Fate], again: list[int], v6: bool, seed: int
) -> None:
    """Retransmissions are like what they repeat: which was lost is told by the packets around it."""
    fates = [Fate(lost=f.lost, doubled=f.doubled) for f in fates]
    it = made(fates, again, ids=False, v6=v6, seed=seed)
    analysis = analyze(tmp_path_factory.mktemp("paths"), it.at_a, it.at_b)
    found = way(analysis, *(("fd00::1", "fd00::2") if v6 else (A, B)))
    assert (found.packets, found.missing - found.doubled) == (it.sent, it.lost - it.doubled)
    assert (found.only_second, found.outside) == (0, 0)


def test_identical_retransmissions_the_lost_one_is_named(tmp_path: Path) -> None:
    """The first run loses two packets and the second run one: three different frames."""
    it = made([Fate()] * 20, [4], ids=False, v6=False, seed=3)
    order = sorted(range(len(it.at_a)), key=lambda k: it.at_a[k].time_ns)
    sent = [it.at_a[k] for k in order if source(it.at_a[k].data) == A]
    # The run 24..29 comes again as 30..35.
    gone = {25, 27, 34}
    back = [s for s in it.at_b if source(s.data) == B]
    arrived = [Shot(s.data, s.time_ns + FLIGHT_NS) for k, s in enumerate(sent) if k not in gone]
    analysis = analyze(tmp_path, it.at_a, back + arrived)
    found = way(analysis)
    assert (found.missing, found.overtaken, found.doubled) == (3, 0, 0)
    assert analysis.capture.sightings is not None
    times = analysis.capture.sightings.time_ns[found.missing_rows].tolist()
    assert times == [sent[k].time_ns for k in sorted(gone)]


def test_a_capture_that_is_not_in_the_order_of_time(tmp_path: Path) -> None:
    """Several queues: the copies of a packet stand in the file in another order than they came."""
    it = made([Fate()] * 20, [4], ids=False, v6=False, seed=3)
    path = tmp_path / "a.pcapng"
    with PcapngWriter(path) as writer:
        for shot in sorted(it.at_a, key=lambda s: s.time_ns)[::-1]:
            writer.write(shot.data, shot.time_ns)
    analysis = rocekit.analyze(path, write(tmp_path / "b.pcapng", it.at_b))
    assert [p.clean for p in paths_of(analysis).every] == [True, True]


@given(st.permutations(range(9)))
@settings(max_examples=examples(200))
def test_the_fewest_that_were_moved(order: list[int]) -> None:
    """Without them the rest is in order, and fewer do not do."""
    place = np.arange(len(order))
    arrival = np.array(order, np.int64)
    moved = overtaken(place, place, arrival, place).tolist()
    rest = [a for k, a in enumerate(order) if k not in moved]
    assert rest == sorted(rest)
    for kept in combinations(range(len(order)), len(rest) + 1):
        assert [order[k] for k in kept] != sorted(order[k] for k in kept)


# ---------------------------------------------------------------------- what is not a loss


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=8), max_size=6),
    st.integers(1, 30),
)
def test_pieces_that_are_not_looked_at_have_nothing_that_was_overtaken(
    pieces: list[list[tuple[int, int]]], apart: int
) -> None:
    """Found piece by piece is what all packets together give, in whatever order they come."""
    times = [[(n * apart + sent, n * apart + came) for sent, came in piece] for n, piece in enumerate(pieces)]
    every = np.array([row for piece in times for row in piece], np.int64).reshape(-1, 2)
    frames = np.stack([np.argsort(np.argsort(every[:, n], kind="stable")) for n in (0, 1)], axis=1)
    ends = np.cumsum([0, *map(len, times)]).tolist()
    stretches = DoubtfulPieces()
    for begin, end in pairwise(ends):
        stretches.add(*((every[begin:end, n], frames[begin:end, n]) for n in (0, 1)))
    found = []
    for first, behind in stretches.found():
        own = slice(ends[first], ends[behind])
        moved = overtaken(every[own, 0], frames[own, 0], every[own, 1], frames[own, 1])
        found += (moved + own.start).tolist()
    assert found == overtaken(every[:, 0], frames[:, 0], every[:, 1], frames[:, 1]).tolist()


def rc(count: int = 30) -> Story:
    story = Story()
    for p in range(count):
        story.a("RC_SEND_ONLY", p, 64).wait(us=20).b("ACK", p).wait(us=20)
    return story


def test_before_the_one_starts_and_behind_its_end_nothing_is_missing(tmp_path: Path) -> None:
    at_a, at_b = both_ends(rc())
    analysis = analyze(tmp_path, at_a, at_b[11:-11])
    for src in (A, B):
        found = as_json(analysis, src)
        assert found["missing"] == found["only_second"] == found["missed_second"] == 0
    there, back = as_json(analysis, A), as_json(analysis, B)
    assert (there["packets"], there["outside"], there["outside_second"]) == (30, 11, 0)
    assert (back["packets"], back["outside"], back["outside_second"]) == (19, 0, 11)
    assert "not counted, outside the time that both captures cover: 11 of a.pcapng" in str(analysis)
    paths = paths_of(analysis)
    assert paths.fate(1) == UNKNOWN
    assert paths.fate(20) == paths.fate(1 << 40 | 1) == REACHED
    assert paths.fate(1 << 40 | 30_000) == UNKNOWN


def test_other_frames_show_that_a_capture_was_running(tmp_path: Path) -> None:
    """The last packets did not arrive, and the capture goes on with frames of others."""
    story = Story("a UC_SEND_ONLY 1 8\n a UC_SEND_ONLY 2 8\n b UC_SEND_ONLY 7 8\n a UC_SEND_ONLY 3 8\n +1ms")
    at_a, at_b = both_ends(story)
    other = Shot(b"\xff" * 12 + b"\x08\x06" + bytes(46), at_b[-1].time_ns + MS)
    found = way(analyze(tmp_path, at_a, [*at_b[:-1], other]))
    assert (found.missing, found.outside) == (1, 0)
    found = way(analyze(tmp_path, at_a, at_b[:-1]))
    assert (found.missing, found.outside) == (0, 1)


def test_a_packet_that_was_acknowledged_was_missed_by_the_capture(tmp_path: Path) -> None:
    at_a, at_b = both_ends(rc())
    gone = at_b[20]
    analysis = analyze(tmp_path, at_a, [s for s in at_b if s is not gone])
    found = as_json(analysis)
    assert (found["missing"], found["missed_second"]) == (0, 1)
    (frame,) = (k for k, s in enumerate(at_a, 1) if s.data == gone.data)
    assert paths_of(analysis).fate(frame) == REACHED
    assert "1 more arrived, but b.pcapng missed them" in str(analysis)
    assert " 0 never reached b.pcapng" in str(analysis)


def test_a_capture_that_missed_packets_may_have_missed_others_too(tmp_path: Path) -> None:
    """The last request has no ACK: it was lost, or the capture missed it as it did the one before."""
    story = rc().lines("+9us\n a RC_SEND_ONLY 900 8\n +9us\n a RC_SEND_ONLY 901 8\n +9us\n b ACK 899")
    at_a, at_b = both_ends(story)
    acknowledged, unknown = at_b[20], next(s for s in at_b if s.data[51:54] == (900).to_bytes(3))
    lacking = [s for s in at_b if s is not acknowledged and s is not unknown]
    assert " 1 are not at b.pcapng, lost or missed, " in str(analyze(tmp_path, at_a, lacking))
    assert " 1 never reached b.pcapng, " in str(
        analyze(tmp_path, at_a, [s for s in at_b if s is not unknown])
    )


def test_a_lost_packet_that_was_sent_again_was_not_acknowledged_before(tmp_path: Path) -> None:
    story = Story(
        "a RC_SEND_ONLY 4 8\n b ACK 4\n +9us\n a RC_SEND_ONLY 5 64\n a RC_SEND_ONLY 6 64\n +5us\n b NAK 5"
    )
    story.lines("+5us\n a RC_SEND_ONLY 5 64\n a RC_SEND_ONLY 6 64\n +5us\n b ACK 6")
    at_a, at_b = both_ends(story)
    lost = story.shots[2].data
    analysis = analyze(tmp_path, at_a, [s for s in at_b if s.data != lost])
    found = as_json(analysis)
    assert (found["missing"], found["missed_second"]) == (1, 0)
    assert found["missing_frames"] == ["0:3"]
    assert found["connections"] == [{"connection": 0, "missing": 1}]
    paths = paths_of(analysis)
    assert [paths.fate(f) for f in (1, 3, 4)] == [REACHED, MISSING, REACHED]
    assert paths.lost_between(3) == (0, 1)
    assert paths.lost_between(4) is None
    assert analysis.capture.sightings is not None
    connection = analysis.connections[0]
    first, second = analysis.capture.sightings.transmissions(connection, 0, 5, request=True)
    assert (first.frames, set(second.frames)) == ({0: 3}, {0, 1})
    assert first.sent_ns == first.time_ns == first.times_ns[0] < second.sent_ns
    assert second.times_ns[1] - second.times_ns[0] == 2_000


def test_what_only_the_second_has_the_first_capture_missed(tmp_path: Path) -> None:
    at_a, at_b = both_ends(rc())
    gone = [s for s in at_a if source(s.data) == A][7]
    analysis = analyze(tmp_path, [s for s in at_a if s is not gone], at_b)
    found = as_json(analysis)
    assert (found["packets"], found["missing"], found["only_second"]) == (29, 0, 1)
    assert "1 only at b.pcapng: a.pcapng missed them" in str(analysis)
    assert analysis.capture.sightings is not None
    (sent,) = analysis.capture.sightings.transmissions(analysis.connections[0], 0, 7, request=True)
    assert set(sent.frames) == {1}
    assert abs(sent.sent_ns - gone.time_ns) <= 2


def test_missing_packets_by_kind(tmp_path: Path) -> None:
    story = Story().connect(5, 900)
    for p in range(5, 40):
        story.a("RC_SEND_ONLY", p, 64).wait(us=20).b("ACK", p).b("CNP", 0).wait(us=20)
    at_a, at_b = both_ends(story)
    of_b = [s for s in at_a if source(s.data) == B]
    gone = [of_b[k].data for k in (3, 5, 8, 10, 15)]  # REP is the first; an ACK, a CNP …
    analysis = analyze(tmp_path, [s for s in at_a if s.data not in gone], at_b)
    found = as_json(analysis, B)
    kinds = [found[f"missing_{kind}"] for kind in ("requests", "responses", "cnps", "datagrams", "mads")]
    assert kinds == [0, 3, 2, 0, 0]
    assert found["missing"] == 5
    assert "; missing: 3 responses, 2 CNPs" in str(analysis)


def test_hops_marks_and_tags_change_on_the_way(tmp_path: Path) -> None:
    """TTL, ECN, MAC addresses and the VLAN tag change; it is the same packet."""
    at_a, at_b = both_ends(rc())

    def routed(shot: Shot) -> Shot:
        frame = bytearray(shot.data)
        frame[0:6], frame[15], frame[22] = b"\x02\x99\x99\x99\x99\x99", frame[15] | 3, frame[22] - 3
        frame[24:26] = b"\0\0"
        frame[12:12] = b"\x81\x00\x20\x05"
        return Shot(bytes(frame), shot.time_ns)

    analysis = analyze(tmp_path, at_a, [routed(s) for s in at_b])
    assert [p.clean for p in paths_of(analysis).every] == [True, True]
    assert analysis.capture.copies == 60


def test_of_one_direction_the_hops_tell_the_order(tmp_path: Path) -> None:
    sent = [s for s in rc().shots if source(s.data) == A]
    nearer = [Shot(s.data[:22] + bytes([s.data[22] - 1]) + s.data[23:], s.time_ns + 9 * US) for s in sent]
    analysis = analyze(tmp_path, [s for k, s in enumerate(nearer) if k != 9], sent)
    found = as_json(analysis)
    assert (found["files"], found["missing"], found["order_by"]) == ([1, 0], 1, "hops")


def test_of_one_direction_on_one_clock(tmp_path: Path) -> None:
    sent = [s for s in rc().shots if source(s.data) == A]
    later = [Shot(s.data, s.time_ns + 9 * US) for k, s in enumerate(sent) if k != 9]
    analysis = analyze(tmp_path, later, sent)
    found = as_json(analysis)
    assert (found["files"], found["missing"], found["order_by"]) == ([1, 0], 1, "clocks")
    assert "probably, by their clocks" in str(analysis)


def test_at_one_place_what_one_has_not_is_no_loss(tmp_path: Path) -> None:
    shots = rc().shots
    analysis = analyze(tmp_path, shots, [s for k, s in enumerate(shots) if k not in (20, 31)])
    found = as_json(analysis)
    assert (found["files"], found["missing"], found["order_by"]) == ([0, 1], 0, "files")
    assert found["missed_second"] == 1  # it was acknowledged
    back = as_json(analysis, B)
    assert (back["files"], back["missing"]) == ([0, 1], 1)
    assert paths_of(analysis).fate(32) == UNKNOWN
    told = str(analysis)
    assert "of 30 packets in a.pcapng 1 not in b.pcapng, 0 only in b.pcapng (which comes first" in told
    # Two are not in the second one, of which one is accounted for.
    assert "0 not in b.pcapng, 0 only in b.pcapng; 1 more arrived, but b.pcapng missed them (which" in told


def test_a_capture_of_one_direction_lost_nothing_of_the_other(tmp_path: Path) -> None:
    at_a, at_b = both_ends(rc())
    analysis = analyze(tmp_path, [s for s in at_a if source(s.data) == A], at_b)
    (found,) = analysis.to_dict()["paths"]
    assert (found["src"], found["missing"]) == (A, 0)


def test_a_capture_cut_by_its_snaplen_beside_a_whole_one(tmp_path: Path) -> None:
    at_a, at_b = both_ends(rc())
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(pcap([Frame(s.data[:70], s.time_ns, len(s.data)) for s in at_b], unit="ns"))
    analysis = rocekit.analyze(write(tmp_path / "a.pcapng", at_a), cut)
    assert [p.clean for p in paths_of(analysis).every] == [True, True]


@pytest.mark.parametrize("at", [19, 29, 49, 53, 60])
def test_corrupted_packets_are_not_missing(tmp_path: Path, at: int) -> None:
    """One bit of the identification, address, QPN, PSN or payload is changed on the way."""
    at_a, at_b = both_ends(
        Story("\n".join(f"a UC_SEND_ONLY {p} 64\n +9us\n b UC_SEND_ONLY {p} 8" for p in range(30)))
    )
    k = next(k for k, s in enumerate(at_b) if k > 20 and source(s.data) == A)
    frame = bytearray(at_b[k].data)
    frame[at] ^= 4
    changed = [Shot(bytes(frame), s.time_ns) if s is at_b[k] else s for s in at_b]
    analysis = analyze(tmp_path, at_a, changed)
    found = as_json(analysis)
    assert (found["packets"], found["missing"], found["corrupted"], found["only_second"]) == (30, 0, 1, 0)
    (number,) = (n for n, s in enumerate(at_a, 1) if s.data == at_b[k].data)
    assert paths_of(analysis).fate(number) == CORRUPTED
    assert "; 1 more arrived corrupted" in str(analysis)


def test_one_capture_has_no_paths(tmp_path: Path) -> None:
    document = analyze(tmp_path, rc().shots).to_dict()
    assert document["paths"] == []
    assert document["capture"]["relation"] is None


def test_a_long_queue_in_one_direction_does_not_move_the_clock(tmp_path: Path) -> None:
    """Half of A's packets wait 15 ms: on one clock the bound is the least way, and not the usual one."""
    shots = rc(60).shots
    at_a = seen_at(shots, {A: 0, B: 2 * US})
    at_b = seen_at(shots, {A: 2 * US, B: 0})
    held = [
        Shot(s.data, s.time_ns + 15 * MS) if source(s.data) == A and k > 40 else s for k, s in enumerate(at_b)
    ]
    analysis = analyze(tmp_path, at_a, held)
    alignment = analysis.capture.alignments[1]
    assert (alignment.offset_ns, alignment.bound_ns) == (0, 2_000)
