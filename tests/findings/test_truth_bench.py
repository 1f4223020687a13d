"""The truth bench's own judgements (tests/tools/truth_bench), on packets made here and a pair of captures."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest
import truth_marks
from capture_bytes import Frame, pcap
from places import OTHERS
from truth_bench.drawn import experiment_of
from truth_bench.judge import Drops, Fate, Judge, What, seen_from
from truth_bench.neighbours import NEIGHBOURS, UNLIKE, known, make
from truth_bench.packets import Packet, read
from truth_bench.scene import RIGHT, SILENT, UNDECIDED, WRONG
from truth_bench.score import counted, open_wire, score, table, unfit, wrong_lines
from truth_bench.sets import Side, Wire

from rocekit.wire.build import build_frame

A, B = "10.9.0.1", "10.9.0.2"
WRITE_MIDDLE, READ_REQUEST, READ_MIDDLE, ACK = 0x07, 0x0C, 0x0E, 0x11
POSITIVE, SEQUENCE_NAK = 0x1F, 0x60
FIELD = OTHERS / "field" / "A1-write-mid-loss.truth.json"


class Talk:
    """Packets between a and b, each with when and whether it passes each capture."""

    def __init__(self) -> None:
        self.va: list[Packet] = []
        self.vb: list[Packet] = []
        self._numbers = itertools.count(1)

    def send(
        self,
        src: str,
        opcode: int,
        psn: int,
        at: int,
        *,
        arrives: int | None = 1,
        syndrome: int = -1,
        seen: bool = True,
        times: int = 1,
        length: int = 0,
    ) -> None:
        """A packet sent at a time (in µs), and how long it needs to the other capture (None: lost)."""
        number = next(self._numbers)
        first, second = (self.va, self.vb) if src == A else (self.vb, self.va)

        def packet(frame: int, time_us: int) -> Packet:
            headers = bytes([opcode]) + psn.to_bytes(3) + number.to_bytes(2)
            dst = B if src == A else A
            return Packet(
                frame, time_us * 1000, src, dst, opcode, 17, psn, number, 1068, headers, syndrome, length
            )

        if seen:
            first.append(packet(len(first) + 1, at))
        for _ in range(times if arrives is not None else 0):
            assert arrives is not None
            second.append(packet(len(second) + 1, at + arrives))

    def judge(self, **dropped: int) -> tuple[Judge, Side]:
        """The judge, with what faults dropped (``before_a=3``), and a's side."""
        hosts = {"a": A, "b": B}
        faults = [Drops(name[:-2], hosts[name[-1]], n) for name, n in dropped.items()]
        for capture in (self.va, self.vb):
            capture.sort(key=_when)
            for number, packet in enumerate(capture, 1):
                packet.frame = number
        wire = Wire((A, B), self.va, self.vb)
        return Judge(wire, faults), next(side for side in wire.sides if side.src == A)


def _when(packet: Packet) -> int:
    return packet.time_ns


def refused(second: int | None, *, again: bool = True) -> Talk:
    """1 and 3 arrive, 2 as given; b refuses 2, and a goes back to it."""
    talk = Talk()
    talk.send(A, WRITE_MIDDLE, 1, 0)
    talk.send(A, WRITE_MIDDLE, 2, 10, arrives=second)
    talk.send(A, WRITE_MIDDLE, 3, 20)
    talk.send(B, ACK, 2, 30, syndrome=SEQUENCE_NAK)
    if again:
        talk.send(A, WRITE_MIDDLE, 2, 40)
        talk.send(A, WRITE_MIDDLE, 3, 50)
        talk.send(B, ACK, 3, 60, syndrome=POSITIVE)
    return talk


def fate_of_nak(talk: Talk, **dropped: int) -> Fate:
    judge, side = talk.judge(**dropped)
    return judge.after_nak(side, next(t for t in side.responses if t.packet.is_sequence_nak))


def test_a_packet_that_only_the_first_capture_has_was_lost_between() -> None:
    fate = fate_of_nak(refused(None), between_a=1)
    assert fate == Fate(What.REQUEST, "between", A)
    hosts = (A, B)
    assert [seen_from(fate, view, hosts) for view in (["va"], ["vb"], ["va", "vb"])] == [
        "behind",
        "before",
        "between",
    ]


def test_a_packet_that_both_captures_have_was_lost_behind_if_something_was_dropped_there() -> None:
    assert fate_of_nak(refused(1), behind_a=1) == Fate(What.REQUEST, "behind", A)
    assert fate_of_nak(refused(1)).what is What.OPEN


