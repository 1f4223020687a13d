"""A trace with a journal keeps its first transfers, and what it matches with them is right."""

from __future__ import annotations

import pytest
from story import Story

from rocekit.correlate import correlate
from rocekit.correlate.pairs import journal_pairs
from rocekit.decode import Decoder
from rocekit.journal.work_requests import read_programs
from rocekit.live.first_transfers import FirstTransfers
from rocekit.track.tracker import Tracker

MOST, SENT = 16, 200


def traffic(*, psn_known: bool) -> Story:
    """Messages of two lengths by turns, so that a wrong match can be seen by the work request's number."""
    lines = ["A created", f"A modified {'sq_psn=5 path_mtu=1024' if psn_known else 'path_mtu=1024'}"]
    for n in range(SENT):
        size = 64 if n % 7 else 128
        lines += [f"A wr {n} SEND {size}", f"a RC_SEND_ONLY {5 + n} {size}", f"b ACK {5 + n}"]
        lines += [f"A wc {n} SUCCESS"]
    return Story("\n".join(lines))


@pytest.mark.parametrize("psn_known", [True, False], ids=["by PSN", "by order"])
def test_the_first_transfers_are_kept_and_matched_as_if_the_trace_had_ended_there(psn_known: bool) -> None:
    story = traffic(psn_known=psn_known)
    journal = story.journal()
    decoder, tracker = Decoder(), Tracker(pairs=journal_pairs(read_programs(journal)))
    first, kept = FirstTransfers(MOST), []
    for batch in story.batches(range(0, 2 * SENT, 10)):
        tracker.feed(decoder.decode(batch))
        first.trim(tracker)
        kept.append(len(tracker.transfers))
    assert max(kept) <= MOST + MOST // 8 + 10
    tracker.finish()
    own = first.finish(tracker, journal)
    assert own is not None
    assert len(tracker.transfers) == MOST
    assert tracker.left_out == {"acked": SENT - MOST}
    assert sum(c.bytes for c in tracker.connections) == sum(64 if n % 7 else 128 for n in range(SENT))
    found = correlate(own, tracker.connections, tracker.transfers)
    assert [t.wr.wr_id if t.wr else None for t in tracker.transfers] == list(range(MOST))
    # What was posted for later transfers is no work request without packets.
    assert len(found.unmatched) == 0
    assert all(wr.wc is not None for wr in found.work_requests)


def test_a_trace_of_fewer_transfers_keeps_all_and_the_whole_journal() -> None:
    story = traffic(psn_known=True)
    journal, decoder, tracker = story.journal(), Decoder(), Tracker()
    first = FirstTransfers(SENT)
    for batch in story.batches(range(0, 2 * SENT, 10)):
        tracker.feed(decoder.decode(batch))
        first.trim(tracker)
    tracker.finish()
    assert first.finish(tracker, journal) is journal
    assert (len(tracker.transfers), first.until_ns) == (SENT, None)
