"""Random drills: drawn by hypothesis, judged by the soft device as the model, shrunk where they differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rocekit.conform.bench import Bench
from rocekit.conform.drill import Drill
from rocekit.conform.random_model import RandomDrill, drill_of
from rocekit.conform.random_moves import Move, ReceiveMove, sequences
from rocekit.conform.random_shrink import shortest
from rocekit.conform.verdict import FAIL, INCONCLUSIVE, NOT_APPLICABLE, PASS, Verdict
from rocekit.dropped_signals import heard
from rocekit.errors import RocekitError

#: How many drills shrinking one difference plays at most: on a device each takes its time.
_MOST_SHRINKING: Final = 80
#: What of a difference is its kind: opcodes, syndromes, statuses.
_TOLD: Final = r"[A-Z]{2,}_\w+|NAK \w+|RNR|(?<=syndrome )ACK|(?<=syndrome: )ACK|(?<=status )\w+|nothing|none"


@dataclass(frozen=True, slots=True)
class Difference:
    """A drill that a device does not keep, the shortest of its kind or one as it was drawn.

    Attributes:
        signature: its kind: the exchange, what was to come in it, and what came.
        broken: what breaks the specification whatever the model says; "" where model and device differ.
    """

    signature: str
    drill: Drill
    verdict: Verdict
    broken: str = ""


@dataclass(slots=True)
class RandomRun:
    """What came of random drills.

    Attributes:
        drills, exchanges, packets: how many were played; without those that shrinking played. An exchange is
            one request, of the packet side or of the device's program, with all that answers it.
        shrinking: how many drills shrinking played.
        agreed, inconclusive: how many drills ended as with the model; how many could not be judged.
        inapplicable: why the device could not be asked, and how many drills that was.
        stopped: whether the user ended the search.
        differences: the shortest drill of each kind.
        repeated: how many more drills differed as one before them did, by kind.
        unconfirmed: how many drills did not differ in the same way when they were played again.
        explained: how many drills differed in a way that is known of the device, by kind.
    """

    drills: int = 0
    exchanges: int = 0
    packets: int = 0
    shrinking: int = 0
    agreed: int = 0
    inconclusive: int = 0
    inapplicable: Counter[str] = field(default_factory=Counter)
    unconfirmed: int = 0
    stopped: bool = False
    differences: list[Difference] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "drills": self.drills,
            "exchanges": self.exchanges,
            "packets": self.packets,
            "shrinking": self.shrinking,
            "agreed": self.agreed,
            "inconclusive": self.inconclusive,
            "inapplicable": dict(self.inapplicable),
            "unconfirmed": self.unconfirmed,
            "stopped": self.stopped,
            "differences": [
                {"kind": one.signature, "verdict": one.verdict.words(), "drill": one.drill.text}
                for one in self.differences
            ],
            "repeated": dict(self.repeated),
            "explained": dict(self.explained),
        }


def signature(made: RandomDrill, verdict: Verdict) -> str:
    """The kind of a difference: alike differences have the same."""

    def words(text: str) -> str:
        found = re.findall(_TOLD, text)
        return " ".join(dict.fromkeys(re.sub(r"_(FIRST|MIDDLE|LAST|ONLY)\b", "", word) for word in found))

    # A reason behind the packet says which field differs, and again what was expected.
    came, _, reason = verdict.came.partition(": ")
    field = re.match(r"its (\w+) is", reason)
    where, silent = made.at(verdict)
    wanted = "nothing" if silent else f"{verdict.step.partition(':')[0]} {words(verdict.expected)}"
    told = f"{where}: {wanted}: {words(came) or 'other'}"
    if silent:
        return told
    return f"{told} ({field[1]})" if field and field[1] != "syndrome" else told


class _Search:
    """Plays sequences of moves, and shortens what differs in a way not seen before."""

    def __init__(
        self,
        bench: Bench,
        found: Callable[[Difference], None],
        again: Callable[[Difference], None],
        explained: Callable[[str], str],
    ) -> None:
        self.result = RandomRun()
        self._bench, self._found, self._again, self._explained = bench, found, again, explained
        self._seen: set[str] = set()

    def judge(self, drawn: list[Move]) -> None:
        """Play one sequence of the search."""
        result = self.result
        result.drills += 1
        made, verdict, difference = self._play(drawn)
        result.exchanges += made.played(verdict)
        result.agreed += verdict.outcome == PASS
        result.inconclusive += verdict.outcome == INCONCLUSIVE
        if verdict.outcome == NOT_APPLICABLE:
            result.inapplicable[verdict.reason] += 1
        if difference is None:
            return
        kind = difference.signature
        if self._explained(kind):
            result.explained[kind] += 1
            self._again(difference)
        elif kind in self._seen:
            result.repeated[kind] += 1
            self._again(difference)
        else:
            self._shorten(drawn, made, difference)

    def _shorten(self, drawn: list[Move], made: RandomDrill, difference: Difference) -> None:
        """Shrink a difference of a new kind."""

        def differs(moves: list[Move]) -> Difference | None:
            self.result.shrinking += 1
            found = self._play(moves, counted=False)[2]
            return found if found is not None and found.signature == difference.signature else None

        try:
            moves = _until(drawn, made.played(difference.verdict))
            confirmed = differs(moves)
            if confirmed is None:
                moves = drawn
                confirmed = differs(drawn)
            if confirmed is not None:
                confirmed = shortest(moves, confirmed, differs, _MOST_SHRINKING)
        except BaseException:
            self._note(difference)  # an interrupt must not take it away
            raise
        if confirmed is None:
            self.result.unconfirmed += 1
            self._again(difference)
        else:
            self._note(confirmed)

    def _note(self, difference: Difference) -> None:
        self._seen.add(difference.signature)
        self.result.differences.append(difference)
        self._found(difference)

    def _play(
        self, drawn: list[Move], *, counted: bool = True
    ) -> tuple[RandomDrill, Verdict, Difference | None]:
        """The drill that moves make, its verdict, and what differs, if anything does."""
        made = drill_of(drawn)
        if made.broken:
            words = re.sub(r"\d+", "n", made.broken[0])
            failed = Verdict(FAIL, line=made.drill.steps[-1].line, came=made.broken[0])
            return made, failed, Difference(f"model: {words}", made.drill, failed, made.broken[0])
        playing = self._bench.play(made.drill)
        if counted:
            self.result.packets += len(playing.frames)
        verdict = playing.verdict
        if verdict.outcome != FAIL:
            return made, verdict, None
        return made, verdict, Difference(signature(made, verdict), made.drill, verdict)


def _until(moves: list[Move], exchanges: int) -> list[Move]:
    """The moves up to the one that is the last of so many exchanges."""
    for i, move in enumerate(moves):
        exchanges -= not isinstance(move, ReceiveMove)
        if not exchanges:
            return moves[: i + 1]
    return moves


def explore(
    bench: Bench,
    seed: int,
    runs: int,
    *,
    found: Callable[[Difference], None] = lambda difference: None,
    again: Callable[[Difference], None] = lambda difference: None,
    explained: Callable[[str], str] = lambda kind: "",
) -> RandomRun:
    """Play random drills, ``runs`` or until an interrupt; shrink each difference of a kind not seen before.

    Args:
        found: called with the shortest drill of each kind; again: with the others as they were drawn.
        explained: why the device differs in a way that is known; such a difference is not shrunk.

    Raises:
        RocekitError: hypothesis is missing, or the bench failed.
    """
    moves = sequences()
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    search = _Search(bench, found, again, explained)
    failed: list[RocekitError] = []

    def judge(drawn: list[Move]) -> None:
        # Hypothesis would play what raises once more, and tell of that.
        if not failed:
            try:
                search.judge(drawn)
            except RocekitError as error:
                failed.append(error)

    configured = settings(
        max_examples=runs,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    drawing: Any = given(moves)
    test: Any = configured(seeded(seed)(drawing(judge)))
    try:
        test()
    except KeyboardInterrupt:
        heard()
        search.result.stopped = True
    if failed:
        raise failed[0]
    return search.result