def test_a_packet_that_no_capture_has_was_lost_before() -> None:
    talk = Talk()
    for psn in (1, 3):
        talk.send(A, WRITE_MIDDLE, psn, psn * 10)
    talk.send(B, ACK, 2, 40, syndrome=SEQUENCE_NAK)
    talk.send(A, WRITE_MIDDLE, 2, 50)
    assert fate_of_nak(talk, before_a=1) == Fate(What.REQUEST, "before", A)


def test_a_packet_that_arrives_after_a_later_one_was_overtaken() -> None:
    assert fate_of_nak(refused(25)).what is What.LATE


def test_the_copy_of_the_pass_that_drew_the_nak_counts() -> None:
    """2 was seen in the first pass, behind the gap at 1; its copy of the second pass is lost between."""
    talk = Talk()
    talk.send(A, WRITE_MIDDLE, 1, 0, arrives=None)
    talk.send(A, WRITE_MIDDLE, 2, 10)
    talk.send(B, ACK, 1, 20, syndrome=SEQUENCE_NAK)
    talk.send(A, WRITE_MIDDLE, 1, 30)
    talk.send(A, WRITE_MIDDLE, 2, 40, arrives=None)
    talk.send(A, WRITE_MIDDLE, 3, 50)
    talk.send(B, ACK, 2, 60, syndrome=SEQUENCE_NAK)
    talk.send(A, WRITE_MIDDLE, 2, 70)
    judge, side = talk.judge(between_a=2)
    naks = [t for t in side.responses if t.packet.is_sequence_nak]
    assert [judge.after_nak(side, nak) for nak in naks] == [Fate(What.REQUEST, "between", A)] * 2
    assert side.requests[-1].passed == 2


@pytest.mark.parametrize(
    ("request_lost", "acked_after", "expected"),
    [
        (True, None, Fate(What.REQUEST, "between", A)),
        (False, None, Fate(What.RESPONSE, "between", B)),
        (False, 1, Fate(What.ANSWERED)),
        (False, 500, Fate(What.RESPONSE_LATE)),
    ],
)
def test_after_a_silence(request_lost: bool, acked_after: int | None, expected: Fate) -> None:
    talk = Talk()
    talk.send(A, WRITE_MIDDLE, 1, 0, arrives=None if request_lost else 1)
    if not request_lost:
        talk.send(B, ACK, 1, 10, syndrome=POSITIVE, arrives=acked_after)
    talk.send(A, WRITE_MIDDLE, 1, 300)
    talk.send(B, ACK, 1, 310, syndrome=POSITIVE)
    judge, side = talk.judge(between_a=1, between_b=1)
    assert judge.after_silence(side, 1, side.requests[-1]) == expected


def test_a_second_repeat_that_is_lost_too_does_not_make_the_ack_late() -> None:
    talk = Talk()
    for at, arrives in ((0, None), (300, None), (600, 1)):
        talk.send(A, WRITE_MIDDLE, 1, at, arrives=arrives)
    talk.send(B, ACK, 1, 610, syndrome=POSITIVE)
    judge, side = talk.judge(between_a=2)
    assert judge.after_silence(side, 1, side.requests[1]) == Fate(What.REQUEST, "between", A)


def test_a_response_of_a_read() -> None:
    talk = Talk()
    talk.send(A, READ_REQUEST, 1, 0, length=3 * 1024)
    for psn, arrives in ((1, 1), (2, None), (3, 1)):
        talk.send(B, READ_MIDDLE, psn, 10 * psn, arrives=arrives)
    talk.send(A, READ_REQUEST, 2, 50, length=2 * 1024)
    judge, side = talk.judge(between_b=1)
    assert side.requests[-1].passed == 1
    assert judge.of_response(side, 2, side.requests[-1]) == Fate(What.RESPONSE, "between", B)
    assert judge.of_response(side, 3, side.requests[-1]).what is What.ANSWERED


def test_of_responses_too_the_copy_of_the_last_pass_counts() -> None:
    """3 arrived at first, behind the gap at 2; when the responder began anew at 2, 3 was lost."""
    talk = Talk()
    talk.send(A, READ_REQUEST, 1, 0, length=4 * 1024)
    for psn, arrives in ((1, 1), (2, None), (3, 1), (4, 1)):
        talk.send(B, READ_MIDDLE, psn, 10 * psn, arrives=arrives)
    talk.send(A, READ_REQUEST, 2, 50, length=3 * 1024)
    for psn, arrives in ((2, 1), (3, None), (4, 1)):
        talk.send(B, READ_MIDDLE, psn, 50 + 10 * psn, arrives=arrives)
    talk.send(A, READ_REQUEST, 3, 100, length=2 * 1024)
    judge, side = talk.judge(between_b=2)
    assert judge.of_response(side, 3, side.requests[-1]) == Fate(What.RESPONSE, "between", B)


