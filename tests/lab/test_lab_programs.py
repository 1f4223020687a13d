"""perftest, rping and the libibverbs examples over real rxe devices: transfers are what they had to do.

The lab runs the selection of lab_programs.py, or all of it (``scripts/test --everything``), and captures each
program.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from amount import EVERYTHING
from lab_boot import Boot, Part
from lab_programs import everything, selection

import rocekit
from rocekit.lab.jobs import READY_LIMIT_S, Job, load_manifest
from rocekit.track.transfers import Transfer

JOBS = {job.name: job for job in (everything() if EVERYTHING else selection())}
PROGRAMS = {
    "perftest": ("ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"),
    "rdmacm-utils": ("rping",),
    "ibverbs-utils": ("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"),
    "tcpdump": ("tcpdump",),
}
#: Ends of a message that the requester need not do anything more for.
DONE = {"RC": {"acked"}, "UC": {"sent"}, "UD": {"sent"}}


def missing_programs() -> str | None:
    lacking = [
        f"{program} (apt-get install {package})"
        for package, programs in PROGRAMS.items()
        for program in programs
        if shutil.which(program) is None
    ]
    return f"the lab's programs are missing: {'; '.join(lacking)}" if lacking else None


PART = Part(
    "programs",
    ("-m", "rocekit.lab.jobs"),
    timeout_s=sum(job.limit_s + job.linger_s + READY_LIMIT_S + 15 for job in JOBS.values()),
    jobs=tuple(JOBS.values()),
    obstacle=missing_programs,
)
pytestmark = pytest.mark.lab(PART)


@pytest.fixture(scope="module")
def captures(boot: Boot) -> Path:
    """The folder with a capture a job, and the manifest."""
    return boot.of(PART)


@dataclass(frozen=True)
class Seen:
    """A job, its entry in the manifest, and what the analysis makes of its capture."""

    job: Job
    entry: dict[str, Any]
    analysis: rocekit.Analysis

    @property
    def truth(self) -> dict[str, Any]:
        return self.job.truth

    @property
    def told(self) -> Counter[tuple[str, int]]:
        return Counter({(operation, size): count for operation, size, count in self.truth["messages"]})

    def counted(self, name: str) -> int:
        """One of rxe's own counters, both devices together."""
        return sum(int(counts.get(name, 0)) for counts in self.entry["counters"].values())


@pytest.fixture(scope="module")
def look(captures: Path) -> Callable[[str], Seen]:
    manifest = load_manifest(captures)

    @cache
    def seen(name: str) -> Seen:
        if name not in manifest:
            pytest.skip(f"{name} is not among the captures in {captures}")
        entry = manifest[name]
        return Seen(JOBS[name], entry, rocekit.analyze(captures / entry["pcap"]))

    return seen


Look = Callable[[str], Seen]


def those(choose: Callable[[Job], bool]) -> list[str]:
    return [name for name, job in JOBS.items() if choose(job)]


@pytest.mark.parametrize("name", JOBS)
def test_the_capture_is_whole(look: Look, name: str) -> None:
    """Else nothing else counts. rxe counts what it sends before netem, and what it gets after it."""
    seen = look(name)
    assert seen.entry["dropped_by_kernel"] == 0
    if seen.job.netem is None:
        assert seen.entry["captured"] == seen.counted("sent_pkts")
    else:
        # Packets that netem spoiled are captured, and dropped before they count as received.
        assert seen.entry["captured"] >= seen.counted("rcvd_pkts")


def done_transfers(seen: Seen) -> list[Transfer]:
    """The transfers that are over for their program."""
    transfers = seen.analysis.transfers
    # These leave when they have the last message, whether or not a fault took the message's ACK.
    leaves = seen.job.netem is not None and seen.job.client.startswith(("rping", "ibv_"))
    last = {(t.connection.id, t.side): t.id for t in transfers if leaves}.values()
    done = DONE[seen.truth["transport"]]
    return [t for t in transfers if t.status in done or (t.status == "unacknowledged" and t.id in last)]


@pytest.mark.parametrize("name", those(lambda job: job.truth["complete"]))
def test_transfers_are_what_the_program_was_told_to_do(look: Look, name: str) -> None:
    seen = look(name)
    done = done_transfers(seen)
    found = Counter((t.operation, t.bytes) for t in done)
    if seen.truth.get("at_least"):
        assert not seen.told - found
        assert found.keys() == seen.told.keys()
    else:
        assert seen.entry["client_result"]["returncode"] == 0
        assert found == seen.told
        assert len(done) == len(seen.analysis.transfers)


@pytest.mark.parametrize("name", those(lambda job: not job.truth["complete"]))
def test_what_nobody_acknowledges_is_there_as_far_as_it_went(look: Look, name: str) -> None:
    """What a fault spoiled is there in part, or not at all; nothing is there that was never asked for."""
    seen = look(name)
    found = Counter((t.operation, t.bytes) for t in seen.analysis.transfers if t.status == "sent")
    assert found
    assert found <= seen.told
    assert {t.operation for t in seen.analysis.transfers} <= {operation for operation, _ in seen.told}
    assert len(seen.analysis.transfers) <= seen.told.total()


@pytest.mark.parametrize("name", those(lambda job: "connections" in job.truth))
def test_each_qp_pair_is_one_connection(look: Look, name: str) -> None:
    seen = look(name)
    assert len(seen.analysis.connections) == seen.truth["connections"]
    assert {c.transport for c in seen.analysis.connections} == {seen.truth["transport"]}


@pytest.mark.parametrize("name", those(lambda job: "corrupt" not in (job.netem or "")))
def test_what_nobody_corrupts_is_valid(look: Look, name: str) -> None:
    counts = look(name).analysis.capture.counts
    assert (counts.bad_icrc, counts.malformed_packets, counts.truncated_packets) == (0, 0, 0)


@pytest.mark.parametrize("name", those(lambda job: job.netem is None))
def test_receivers_that_are_not_ready_are_counted(look: Look, name: str) -> None:
    """The responder's own counter says how often it said so."""
    seen = look(name)
    told = seen.counted("send_rnr_err")
    assert sum(c.rnr_naks for c in seen.analysis.connections) == told
    assert ("rnr" in {finding.rule for finding in seen.analysis.findings}) == bool(told)
    assert told or not seen.truth.get("rnr")


@pytest.mark.parametrize("name", those(lambda job: job.netem is None and not job.truth.get("rnr")))
def test_without_faults_nothing_is_found(look: Look, name: str) -> None:
    """Except where rxe itself tried again: an emulated machine can be slower than its timers."""
    seen = look(name)
    rules = {finding.rule for finding in seen.analysis.findings if finding.severity != "info"}
    assert not rules or seen.counted("completer_retry_err")
