"""The claims of an analysis (its JSON), each beside the truth: right, wrong, or silent (the truth bench).

A claim is silent where the finding leaves it open itself. Where not even both captures and the counters
decide, there is no verdict (``open``), and the claim counts nowhere.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from truth_experiments import BEFORE, BEHIND
from truth_judge import OPEN, Fate, Judge, What, seen_from
from truth_packets import after
from truth_sets import Side, Transmission

RIGHT, WRONG, SILENT, UNDECIDED = "right", "wrong", "silent", "open"
VERDICTS: Final = (RIGHT, WRONG, SILENT)
#: The rules whose cases each name a PSN and a cause, and what may have happened to that PSN.
CAUSES: Final = {
    "loss": frozenset({What.REQUEST, What.SPOILT}),
    "tail-loss": frozenset({What.REQUEST, What.SPOILT}),
    "ack-loss": frozenset({What.RESPONSE, What.SPOILT}),
    "implied-nak": frozenset({What.RESPONSE, What.SPOILT}),
    "needless-repeat": frozenset(
        {What.ANSWERED, What.RESPONSE_LATE, What.LATE, What.NEVER_SENT, What.BEHIND_GAP}
    ),
    "icrc-bad": frozenset({What.SPOILT}),
    "timeout-too-short": frozenset({What.RESPONSE_LATE}),
}
OF_REQUESTS: Final = frozenset({"loss", "tail-loss"})
OF_RESPONSES: Final = frozenset({"ack-loss", "implied-nak"})
SILENCES: Final = frozenset({"retry-exceeded", "peer-silent", "dead-qp"})
#: True of these captures whatever the fault, or of programs rather than of packets: not judged.
NOT_JUDGED: Final = frozenset({"capture-truncated", "low-entropy", "read-depth", "retries-nearly-exhausted"})
_PLACES: Final = {"beyond": BEHIND}


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
    """

    found: dict[str, Any]
    points: tuple[str, ...]
    judge: Judge
    truth: dict[str, Any]

    def transmission(self, frame: int | str) -> Transmission | None:
        """The packet of a frame, as the JSON names it."""
        place, _, number = str(frame).rpartition(":")
        point = self.points[int(place) if place else 0]
        return self.judge.wire.by_frame[0 if point == "va" else 1].get(int(number))

    def place(self, fate: Fate) -> str | None:
        return seen_from(fate, self.points, self.judge.wire.hosts)


def claims(scene: Scene) -> Iterator[Claim]:
    """Every claim of an analysis that can be judged."""
    for finding in scene.found["findings"]:
        yield from _of_finding(scene, finding)
    yield from _counts(scene)
    yield from _costs(scene)
    yield from _transfers(scene)


# ---------------------------------------------------------------------- a finding


@dataclass(frozen=True)
class _Case:
    """A PSN of a finding, with the truth of it: of each pass in which it was missed."""

    psn: int
    side: Side | None
    fates: tuple[Fate, ...]
    open: bool
    said: dict[str, Any]


def _of_finding(scene: Scene, finding: dict[str, Any]) -> Iterator[Claim]:
    rule, evidence = finding["rule"], finding["evidence"]
    if rule in NOT_JUDGED:
        return
    cases = [_case(scene, finding, case) for case in evidence.get("cases", ())]
    yield _exists(scene, finding, cases)
    if rule in CAUSES:
        spare = _left_open(finding)
        for case in cases:
            claim = _cause(rule, case)
            if claim.verdict == UNDECIDED and _nothing_lost(scene, rule, case):
                claim = replace(claim, verdict=WRONG, truth="nothing was lost in that direction")
            if claim.verdict == WRONG and spare:
                spare -= 1
                claim = replace(claim, verdict=SILENT)
            yield claim
    if rule in OF_REQUESTS | OF_RESPONSES:
        for claim in _places(scene, rule, evidence, cases):
            # Where a loss is only probable, so is its place.
            probable = claim.verdict == WRONG and _left_open(finding) >= evidence["count"]
            yield replace(claim, verdict=SILENT) if probable else claim
    elif rule == "reordering":
        for case in cases:
            if case.side is not None:
                late = scene.judge.was_overtaken(case.side, case.psn)
                yield Claim(
                    "cause",
                    rule,
                    RIGHT if late else _unless_open(case, finding),
                    "came late",
                    "was overtaken" if late else "was not overtaken",
                    case.psn,
                )
    elif rule == "duplicate":
        for psn in evidence.get("psns", ()):
            doubled = scene.judge.was_doubled(psn)
            yield Claim(
                "cause",
                rule,
                RIGHT if doubled else WRONG,
                "duplicated by the network",
                "came twice" if doubled else "no copy of it came twice",
                psn,
            )
    elif rule == "nak-ignored":
        for case in cases:
            yield _nak_ignored(scene, case)


