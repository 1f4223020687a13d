"""What a finding is, and what a rule that finds it must say of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocekit.files.frame_names import frame_name

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

ERROR: Final = "error"
WARNING: Final = "warning"
INFO: Final = "info"
#: Severities, the worst first.
SEVERITIES: Final = (ERROR, WARNING, INFO)

#: Frames, PSNs and single cases that one finding lists; its counts go on.
MAX_LISTED: Final = 100

#: Evidence under these names holds frame references, which `to_dict` turns into the names people know.
_FRAME_KEYS: Final = frozenset({"frame", "frames"})
_FRAME_SUFFIX: Final = "_frame"


@dataclass(frozen=True)
class Finding:
    """A named problem, its evidence and what to do about it.

    Attributes:
        rule: its name in ``problems``, as `rocekit rules` lists them.
        severity: ``error``, ``warning`` or ``info``.
        title: what happened, in one line.
        connection, transfer: where; None where it concerns none or the capture as a whole. With several
            transfers it is the first that suffered; ``evidence["transfers"]`` has their ids.
        frames: frame references (see ``frame_names.frame_name``), in the order of the story.
        evidence: numbers, their units in their names.
        advice: the next step.
    """

    rule: str
    severity: str
    title: str
    connection: Connection | None
    transfer: Transfer | None
    frames: tuple[int, ...]
    evidence: Mapping[str, Any]
    advice: str

    def to_dict(self, *, several: bool = False) -> dict[str, Any]:
        """The finding as the JSON contract has it."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "title": self.title,
            "connection": None if self.connection is None else self.connection.id,
            "transfer": None if self.transfer is None else self.transfer.id,
            "frames": [frame_name(f, several=several) for f in self.frames],
            "evidence": {k: _named(k, v, several) for k, v in self.evidence.items()},
            "advice": self.advice,
        }

    def __str__(self) -> str:
        return f"{self.severity}: {self.rule}: {self.title}"


def _named(key: str, value: Any, several: bool) -> Any:
    """Evidence with its frame references named."""
    if isinstance(value, Mapping):
        return {k: _named(k, v, several) for k, v in value.items()}
    is_frame = key in _FRAME_KEYS or key.endswith(_FRAME_SUFFIX)
    if isinstance(value, list | tuple):
        return [_named(key, v, several) for v in value]
    return frame_name(value, several=several) if is_frame and isinstance(value, int) else value


@dataclass(frozen=True)
class Rule:
    """A rule and its own words.

    Attributes:
        severity: the usual one; a milder or graver case says so in ``meaning``.
        summary: what happened, in a few words.
        seen_by: what in the packets (and the journal) shows it.
        confused_with: what looks alike, and what would decide.
        what_to_do: the next steps.
        look: evidence to findings.
    """

    name: str
    severity: str
    summary: str
    meaning: str
    seen_by: str
    confused_with: str
    what_to_do: str
    look: Callable[[Evidence], Iterable[Finding]] = field(repr=False)

    def finding(
        self,
        title: str,
        *,
        connection: Connection | None = None,
        transfer: Transfer | None = None,
        frames: Sequence[int] = (),
        evidence: Mapping[str, Any] | None = None,
        advice: str | None = None,
        severity: str | None = None,
    ) -> Finding:
        """A finding of this rule; frames are listed once each, up to ``MAX_LISTED``."""
        return Finding(
            self.name,
            severity or self.severity,
            title,
            connection,
            transfer,
            tuple(dict.fromkeys(f for f in frames if f))[:MAX_LISTED],
            dict(evidence or {}),
            advice or self.what_to_do,
        )

    def to_dict(self) -> dict[str, str]:
        """The rule's words."""
        return {
            "rule": self.name,
            "severity": self.severity,
            "summary": self.summary,
            "meaning": self.meaning,
            "seen_by": self.seen_by,
            "confused_with": self.confused_with,
            "what_to_do": self.what_to_do,
        }
