"""The captures in pcaps/: the analysis of each says what its programs were told to do, and what befell them.

Truth is in pcaps/manifest.json: the commands, the fault, and the kernel's own counts of what it did. It was
written when the captures were made, by scripts/make-pcaps, from everything but our analysis.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from places import PCAPS

import rocekit
from rocekit.explanation.topology import topology

CAPTURES: dict[str, dict[str, Any]] = {
    Path(entry["file"]).stem: entry for entry in json.loads((PCAPS / "manifest.json").read_text())["captures"]
}
#: One mistake after the other: nothing in it is like the rest.
EACH = "failures-each"
DONE = {"RC": "acked", "UC": "sent", "UD": "sent"}

#: What the rules make of each fault: those that must be among the findings, and those that may.
EXPECTED: dict[str, tuple[set[str], set[str]]] = {
    "ping-write-loss": ({"loss"}, {"tail-loss", "needless-repeat", "nak-ignored"}),
    "ping-write-loss-behind": ({"loss"}, {"tail-loss", "nak-ignored"}),
    "ping-sr-loss": ({"loss"}, {"tail-loss", "needless-repeat", "nak-ignored"}),
    "blast-sr-loss": ({"loss"}, {"tail-loss", "needless-repeat", "nak-ignored"}),
    # Each request that was lost was the last before a silence: a capture behind the loss cannot know of it.
    # By hand: rxe0 sent again six times, but the capture has each of the 20 requests once, and rxe1 counted
    # neither a duplicate nor a gap. See test_what_is_lost_before_the_capture_leaves_no_trace_behind_it.
    "ping-read-loss": (set(), set()),
    "ping-read-response-loss": ({"implied-nak"}, {"needless-repeat", "tail-loss"}),
    "atomic-loss": (set(), set()),
    # Nothing tells whether it was the request or its answer that was lost; the finding names the request.
    # By hand: frames 21, 32 and 45 ask a second time for what frames before asked, 168 to 341 ms later, and
    # rxe1 counted three duplicates; tc dropped three of its packets.
    "atomic-response-loss": ({"tail-loss"}, set()),
    "blast-sr-reordering": ({"reordering"}, {"needless-repeat"}),
    "ping-write-reordering": ({"reordering"}, {"needless-repeat"}),
    "ping-sr-duplication": ({"duplicate"}, set()),
    "ping-write-duplication": ({"duplicate"}, set()),
    "blast-sr-corruption": ({"icrc-bad"}, {"loss", "tail-loss", "needless-repeat"}),
    "ping-read-corruption": ({"icrc-bad"}, {"implied-nak", "tail-loss", "needless-repeat"}),
    "blast-sr-rnr": ({"rnr"}, set()),
    "ib_send_bw-rnr": ({"rnr"}, set()),
    "ib_write_bw-4qp-loss": ({"loss"}, {"tail-loss", "needless-repeat", "nak-ignored"}),
    # By the counts: the acknowledgement of a WRITE that rxe0 took twice, and no other packet, was lost.
    "mesh-loss": ({"ack-loss"}, set()),
    # By the counts, three packets of rxe0: the first of the ring, which rxe1 missed; an acknowledgement, as
    # in the mesh; and the only packet of a WRITE, of which the capture has the repeat alone.
    "ring-loss": ({"loss", "ack-loss"}, set()),
    "ping-write-dead": ({"peer-silent"}, {"retry-exceeded"}),
    "ping-sr-rejected": ({"cm-rejected"}, set()),
    EACH: (
        {
            *("remote-access-error", "invalid-request", "remote-operational-error", "rnr", "cm-rejected"),
            "local-error",
        },
        {"retry-exceeded", "peer-silent", "mtu-mismatch", "dead-qp", "tail-loss", "cm-unanswered"},
    ),
}


@cache
def analysis(name: str) -> rocekit.Analysis:
    return rocekit.analyze(PCAPS / CAPTURES[name]["file"])


def counted(name: str, counter: str) -> int:
    """One of rxe's counters, both devices together."""
    return sum(int(counts.get(counter, 0)) for counts in CAPTURES[name]["counters"].values())


def those(**wanted: Any) -> list[str]:
    return [name for name, entry in CAPTURES.items() if all(entry[k] == v for k, v in wanted.items())]


INJECTED = [
    name for name, entry in CAPTURES.items() if entry["journals"] and not entry["fails"] and name != EACH
]


def test_every_file_is_told_of_and_there() -> None:
    told = {entry["file"] for entry in CAPTURES.values()}
    told |= {journal for entry in CAPTURES.values() for journal in entry["journals"]}
    there = {path.name for path in PCAPS.iterdir()} - {"README.md", "manifest.json", "field"}
    assert there == told
    readme = (PCAPS / "README.md").read_text()
    assert all(f"[{entry['file']}]" in readme for entry in CAPTURES.values())


def test_together_they_stay_small() -> None:
    assert sum(path.stat().st_size for path in PCAPS.iterdir()) < 6_000_000