def _unless_open(case: _Case, finding: dict[str, Any]) -> str:
    if all(fate.what is What.OPEN for fate in case.fates):
        return UNDECIDED  # perhaps it was overtaken behind the second capture
    return SILENT if case.open or _left_open(finding) else WRONG


def _left_open(finding: dict[str, Any]) -> int:
    """How many of a finding's cases it leaves open, where the cases themselves do not say."""
    evidence, title = finding["evidence"], finding["title"]
    counted = evidence.get("or_acknowledgement_lost", 0) + evidence.get("or_sender_stalled", 0)
    said = re.search(r"\(([\d,]+) of them probably\)", title)
    if said:
        counted = max(counted, int(said[1].replace(",", "")))
    elif "probably" in title or "Open:" in finding.get("advice", ""):
        counted = max(counted, 1)
    return int(counted)


def _case(scene: Scene, finding: dict[str, Any], case: dict[str, Any]) -> _Case:
    """The truth of a case, from the frames that it names."""
    judge, rule, psn = scene.judge, finding["rule"], case["psn"]
    nak = scene.transmission(case["nak_frame"]) if "nak_frame" in case else None
    repeat = scene.transmission(case["repeat_frame"]) if "repeat_frame" in case else None
    hole = scene.transmission(case["hole_frame"]) if "hole_frame" in case else None
    side = None
    if nak is not None:
        side = judge.wire.side_answered_by(nak)
    elif repeat is not None or hole is not None:
        side = judge.wire.side_of(repeat or hole)  # type: ignore[arg-type]
    is_open = case.get("certain") is False
    if side is None:
        return _Case(psn, None, (OPEN,), is_open, case)
    if rule == "implied-nak":
        fates = [judge.of_response(side, psn, repeat)]
    elif rule == "icrc-bad" and judge.was_spoilt(psn):
        fates = [Fate(What.SPOILT)]
    elif nak is not None and rule not in OF_RESPONSES:
        fates = _by_naks(scene, side, psn, case, nak)
    elif rule == "loss" and hole is not None and after(hole.psn, psn) > 0:
        fates = [judge.in_hole(side, psn, hole)]
    else:
        fates = [judge.after_silence(side, psn, repeat)]
    return _Case(psn, side, tuple(fates), is_open, case)


def _by_naks(scene: Scene, side: Side, psn: int, case: dict[str, Any], first: Transmission) -> list[Fate]:
    """The truth behind each NAK of a case that its view contains, one of each pass."""
    naks = [
        t
        for t in side.responses
        if t.packet.is_sequence_nak and t.psn == psn and not t.doubled and _is_seen(scene, t)
    ]
    naks = naks[naks.index(first) :] if first in naks else [first]
    return [scene.judge.after_nak(side, nak) for nak in naks[: max(1, case.get("naks", 1))]]


def _is_seen(scene: Scene, t: Transmission) -> bool:
    """Whether a view has a packet."""
    if len(scene.points) == 2:
        return True
    here = scene.judge.wire.hosts[0 if scene.points[0] == "va" else 1]
    return t.sent is not None if t.packet.src == here else bool(t.arrived)


