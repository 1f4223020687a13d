"""Scores an analysis of each experiment, from each view, against its truth (the truth bench)."""

from __future__ import annotations

import functools
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rocekit.analysis import analyze
from rocekit.errors import RocekitError
from truth_bench.claims import claims
from truth_bench.cm import Exchanges
from truth_bench.judge import Drops, Judge
from truth_bench.neighbours import OTHER_CLOCKS
from truth_bench.neighbours import make as make_neighbour
from truth_bench.over_ipv6 import marks
from truth_bench.packets import read
from truth_bench.recorded import Programs
from truth_bench.scene import UNDECIDED, VERDICTS, WRONG, Claim, Scene
from truth_bench.sets import Wire
from truth_bench.storage import KINDS as STORAGE_KINDS

VIEWS: Final = (("va",), ("vb",), ("va", "vb"))
#: How long tc may take to begin or end a fault.
_SLACK_NS: Final = 500_000_000
KINDS: Final = ("rule", "cause", "place", "count", "cost", "transfers", "journal", "reported")


@dataclass(frozen=True)
class Scored:
    """A claim, and the analysis that it is from."""

    experiment: str
    view: str
    claim: Claim

    def line(self) -> str:
        """Everything that a developer needs to find it."""
        claim = self.claim
        psn = "" if claim.psn is None else f" PSN {claim.psn}"
        times = "" if claim.times == 1 else f" ({claim.times} times)"
        return (
            f"{self.experiment} [{self.view}] {claim.kind} {claim.what}{psn}: "
            f"said {claim.said or '–'}; truth: {claim.truth or '–'}{times}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {"experiment": self.experiment, "view": self.view, **vars(self.claim)}


def folders(root: Path) -> list[Path]:
    """The experiments that are in a folder."""
    return sorted(p.parent for p in root.glob("*/truth.json"))


def open_wire(folder: Path, truth: dict[str, Any]) -> Wire:
    hosts = truth["hosts"]
    va, vb = (read(folder / f"{point}.pcap", marks(truth, point)) for point in ("va", "vb"))
    return Wire((hosts["a"]["ip"], hosts["b"]["ip"]), va, vb)


def is_of_cm(fault: dict[str, Any]) -> bool:
    """Whether a fault hit the connection manager's packets only."""
    return str(fault.get("of", "")).startswith("cm")


def judge_of(wire: Wire, truth: dict[str, Any]) -> Judge:
    """The judge of an experiment."""
    log = {entry["what"]: entry["time_ns"] for entry in truth.get("log", ())}
    drops = []
    for fault in truth["faults"]:
        if is_of_cm(fault):
            continue
        src, count = truth["hosts"][fault["sender"]]["ip"], fault["counters"].get("drops", 0)
        drop = Drops(fault["where"], src, count, fault.get("of", "all"))
        if fault.get("after") and "fault begins" in log:
            since, until = log["fault begins"], log.get("fault ends", drop.until_ns)
            drop = replace(drop, since_ns=since - _SLACK_NS, until_ns=until + _SLACK_NS)
        drops.append(drop)
    return Judge(wire, drops)


@functools.lru_cache(maxsize=8)
def _judged(folder: Path) -> tuple[dict[str, Any], Judge]:
    """The truth of an experiment and its judge, which all its views and neighbours have."""
    truth = json.loads((folder / "truth.json").read_text())
    return truth, judge_of(open_wire(folder, truth), truth)


def _asks_for_cm(truth: dict[str, Any]) -> bool:
    """Whether a fault hits the connection manager, or the kernel connects as it likes."""
    return any(map(is_of_cm, truth["faults"])) or truth["experiment"]["told"].get("program") in STORAGE_KINDS


def score(folder: Path, neighbour: str = "") -> list[Scored]:
    """Every claim about one experiment, from every view, without and with its journals.

    Of a neighbour (``truth_bench.neighbours``) what counts packets of the
    captures or says that they miss some is not judged: the neighbour was made to miss them.
    """
    if neighbour:
        return _score_neighbour(folder, neighbour)
    truth, judge = _judged(folder)
    cm = Exchanges(folder, truth) if _asks_for_cm(truth) else None
    journals = sorted(folder.glob("*.journal.jsonl"))
    programs = Programs(folder)
    found = []
    for points in VIEWS:
        for given in ([], journals) if journals else ([],):
            captures = [folder / f"{point}.pcap" for point in points]
            view = "+".join(points) + (" with journal" if given else "")
            try:
                analysis = analyze(*captures, journals=given)
            except RocekitError as error:
                refused = Claim("rule", "refused", WRONG, str(error), "the captures are whole")
                found.append(Scored(folder.name, view, refused))
                continue
            scene = Scene(analysis.to_dict(), points, judge, truth, cm)
            found += [Scored(folder.name, view, claim) for claim in claims(scene)]
            if given:
                said = programs.claims(analysis, scene.found, clocks=True)
                found += [Scored(folder.name, view, claim) for claim in said]
    return found


def _score_neighbour(folder: Path, neighbour: str) -> list[Scored]:
    truth, judge = _judged(folder)
    if any(map(is_of_cm, truth["faults"])):
        return []  # the connection manager's exchanges are judged in whole captures only
    journals, programs = sorted(folder.glob("*.journal.jsonl")), Programs(folder)
    found = []
    with tempfile.TemporaryDirectory() as place:
        origins = {
            point: make_neighbour(neighbour, folder / f"{point}.pcap", Path(place) / f"{point}.pcap")
            for point in ("va", "vb")
        }
        for points in VIEWS:
            for given in ([], journals) if journals else ([],):
                captures = [Path(place) / f"{point}.pcap" for point in points]
                analysis = analyze(*captures, journals=given)
                origin = tuple(origins[point] for point in points)
                scene = Scene(analysis.to_dict(), points, judge, truth, origins=origin)
                view = f"{'+'.join(points)}{' with journal' if given else ''}, {neighbour}"
                found += [Scored(folder.name, view, each) for each in claims(scene) if _holds_anywhere(each)]
                if given:
                    told = programs.claims(
                        analysis, scene.found, clocks=OTHER_CLOCKS.isdisjoint(neighbour.split(","))
                    )
                    found += [Scored(folder.name, view, each) for each in told]
    return found


def _holds_anywhere(claim: Claim) -> bool:
    """Whether a claim is of the wire, and not of what a capture has of it."""
    if claim.kind == "count":
        return claim.what in ("lost packets", "duplicates")
    return claim.kind not in ("transfers", "reported") and claim.what != "capture-gap"


def unfit(folder: Path) -> list[str]:
    """Where the truth itself does not fit together: tc's counters and the exact sets must agree."""
    truth = json.loads((folder / "truth.json").read_text())
    wire = open_wire(folder, truth)
    found = []
    for src in wire.hosts:
        paths = [path for path in wire.paths.values() if path.src == src]
        between = sum(
            fault["counters"].get("drops", 0)
            for fault in truth["faults"]
            if fault["where"] == "between"
            and truth["hosts"][fault["sender"]]["ip"] == src
            and not is_of_cm(fault)
        )
        missing = sum(path.missing + path.marked for path in paths)
        hows = [fault.get("how", "") for fault in truth["faults"]]
        corrupts = any("corrupt" in how for how in hows)
        # netem counts what it marks as dropped, and a copy that it dropped of a packet that it doubled.
        doubles = any("duplicate" in how for how in hows)
        if missing != between and not corrupts and not (doubles and missing < between):
            found.append(
                f"{folder.name}: {missing} of {src} missing at the second capture, tc dropped {between}"
            )
    found += [
        f"{folder.name}: {n} dropped elsewhere ({where})" for where, n in truth["drops_elsewhere"].items()
    ]
    return found


def disturbed(folder: Path) -> list[str]:
    """Packets that overtook others between the captures though no fault of the experiment does that.

    A processor that another process holds keeps the packets queued on it, and those of the other processor
    pass. What follows is not the experiment that was meant, and not a network's behaviour either.
    """
    truth = json.loads((folder / "truth.json").read_text())
    if any(fault["where"] == "between" and "delay" in fault.get("how", "") for fault in truth["faults"]):
        return []
    return [
        f"{folder.name}: {len(path.overtaken)} packets of {path.src} were overtaken, by no fault"
        for path in open_wire(folder, truth).paths.values()
        if path.overtaken
    ]


def counted(scored: Iterable[Scored]) -> Counter[tuple[str, str, str]]:
    """How many claims there are by kind, what says it, and verdict."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for each in scored:
        counts[each.claim.kind, each.claim.what, each.claim.verdict] += each.claim.times
    return counts


def table(scored: Sequence[Scored]) -> list[str]:
    """The counts as a Markdown table."""
    counts = counted(scored)
    lines = [
        "| claim | of | right | wrong | silent | right of those made |",
        "| --- | --- | --: | --: | --: | --: |",
    ]
    for kind in KINDS:
        names = sorted({what for k, what, verdict in counts if k == kind and verdict != UNDECIDED})
        for what in names:
            numbers = [counts[kind, what, verdict] for verdict in VERDICTS]
            lines.append(_row(kind, f"`{what}`", numbers))
        total = [sum(counts[kind, what, verdict] for what in names) for verdict in VERDICTS]
        if len(names) > 1:
            lines.append(_row(f"**{kind}**", "all", total))
    return lines


def neighbours_table(scored: Mapping[str, Sequence[Scored]]) -> list[str]:
    """Of each kind of captures that hold less, the counts by what is claimed, as a Markdown table."""
    kinds = ("rule", "cause", "place")
    lines = [
        "| captures | " + " | ".join(f"{kind}: right | wrong | silent" for kind in kinds) + " |",
        "| --- |" + " --: |" * len(kinds) * len(VERDICTS),
    ]
    for neighbour, claimed in scored.items():
        counts = counted(claimed)
        numbers = [
            sum(n for (k, _, v), n in counts.items() if (k, v) == (kind, verdict))
            for kind in kinds
            for verdict in VERDICTS
        ]
        lines.append(f"| {neighbour} | {' | '.join(f'{n:,}' for n in numbers)} |")
    return lines


def _row(kind: str, what: str, numbers: Sequence[int]) -> str:
    right, wrong, _ = numbers
    made = right + wrong
    share = "–" if not made else f"{right * 1000 // made / 10:.1f} %"
    cells = [kind, what, *(f"{n:,}" for n in numbers), share]
    return f"| {' | '.join(cells)} |"


def wrong_lines(scored: Iterable[Scored]) -> list[str]:
    """Each wrong claim in one line."""
    return [each.line() for each in scored if each.claim.verdict == WRONG]
