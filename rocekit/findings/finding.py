"""A finding, and a rule with its explanation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocekit.files.frame_names import frame_name

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

ERROR: Final = "error"
WARNING: Final = "warning"
INFO: Final = "info"
#: Severities, worst first.
SEVERITIES: Final = (ERROR, WARNING, INFO)

#: The most frames, PSNs and cases that a finding lists; its counts include the rest.
MAX_LISTED: Final = 100

#: Evidence under these names has frame references, which `to_dict` changes to frame names.
_FRAME_KEYS: Final = frozenset({"frame", "frames"})
_FRAME_SUFFIX: Final = "_frame"


class Listed(Sequence[Any]):
    """A list that is made when somebody looks at it: the text never does, and there may be thousands.

    Args:
        make: makes one of its items, of one of ``these``.
    """

    def __init__(self, make: Callable[[Any], Any], these: Sequence[Any]) -> None:
        self._make = make
        self._these = these

    @cached_property
    def _made(self) -> list[Any]:
        return [self._make(one) for one in self._these]

    def __len__(self) -> int:
        return len(self._these)

    def __getitem__(self, at: Any) -> Any:
        return self._made[at]

    def __eq__(self, other: object) -> bool:
        return self._made == (other._made if isinstance(other, Listed) else other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(self._made)

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return list, (self._made,)  # other processes get the list


@dataclass(frozen=True)
class Finding:
    """A named problem, its evidence and what to do about it.

    Attributes:
        rule: the name of its rule, as `rocekit rules` lists it.
        severity: ``error``, ``warning`` or ``info``.
        title: what happened, in one line.
        connection, transfer: where; None if it concerns none or the whole capture. With several transfers,
            the one of the worst case; ``evidence["transfers"]`` has their ids.
        frames: frame references (see ``frame_names.frame_name``), in order.
        evidence: numbers, with their units in their names.
        advice: what to do next.
        in_notebook: makes its HTML, with a picture of its packets.
    """

    rule: str
    severity: str
    title: str
    connection: Connection | None
    transfer: Transfer | None
    frames: tuple[int, ...]
    evidence: Mapping[str, Any]
    advice: str
    in_notebook: Callable[[Any], str] | None = field(default=None, repr=False, compare=False)

    def _repr_html_(self) -> str:
        from rocekit.wire.notebook_html import block, paragraph

        return block(paragraph(str(self))) if self.in_notebook is None else self.in_notebook(self)

    def __getstate__(self) -> dict[str, Any]:
        """A finding is sent to other processes without the analysis that draws it."""
        return self.__dict__ | {"in_notebook": None}

    def to_dict(self, *, several: bool = False) -> dict[str, Any]:
        """The finding for JSON."""
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


def draw_with(findings: Iterable[Finding], in_notebook: Callable[[Any], str]) -> None:
    """Give findings what draws them; none is copied, for there may be one for each packet."""
    for finding in findings:
        object.__setattr__(finding, "in_notebook", in_notebook)


def _named(key: str, value: Any, several: bool) -> Any:
    """Evidence with its frame references named."""
    if isinstance(value, Mapping):
        return {k: _named(k, v, several) for k, v in value.items()}
    is_frame = key in _FRAME_KEYS or key.endswith(_FRAME_SUFFIX)
    if isinstance(value, list | tuple | Listed):
        return [_named(key, v, several) for v in value]
    return frame_name(value, several=several) if is_frame and isinstance(value, int) else value


class Rule(NamedTuple):
    """A rule and its explanation.

    Attributes:
        severity: the usual one; ``meaning`` says when a finding has another.
        summary: what happened, in a few words.
        seen_by: what in the packets (and the journal) shows it.
        confused_with: what looks alike, and what decides.
        what_to_do: the next steps.
        look: makes findings from evidence.
    """

    name: str
    severity: str
    summary: str
    meaning: str
    seen_by: str
    confused_with: str
    what_to_do: str
    look: Callable[[Evidence], Iterable[Finding]]

    def finding(
        self,
        title: str,
        *,
        connection: Connection | None = None,
        transfer: Transfer | None = None,
        frames: Iterable[int] = (),
        evidence: Mapping[str, Any] | None = None,
        advice: str | None = None,
        severity: str | None = None,
    ) -> Finding:
        """A finding of this rule. Each frame is listed once, up to ``MAX_LISTED``."""
        return Finding(
            self.name,
            severity or self.severity,
            title,
            connection,
            transfer,
            _listed(frames),
            dict(evidence or {}),
            advice or self.what_to_do,
        )

    def to_dict(self) -> dict[str, str]:
        """The rule for JSON."""
        return {
            "rule": self.name,
            "severity": self.severity,
            "summary": self.summary,
            "meaning": self.meaning,
            "seen_by": self.seen_by,
            "confused_with": self.confused_with,
            "what_to_do": self.what_to_do,
        }


def _listed(frames: Iterable[int]) -> tuple[int, ...]:
    """Each frame once, up to ``MAX_LISTED``; of what is behind them, nothing is made."""
    found: dict[int, None] = {}
    for frame in frames:
        if frame:
            found[frame] = None
            if len(found) == MAX_LISTED:
                break
    return tuple(found)
