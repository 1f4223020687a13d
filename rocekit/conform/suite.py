"""The drills of the suite, and running many of them with one device."""

from __future__ import annotations

import fnmatch
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocekit.conform.bench import Bench, Playing
from rocekit.conform.drill import Drill
from rocekit.conform.known import KnownFailures
from rocekit.conform.language import read_drill
from rocekit.conform.verdict import FAIL, OUTCOMES, PASS
from rocekit.errors import ScenarioError

DRILLS: Final = Path(__file__).parent / "drills"


@dataclass(frozen=True, slots=True)
class DrillResult:
    """A drill that was played.

    Attributes:
        known: the evidence for a failure that is known of this device; "" if none is.
        seconds: how long it took.
    """

    drill: Drill
    playing: Playing
    known: str
    seconds: float

    @property
    def outcome(self) -> str:
        return self.playing.verdict.outcome

    @property
    def changed(self) -> bool:
        """Whether the device's known failures say otherwise."""
        return (self.outcome == FAIL) != bool(self.known) and self.outcome in (FAIL, PASS)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        verdict = self.playing.verdict
        return {
            "drill": self.drill.name,
            "claim": self.drill.claim,
            "clause": self.drill.clause,
            "outcome": self.outcome,
            "reason": verdict.reason or None,
            "line": verdict.line or None,
            "expected": verdict.expected or None,
            "came": verdict.came or None,
            "known": self.known or None,
            "changed": self.changed,
            "unsure": self.drill.unsure or None,
            "seconds": round(self.seconds, 3),
        }


def suite(patterns: Sequence[str] = (), folder: Path = DRILLS) -> list[Drill]:
    """The drills whose names are, start with, or match one of the patterns; without patterns all.

    Raises:
        ScenarioError: no drill has such a name, or a file is no drill.
    """
    found = {
        path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))
    }
    chosen = dict.fromkeys(found) if not patterns else {}
    for pattern in patterns:
        wanted = pattern.rstrip("/")
        names = [n for n in found if n == wanted or n.startswith(wanted + "/") or fnmatch.fnmatch(n, wanted)]
        if not names:
            areas = ", ".join(sorted({name.split("/")[0] for name in found}))
            raise ScenarioError(
                f"no drill is called {pattern}; the areas are {areas} (--list lists the drills)"
            )
        chosen |= dict.fromkeys(names)
    return [read_drill(found[name], name) for name in sorted(chosen)]


def run(drills: Iterable[Drill], bench: Bench, known: KnownFailures) -> Iterator[DrillResult]:
    """Play each drill; errors as of :meth:`Bench.play`."""
    for drill in drills:
        begun = time.monotonic()
        playing = bench.play(drill)
        evidence = known.evidence(bench.device.name, drill.name)
        yield DrillResult(drill, playing, evidence, time.monotonic() - begun)


def tally(results: Iterable[DrillResult]) -> str:
    """How many of each outcome, in words."""
    counts = Counter(result.outcome for result in results)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]) or "no drills"