def test_a_nak_behind_an_rnr_nak_is_no_loss_until_the_message_comes_again() -> None:
    talk = Talk()
    for psn in (1, 2, 3):
        talk.send(A, WRITE_MIDDLE, psn, psn * 10)
    talk.send(B, ACK, 2, 25, syndrome=0x2C)
    talk.send(B, ACK, 2, 35, syndrome=SEQUENCE_NAK)
    assert fate_of_nak(talk).what is What.REFUSED
    talk = Talk()
    for psn in (1, 2):
        talk.send(A, WRITE_MIDDLE, psn, psn * 10)
    talk.send(B, ACK, 2, 25, syndrome=0x2C)
    for psn, arrives in ((2, 1), (3, None), (4, 1)):
        talk.send(A, WRITE_MIDDLE, psn, 30 + psn * 10, arrives=arrives)
    talk.send(B, ACK, 3, 80, syndrome=SEQUENCE_NAK)
    assert fate_of_nak(talk, between_a=1) == Fate(What.REQUEST, "between", A)


def test_what_came_twice_and_what_was_only_sent_twice() -> None:
    talk = Talk()
    talk.send(A, WRITE_MIDDLE, 1, 0, times=2)
    talk.send(A, WRITE_MIDDLE, 2, 10)
    talk.send(A, WRITE_MIDDLE, 2, 300)
    judge, _ = talk.judge()
    assert judge.was_doubled(1)
    assert not judge.was_doubled(2)
    assert judge.wire.paths[A, B].twice == 1


# ---------------------------------------------------------------------- a pair of captures from the field


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The field's captures with their truth, as the bench keeps an experiment."""
    if not FIELD.exists():
        pytest.skip(f"no {FIELD.name}: captures that others made are not here")
    folder = tmp_path_factory.mktemp("made") / "A1-write-mid-loss"
    folder.mkdir()
    for point in ("va", "vb"):
        packed = FIELD.with_name(f"A1-write-mid-loss.{point}.pcap.gz").read_bytes()
        (folder / f"{point}.pcap").write_bytes(gzip.decompress(packed))
    given = json.loads(FIELD.read_text())
    truth = {
        "name": folder.name,
        "experiment": {"killed": None, "told": {"options": ""}},
        "faults": [
            {"where": "between", "sender": "a", "counters": {"drops": given["tc"]["vb-port netem"]["drops"]}}
        ],
        "hw_counters": given["hw"],
        "drops_elsewhere": {},
        "programs": {"client": {"returncode": given["client"], "killed": False}},
        "captured": {point: {"dropped": given[f"{point} kdrop"]} for point in ("va", "vb")},
        "hosts": {"a": {"ip": A, "device": "rxe0"}, "b": {"ip": B, "device": "rxe1"}},
    }
    (folder / "truth.json").write_text(json.dumps(truth))
    return folder


def test_the_exact_sets_of_the_field_are_what_the_kernel_counted(field: Path) -> None:
    truth = json.loads((field / "truth.json").read_text())
    wire = open_wire(field, truth)
    assert unfit(field) == []
    there, back = wire.paths[A, B], wire.paths[B, A]
    # 559 packets, three of them of the connection manager.
    assert (there.seen_first, there.missing, there.twice) == (556, 17, 0)
    assert (back.missing, back.twice) == (0, 0)
    (side,) = [side for side in wire.sides if side.src == A]
    assert side.requests[-1].passed == truth["hw_counters"]["rxe0"]["completer_retry_err"]


def test_every_nak_of_the_field_was_drawn_by_a_loss_between_the_captures(field: Path) -> None:
    truth = json.loads((field / "truth.json").read_text())
    wire = open_wire(field, truth)
    judge = Judge(wire, [Drops("between", A, 17)])
    (side,) = [side for side in wire.sides if side.src == A]
    naks = [t for t in side.responses if t.packet.is_sequence_nak]
    assert len(naks) == truth["hw_counters"]["rxe1"]["out_of_seq_request"]
    assert {judge.after_nak(side, nak) for nak in naks} == {Fate(What.REQUEST, "between", A)}


def test_what_is_said_of_the_field_passes_the_kernels_truth(field: Path) -> None:
    scored = score(field)
    assert wrong_lines(scored) == []
    counts = counted(scored)
    kinds = {kind for kind, _, verdict in counts if verdict == RIGHT}
    assert {"rule", "cause", "place", "count", "cost"} <= kinds
    assert not [key for key in counts if key[2] in (WRONG, UNDECIDED)]
    assert sum(n for key, n in counts.items() if key[2] == SILENT) < sum(counts.values()) / 4
    assert table(scored)[0].startswith("| claim |")