@pytest.mark.parametrize("name", [name for name in CAPTURES if name != EACH])
def test_transfers_are_what_the_programs_were_told_to_do(name: str) -> None:
    entry = CAPTURES[name]
    if entry["fails"]:
        assert not analysis(name).transfers.where(status=DONE[entry["transport"]])
        return
    told = Counter({(operation, size): n for operation, size, n in entry["messages"]})
    assert Counter((t.operation, t.bytes) for t in analysis(name).transfers) == told
    assert {t.status for t in analysis(name).transfers} == {DONE[entry["transport"]]}
    assert {c.transport for c in analysis(name).connections} == {entry["transport"]}


@pytest.mark.parametrize("name", CAPTURES)
def test_the_capture_holds_every_frame_that_tcpdump_counted(name: str) -> None:
    counts = analysis(name).capture.counts
    assert counts.frames == CAPTURES[name]["packets_captured"]
    assert not analysis(name).capture.damage
    assert counts.truncated_packets == 0


@pytest.mark.parametrize("name", [name for name, entry in CAPTURES.items() if not entry["faults"]])
def test_without_a_fault_the_packets_are_those_that_rxe_sent(name: str) -> None:
    assert analysis(name).capture.counts.roce_packets == counted(name, "sent_pkts")


@pytest.mark.parametrize("name", CAPTURES)
def test_wrong_icrcs_are_in_corrupted_captures_only(name: str) -> None:
    assert bool(analysis(name).capture.counts.bad_icrc) == ("corruption" in name)


@pytest.mark.parametrize("name", those(clean=True))
def test_where_nothing_went_wrong_nothing_is_found(name: str) -> None:
    assert [f.rule for f in analysis(name).findings if f.severity != "info"] == []
    assert sum(c.retransmitted_packets for c in analysis(name).connections) == 0


@pytest.mark.parametrize("name", those(clean=False))
def test_what_went_wrong_is_found_and_nothing_else(name: str) -> None:
    must, may = EXPECTED[name]
    found = {f.rule for f in analysis(name).findings}
    assert must <= found
    assert found <= must | may


@pytest.mark.parametrize(
    "name", [name for name, e in CAPTURES.items() if "rxe1 sends" not in e["faults"] and name != EACH]
)
def test_refusals_are_those_that_rxe_sent(name: str) -> None:
    """The responder's own counts; where nothing befalls its packets, the capture has each."""
    connections = analysis(name).connections
    assert sum(c.naks for c in connections) == counted(name, "out_of_seq_request")
    assert sum(c.rnr_naks for c in connections) == counted(name, "send_rnr_err")


@pytest.mark.parametrize("name", INJECTED)
def test_every_work_request_has_its_transfer_its_completion_and_its_split_of_time(name: str) -> None:
    result = analysis(name)
    assert result.journal is not None
    assert not result.journal_problems
    requests = [request for request in result.journal.work_requests if not request.refused]
    assert len(requests) == len(result.transfers)
    for request in requests:
        assert request.matched_by == "psn"
        transfer = result.journal.transfer_of(request)
        assert transfer is not None
        assert transfer.wr is request
        assert request.completion is not None
        assert request.completion.status == "SUCCESS"
        timing = result.explain(transfer).timing
        assert timing.software_ns is not None
        assert timing.software_ns >= 0
        # Of what nobody acknowledges, a single packet is all that was seen.
        assert timing.wire_ns > 0 or transfer.status == "sent"
        if request.signaled:
            assert timing.completion_ns is not None
            assert timing.completion_ns >= 0
            assert timing.total_ns == timing.software_ns + timing.wire_ns + timing.completion_ns
        else:
            assert timing.total_ns is None


@pytest.mark.parametrize("name", INJECTED)
def test_one_clock_was_used_and_no_other_offset_is_found(name: str) -> None:
    """Both "hosts" and the capture had the clock of one kernel: their offset is zero."""
    journal = analysis(name).journal
    assert journal is not None
    for clock in journal.clocks.values():
        assert clock.offset_ns == 0
        assert clock.low_ns is None or clock.low_ns <= 0
        assert clock.high_ns is None or clock.high_ns >= 0


@pytest.mark.parametrize("shape", ["mesh", "ring"])
@pytest.mark.parametrize(("made", "hosts"), [("soft", 4), ("clean", 3), ("loss", 3)])
def test_who_talks_to_whom_is_a_mesh_or_a_ring(shape: str, made: str, hosts: int) -> None:
    """Three hosts are all neighbours in a ring as in a mesh; what each sends to whom tells them apart."""
    drawn = topology(analysis(f"{shape}-{made}"))
    assert drawn.shape == shape
    assert drawn.hosts == tuple(f"10.9.0.{n}" for n in range(1, hosts + 1))
    assert drawn.qps == (hosts * (hosts - 1) if shape == "mesh" else 2 * hosts)


def test_a_rejection_is_told_with_its_reason() -> None:
    rejections = [r for r in analysis("ping-sr-rejected").cm if r.message == "REJ"]
    assert [r.to_dict()["reason"] for r in rejections] == [8]


def test_a_connection_that_dies_is_told_with_its_completion() -> None:
    result = analysis("ping-write-dead")
    (transfer,) = result.transfers
    assert transfer.wc is not None
    assert transfer.wc.status == "RETRY_EXC_ERR"
    assert (transfer.status, transfer.timeouts) == ("unacknowledged", 3)
