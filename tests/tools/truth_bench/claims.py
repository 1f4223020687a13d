"""The claims of an analysis (its JSON), each beside the truth: right, wrong, or silent (the truth bench).

A claim is silent where the finding leaves it open itself. Where not even both captures and the counters
decide, there is no verdict (``open``), and the claim counts nowhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from truth_bench.experiments import BEFORE, BEHIND, PATH_MTU
from truth_bench.judge import What
from truth_bench.numbers import numbers
from truth_bench.scene import (
    CAUSES,
    OF_REQUESTS,
    OF_RESPONSES,
    RIGHT,
    SILENCES,
    SILENT,
    UNDECIDED,
    WRONG,
    Case,
    Claim,
    Scene,
    case_of,
    left_open,
)

#: True of these captures whatever the fault, or of programs rather than of packets: not judged.
NOT_JUDGED: Final = frozenset(
    {"capture-truncated", "incast", "low-entropy", "read-depth", "retries-nearly-exhausted", "go-back-n-cost"}
)
_PLACES: Final = {"beyond": BEHIND}
#: The NAKs that end a QP: their syndromes (IBA Vol. 1, table 46).
_FATAL: Final = {
    "invalid-request": 0x61,
    "remote-access-error": 0x62,
    "remote-operational-error": 0x63,
}


def claims(scene: Scene) -> Iterator[Claim]:
    """Every claim of an analysis that can be judged."""
    for finding in scene.found["findings"]:
        yield from _of_finding(scene, finding)
    yield from numbers(scene)


# ---------------------------------------------------------------------- a finding


def _of_finding(scene: Scene, finding: dict[str, Any]) -> Iterator[Claim]:
    rule, evidence = finding["rule"], finding["evidence"]
    if rule in NOT_JUDGED:
        return
    cases = [case_of(scene, finding, case) for case in evidence.get("cases", ())]
    yield _exists(scene, finding, cases)
    if rule in CAUSES:
        spare = left_open(finding)
        for case in cases:
            claim = _cause(rule, case)
            if claim.verdict == UNDECIDED and _nothing_lost(scene, rule, case):
                claim = replace(claim, verdict=WRONG, truth="nothing was lost in that direction")
            if claim.verdict == WRONG and spare:
                spare -= 1
                claim = replace(claim, verdict=SILENT)
            yield claim
    if rule in OF_REQUESTS | OF_RESPONSES:
        spare = left_open(finding)  # where a loss is only probable, so is its place
        for claim in _places(scene, rule, evidence, cases):
            excused = min(spare, claim.times) if claim.verdict == WRONG else 0
            spare -= excused
            if excused:
                yield replace(claim, verdict=SILENT, times=excused)
            if claim.times > excused:
                yield replace(claim, times=claim.times - excused)
    elif rule == "reordering":
        for case in cases:
            if case.side is not None:
                kinds = {fate.what for fate in case.fates}
                late = bool(kinds & {What.LATE, What.BEHIND_LATE})
                late = late or case.psn in scene.judge.overtaken(case.side)
                yield Claim(
                    "cause",
                    rule,
                    RIGHT if late else _unless_open(case, finding),
                    "came late",
                    "was overtaken" if late else ", ".join(map(str, case.fates)) + ", not overtaken",
                    case.psn,
                )
    elif rule == "duplicate":
        spare = evidence.get("or_sent_again", 0)
        for psn in evidence.get("psns", ()):
            doubled = scene.judge.was_doubled(psn)
            yield Claim(
                "cause",
                rule,
                RIGHT if doubled else SILENT if spare else WRONG,
                "sent once, came twice",
                "came twice" if doubled else "no copy of it came twice",
                psn,
            )
    elif rule == "nak-ignored":
        for case in cases:
            claim = _nak_ignored(scene, case)
            yield replace(claim, verdict=SILENT) if claim.verdict == WRONG and left_open(finding) else claim


def _unless_open(case: Case, finding: dict[str, Any]) -> str:
    if all(fate.what is What.OPEN for fate in case.fates):
        return UNDECIDED  # perhaps it was overtaken behind the second capture
    return SILENT if case.open or left_open(finding) else WRONG


def _cause(rule: str, case: Case) -> Claim:
    truth = ", ".join(dict.fromkeys(map(str, case.fates)))
    if any(fate.what in CAUSES[rule] for fate in case.fates):
        verdict = SILENT if case.open else RIGHT
    elif any(fate.what is What.OPEN for fate in case.fates):
        verdict = UNDECIDED
    else:
        verdict = SILENT if case.open else WRONG
    return Claim("cause", rule, verdict, rule, truth, case.psn)


def _nothing_lost(scene: Scene, rule: str, case: Case) -> bool:
    """Whether a case is of a loss, and nothing was dropped or corrupted on its way."""
    if case.side is None or rule not in OF_REQUESTS | OF_RESPONSES:
        return False
    return not scene.judge.lost_in_all(case.side.src if rule in OF_REQUESTS else case.side.dst)


def _nak_ignored(scene: Scene, case: Case) -> Claim:
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


def _exists(scene: Scene, finding: dict[str, Any], cases: Sequence[Case]) -> Claim:
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
        there = any(judge.overtaken(side) for side in judge.wire.sides)
    elif rule == "duplicate":
        there = any(p.twice or any(t.doubled for t in p.sent) for p in judge.wire.paths.values())
    elif rule in ("icrc-bad", "malformed"):  # where ICRCs are cut off, a corrupted packet is only malformed
        there = any(path.spoilt for path in judge.wire.paths.values())
    elif rule == "rnr":
        there = judge.rnr_naks(judge.wire.sides, "both") > 0
    elif rule in SILENCES:
        there, truth = _silenced(scene, finding)
    elif rule == "capture-gap":
        there, truth = _gap(scene)
    elif rule in ("needless-repeat", "nak-ignored", "timeout-too-short"):
        there = any(side.requests[-1].passed for side in judge.wire.sides)
    elif rule == "ecn-unanswered":
        count = sum(path.marked for path in judge.wire.paths.values())
        there, truth = finding["evidence"]["marked_packets"] <= count, f"{count} were marked"
    elif rule == "mtu-mismatch":
        there, truth = _mtus_differ(scene, finding)
    elif rule in _FATAL:
        there = any(t.packet.syndrome == _FATAL[rule] for side in judge.wire.sides for t in side.responses)
    elif rule.startswith("cm-") and scene.cm is not None:
        wrong = scene.cm.contradiction(finding, scene.points)
        there, truth = (None, "") if wrong is None else (not wrong, wrong)
    elif rule.startswith("cm-"):
        there = _is_killed(scene.truth)
    else:
        there = False
    verdict = UNDECIDED if there is None else RIGHT if there else WRONG
    if rule == "qpn-used-again" and any(
        s.requests[0].psn == psn or len(s.copies(psn)) > 1
        for psn in (finding["evidence"]["psn"],)
        for s in judge.wire.sides
    ):
        verdict = SILENT  # "or everything sent again"
    if verdict == WRONG and left_open(finding):
        verdict = SILENT
    return Claim("rule", rule, verdict, finding["title"], "" if verdict == RIGHT else truth)


def _mtus_differ(scene: Scene, finding: dict[str, Any]) -> tuple[bool, str]:
    """Whether the path MTUs differ as a finding says, or large packets vanish."""
    evidence, experiment = finding["evidence"], scene.truth["experiment"]
    if "requester_path_mtu" not in evidence:
        return any(fault.get("of") == "large" for fault in scene.truth["faults"]), "no packet is too large"
    asked = re.search(r"-m (\d+)", experiment["client"])
    client = int(asked[1]) if asked else PATH_MTU
    code = experiment.get("server_mtu_code", 0)
    server = 128 << code if code else client
    there = (evidence["requester_path_mtu"], evidence["responder_path_mtu"]) == (client, server)
    return there, f"the client's is {client}, the server's {server}"


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


def _places(scene: Scene, rule: str, evidence: dict[str, Any], cases: Sequence[Case]) -> Iterator[Claim]:
    """Where the packets were lost: named PSN by PSN, or counted for the capture point."""
    named = [p for p in evidence.get("places", ()) if p.get("lost")]
    by_case = {c.psn: c.said["place"] for c in cases if c.said.get("place")}
    if named or by_case:
        left = {c.psn: [scene.place(fate) for fate in c.fates] for c in cases}
        undecided = {c.psn: any(fate.what is What.OPEN for fate in c.fates) for c in cases}
        unlost = {c.psn for c in cases if _nothing_lost(scene, rule, c)}
        truths = {c.psn: ", ".join(map(str, c.fates)) for c in cases}
        corrupted = {c.psn for c in cases if evidence.get("or_corrupted") and _is_spoilt(c)}
        for psn, place in [(p["psn"], p["lost"]) for p in named] or list(by_case.items()):
            if psn not in left:
                continue  # beyond the cases listed
            said = _PLACES.get(place, place)
            if said in left[psn]:
                verdict = RIGHT
            elif psn in corrupted and said == BEHIND:
                verdict = SILENT  # "or packets were corrupted before the capture that has them"
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


def _is_spoilt(case: Case) -> bool:
    return any(fate.what is What.SPOILT for fate in case.fates)


def _counted_places(
    scene: Scene, rule: str, evidence: dict[str, Any], cases: Sequence[Case]
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
    corrupted = sum(map(_is_spoilt, cases)) if evidence.get("or_corrupted") else 0
    rest = sum(said.values()) - right
    wrong = max(0, rest - undecided)
    open_ = rest - wrong
    silent = min(wrong, corrupted, said[BEHIND])
    # Several losses of one PSN may be counted once: too few is no wrong place.
    for verdict, times in ((RIGHT, right), (WRONG, wrong - silent), (UNDECIDED, open_), (SILENT, silent)):
        if times:
            yield Claim("place", rule, verdict, words, shown, times=times)
    silent = len(cases) - sum(said.values())
    if silent > 0:
        yield Claim("place", rule, SILENT, words, shown, times=silent)
