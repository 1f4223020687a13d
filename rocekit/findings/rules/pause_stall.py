"""``pause-stall``: the fabric paused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.costs import all_frames, costs, main_transfer, price
from rocekit.findings.finding import WARNING, Finding, Rule
from rocekit.findings.stories import PAUSE_STALL
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories import Story
    from rocekit.packets.pauses import Pause

_ALL_PRIORITIES: Final = 0xFF


def _look(evidence: Evidence) -> Iterator[Finding]:
    senders: dict[str, list[Pause]] = {}
    for pause in evidence.pauses:
        senders.setdefault(pause.source, []).append(pause)
    for source, pauses in senders.items():
        asked = [p for p in pauses if p.quanta]
        if asked:
            yield _paused(evidence, source, asked, len(pauses) - len(asked))
    yield from _unseen(evidence)
    if not evidence.pauses and evidence.counts.pause_frames:
        yield RULE.finding(
            f"{plural(evidence.counts.pause_frames, 'pause frame')} in this capture",
            evidence={"pause_frames": evidence.counts.pause_frames},
        )


def _unseen(evidence: Evidence) -> Iterator[Finding]:
    """Silences of a whole class that no captured pause frame explains."""
    spells: dict[tuple[str | None, tuple[int, int]], list[Story]] = {}
    for stories in evidence.told(PAUSE_STALL):
        for story in stories:
            if story.paused is not None:
                spells.setdefault((story.connection.ips[story.side], story.paused), []).append(story)
    for (host, (start, end)), stories in spells.items():
        connections = {s.connection.id for s in stories}
        yield RULE.finding(
            f"One class of {host} was silent for {duration(end - start)} on {len(connections)} connections "
            f"at once, with nothing lost, while others went on: {price(stories)}",
            connection=stories[0].connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=costs(stories)
            | {
                "host": host,
                "silence_ns": end - start,
                "silent_from_ns": start,
                "connections": sorted(connections),
                "pause_frames": 0,
            },
            advice="No pause frame was captured, so a pause is inferred: the counters tell for certain "
            "(rx_prioN_pause and rx_prioN_pause_duration in `ethtool -S` at the silent host, counters and "
            "PFC watchdog of its switch). " + RULE.what_to_do,
        )


def _paused(evidence: Evidence, source: str, asked: Sequence[Pause], releases: int) -> Finding:
    from rocekit.files.frame_names import frame_reference

    masks = {p.priorities for p in asked}
    priorities = sorted({bit for mask in masks for bit in range(8) if mask >> bit & 1})
    plain = masks == {_ALL_PRIORITIES}
    span = asked[-1].time_ns - asked[0].time_ns
    stalls = _stalls(evidence, asked)
    found: dict[str, Any] = {
        "pause_frames": len(asked),
        "release_frames": releases,
        "source": source,
        "priorities": None if plain else priorities,
        "longest_quanta": max(p.quanta for p in asked),
        "span_ns": span,
        "stalled_transfers": len(stalls),
    }
    if stalls:
        found["longest_stall_ns"] = max(stalls)
    what = "all traffic" if plain else f"priority {', '.join(map(str, priorities))}"
    title = f"{source} paused {what}: {plural(len(asked), 'pause frame')}"
    if span:
        title += f" in {duration(span)}"
    return RULE.finding(
        title,
        frames=[frame_reference(p.file, p.frame) for p in asked],
        evidence=found,
    )


def _stalls(evidence: Evidence, asked: Sequence[Pause]) -> list[int]:
    """How long repeats after silence waited, where a pause fell into the silence."""
    found = []
    for story in evidence.stories:
        for run in story.repeats:
            start = run.time_ns - run.waited_ns
            if run.cause == "timeout" and any(start <= p.time_ns <= run.time_ns for p in asked):
                found.append(run.waited_ns)
    return found


RULE = Rule(
    "pause-stall",
    WARNING,
    "the fabric paused",
    "Someone on the link asked for silence with 802.3 PAUSE or PFC frames: nothing was lost, but what "
    "should have been sent waited, and where it waited longer than the local ACK timeout, it was sent again "
    "for nothing.",
    "MAC control frames (EtherType 0x8808) with a time above zero, their sender and priorities; timeouts "
    "that fall together with them. Without such frames: a host falls silent in one class, on several "
    "connections at once, its other classes go on, nothing is missing behind the silence, and timers have "
    "run out.",
    "tail-loss and ack-loss: the same silence, but no pause. A capture on a host shows pause frames only "
    "where its NIC hands them on; most do not, and then the counters tell.",
    "Follow the pauses to where they begin: the sender of these frames is congested itself or passes on its "
    "own neighbour's pauses (rx/tx_prioN_pause and pause_duration in `ethtool -S`, PFC watchdog on the "
    "switch). A slow receiver (PCIe, IOMMU, a NIC out of receive buffers) is the usual origin.",
    _look,
)
