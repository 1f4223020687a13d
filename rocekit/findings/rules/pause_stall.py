"""``pause-stall``: the fabric paused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.costs import all_frames, cost_words, costs, main_transfer
from rocekit.findings.finding import WARNING, Finding, Rule
from rocekit.findings.paused_classes import HeldClasses, PausedClass, SilentClasses
from rocekit.findings.paused_waits import Stalls, stalls_of
from rocekit.findings.stories import PAUSE_STALL
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.packets.pauses import Pause

_ALL_PRIORITIES: Final = 0xFF


def _look(evidence: Evidence) -> Iterator[Finding]:
    senders: dict[str, list[Pause]] = {}
    for pause in evidence.pauses:
        senders.setdefault(pause.source, []).append(pause)
    paused = {source: own for source, pauses in senders.items() if (own := [p for p in pauses if p.quanta])}
    if paused:
        stalls = stalls_of(evidence, list(paused.values()))
        classes = SilentClasses(evidence)
        for (source, pausing), stalled in zip(paused.items(), stalls, strict=True):
            pauses = senders[source]
            yield _paused(source, pauses, pausing, stalled, classes.during(pauses))
    yield from _inferred(evidence)
    if not evidence.pauses and evidence.counts.pause_frames:
        yield RULE.finding(
            f"{plural(evidence.counts.pause_frames, 'pause frame')} in this capture",
            evidence={"pause_frames": evidence.counts.pause_frames},
        )


def _inferred(evidence: Evidence) -> Iterator[Finding]:
    """Silences of a whole traffic class without a captured pause frame."""
    spells: dict[tuple[str | None, tuple[int, int]], list[Story]] = {}
    for stories in evidence.stories_of(PAUSE_STALL):
        for story in stories:
            if story.paused is not None:
                spells.setdefault((story.connection.ips[story.side], story.paused), []).append(story)
    for (host, (start, end)), stories in spells.items():
        connections = {s.connection.id for s in stories}
        yield RULE.finding(
            f"One traffic class of {host} was silent for {duration(end - start)} on {len(connections)} "
            f"connections at once, while another went on: {cost_words(stories)}",
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
            advice="Probably a pause: nothing is missing after the silence, though no pause frame was "
            "captured. Counters decide (rx_prioN_pause and rx_prioN_pause_duration in `ethtool -S` at the "
            "silent host, counters and PFC watchdog of its switch). " + RULE.what_to_do,
        )


def _paused(
    source: str, pauses: Sequence[Pause], pausing: Sequence[Pause], stalls: Stalls, silent: HeldClasses
) -> Finding:
    from rocekit.files.frame_names import frame_reference

    masks = {p.priorities for p in pausing}
    priorities = sorted({bit for mask in masks for bit in range(8) if mask >> bit & 1})
    plain = masks == {_ALL_PRIORITIES}
    span = pausing[-1].time_ns - pausing[0].time_ns
    found: dict[str, Any] = {
        "pause_frames": len(pausing),
        "release_frames": len(pauses) - len(pausing),
        "source": source,
        "priorities": None if plain else priorities,
        "longest_quanta": max(p.quanta for p in pausing),
        "span_ns": span,
        "stalled_transfers": stalls.waits,
        "silent_classes": [c.to_dict() for c in silent.longest],
    }
    if stalls.waits:
        found["longest_stall_ns"] = stalls.longest_ns
    what = "all traffic" if plain else f"priority {', '.join(map(str, priorities))}"
    title = f"{source} paused {what}: {plural(len(pausing), 'pause frame')}"
    if span:
        title += f" in {duration(span)}"
    if silent.longest:
        title += f"; meanwhile {', '.join(map(_silent_words, silent.longest[:_NAMED]))}"
    guessed = not plain and silent.by_dscp
    open_ = (_GUESSED if guessed else "") + (_WHICH if silent.several_hosts else "")
    return RULE.finding(
        title,
        advice=RULE.what_to_do + open_,
        frames=[frame_reference(p.file, p.frame) for p in pausing],
        evidence=found,
    )


def _silent_words(silent: PausedClass) -> str:
    times = f" ({len(silent.spells):,} times, the longest)" if len(silent.spells) > 1 else ""
    return f"DSCP {silent.dscp} of {silent.host} sent nothing for {duration(silent.longest_ns)}{times}"


#: Silent classes that a title names.
_NAMED: Final = 3
_WHICH: Final = (
    " A pause stops only the other end of its own link: not all silent hosts need have been stopped by it."
)
_GUESSED: Final = (
    " Open: whether these DSCPs have the paused priorities. There are no VLAN tags; by default a DSCP's "
    "priority is an eighth of it (trust and dscp2prio in `mlnx_qos`)."
)


RULE = Rule(
    "pause-stall",
    WARNING,
    "the fabric paused",
    "A device on the link asked for silence with 802.3 PAUSE or PFC frames. Nothing was lost, but packets "
    "had to wait. Where they waited longer than the local ACK timeout, the requester sent them again "
    "needlessly.",
    "MAC control frames (EtherType 0x8808) with a pause time above zero, their sender and priorities; "
    "timeouts at the same time, and classes of these priorities that sent nothing meanwhile. Without such "
    "frames: one traffic class of a host is silent on several connections at once, its other classes go on, "
    "nothing is missing after the silence, and timers have expired.",
    "tail-loss and ack-loss: the same silence, but no pause. A capture on a host has pause frames only if "
    "its NIC passes them on; most do not, and then the counters decide.",
    "Follow the pauses to their origin: the sender of these frames is congested itself, or passes on the "
    "pauses of its own neighbour (rx/tx_prioN_pause and pause_duration in `ethtool -S`, PFC watchdog on "
    "the switch). The usual origin is a slow receiver (PCIe, IOMMU, a NIC without free receive buffers).",
    _look,
)