@pytest.mark.parametrize("kind", [*NEIGHBOURS, *UNLIKE])
def test_of_less_good_captures_of_the_field_nothing_false_is_said(field: Path, kind: str) -> None:
    """Without NAKs, of one direction, without identifications, with gaps, in disorder, cut."""
    claims = [each for each in score(field, kind) if each.claim.kind in ("rule", "cause", "place")]
    assert claims or kind == "no-requests"
    assert wrong_lines(claims) == []


@pytest.mark.parametrize("kind", ["half", "whole", "missed,half", "missed,whole,whole"])
def test_a_kind_that_does_not_exist_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="name one of"):
        known(kind)


FETCH_ADD, ATOMIC_ACK = 0x14, 0x12


def atomics_asked_again(second: int | None) -> Talk:
    """The answer to 1 is lost, so that a throws the one to 2 away, and asks for both again."""
    talk = Talk()
    talk.send(A, FETCH_ADD, 1, 0)
    talk.send(A, FETCH_ADD, 2, 5)
    talk.send(B, ATOMIC_ACK, 1, 10, arrives=None, syndrome=POSITIVE)
    talk.send(B, ATOMIC_ACK, 2, 15, syndrome=POSITIVE)
    talk.send(A, FETCH_ADD, 1, 30)
    talk.send(A, FETCH_ADD, 2, 35, arrives=second)
    talk.send(B, ATOMIC_ACK, 1, 40, syndrome=POSITIVE)
    talk.send(A, FETCH_ADD, 2, 90)
    talk.send(B, ATOMIC_ACK, 2, 95, syndrome=POSITIVE)
    return talk


def test_an_answer_that_the_requester_threw_away_is_none() -> None:
    judge, side = atomics_asked_again(None).judge(between_a=1, between_b=1)
    repeat = side.copies(2)[-1]
    assert judge.after_silence(side, 2, repeat) == Fate(What.REQUEST, "between", A)


def test_an_atomic_that_arrived_has_its_own_answer() -> None:
    judge, side = atomics_asked_again(1).judge(between_b=1, before_b=1)
    repeat = side.copies(2)[-1]
    assert judge.after_silence(side, 2, repeat) == Fate(What.RESPONSE, "before", B)


def test_a_nak_of_a_later_psn_is_no_answer_to_a_read() -> None:
    """The READ had been answered once, and that was lost: a responder may refuse what is behind it since."""
    talk = Talk()
    talk.send(A, READ_REQUEST, 1, 0, length=1)
    talk.send(B, READ_MIDDLE, 1, 5, arrives=None)
    talk.send(A, READ_REQUEST, 1, 30, arrives=None, length=1)
    talk.send(A, READ_REQUEST, 2, 35, length=1)
    talk.send(B, ACK, 2, 40, syndrome=SEQUENCE_NAK)
    talk.send(A, READ_REQUEST, 1, 90, length=1)
    talk.send(B, READ_MIDDLE, 1, 95)
    judge, side = talk.judge()
    assert judge.after_silence(side, 1, side.copies(1)[-1]) == Fate(What.REQUEST, "between", A)


def test_an_answer_that_passed_behind_the_repeat_came_late_though_it_may_be_dropped_then() -> None:
    talk = Talk()
    talk.send(A, WRITE_MIDDLE, 1, 0)
    talk.send(A, WRITE_MIDDLE, 1, 30, arrives=20)
    talk.send(B, ACK, 1, 35, syndrome=POSITIVE)
    judge, side = talk.judge(behind_b=1)
    assert judge.after_silence(side, 1, side.copies(1)[-1]) == Fate(What.RESPONSE_LATE)


def written(folder: Path, *frames: bytes) -> Path:
    """An experiment whose captures both hold these frames."""
    for point in ("va", "vb"):
        shown = [Frame(data, (1 + n) * 1_000_000) for n, data in enumerate(frames)]
        (folder / f"{point}.pcap").write_bytes(pcap(shown, unit="ns"))
    truth = {
        "experiment": {"told": {}},
        "faults": [],
        "hosts": {"a": {"ip": A}, "b": {"ip": B}},
        "programs": {},
        "hw_counters": {},
        "captured": {"va": {"dropped": 0}, "vb": {"dropped": 0}},
        "drops_elsewhere": {},
    }
    (folder / "truth.json").write_text(json.dumps(truth))
    return folder


