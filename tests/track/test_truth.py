"""Random programs between soft endpoints under random faults: an analysis tells what they know they did.

A run's truth is the endpoints' own record, made as they sent; the capture of everything they sent is all that
the analysis gets. More seeds with ``ROCEKIT_SEEDS=5000 pytest tests/track/test_truth.py``; one of them with
``PYTHONPATH=tests/tools python tests/track/test_truth.py drop 4711``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from amount import runs
from story import Shot, Story

from rocekit.capture import open_capture
from rocekit.correlate.pairs import journal_pairs
from rocekit.decode import Decoder
from rocekit.journal import read_journal
from rocekit.journal.work_requests import read_programs
from rocekit.soft.testbed import ProgramRun, run
from rocekit.soft.testbed.program import random_program
from rocekit.soft.wires.faults import at_random
from rocekit.track.tracker import Tracker

#: What happens to packets, and how often.
WEATHER: dict[str, dict[str, float]] = {
    "clear": {},
    "drop": {"drop": 0.03},
    "storm": {"drop": 0.15},
    "duplicate": {"duplicate": 0.03},
    "delay": {"delay": 0.01},
    "bit-error": {"bit-error": 0.03},
    "reorder": {"reorder": 0.03},
}
SEEDS = runs(300)
COMPARED = (
    *("operation", "immediate", "invalidate_rkey", "bytes", "packets", "first_psn", "last_psn"),
    *("remote_va", "rkey", "status", "retransmitted_packets", "naks", "rnr_naks", "timeouts"),
    *("first_ns", "acked_ns"),
)
#: Of a message whose sender died over it the wire shows only the packets that went out.
UNSENT = frozenset({"bytes", "packets", "last_psn", "immediate", "invalidate_rkey"})

Key = tuple[str, int, int]


class Difference(NamedTuple):
    transfer: Key
    what: str
    truth: Any
    analysis: Any
    status: str = ""


def disagreements(
    weather: str, seed: int, transports: tuple[str, ...] = ("RC",), tap: str = "sent"
) -> list[Difference]:
    """What the analysis of a run says otherwise than the endpoints that made it.

    Two RC runs of three have their journal read, which names QP pairs, path MTUs and timers. Without it the
    timers are not known, nor is how many packets would have answered a READ that nothing answers; and without
    it nothing at all would name a UC sender's QP.
    """
    with_journal = seed % 3 > 0 or transports != ("RC",)
    result, tracker = analysed(weather, seed, transports, tap, with_journal=with_journal)
    said = [t.to_dict() | {"doubt": any(e.doubt for e in t.events)} for t in tracker.transfers]
    found = compare(result.transfer_dicts(), said)
    if with_journal:
        return list(found)
    unanswered = {"READ packets", "READ last_psn"}
    return [
        d
        for d in found
        if not d.what.endswith("timeouts") and (d.what not in unanswered or d.status == "acked")
    ]


def analysed(
    weather: str, seed: int, transports: tuple[str, ...] = ("RC",), tap: str = "sent", *, with_journal: bool
) -> tuple[ProgramRun, Tracker]:
    with TemporaryDirectory() as folder:
        capture, journal = Path(folder) / "x.pcapng", Path(folder) / "x.journal.jsonl"
        program = random_program(seed, transports=transports)
        faults = at_random(WEATHER[weather])
        result = run(program, faults, seed, capture=capture, journal=journal, tap=tap)
        assert result.finished
        pairs = journal_pairs(read_programs(read_journal(journal))) if with_journal else ()
        tracker, decoder = Tracker(pairs=pairs), Decoder()
        with open_capture(capture) as reader:
            for batch in reader:
                tracker.feed(decoder.decode(batch))
        tracker.finish()
    return result, tracker


def compare(truth: list[dict[str, Any]], said: list[dict[str, Any]]) -> Iterable[Difference]:
    known, found = by_key(truth), by_key(said)
    for key in sorted(known.keys() | found.keys()):
        own, seen = known.get(key, []), found.get(key, [])
        if len(own) != len(seen):
            there, here = ([f"{t['operation']} {t['status']}" for t in each] for each in (own, seen))
            yield Difference(key, "transfers", there, here)
            continue
        for t, s in zip(own, seen, strict=True):
            for name in COMPARED:
                if name == "timeouts" and s["doubt"]:
                    continue  # the analysis says that something else may have been the cause
                if t[name] != s[name] and not (name in UNSENT and t["status"] == "incomplete"):
                    yield Difference(key, f"{t['operation']} {name}", t[name], s[name], t["status"])


def by_key(transfers: list[dict[str, Any]]) -> dict[Key, list[dict[str, Any]]]:
    """By requester and first PSN."""
    found = defaultdict(list)
    for t in transfers:
        found[t["requester"]["ip"], t["requester"]["qpn"] or -1, t["first_psn"]].append(t)
    return found


def report(weather: str, seed: int, found: list[Difference]) -> str:
    lines = [f"{len(found)} disagreements; again: python tests/test_truth.py {weather} {seed}"]
    for (ip, qpn, psn), what, truth, said, _ in found[:8]:
        lines.append(f"  {ip} QP {qpn:#x} PSN {psn}: {what} is {truth}, analysis says {said}")
    return "\n".join(lines)


@pytest.mark.parametrize("weather", WEATHER)
def test_the_analysis_of_what_both_ends_sent_is_what_they_did(weather: str) -> None:
    count = max(1, SEEDS if weather == "drop" else SEEDS // 3)
    found = {seed: disagreements(weather, seed) for seed in range(count)}
    wrong = [report(weather, seed, differences) for seed, differences in found.items() if differences]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("weather", ["clear", "drop", "duplicate"])
def test_unreliable_transports_are_what_was_sent(weather: str) -> None:
    wrong = []
    for seed in range(max(1, SEEDS // 5)):
        found = disagreements(weather, seed, ("UC", "UD"))
        if found:
            wrong.append(report(weather, seed, found))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("tap", ["soft_a", "soft_b"])
def test_a_capture_at_one_end_tells_the_same_messages_and_blames_no_capture(tap: str) -> None:
    """What was lost before it reached the capture's end is missing there, and was still lost on the wire."""
    told = ("operation", "immediate", "invalidate_rkey", "bytes", "packets", "first_psn", "last_psn")
    wrong = []
    for seed in range(max(1, SEEDS // 5)):
        result, tracker = analysed("drop", seed, tap=tap, with_journal=seed % 2 == 0)
        said = by_key([t.to_dict() for t in tracker.transfers])
        for t in result.transfer_dicts():
            seen = [
                {k: s[k] for k in told}
                for s in said[t["requester"]["ip"], t["requester"]["qpn"], t["first_psn"]]
            ]
            if t["status"] == "acked" and {k: t[k] for k in told} not in seen:
                wrong.append(f"seed {seed}: {t} not in {seen}")
        wrong += [f"seed {seed}: {e} missed" for c in tracker.connections for e in c.missed]
    assert not wrong, "\n".join(wrong)


def test_what_only_the_capture_lost_is_no_loss() -> None:
    """Where nobody sends anything twice, nothing was, however many frames the capture leaves out."""
    wrong, transfers = [], 0
    for seed in range(max(3, SEEDS // 3)):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "x.pcapng"
            result = run(random_program(seed), (), seed, capture=path)
            if any(t["retransmitted_packets"] for t in result.transfer_dicts()):
                continue  # some receiver was not ready
            story = Story()
            with open_capture(path) as reader:
                for batch in reader:
                    kept = [i for i in range(len(batch)) if hash((seed, i)) % 10]
                    story.shots += [Shot(batch.frame(i), int(batch.time_ns[i])) for i in kept]
        told = story.track()
        transfers += len(told.transfers)
        wrong += [
            f"seed {seed}: {told.line(t)}"
            for t in told.tracker.transfers
            if t.naks or t.timeouts or t.retransmitted_packets
        ]
    assert transfers
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    kind, number = sys.argv[1], int(sys.argv[2])
    print(report(kind, number, disagreements(kind, number, tuple(sys.argv[3:]) or ("RC",))))
