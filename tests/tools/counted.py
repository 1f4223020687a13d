"""Conversations with snapshots of a device's counters around them, analysed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capture_bytes import pcap
from talk import MS, START_NS, A, B, Talk

from rocekit.analysis import Analysis, analyze
from rocekit.counters.comparison import CounterComparison
from rocekit.journal import JournalWriter
from rocekit.journal.counters import write_snapshots
from rocekit.machine.counters import CounterPlace, CounterSnapshot

S = 1_000 * MS
RXE = (
    *("sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err"),
    *("rcvd_seq_err", "ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err"),
    *("send_err", "link_downed", "rdma_sends", "rdma_recvs"),
)
AT_A = CounterPlace("rxe0", 1, "rxe", "va", (A,))
AT_B = CounterPlace("rxe1", 1, "rxe", "vb", (B,))
CLAIM: dict[str, Any] = {"captured_to": "x.pcap"}


def snapshot(place: CounterPlace, time_ns: int, counts: dict[str, int], **more: Any) -> CounterSnapshot:
    groups = {"hw_counters": counts, "tc": more.pop("tc", {})}
    captured_on = more.pop("captured_on", place.interface)
    host = more.pop("host", "host")
    return CounterSnapshot(
        host, place, time_ns, 1000, {g: c for g, c in groups.items() if c}, captured_on=captured_on, **more
    )


def analysed(
    folder: Path,
    talk: Talk,
    place: CounterPlace = AT_A,
    *,
    rose: dict[str, int] | None = None,
    drops: dict[str, int] | None = None,
    before_ns: int = START_NS - S,
    after_ns: int | None = None,
    counters: tuple[str, ...] = RXE,
    **claim: Any,
) -> Analysis:
    """The analysis of a conversation with snapshots around it; counters went up by ``rose``, else by 0."""
    capture, journal = folder / "x.pcap", folder / "x.journal.jsonl"
    capture.write_bytes(pcap(talk.frames, unit="ns"))
    claim = claim or CLAIM
    zero, risen = dict.fromkeys(counters, 100), {n: 100 + (rose or {}).get(n, 0) for n in counters}
    quiet = dict.fromkeys(drops or {}, 0)
    with JournalWriter(journal, host="host") as writer:
        write_snapshots(writer, [snapshot(place, before_ns, zero, tc=quiet, **claim)])
        after = talk.now + S if after_ns is None else after_ns
        write_snapshots(writer, [snapshot(place, after, risen, tc=drops or {}, **claim)])
    return analyze(capture)


def tried(*arguments: Any, **more: Any) -> dict[str, CounterComparison]:
    return {c.counter: c for c in analysed(*arguments, **more).counters}


def predicted(found: dict[str, CounterComparison]) -> dict[str, int]:
    """The counters that ought to have gone up, and by how much."""
    return {name: c.predicted for name, c in found.items() if c.predicted}


def plain(talk: Talk) -> Talk:
    talk.connect()
    talk.write(0, 4)
    talk.ack(3)
    talk.send(4, 2)
    talk.ack(5)
    return talk