def test_captures_without_packets_claim_nothing(tmp_path: Path) -> None:
    empty = written(tmp_path)
    assert score(empty) == []
    assert unfit(empty) == []


def test_datagrams_are_counted(tmp_path: Path) -> None:
    frames = [build_frame("UD_SEND_ONLY", src=A, dst=B, dest_qpn=17, src_qpn=18, psn=n) for n in range(3)]
    claims = [each.claim for each in score(written(tmp_path, *frames)) if each.claim.kind == "transfers"]
    assert [(c.what, c.verdict, c.said) for c in claims[:2]] == [
        ("datagrams", RIGHT, "3 datagrams"),
        ("datagrams' end", RIGHT, "sent"),
    ]


def test_a_response_that_a_later_one_showed_missing_is_the_cause_though_another_was_under_way() -> None:
    """2 was lost, and 3 shows it; answers to a request sent again before come only behind the repeat."""
    talk = Talk()
    for at in (0, 5):
        talk.send(A, READ_REQUEST, 1, at, length=3 * 1024)
    for psn, arrives in ((1, 1), (2, None), (3, 1)):
        talk.send(B, READ_MIDDLE, psn, 10 * psn, arrives=arrives)
    for psn in (1, 2, 3):
        talk.send(B, READ_MIDDLE, psn, 40 + psn, arrives=30)
    talk.send(A, READ_REQUEST, 2, 50, length=2 * 1024)
    judge, side = talk.judge(between_b=1)
    assert judge.of_response(side, 2, side.requests[-1]) == Fate(What.RESPONSE, "between", B)
    assert judge.of_response(side, 3, side.requests[-1]).what is What.RESPONSE_LATE


def over_ipv6(number: int, psn: int, *, cut: int = 200) -> bytes:
    """A frame over IPv6 as the lab numbers it: in the lower 16 bits of the flow label."""
    data = build_frame(
        "RC_RDMA_WRITE_ONLY",
        src="fd00:9::1",
        dst="fd00:9::2",
        payload=bytes(64),
        psn=psn,
        dest_qpn=0x11,
        rkey=1,
        remote_va=1,
        dma_length=64,
    )
    return (data[:16] + number.to_bytes(2) + data[18:])[:cut]


def test_over_ipv6_the_labs_numbers_tell_a_packet_from_the_one_that_it_repeats(tmp_path: Path) -> None:
    """The first one of two that are alike was lost: the truth knows it, the captures do not."""
    at_ns = 1_700_000_000_000_000_000
    captures = {"va": [(7, 0), (8, 300_000)], "vb": [(8, 305_000)]}
    numbers = {}
    for point, packets in captures.items():
        path = tmp_path / f"{point}.pcap"
        path.write_bytes(pcap([Frame(over_ipv6(n, 5), at_ns + ns) for n, ns in packets], unit="ns"))
        numbers[point] = truth_marks.take(path)
    va, vb = (read(tmp_path / f"{point}.pcap", numbers[point]) for point in captures)
    wire = Wire(("fd00:9::1", "fd00:9::2"), va, vb)
    first, second = wire.paths["fd00:9::1", "fd00:9::2"].sent
    assert (first.got_through, second.got_through) == (False, True)
    assert not second.doubled
    data = (tmp_path / "va.pcap").read_bytes()
    assert over_ipv6(0, 5) in data
    assert over_ipv6(8, 5) not in data


def test_experiments_over_ipv6_are_the_same_with_other_addresses() -> None:
    plain, over = experiment_of("drawn-1301"), experiment_of("ipv6-drawn-1301")
    assert (plain.ip_version, over.ip_version) == (4, 6)
    assert over.faults == plain.faults
    assert over.client == plain.client.replace("-x 1", "-x 2")
    assert experiment_of("ipv6-rping-between").client == "rping -c -a fd00:9::2 -C 30 -S 4096"


@pytest.mark.parametrize("kind", ["cut-54", "routed", "no-responses", "one-port"])
def test_neighbours_are_of_ipv6_too(tmp_path: Path, kind: str) -> None:
    source, target = tmp_path / "a" / "va.pcap", tmp_path / "b" / "va.pcap"
    source.parent.mkdir()
    target.parent.mkdir()
    at_ns = 1_700_000_000_000_000_000
    source.write_bytes(pcap([Frame(over_ipv6(0, n), at_ns + n) for n in range(9)], unit="ns"))
    make(kind, source, target)
    found = read(target)
    assert len(found) == (18 if kind == "routed" else 9)
    assert {(p.src, p.dest_qpn) for p in found} == {("fd00:9::1", 0x11)}
