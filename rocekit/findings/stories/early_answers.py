"""READs whose request is in the capture once, behind the only response: nothing was sent again.

Two directions that were captured on two clocks, or by two queues, put a request behind its response. The
tracker takes that for a READ whose first request is missing, and the request for one sent again. But a
responder answers each request, and in their order (IBA Vol. 1, 9.7.5.2): a second request would have drawn a
second response, before later requests drew theirs.

Each story is asked, so this is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.track.transfers import with_gaps

if TYPE_CHECKING:
    from rocekit.findings.stories.story import Story
    from rocekit.track.transfers import Transfer


def is_answered_early(transfer: Transfer) -> bool:
    """Whether a READ's only request is behind its responses, and later requests were answered since."""
    if not transfer.is_read or transfer.started or not transfer.ended or transfer.responses_missing:
        return False
    if len(transfer.events) != 1:
        return False
    event = transfer.events[0]
    if event.kind != "repeat" or event.count != 1 or event.psn != transfer.first_psn:
        return False
    # Where the go-back began with another packet, that one has the answer.
    return not event.opens or (event.answer_psn is not None and event.answer_psn > transfer.last_psn)


def count_as_sent_once(transfers: list[Transfer]) -> None:
    """Take the requests of these READs out of what was sent again, of the transfer and of its connection.

    Of a go-back that began with another packet the READ may be a part.
    """
    early = [t for t in with_gaps(transfers) if t.retransmitted_packets == 1 and is_answered_early(t)]
    begun = {(t.connection.id, t.side, t.events[0].run) for t in early if t.events[0].opens}
    for transfer in early:
        event = transfer.events[0]
        if (transfer.connection.id, transfer.side, event.run) in begun:
            transfer.retransmitted_packets = transfer.timeouts = 0
            transfer.connection.retransmitted_packets -= 1


def without_early_answers(stories: list[Story]) -> list[Story]:
    """The stories, without those of nothing but READs that were answered early."""
    kept = []
    for story in stories:
        if not _is_of_early_answers(story):
            kept.append(story)
    return kept


def _is_of_early_answers(story: Story) -> bool:
    if story.naks or story.rnrs or story.late or story.hole is not None or len(story.go_backs) != 1:
        return False
    run = story.go_backs[0]
    if len(run.transfers) != len(run.events):
        return False
    for transfer in run.transfers:
        if not is_answered_early(transfer):
            return False
    answer = run.opener.answer_psn
    return answer is not None and answer > max([t.last_psn for t in run.transfers])
