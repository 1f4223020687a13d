"""An analysis to be judged, its claims, and the truth of each PSN that a finding names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from truth_bench.cm import Exchanges
from truth_bench.judge import OPEN, Fate, Judge, What, seen_from
from truth_bench.packets import CMP_SWAP, FETCH_ADD, READ_REQUEST, after
from truth_bench.sets import Side, Transmission

RIGHT, WRONG, SILENT, UNDECIDED = "right", "wrong", "silent", "open"
VERDICTS: Final = (RIGHT, WRONG, SILENT)
#: The rules whose cases each name a PSN and a cause, and what may have happened to that PSN.
CAUSES: Final = {
    "loss": frozenset({What.REQUEST, What.SPOILT}),
    "tail-loss": frozenset({What.REQUEST, What.SPOILT}),
    "ack-loss": frozenset({What.RESPONSE, What.SPOILT}),
    "implied-nak": frozenset({What.RESPONSE, What.SPOILT}),
    "needless-repeat": frozenset(
        {
            What.ANSWERED,
            What.RESPONSE_LATE,
            What.LATE,
            What.NEVER_SENT,
            What.BEHIND_GAP,
            What.BEHIND_LATE,
            What.SLOW,
        }
    ),
    "icrc-bad": frozenset({What.SPOILT}),
    "timeout-too-short": frozenset({What.RESPONSE_LATE, What.SLOW}),
}
#: Requests whose response has data.
WITH_DATA: Final = frozenset({READ_REQUEST, CMP_SWAP, FETCH_ADD})
OF_REQUESTS: Final = frozenset({"loss", "tail-loss"})
OF_RESPONSES: Final = frozenset({"ack-loss", "implied-nak"})
NO_LOSSES: Final = frozenset({"reordering", "needless-repeat", "timeout-too-short"})
SILENCES: Final = frozenset({"retry-exceeded", "peer-silent", "dead-qp"})


@dataclass(frozen=True)
class Claim:
    """One thing that an analysis says.

    Attributes:
        kind: rule, cause, place, count, cost or transfers.
        what: the rule or field that says it.
        times: how many like it, all with this verdict.
    """

    kind: str
    what: str
    verdict: str
    said: str
    truth: str
    psn: int | None = None
    times: int = 1


@dataclass(frozen=True)
class Scene:
    """An analysis to be judged: its JSON, what it was made from, and the truth.

    Attributes:
        points: the captures, ``va`` and ``vb`` in the order of its files.
        cm: the connection manager's messages, where a fault hits those.
        origins: of each frame of these captures, which one of the truth's it is; empty: the same one.
    """

    found: dict[str, Any]
    points: tuple[str, ...]
    judge: Judge
    truth: dict[str, Any]
    cm: Exchanges | None = None
    origins: tuple[Sequence[int], ...] = ((), ())

    def transmission(self, frame: int | str) -> Transmission | None:
        """The packet of a frame, as the JSON names it."""
        place, _, number = str(frame).rpartition(":")
        # One file with each packet before and behind a router is analyzed as two captures.
        at = min(int(place), len(self.points) - 1) if place else 0
        origins = self.origins[at]
        origin = origins[int(number) - 1] if origins else int(number)
        return self.judge.wire.by_frame[0 if self.points[at] == "va" else 1].get(origin)

    def place(self, fate: Fate) -> str | None:
        return seen_from(fate, self.points, self.judge.wire.hosts)


@dataclass(frozen=True)
class Case:
    """A PSN of a finding, with the truth of it: of each pass in which it was missed."""

    psn: int
    side: Side | None
    fates: tuple[Fate, ...]
    open: bool
    said: dict[str, Any]


def left_open(finding: dict[str, Any]) -> int:
    """How many of a finding's cases it leaves open, where the cases themselves do not say."""
    evidence, title = finding["evidence"], finding["title"]
    counted = sum(n for name, n in evidence.items() if name.startswith("or_") and isinstance(n, int))
    said = re.search(r"\(([\d,]+|all) of them probably", title)
    if said:
        probable = evidence["count"] if said[1] == "all" else int(said[1].replace(",", ""))
        # "14 losses … (14 of them probably), and 7 responses lost or overtaken": these beside those.
        beside = re.search(r", and ([\d,]+) responses? lost or overtaken", title)
        counted = max(counted, probable + (int(beside[1].replace(",", "")) if beside else 0))
    elif "probably" in title or "Open:" in finding.get("advice", ""):
        counted = max(counted, 1)
    return int(counted)


def case_of(scene: Scene, finding: dict[str, Any], case: dict[str, Any]) -> Case:
    """The truth of a case, from the frames that it names."""
    judge, rule, psn = scene.judge, finding["rule"], case["psn"]
    nak = scene.transmission(case["nak_frame"]) if "nak_frame" in case else None
    repeat = scene.transmission(case["repeat_frame"]) if "repeat_frame" in case else None
    hole = scene.transmission(case["hole_frame"]) if "hole_frame" in case else None
    side = None
    if nak is not None:
        side = judge.wire.side_answered_by(nak)
    elif (named := repeat or hole) is not None:
        # Where both ends request, a response has the addresses of the other side's requests.
        side = judge.wire.side_answered_by(named) if named.packet.is_response else judge.wire.side_of(named)
    is_open = case.get("certain") is False
    if side is None:
        return Case(psn, None, (OPEN,), is_open, case)
    reads = repeat is not None and repeat.packet.opcode in WITH_DATA
    if rule == "implied-nak" or (reads and nak is None and rule in NO_LOSSES):
        fates = [judge.of_response(side, psn, repeat)]
    elif rule == "icrc-bad" and judge.was_spoilt(psn):
        fates = [Fate(What.SPOILT)]
    elif nak is not None and rule not in OF_RESPONSES:
        fates = _by_naks(scene, side, psn, case, nak)
    elif rule == "loss" and hole is not None and after(hole.psn, psn) > 0:
        fates = [judge.in_hole(side, psn, hole)]
    else:
        fates = [judge.after_silence(side, psn, repeat)]
    if rule == "needless-repeat" and repeat is not None:
        fates = [judge.other_loss(side, psn, repeat) or fate for fate in fates]
    return Case(psn, side, tuple(fates), is_open, case)


def _by_naks(scene: Scene, side: Side, psn: int, case: dict[str, Any], first: Transmission) -> list[Fate]:
    """The truth behind each NAK of a case that its view contains, one of each pass."""
    naks = [
        t
        for t in side.responses
        if t.packet.is_sequence_nak and t.psn == psn and not t.doubled and is_seen(scene, t)
    ]
    naks = naks[naks.index(first) :] if first in naks else [first]
    return [scene.judge.after_nak(side, nak) for nak in naks[: max(1, case.get("naks", 1))]]


def is_seen(scene: Scene, t: Transmission) -> bool:
    """Whether a view has a packet."""
    if len(scene.points) == 2:
        return True
    here = scene.judge.wire.hosts[0 if scene.points[0] == "va" else 1]
    return t.sent is not None if t.packet.src == here else bool(t.arrived)
