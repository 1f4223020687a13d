"""Claims about attaching to perftest on the kernel's rxe: it ends as ever, its middle is in the journal."""

from __future__ import annotations

import itertools
from pathlib import Path

import lab_attach_inside as inside
import pytest
from amount import lacks_more
from lab_boot import Boot, Part
from lab_forks import PRELOADED

from rocekit.analysis import analyze
from rocekit.journal import Journal, read_journal
from rocekit.lab.jobs import load_manifest
from rocekit.record.build import look


def obstacle() -> str | None:
    found = look()
    if found.path is None and not found.can_build:
        return f"{found.obstacle} (apt-get install {' '.join(found.packages)})"
    return lacks_more()


PART = Part(
    "attach", (inside.__file__,), timeout_s=600, jobs=tuple(inside.JOBS), loads=PRELOADED, obstacle=obstacle
)
pytestmark = pytest.mark.lab(PART)
SIDES = ("client", "server")
CAUGHT_UP_NS = 1_000_000_000


@pytest.fixture(scope="module")
def out(boot: Boot) -> Path:
    return boot.of(PART)


def journal_of(out: Path, side: str) -> Journal:
    return read_journal(out / f"attached.{side}.journal.jsonl")


def test_perftest_ends_as_without_a_recorder(out: Path) -> None:
    entry = load_manifest(out)["attached"]
    for side in SIDES:
        assert entry[f"{side}_result"] == {"returncode": 0, "killed": False}
    rows = [line.split() for line in (out / "attached.client.txt").read_text().splitlines()]
    assert [row[:2] for row in rows if row[:1] == [str(inside.BYTES)]] == [
        [str(inside.BYTES), str(inside.COUNT)]
    ]


@pytest.mark.parametrize("side", SIDES)
def test_the_recorder_was_let_in_and_is_gone(out: Path, side: str) -> None:
    said = (out / f"attached.{side}.journal.txt").read_text()
    assert "attached to process" in said
    assert said.endswith("ended with 0; 0 functions left\n")
    journal = journal_of(out, side)
    assert journal.problems == []
    states = [event["state"] for event in journal.of("recording")]
    assert (sorted(states[:2]), states[2:]) == (["attached", "began"], ["detached"])


def test_what_the_client_posted_in_the_middle_is_in_its_journal(out: Path) -> None:
    journal = journal_of(out, "client")
    posted = journal.of("wr_posted")
    assert 0 < len(posted) < inside.COUNT
    assert {(event["opcode"], event["length"]) for event in posted} == {("SEND", inside.BYTES)}
    assert not journal.of("records_lost")
    # Only one in four is signaled: between two completions are the posts of four.
    polled = journal.of("wc_polled")
    assert {event["status"] for event in polled} == {"SUCCESS"}
    signaled = [k for k, event in enumerate(posted) if event["signaled"]]
    assert [b - a for a, b in itertools.pairwise(signaled)] == [4] * (len(signaled) - 1)
    # The packets say how many messages there were at that time; as many as the queue has may be under way.
    analysis = analyze(out / "attached.pcap", journals=[])
    sent = [t.first_ns for t in analysis.transfers if t.operation == "SEND"]
    assert len(sent) == inside.COUNT
    offset_allowed = 16
    meanwhile = sum(posted[0].time_ns <= at <= posted[-1].time_ns for at in sent)
    assert abs(meanwhile - len(posted)) <= offset_allowed


def test_what_arrived_in_the_middle_is_in_the_server_s_journal(out: Path) -> None:
    journal = journal_of(out, "server")
    received = [event for event in journal.of("wc_polled") if event.get("opcode") == "RECV"]
    assert received
    assert {event["byte_len"] for event in received} == {inside.BYTES}
    assert abs(len(received) - len(journal.of("recv_posted"))) <= 600  # the depth of its queue
    client = journal_of(out, "client")
    sent = client.of("wr_posted")
    begin, end = max(received[0].time_ns, sent[0].time_ns), min(received[-1].time_ns, sent[-1].time_ns)
    # What had arrived while the recorder was let in is polled at once, more than the client's queue may have.
    begin += CAUGHT_UP_NS
    assert end - begin > CAUGHT_UP_NS
    arrived = sum(begin <= event.time_ns <= end for event in received)
    assert abs(arrived - sum(begin <= event.time_ns <= end for event in sent)) <= 32


@pytest.mark.parametrize("side", SIDES)
def test_the_qp_is_described_as_the_kernel_has_it(out: Path, side: str) -> None:
    (found,) = journal_of(out, side).of("qp_found")
    # An end that only receives stays in RTR, and has no timers.
    assert (found["transport"], found["state"]) == ("RC", "RTS" if side == "client" else "RTR")
    assert found.get("timeout") == (18 if side == "client" else None)
    assert found["path_mtu"] == 4096
    assert {found["local_ip"], found["dest_ip"]} == {"10.9.0.1", "10.9.0.2"}
    other = journal_of(out, SIDES[1 - SIDES.index(side)]).of("qp_found")[0]
    assert other.qp is not None
    assert found["dest_qpn"] == other.qp[1]


def test_nothing_is_matched_of_which_the_psn_is_not_known(out: Path) -> None:
    analysis = analyze(
        out / "attached.pcap", journals=[out / f"attached.{side}.journal.jsonl" for side in SIDES]
    )
    assert all(transfer.wr is None for transfer in analysis.transfers)
    assert analysis.journal is not None
    reasons = {wr.unmatched_because for wr in analysis.journal.unmatched}
    assert reasons == {"its QP was made before the recorder was attached: its PSN is not known"}