def _cause(rule: str, case: _Case) -> Claim:
    truth = ", ".join(dict.fromkeys(map(str, case.fates)))
    if any(fate.what in CAUSES[rule] for fate in case.fates):
        verdict = SILENT if case.open else RIGHT
    elif any(fate.what is What.OPEN for fate in case.fates):
        verdict = UNDECIDED
    else:
        verdict = SILENT if case.open else WRONG
    return Claim("cause", rule, verdict, rule, truth, case.psn)


def _nothing_lost(scene: Scene, rule: str, case: _Case) -> bool:
    """Whether a case is of a loss, and nothing was dropped or corrupted on its way."""
    if case.side is None or rule not in OF_REQUESTS | OF_RESPONSES:
        return False
    return not scene.judge.lost_in_all(case.side.src if rule in OF_REQUESTS else case.side.dst)


def _nak_ignored(scene: Scene, case: _Case) -> Claim:
    """A NAK that came, and after which the requester sent again only much later."""
    frame = case.said.get("nak_frame", case.said.get("frame"))
    nak = None if frame is None else scene.transmission(frame)
    if nak is None or case.side is None:
        return Claim("cause", "nak-ignored", UNDECIDED, "NAK not obeyed", "open", case.psn)
    if not nak.arrived:
        return Claim("cause", "nak-ignored", WRONG, "NAK not obeyed", "the NAK never arrived", case.psn)
    came = nak.arrived[0].time_ns
    again = [t.time_ns - came for t in case.side.copies(case.psn) if t.time_ns > came]
    ignored = not again or min(again) > 10_000_000
    return Claim(
        "cause",
        "nak-ignored",
        RIGHT if ignored else WRONG,
        "NAK not obeyed",
        f"sent again after {min(again, default=0) / 1e6:.2f} ms",
        case.psn,
    )


# ---------------------------------------------------------------------- is there such a fault


def _exists(scene: Scene, finding: dict[str, Any], cases: Sequence[_Case]) -> Claim:
    """Whether there was such a fault at all."""
    rule, judge = finding["rule"], scene.judge
    sides = {id(c.side): c.side for c in cases if c.side is not None}.values()
    truth = "there was none"
    there: bool | None
    if rule in OF_REQUESTS:
        there = any(judge.lost_in_all(side.src) for side in sides) if sides else bool(judge.lost_in_all())
    elif rule in OF_RESPONSES:
        there = any(judge.lost_in_all(side.dst) for side in sides) if sides else bool(judge.lost_in_all())
    elif rule == "reordering":
        there = any(path.overtaken for path in judge.wire.paths.values())
    elif rule == "duplicate":
        there = any(p.twice or any(t.doubled for t in p.sent) for p in judge.wire.paths.values())
    elif rule == "icrc-bad":
        there = any(path.spoilt for path in judge.wire.paths.values())
    elif rule == "rnr":
        there = judge.rnr_naks(judge.wire.sides, "both") > 0
    elif rule in SILENCES:
        there, truth = _silenced(scene, finding)
    elif rule == "capture-gap":
        there, truth = _gap(scene)
    elif rule in ("needless-repeat", "nak-ignored", "timeout-too-short"):
        there = any(side.requests[-1].passed for side in judge.wire.sides)
    elif rule.startswith("cm-"):
        there = _is_killed(scene.truth)
    else:
        there = False
    verdict = UNDECIDED if there is None else RIGHT if there else WRONG
    if verdict == WRONG and _left_open(finding):
        verdict = SILENT
    return Claim("rule", rule, verdict, finding["title"], "" if verdict == RIGHT else truth)


def _is_killed(truth: dict[str, Any]) -> bool:
    """Whether a program was killed, and not only stopped."""
    return any(entry["what"].endswith(" killed") for entry in truth.get("log", ()))


def _silenced(scene: Scene, finding: dict[str, Any]) -> tuple[bool, str]:
    """Whether a requester gave up, or its peer really was silent to the end."""
    truth, evidence = scene.truth, finding["evidence"]
    gave_up = any(n.get("retry_exceeded_err", 0) for n in truth["hw_counters"].values())
    ended = _is_killed(truth) or any(
        how["returncode"] != 0 or how["killed"] for how in truth["programs"].values()
    )
    if not (gave_up or ended):
        return False, "all programs ended well, and no retry counter ran out"
    if evidence.get("gave_up") and not evidence.get("silent_for_ns"):
        return False, "it gave up, but silent_for_ns is 0"
    return True, ""


