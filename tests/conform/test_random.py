"""Random drills: the soft device agrees with itself and with invariants; a device that differs is caught."""

from __future__ import annotations

from pathlib import Path

from amount import examples
from click.testing import CliRunner

from rocekit.cli import rocekit
from rocekit.conform.bench import Playing
from rocekit.conform.language import read_drill
from rocekit.conform.orders import AwaitPacket, BenchReply, Command
from rocekit.conform.random_drills import explore
from rocekit.conform.random_moves import Move, PostMove, ReceiveMove, RequestMove, drill_of
from rocekit.conform.soft_bench import SoftBench
from rocekit.conform.verdict import PASS


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


def test_moves_make_a_drill_that_says_what_must_come() -> None:
    receive, send = ReceiveMove(64), RequestMove("SEND_ONLY", size=8)
    moves: list[Move] = [receive, send, RequestMove("RDMA_WRITE_ONLY", ahead=1), PostMove("SEND")]
    drill, broken = drill_of(moves)
    assert broken == []
    assert "expect: {op: RC_ACKNOWLEDGE, psn: 1, syndrome: NAK psn_sequence_error, msn: 1}" in drill.text
    assert "completion: {wr_id: 1, status: SUCCESS, byte_len: 8}" in drill.text
    assert SoftBench().play(drill).verdict.outcome == PASS


def test_the_command_saves_nothing_where_nothing_differs(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        rocekit, ["conform", "--random", "2", "--runs", "5", "--save", str(tmp_path / "found")]
    )
    assert done.exit_code == 0, done.output
    assert "soft: 5 random drills" in done.output
    assert not (tmp_path / "found").exists()
