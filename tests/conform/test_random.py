"""Random drills: the soft device agrees with itself and with invariants; a device that differs is caught."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from amount import examples
from click.testing import CliRunner

from rocekit.cli import rocekit
from rocekit.conform.bench import Playing
from rocekit.conform.drill import Drill
from rocekit.conform.known import read_known
from rocekit.conform.language import parse_drill, read_drill
from rocekit.conform.orders import AwaitPacket, BenchReply, Command
from rocekit.conform.random_drills import Difference, explore, signature
from rocekit.conform.random_model import drill_of
from rocekit.conform.random_moves import Move, PostMove, ReceiveMove, RequestMove
from rocekit.conform.random_shrink import shortest
from rocekit.conform.soft_bench import SoftBench
from rocekit.conform.verdict import FAIL, NOT_APPLICABLE, PASS, Verdict
from rocekit.errors import RocekitError


class DeafBench(SoftBench):
    """A device whose atomics' responses never come."""

    def do(self, command: Command, playing: Playing) -> BenchReply:
        reply = super().do(command, playing)
        if isinstance(command, AwaitPacket) and reply.result and reply.result[1][28] == 0x12:
            return self.do(command, playing)
        return reply


def test_the_soft_device_keeps_random_drills_and_what_the_specification_demands_of_any() -> None:
    result = explore(SoftBench(), 7, examples(200))
    assert [d.verdict.words() + d.drill.text for d in result.differences] == []
    assert result.packets > 100


def test_a_device_that_differs_is_caught_with_a_shortest_drill(tmp_path: Path) -> None:
    result = explore(DeafBench(), 3, 60)
    shortest = result.differences[0].drill
    assert shortest.text.count("  - send: ") == 1
    assert "nothing came" in result.differences[0].verdict.came
    path = tmp_path / "found.yaml"
    path.write_text(shortest.text)
    assert SoftBench().play(read_drill(path)).verdict.outcome == PASS


def test_the_same_seed_gives_the_same_drills() -> None:
    first, second = (explore(SoftBench(), 11, 10) for _ in range(2))
    assert (first.drills, first.packets) == (second.drills, second.packets)


MOVES: list[Move] = [
    ReceiveMove(64),
    RequestMove("SEND_ONLY", size=8),
    RequestMove("RDMA_WRITE_ONLY", ahead=1),
    PostMove("SEND"),
    RequestMove("RDMA_WRITE_FIRST", size=300),
    PostMove("RDMA_READ", size=300),
    RequestMove("FETCH_ADD"),
    PostMove("ATOMIC_CMP_AND_SWP"),
]


def test_moves_make_a_drill_that_says_what_must_come() -> None:
    made = drill_of(MOVES)
    assert made.broken == ()
    text = made.drill.text
    assert "expect: {op: RC_ACKNOWLEDGE, psn: 1, syndrome: NAK psn_sequence_error, msn: 1}" in text
    assert "completion: {wr_id: 1, status: SUCCESS, byte_len: 8}" in text
    assert SoftBench().play(made.drill).verdict.outcome == PASS


def test_the_drill_is_the_one_that_its_text_says() -> None:
    made = drill_of(MOVES).drill
    read = parse_drill(made.text, "random")
    assert [(step.line, step.text, step.within_ns) for step in made.steps] == [
        (step.line, step.text, step.within_ns) for step in read.steps
    ]
    assert (made.setup, made.claim, made.needs) == (read.setup, read.claim, read.needs)
    assert [frame.data for frame in SoftBench().play(made).frames] == [
        frame.data for frame in SoftBench().play(read).frames
    ]


def test_a_request_with_all_that_answers_it_is_one_exchange() -> None:
    made = drill_of(MOVES)
    assert [exchange.words for exchange in made.exchanges] == [
        "SEND",
        "RDMA_WRITE ahead",
        "post SEND ack",
        "RDMA_WRITE behind sequence",
        "post RDMA_READ ack",
        "RDMA_WRITE",  # an atomic may not stand within a message: the LAST packet takes its place
        "post ATOMIC_CMP_AND_SWP ack",
    ]
    assert made.played(Verdict(PASS)) == 7
    assert made.played(Verdict(FAIL, line=made.exchanges[2].line)) == 3


def test_what_a_right_requester_sends_fits_what_it_sent_before() -> None:
    write: list[Move] = [RequestMove("RDMA_WRITE_FIRST", size=513), *[RequestMove("SEND_FIRST")] * 3]
    ops = [line.split()[3].strip("{,") for line in drill_of(write).drill.text.splitlines() if "send:" in line]
    assert ops == [
        "RC_RDMA_WRITE_FIRST",
        "RC_RDMA_WRITE_MIDDLE",
        "RC_RDMA_WRITE_MIDDLE",
        "RC_RDMA_WRITE_LAST",
    ]