def _gap(scene: Scene) -> tuple[bool | None, str]:
    """Whether a capture of the view missed packets."""
    missed = sum(max(0, scene.truth["captured"][p]["dropped"]) for p in scene.points)
    return bool(missed), f"tcpdump missed {missed}"


# ---------------------------------------------------------------------- places


def _places(scene: Scene, rule: str, evidence: dict[str, Any], cases: Sequence[_Case]) -> Iterator[Claim]:
    """Where the packets were lost: named PSN by PSN, or counted for the capture point."""
    named = [p for p in evidence.get("places", ()) if p.get("lost")]
    by_case = {c.psn: c.said["place"] for c in cases if c.said.get("place")}
    if named or by_case:
        left = {c.psn: [scene.place(fate) for fate in c.fates] for c in cases}
        undecided = {c.psn: any(fate.what is What.OPEN for fate in c.fates) for c in cases}
        unlost = {c.psn for c in cases if _nothing_lost(scene, rule, c)}
        truths = {c.psn: ", ".join(map(str, c.fates)) for c in cases}
        for psn, place in [(p["psn"], p["lost"]) for p in named] or list(by_case.items()):
            if psn not in left:
                continue  # beyond the cases listed
            said = _PLACES.get(place, place)
            if said in left[psn]:
                verdict = RIGHT
            else:
                verdict = UNDECIDED if undecided[psn] and psn not in unlost else WRONG
            yield Claim("place", rule, verdict, said, truths[psn], psn)
        return
    if "lost_before_capture_point" not in evidence or len(scene.points) > 1:
        for case in cases:
            yield Claim("place", rule, SILENT, "", ", ".join(map(str, case.fates)), case.psn)
        return
    if len(evidence.get("psns", ())) < evidence["count"]:
        return
    yield from _counted_places(scene, rule, evidence, cases)


def _counted_places(
    scene: Scene, rule: str, evidence: dict[str, Any], cases: Sequence[_Case]
) -> Iterator[Claim]:
    """``lost_before_capture_point`` and ``lost_behind_capture_point``, which count without naming PSNs."""
    said = {BEFORE: evidence["lost_before_capture_point"], BEHIND: evidence["lost_behind_capture_point"]}
    true: Counter[str | None] = Counter()
    undecided = 0
    for case in cases:
        for fate in case.fates:
            if fate.what is What.OPEN and not _nothing_lost(scene, rule, case):
                undecided += 1
            else:
                true[scene.place(fate)] += 1
    shown = f"before {true[BEFORE]}, behind {true[BEHIND]}, not lost {true[None]}, open {undecided}"
    words = f"before {said[BEFORE]}, behind {said[BEHIND]}"
    right = sum(min(said[where], true[where]) for where in said)
    rest = sum(said.values()) - right
    wrong = max(0, rest - undecided)
    # Several losses of one PSN may be counted once: too few is no wrong place.
    for verdict, times in ((RIGHT, right), (WRONG, wrong), (UNDECIDED, rest - wrong)):
        if times:
            yield Claim("place", rule, verdict, words, shown, times=times)
    silent = len(cases) - sum(said.values())
    if silent > 0:
        yield Claim("place", rule, SILENT, words, shown, times=silent)


# ---------------------------------------------------------------------- counts, costs, transfers


