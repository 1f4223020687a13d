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
from rocekit.conform.random_moves import Move, sequences
from rocekit.conform.verdict import FAIL, INCONCLUSIVE, PASS, Verdict

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
        agreed, inconclusive: how many drills ended as with the model; how many could not be judged in time.
        stopped: whether the user ended the search.
        differences: the shortest drill of each kind.
        repeated: how many more drills differed as one before them did, by kind.
        explained: how many drills differed in a way that is known of the device, by kind.
    """

    drills: int = 0
    exchanges: int = 0
    packets: int = 0
    shrinking: int = 0
    agreed: int = 0
    inconclusive: int = 0
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
            "stopped": self.stopped,
            "differences": [
                {"kind": one.signature, "verdict": one.verdict.words(), "drill": one.drill.text}
                for one in self.differences
            ],
            "repeated": dict(self.repeated),
            "explained": dict(self.explained),
        }


class _DiffersError(Exception):
    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.signature)
        self.difference = difference


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
    """Judges sequences of moves: in the search, and again and again where hypothesis shrinks one."""

    def __init__(
        self, bench: Bench, again: Callable[[Difference], None], explained: Callable[[str], str]
    ) -> None:
        self.result = RandomRun()
        self.seen: set[str] = set()
        self._bench, self._again, self._explained = bench, again, explained
        self._shrunk: dict[str, Difference] = {}
        self._tries = 0

    def begin(self) -> None:
        """Search on."""
        self._shrunk.clear()
        self._tries = 0

    def judge(self, drawn: list[Move]) -> None:
        """Raises :class:`_DiffersError` for a difference of a kind not seen before."""
        difference = self._difference_of(drawn)
        if difference is not None:
            raise _DiffersError(difference)  # in one place, by which hypothesis knows a failure again

    def _difference_of(self, drawn: list[Move]) -> Difference | None:
        key = repr(drawn)
        if key in self._shrunk:
            return self._shrunk[key]
        searching = not self._shrunk
        if searching:
            self.result.drills += 1
        elif self._tries >= _MOST_SHRINKING:
            return None
        else:
            self._tries += 1
            self.result.shrinking += 1
        found = self._play(drawn, searching)
        if found is None:
            return None
        known = bool(self._explained(found.signature))
        if not known and found.signature not in self.seen:
            self._shrunk[key] = found
            return found
        if searching:
            counts = self.result.explained if known else self.result.repeated
            counts[found.signature] += 1
            self._again(found)
        return None

    def _play(self, drawn: list[Move], searching: bool) -> Difference | None:
        """What differs, if anything does."""
        made = drill_of(drawn)
        if made.broken:
            words = re.sub(r"\d+", "n", made.broken[0])
            failed = Verdict(FAIL, came=made.broken[0])
            return Difference(f"model: {words}", made.drill, failed, made.broken[0])
        playing = self._bench.play(made.drill)
        verdict = playing.verdict
        if searching:
            self.result.packets += len(playing.frames)
            self.result.exchanges += made.played(verdict)
            self.result.agreed += verdict.outcome == PASS
            self.result.inconclusive += verdict.outcome == INCONCLUSIVE
        if verdict.outcome != FAIL:
            return None
        return Difference(signature(made, verdict), made.drill, verdict)


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

    search = _Search(bench, again, explained)
    result = search.result
    attempt = 0
    while result.drills < runs:
        configured = settings(
            max_examples=runs - result.drills,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        begun = result.drills
        search.begin()
        try:
            drawing: Any = given(moves)
            test: Any = configured(seeded(seed + attempt)(drawing(search.judge)))
            test()
        except _DiffersError as differs:
            search.seen.add(differs.difference.signature)
            result.differences.append(differs.difference)
            found(differs.difference)
        except KeyboardInterrupt:
            result.stopped = True
            break
        except BaseException as error:
            if type(error).__name__ not in ("Flaky", "FlakyFailure"):
                raise
            # The device did not differ again: time decided. Counted, and left.
            result.repeated["not seen again"] += 1
        if result.drills == begun:
            break
        attempt += 1
    return result