def test_a_repeat_is_the_packet_that_was_sent_before() -> None:
    made = drill_of([RequestMove("FETCH_ADD"), RequestMove("SEND_ONLY", ahead=-1)])
    first, again = (line for line in made.drill.text.splitlines() if "send:" in line)
    assert first == again


@pytest.mark.parametrize(
    ("came", "kind"),
    [
        ("syndrome NAK psn_sequence_error (0x60), msn 0: its syndrome is", "SEND bad ICRC: nothing: {}"),
        ("syndrome NAK invalid_request (0x61), msn 0: its psn is 1", "SEND bad ICRC: nothing: {}"),
        (
            "syndrome NAK invalid_request (0x61), msn 0: its syndrome is",
            "RDMA_WRITE: expect RC_ACKNOWLEDGE ACK: {}",
        ),
    ],
)
def test_what_comes_though_nothing_should_belongs_to_the_silent_exchange_before(came: str, kind: str) -> None:
    made = drill_of([RequestMove("SEND_ONLY", bad_icrc=True), RequestMove("RDMA_WRITE_ONLY")])
    line = made.exchanges[1].line
    expected = "{op: RC_ACKNOWLEDGE, psn: 0, syndrome: ACK, msn: 1}"
    words = f"RC_ACKNOWLEDGE psn 0 (1000), {came}"
    differs = Verdict(FAIL, line=line, step="expect: {}", expected=expected, came=words)
    refusal = words.split("syndrome ")[1].split(" (")[0]
    assert signature(made, differs) == kind.format(f"RC_ACKNOWLEDGE {refusal}")


def test_a_completion_belongs_to_the_exchange_that_it_completes() -> None:
    made = drill_of([PostMove("SEND"), PostMove("RDMA_READ", answer="NAK remote_access_error")])
    (last,) = [step for step in made.drill.steps if "wr_id: 2, status" in step.text]
    expected = "a completion with status REM_ACCESS_ERR, wr_id 2"
    differs = Verdict(FAIL, line=last.line, step=last.text, expected=expected, came="none in 800 ms")
    kind = "end: post RDMA_READ NAK remote_access_error: completion REM_ACCESS_ERR: none"
    assert signature(made, differs) == kind


def test_differences_of_a_kind_found_before_are_handed_on_as_they_were_drawn() -> None:
    again: list[Difference] = []
    result = explore(DeafBench(), 3, 60, again=again.append)
    assert {one.signature for one in again} <= set(result.repeated)
    assert len(again) == sum(result.repeated.values()) + result.unconfirmed


def test_a_difference_that_is_explained_is_counted_and_not_shrunk(tmp_path: Path) -> None:
    path = tmp_path / "known.yaml"
    path.write_text("device: soft\nfailures: {}\nrandom: {'post ATOMIC*: expect RC_ATOMIC*': seen before}\n")
    known = read_known([path])
    again: list[Difference] = []
    kinds = []

    def explained(kind: str) -> str:
        kinds.append(kind)
        return known.explained("soft", "post ATOMIC_CMP_AND_SWP ack: expect RC_ATOMIC_ACKNOWLEDGE: x")

    result = explore(DeafBench(), 3, 60, again=again.append, explained=explained)
    assert result.differences == []
    assert result.shrinking == 0
    assert sum(result.explained.values()) == len(again) == len(kinds) > 0
    assert result.agreed + len(again) == result.drills
    assert known.explained("soft", "post SEND ack: nothing") == ""
    assert known.explained("rxe0", "post ATOMIC_CMP_AND_SWP ack: expect RC_ATOMIC_ACKNOWLEDGE: x") == ""