def _counts(scene: Scene) -> Iterator[Claim]:
    """What is counted: losses against tc, NAKs and RNR NAKs against the captures, paths against both."""
    judge = scene.judge
    lost: dict[str, int] = defaultdict(int)
    for finding in scene.found["findings"]:
        rule, evidence = finding["rule"], finding["evidence"]
        if rule in OF_REQUESTS | OF_RESPONSES:
            src = _loser(scene, finding)
            if src is not None:
                said = evidence.get("lost_packets", evidence["count"])
                lost[src] += max(0, said - _left_open(finding))
        elif rule == "duplicate":
            twice = sum(p.twice + sum(t.doubled for t in p.sent) for p in judge.wire.paths.values())
            verdict = RIGHT if evidence["count"] <= twice else WRONG
            yield Claim("count", "duplicates", verdict, str(evidence["count"]), f"{twice} came twice")
        elif rule == "rnr":
            point = scene.points[0] if len(scene.points) == 1 else "both"
            seen = judge.rnr_naks(judge.wire.sides, point)
            total = sum(f["evidence"]["rnr_naks"] for f in scene.found["findings"] if f["rule"] == "rnr")
            yield Claim(
                "count", "rnr_naks", RIGHT if total == seen else WRONG, str(total), f"{seen} captured"
            )
    for src, said in lost.items():
        dropped = judge.lost_in_all(src)
        verdict = RIGHT if said <= dropped else WRONG
        yield Claim("count", "lost packets", verdict, f"{said} of {src}", f"{dropped} dropped or corrupted")
    for said_path in scene.found.get("paths", scene.found["capture"].get("paths", ())):
        path = judge.wire.paths.get((said_path["src"], said_path["dst"]))
        if path is None:
            continue
        for name, n in (("missing", path.missing + path.spoilt), ("doubled", path.twice)):
            verdict = RIGHT if said_path[name] in (n, n - path.spoilt) else WRONG
            yield Claim("count", f"paths: {name}", verdict, f"{said_path[name]} from {path.src}", str(n))


def _loser(scene: Scene, finding: dict[str, Any]) -> str | None:
    """The sender of the packets that a finding calls lost."""
    for case in finding["evidence"].get("cases", ()):
        side = _case(scene, finding, case).side
        if side is not None:
            return side.src if finding["rule"] in OF_REQUESTS else side.dst
    return None


def _costs(scene: Scene) -> Iterator[Claim]:
    """No problem costs more time than there was."""
    capture = scene.found["capture"]
    span = capture["last_ns"] - capture["first_ns"]
    of_connection: dict[int, int] = defaultdict(int)
    for finding in scene.found["findings"]:
        added = finding["evidence"].get("added_ns")
        if added is None:
            continue
        yield Claim(
            "cost",
            finding["rule"],
            RIGHT if added <= span else WRONG,
            f"{added / 1e9:.3f} s",
            f"the capture lasts {span / 1e9:.3f} s",
        )
        if finding["connection"] is not None:
            of_connection[finding["connection"]] += added
    for number, added in of_connection.items():
        yield Claim(
            "cost",
            "sum of a connection",
            RIGHT if added <= span else WRONG,
            f"{added / 1e9:.3f} s on connection {number}",
            f"the capture lasts {span / 1e9:.3f} s",
        )


_OPERATIONS: Final = {
    "ib_write_bw": "WRITE",
    "ib_send_bw": "SEND",
    "ib_read_bw": "READ",
    "ib_atomic_bw": "FETCH_ADD",
}


def _transfers(scene: Scene) -> Iterator[Claim]:
    """What perftest was told to do is what was transferred, if it ended well."""
    told = scene.truth["experiment"]["told"]
    operation = _OPERATIONS.get(told.get("program", ""))
    client = scene.truth["programs"].get("client", {})
    if operation is None or client.get("returncode") != 0 or "-c UC" in told["options"]:
        return
    qps = re.search(r"-q (\d+)", told["options"])
    expected = told["count"] * (int(qps[1]) if qps else 1) * (2 if "-b" in told["options"].split() else 1)
    size = told["bytes"]
    found = [t for t in scene.found["transfers"] if t["operation"] == operation and t["bytes"] == size]
    verdict = RIGHT if len(found) == expected else WRONG
    yield Claim(
        "transfers", "number", verdict, f"{len(found)} {operation} of {size} bytes", f"{expected} made"
    )
    done = sum(t["status"] == "acked" for t in found)
    verdict = RIGHT if done == expected else WRONG
    yield Claim("transfers", "acknowledged", verdict, f"{done} acknowledged", f"{expected} completed")
