"""Random drills: drawn by hypothesis, judged by the soft device as the model, shrunk where they differ."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rocekit.conform.bench import Bench
from rocekit.conform.drill import Drill
from rocekit.conform.random_moves import (
    REQUESTS,
    Move,
    PostMove,
    ReceiveMove,
    RequestMove,
    drill_of,
)
from rocekit.conform.verdict import FAIL, INCONCLUSIVE, PASS, Verdict
from rocekit.errors import needs_extra

#: How many drills shrinking one difference plays at most: on a device each takes its time.
_MOST_SHRINKING: Final = 80
#: What of a difference is its kind: opcodes, syndromes, statuses.
_TOLD: Final = r"[A-Z]{2,}_\w+|NAK \w+|RNR|(?<=syndrome )ACK|(?<=syndrome: )ACK|(?<=status )\w+|nothing|none"


@dataclass(frozen=True, slots=True)
class Difference:
    """A shortest drill that a device does not keep.

    Attributes:
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
        drills, packets: how many were played, and the packets of them; without those that shrinking played.
        shrinking: how many drills shrinking played.
        agreed, inconclusive: how many ended as with the model, and how many could not be judged in time.
        stopped: whether the user ended the search.
        repeated: how many drills differed as one before them did, by signature.
    """

    drills: int = 0
    packets: int = 0
    shrinking: int = 0
    agreed: int = 0
    inconclusive: int = 0
    stopped: bool = False
    differences: list[Difference] = field(default_factory=list)
    repeated: dict[str, int] = field(default_factory=dict)


class _DiffersError(Exception):
    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.signature)
        self.difference = difference


def _strategies() -> Any:
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise needs_extra("random drills need", "hypothesis", "conform") from None

    request = st.builds(
        RequestMove,
        st.sampled_from(REQUESTS),
        st.sampled_from((0, 0, 0, 0, 0, -1, -2, 1, 3)),
        st.sampled_from((64, 1, 7, 256, 300, 513)),
        st.sampled_from((0, 8, 128, 250)),
        st.sampled_from((False, False, False, False, False, False, True)),
        st.sampled_from((False, False, False, False, False, False, True)),
    )
    post = st.builds(
        PostMove,
        st.sampled_from(("SEND", "RDMA_WRITE", "RDMA_READ")),
        st.sampled_from((64, 1, 256, 257, 700)),
        st.sampled_from(("ack", "ack", "ack", "sequence", "rnr", "rnr_last", "NAK remote_access_error")),
    )
    receive = st.builds(ReceiveMove, st.sampled_from((1024, 64, 8)))
    return st.lists(st.one_of(request, request, receive, post), min_size=1, max_size=12)


def signature(drill: Drill, verdict: Verdict) -> str:
    """What differs, without the numbers: alike differences have the same."""

    def words(text: str) -> str:
        found = re.findall(_TOLD, text)
        return " ".join(dict.fromkeys(re.sub(r"_(FIRST|MIDDLE|LAST|ONLY)\b", "", word) for word in found))

    # A reason behind the packet says which field differs, and again what was expected.
    came, _, reason = verdict.came.partition(": ")
    field = re.match(r"its (\w+) is", reason)
    kind = verdict.step.partition(":")[0]
    told = f"{kind} {words(verdict.expected)}: {words(came) or 'other'}"
    return f"{told} ({field[1]})" if field and field[1] != "syndrome" else told


def explore(
    bench: Bench, seed: int, runs: int, *, found: Callable[[Difference], None] = lambda difference: None
) -> RandomRun:
    """Play random drills, ``runs`` or until an interrupt; shrink each difference of a kind not seen before.

    Raises:
        RocekitError: hypothesis is missing, or the bench failed.
    """
    moves = _strategies()
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    result = RandomRun()
    seen: set[str] = set()
    shrunk: dict[str, Difference] = {}
    tries = 0

    def play(drawn: list[Move]) -> Difference | None:
        """What differs, if anything does."""
        drill, broken = drill_of(drawn)
        if broken:
            words = re.sub(r"\d+", "n", broken[0])
            return Difference(f"model: {words}", drill, Verdict(FAIL, came=broken[0]), broken[0])
        playing = bench.play(drill)
        outcome = playing.verdict.outcome
        if not shrunk:
            result.packets += len(playing.frames)
            result.agreed += outcome == PASS
            result.inconclusive += outcome == INCONCLUSIVE
        return (
            Difference(signature(drill, playing.verdict), drill, playing.verdict) if outcome == FAIL else None
        )

    def difference_of(drawn: list[Move]) -> Difference | None:
        """What is new in how a sequence ends; counted as part of the search or of shrinking."""
        nonlocal tries
        if (key := repr(drawn)) in shrunk:
            return shrunk[key]
        searching = not shrunk
        if searching:
            result.drills += 1
        elif tries >= _MOST_SHRINKING:
            return None
        else:
            tries += 1
            result.shrinking += 1
        found = play(drawn)
        if found is None or found.signature not in seen:
            if found is not None:
                shrunk[key] = found
            return found
        if searching:
            result.repeated[found.signature] = result.repeated.get(found.signature, 0) + 1
        return None

    def judge(drawn: list[Move]) -> None:
        difference = difference_of(drawn)
        if difference is not None:
            raise _DiffersError(difference)  # in one place, by which hypothesis knows a failure again

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
        shrunk.clear()
        tries = 0
        try:
            drawing: Any = given(moves)
            test: Any = configured(seeded(seed + attempt)(drawing(judge)))
            test()
        except _DiffersError as differs:
            seen.add(differs.difference.signature)
            result.differences.append(differs.difference)
            found(differs.difference)
        except KeyboardInterrupt:
            result.stopped = True
            break
        except BaseException as error:
            if type(error).__name__ not in ("Flaky", "FlakyFailure"):
                raise
            # The device did not differ again: time decided. Counted, and left.
            result.repeated["not seen again"] = result.repeated.get("not seen again", 0) + 1
        if result.drills == begun:
            break
        attempt += 1
    return result