def test_random_in_a_list_of_known_failures_is_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "known.yaml"
    path.write_text("device: soft\nfailures: {}\nrandom: [a]\n")
    done = CliRunner().invoke(rocekit, ["conform", "--random", "1", "--known", str(path)])
    assert done.exit_code == 1
    assert "known.yaml: line 1: a list of known failures is written as" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--runs", "3"], "--runs and --save belong to --random"),
        (["--save", "x"], "--runs and --save belong to --random"),
        (["--random", "1", "--junit", "x"], "are for the suite, not for --random"),
        (["--random", "1", "--list"], "are for the suite, not for --random"),
        (["--random", "1", "responder"], "--random draws its own drills"),
        (["--agent", "127.0.0.1:70000", "--interface", "lo"], "'70000' is no port"),
    ],
)
def test_options_that_do_not_fit_are_a_wrong_command_line(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(rocekit, ["conform", *arguments])
    assert (done.exit_code, said in done.output) == (2, True), done.output


def test_json_has_what_came_of_random_drills() -> None:
    done = CliRunner().invoke(rocekit, ["conform", "--random", "2", "--runs", "3", "--format", "json"])
    found = json.loads(done.output)
    assert (found["device"], found["seed"], found["drills"], found["agreed"]) == ("soft", 2, 3, 3)
    assert (found["differences"], found["explained"]) == ([], {})


def test_the_shortest_sequence_has_only_what_the_difference_takes() -> None:
    atomic = RequestMove("FETCH_ADD", size=300, place=8)
    torn = RequestMove("SEND_ONLY", size=7, bad_icrc=True)
    drawn: list[Move] = [*MOVES[:3], atomic, *MOVES[3:6], PostMove("SEND", answer="rnr"), torn, *MOVES]

    def differs(moves: list[Move]) -> list[Move] | None:
        kinds = [(move.name, move.bad_icrc) for move in moves if isinstance(move, RequestMove)]
        both = ("FETCH_ADD", False) in kinds and any(bad for _, bad in kinds)
        return moves if both and PostMove("SEND", answer="rnr") in moves else None

    found = shortest(drawn, drawn, differs, 79)
    wanted = {RequestMove("FETCH_ADD"), PostMove("SEND", answer="rnr"), replace(torn, size=64)}
    assert (len(found), set(found)) == (3, wanted)


def test_shortening_ends_after_so_many_tries() -> None:
    tries: list[int] = []

    def differs(moves: list[Move]) -> None:
        tries.append(len(moves))

    assert shortest(MOVES, "found", differs, 3) == "found"
    assert len(tries) == 3


class OnceDeafBench(DeafBench):
    """A device that lacks an atomic's response in one drill."""

    right: SoftBench | None = None

    def play(self, drill: Drill) -> Playing:
        if self.right is not None:
            return self.right.play(drill)
        playing = super().play(drill)
        if playing.verdict.outcome == FAIL:
            self.right = SoftBench()
        return playing


def test_what_does_not_differ_again_is_counted_and_left() -> None:
    result = explore(OnceDeafBench(), 3, 60)
    assert (result.differences, result.repeated, result.unconfirmed) == ([], {}, 1)
    assert result.drills == 60


def test_the_command_saves_nothing_where_nothing_differs(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        rocekit, ["conform", "--random", "2", "--runs", "5", "--save", str(tmp_path / "found")]
    )
    assert done.exit_code == 0, done.output
    assert "soft: 5 random drills" in done.output
    assert not (tmp_path / "found").exists()


class StoppedBench(DeafBench):
    """A device on which the first drill behind one that differs ends with an error or an interrupt."""

    def __init__(self, end: BaseException) -> None:
        super().__init__()
        self._end, self._differed = end, False

    def play(self, drill: Drill) -> Playing:
        if self._differed:
            raise self._end
        playing = super().play(drill)
        self._differed = playing.verdict.outcome == FAIL
        return playing


def test_an_interrupt_while_a_difference_is_shrunk_does_not_take_it_away() -> None:
    found: list[Difference] = []
    result = explore(StoppedBench(KeyboardInterrupt()), 3, 60, found=found.append)
    assert result.stopped
    assert result.differences == found
    assert len(found) == 1


def test_an_error_of_the_bench_ends_the_search_as_what_it_is() -> None:
    found: list[Difference] = []
    with pytest.raises(RocekitError, match="the agent is gone"):
        explore(StoppedBench(RocekitError("the agent is gone")), 3, 60, found=found.append)
    assert len(found) == 1


class PoorBench(SoftBench):
    """A device that has no room for a QP."""

    def play(self, drill: Drill) -> Playing:
        return replace(super().play(drill), verdict=Verdict(NOT_APPLICABLE, reason="no room for a QP"))


def test_a_device_of_which_nothing_could_be_asked_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    result = explore(PoorBench(), 3, 5)
    assert (result.agreed, result.inapplicable) == (0, {"no room for a QP": 5})
    play = SoftBench.play
    poor = Verdict(NOT_APPLICABLE, reason="no room for a QP")
    monkeypatch.setattr(SoftBench, "play", lambda self, drill: replace(play(self, drill), verdict=poor))
    done = CliRunner().invoke(rocekit, ["conform", "--random", "3", "--runs", "5"])
    assert done.exit_code == 1
    assert "5 not played: no room for a QP" in done.output


def test_a_file_is_no_folder_to_save_in(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    done = CliRunner().invoke(
        rocekit, ["conform", "--random", "1", "--runs", "1", "--save", str(tmp_path / "x")]
    )
    assert done.exit_code == 2
    assert "x is no folder" in " ".join(done.output.split())
