"""A bench: a device, a packet side and a clock, on which drills are played."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

from rocekit.conform.device import ConformDevice, RefusedError
from rocekit.conform.drill import Drill
from rocekit.conform.orders import BenchReply, Call, Command
from rocekit.conform.player import Player
from rocekit.conform.verdict import FAIL, INCONCLUSIVE, DrillEvent, Verdict


@dataclass(frozen=True, slots=True)
class Frame:
    """An IP packet on the bench's wire."""

    time_ns: int
    data: bytes
    sent: bool


@dataclass(slots=True)
class Playing:
    """One drill played.

    Attributes:
        frames: every packet, in the order of time.
        calls: what the program was asked, and what came of it: (time, call, arguments, result).
        late_ns: by how much this machine was late at most.
        behind_ns: by how much its kernel's clock tick was late at most when a wait may have begun.
    """

    drill: Drill
    frames: list[Frame] = field(default_factory=list)
    calls: list[tuple[int, str, dict[str, Any], Any]] = field(default_factory=list)
    said: list[DrillEvent] = field(default_factory=list)
    late_ns: int = 0
    behind_ns: int = 0
    verdict: Verdict = field(default_factory=lambda: Verdict(INCONCLUSIVE, reason="not played"))


class Bench(ABC):
    """Plays drills with one device.

    Attributes:
        peer_ip: the packet side's address.
    """

    peer_ip: str

    @property
    @abstractmethod
    def device(self) -> ConformDevice: ...

    @abstractmethod
    def begin(self) -> None:
        """Forget the packets of the drill before."""

    @abstractmethod
    def do(self, command: Command, playing: Playing) -> BenchReply:
        """Do one command. Raises :class:`RefusedError` for a call that is refused."""

    def call(self, command: Call) -> Any:
        """A call of the device's program."""
        return getattr(self.device, command.name)(**command.arguments)

    def play(self, drill: Drill) -> Playing:
        """Play a drill to its verdict.

        Raises:
            RocekitError: the bench itself failed (no right to send, the agent is gone).
        """
        playing = Playing(drill)
        player = Player(drill, self.peer_ip, self.device.ip, self.device.features)
        playing.said = player.said
        self.begin()
        play = player.play()
        reply: BenchReply | None = None
        refused: RefusedError | None = None
        try:
            while True:
                command = play.throw(refused) if refused is not None else play.send(reply)  # type: ignore[arg-type]
                refused = None
                try:
                    reply = self.do(command, playing)
                    if isinstance(command, Call):
                        playing.calls.append(
                            (reply.now_ns, command.name, dict(command.arguments), reply.result)
                        )
                except RefusedError as error:
                    refused = error
        except StopIteration as stop:
            playing.verdict = _fair(stop.value, playing)
        finally:
            self.device.close()
        return playing

    def close(self) -> None:  # noqa: B027 -- a bench may hold nothing
        """Give back what the bench holds."""


def _fair(verdict: Verdict, playing: Playing) -> Verdict:
    """A verdict by time is none where this machine itself was late enough to explain it."""
    if verdict.outcome != FAIL:
        return verdict
    if 0 < verdict.slack_ns <= playing.late_ns:
        reason = f"this machine was up to {playing.late_ns / 1e6:.0f} ms late itself"
    elif 0 < verdict.early_ns <= playing.behind_ns:
        behind = f"{playing.behind_ns / 1e6:.0f} ms"
        reason = f"this machine's clock tick was {behind} late: waits end that much early"
    else:
        return verdict
    return replace(verdict, outcome=INCONCLUSIVE, reason=reason)
