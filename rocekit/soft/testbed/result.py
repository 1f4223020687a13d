"""What a program's run was: its posts, completions and truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.record import TransferTruth, TruthRecorder
from rocekit.soft.engine.work import WC
from rocekit.soft.testbed.host import Host
from rocekit.soft.testbed.program import Post, Program, Receive


@dataclass(slots=True)
class Posted:
    """A send request of the program.

    Attributes:
        local, remote: addresses of its bytes on both sides.
        content: its bytes.
        wc: its completion, if it has one.
    """

    post: Post
    wr_id: int
    qp: Qp
    local: int
    remote: int
    content: bytes
    wc: WC | None = None


@dataclass(slots=True)
class Received:
    """A receive request of the program."""

    receive: Receive
    wr_id: int
    qp: Qp
    address: int
    wc: WC | None = None


@dataclass(slots=True)
class ProgramRun:
    """A program's run.

    Attributes:
        pairs: the two QPs (a's, b's) of each of the program's connections.
        completions: all completions by (device, QPN), in the order in which they were polled.
        packets: how many were sent.
        faults_done: how often each type of fault occurred.
        finished: False when the run was stopped at :data:`.runner.LONGEST_RUN_NS`.
    """

    program: Program
    seed: int
    recorder: TruthRecorder
    hosts: tuple[Host, Host]
    pairs: list[tuple[Qp, Qp]] = field(default_factory=list)
    posted: list[Posted] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    completions: dict[tuple[str, int], list[WC]] = field(default_factory=dict)
    packets: int = 0
    faults_done: dict[str, int] = field(default_factory=dict)
    finished: bool = False

    def transfers(self) -> list[TransferTruth]:
        """The truth about every transfer."""
        return self.recorder.transfers()

    def transfer_dicts(self) -> list[dict[str, Any]]:
        """The truth with the keys of ``rocekit analyze --format json``."""
        return [t.as_dict() for t in self.transfers()]
