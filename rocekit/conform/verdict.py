"""What came of a drill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PASS: Final = "pass"
FAIL: Final = "fail"
NOT_APPLICABLE: Final = "not applicable"
INCONCLUSIVE: Final = "inconclusive"
OUTCOMES: Final = (PASS, FAIL, NOT_APPLICABLE, INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class DrillEvent:
    """Something that happened while a drill was played.

    Attributes:
        at_ns: since the drill began.
        line: of the step, 0 if it belongs to none.
        what: ``sent``, ``came``, ``program``, ``completion`` or ``differs``.
    """

    at_ns: int
    line: int
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a drill.

    Attributes:
        outcome: one of :data:`OUTCOMES`.
        reason: why, where it is no plain pass or fail.
        line, step: the line of the drill that the device did not keep.
        expected, came: what it demands, and what came instead.
        slack_ns: where time decided, how late this machine must have been itself to explain it; else 0.
        early_ns: where something came too early, by how much; else 0.
    """

    outcome: str
    reason: str = ""
    line: int = 0
    step: str = ""
    expected: str = ""
    came: str = ""
    slack_ns: int = 0
    early_ns: int = 0

    def words(self) -> str:
        """In one line."""
        if self.outcome == PASS:
            return self.outcome
        what = f"line {self.line}: expected {self.expected}; came {self.came}" if self.line else ""
        return f"{self.outcome}: " + "; ".join(part for part in (self.reason, what) if part)
