"""Counts and times of each direction of a connection.

Counts have the names of the Open Traffic Generator's RoCE v2 results, where these exist. Times come from
transfers and from the stories behind findings; each has a count, minimum, median, 99th percentile, maximum
and mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.explanation.host_statistics import CM_NAMES, peers
from rocekit.explanation.way_sums import WaySums
from rocekit.findings.rules.congestion import rates_around
from rocekit.findings.rules.go_back_cost import Efficiency
from rocekit.findings.stories import ICRC_BAD, IMPLIED_NAK, LOSS, NEEDLESS, RNR, TAIL_LOSS, USED_AGAIN
from rocekit.findings.stories.copies import lost_copies
from rocekit.flows.spread import Spread
from rocekit.wire.network import ECN_BITS

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.flows.view import FlowView
    from rocekit.points.sightings import OneWay
    from rocekit.track.connections import Connection

_STEPS: Final = (("REQ", "REP"), ("REP", "RTU"), ("REQ", "RTU"), ("REQ", "REJ"), ("DREQ", "DREP"))
#: Figures that are unknown where responses are cut before their AETH.
_OF_SYNDROMES: Final = (
    *("resent_per_loss", "frame_sequence_error", "frame_delta", "message_fail"),
    *("ack_tx", "ack_rx", "nak_tx", "nak_rx", "rnr_nak_rx"),
)
_ACK: Final = frozenset(v for v, o in wire.OPCODES.items() if o.operation == "ACK")


@dataclass(frozen=True, slots=True)
class FlowStatistics:
    """One direction of a connection: the requests of ``side``, and the packets that it sent.

    Attributes:
        counts: by OTG's names; None if unknown.
        times: ``ack_round_trip`` (last packet of a message to its acknowledgement), ``read_response_time``,
            ``nak_generation`` (hole to NAK), ``nak_reaction`` (NAK to repeat), ``retransmission_latency``
            (first sign of a loss to its repeat), ``ack_timeout`` (silence before a repeat), ``rnr_wait``,
            ``cnp_spacing``, ``message_latency`` (first packet to acknowledgement).
        agreed: what CM messages and journals say about them.
    """

    connection: Connection
    side: int
    counts: Mapping[str, int | float | None]
    times: Mapping[str, Spread]
    agreed: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {
            "connection": self.connection.id,
            "tx": self.connection.end(self.side),
            "rx": self.connection.end(1 - self.side),
            **self.counts,
            "times": {name: spread.to_dict() for name, spread in self.times.items()},
            "agreed": dict(self.agreed),
        }


@dataclass(frozen=True, slots=True)
class Statistics:
    """All counts and times.

    Attributes:
        flows: the directions with requests; times: the same times over all of them.
        cm_counts: CM messages by OTG's names; cm_steps: the time between them.
        peers: counts of each host.
        one_way: with several captures, the delays from one capture point to the next.
    """

    flows: Sequence[FlowStatistics]
    times: Mapping[str, Spread]
    cm_counts: Mapping[str, int]
    cm_steps: Mapping[str, Spread]
    peers: Sequence[Mapping[str, Any]] = ()
    one_way: Sequence[OneWay] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "flows": [flow.to_dict() for flow in self.flows],
            "times": {name: spread.to_dict() for name, spread in self.times.items()},
            "cm": {
                **self.cm_counts,
                "steps": {name: spread.to_dict() for name, spread in self.cm_steps.items()},
            },
            "peers": [dict(peer) for peer in self.peers],
            "one_way": [way.to_dict() for way in self.one_way],
        }


def statistics(evidence: Evidence) -> Statistics:
    """The statistics of the evidence."""
    stories: dict[tuple[int, int], list[Story]] = {}
    for story in evidence.stories:
        stories.setdefault((story.connection.id, story.side), []).append(story)
    flows: list[FlowStatistics] = []
    sums = WaySums(evidence.transfers)
    every: dict[str, list[Any]] = {name: list(times) for name, times in sums.times.items()}
    for connection in evidence.connections:
        for side in (0, 1):
            place = sums.place.get(2 * connection.id + side)
            if place is None:
                continue
            own = stories.get((connection.id, side), [])
            after = _story_times(evidence, connection, side, own)
            for name, values in after.items():
                every.setdefault(name, []).append(np.array(values, np.int64))
            spreads = _spreads(
                sums.times_of(place) | {n: np.array(v, np.int64) for n, v in after.items() if v}
            )
            flows.append(
                FlowStatistics(
                    connection,
                    side,
                    _counts(evidence, connection, side, sums, spreads.get("message_latency"), own),
                    spreads,
                    _agreed(evidence, connection, side),
                )
            )
    cm_counts, steps = _cm(evidence)
    ways = () if evidence.sightings is None else evidence.sightings.one_way
    times = _spreads({name: np.concatenate(values) for name, values in every.items() if values})
    return Statistics(flows, times, cm_counts, steps, peers(evidence, sums.refused), ways)


def _spreads(times: Mapping[str, NDArray[np.int64]]) -> dict[str, Spread]:
    found = {name: Spread.of_column(values) for name, values in times.items()}
    return {name: spread for name, spread in found.items() if spread is not None}


def _counts(
    evidence: Evidence,
    connection: Connection,
    side: int,
    sums: WaySums,
    latency: Spread | None,
    stories: Sequence[Story],
) -> dict[str, int | float | None]:
    mine = _view(evidence, connection, side)
    back = _view(evidence, connection, 1 - side)
    way = 2 * connection.id + side
    own, other = sums.place[way], sums.place.get(way ^ 1)
    first, last = sums.first_ns[own], sums.last_ns[own]
    eventful = sums.eventful[own]
    received = Counter(e.kind for t in eventful for e in t.events)
    sent = Counter(e.kind for t in (() if other is None else sums.eventful[other]) for e in t.events)
    naks, rnrs = _refusals(back, received)
    refused = sum(_refusals(mine, sent))
    # What another connection has packets of is not this one's: no flow, and not nothing.
    shared = [evidence.survey.is_shared(connection, s) for s in (side, 1 - side)]
    unknown = [connection.qpns[1 - side] is None or shared[0], connection.qpns[side] is None or shared[1]]
    sequence = sum(
        e.kind == "nak" and wire.syndrome_value(e.syndrome or 0) == wire.NAK_SEQUENCE_ERROR
        for t in eventful
        if t.naks
        for e in t.events
    )
    rates = None
    if mine is not None and back is not None and back.cnps:
        rates = rates_around(mine, [time for time, _ in back.cnps])
    figures: dict[str, int | float | None] = {
        "data_frames_tx": _data_frames(mine),
        "data_frames_retransmitted": sums.sent_again[own],
        "resent_per_loss": Efficiency.of(stories).each,
        "frame_sequence_error": sequence,
        "frame_delta": None if connection.transport in ("UC", "UD") else _lost(stories),
        "tx_bytes": None if mine is None else mine.payload,
        "data_tx_rate_bps": _rate(mine),
        "message_bytes": sums.done_bytes[own],
        "message_rate_bps": None if last <= first else sums.done_bytes[own] * 8e9 / (last - first),
        "message_tx": sums.count[own],
        "message_complete_rx": sums.done[own],
        "message_fail": sums.failed[own],
        "flow_completion_time_ns": last - first,
        "min_latency_ns": None if latency is None else latency.min_ns,
        "avg_latency_ns": None if latency is None else latency.mean_ns,
        "max_latency_ns": None if latency is None else latency.max_ns,
        "ecn_ce_rx": _seen(mine, "marked_count", unknown[0]),
        "cnp_tx": _seen(mine, "cnp_count", unknown[0]),
        "cnp_rx": _seen(back, "cnp_count", unknown[1]),
        "rate_before_cnps_bps": None if rates is None else rates[0],
        "rate_during_cnps_bps": None if rates is None else rates[1],
        "ack_tx": _acks(mine, refused),
        "ack_rx": _acks(back, naks + rnrs),
        "nak_tx": _refusals(mine, sent)[0],
        "nak_rx": naks,
        "rnr_nak_rx": rnrs,
        "outstanding_packets_max": sums.outstanding[own],
        "first_timestamp_ns": first,
        "last_timestamp_ns": last,
    }
    # What is cut before its AETH may be an ACK, NAK or RNR NAK.
    return figures | dict.fromkeys(_OF_SYNDROMES if connection.cut_responses else ())


def _view(evidence: Evidence, connection: Connection, side: int) -> FlowView | None:
    return evidence.survey.flow(connection, side)


def _refusals(view: FlowView | None, events: Mapping[str, int]) -> tuple[int, int]:
    """The NAKs and RNR NAKs of a flow; those of its transfers' events where the flow is not known."""
    return (events["nak"], events["rnr_nak"]) if view is None else (view.naks, view.rnr_naks)


def _seen(view: FlowView | None, name: str, unknown: bool) -> int | None:
    """A count of a flow; 0 where it has no packets, None where its packets are not known."""
    count: int | None = getattr(view, name, None if unknown else 0)
    return count


def _lost(stories: Sequence[Story]) -> int:
    """Packets known to be lost or corrupted on the way, as the findings count them."""
    return sum(
        s.lost if s.rule == ICRC_BAD else sum(copy.packets for copy in lost_copies(s))
        for s in stories
        if s.certain and s.rule in (LOSS, TAIL_LOSS, ICRC_BAD)
    )


def _rate(view: FlowView | None) -> float | None:
    """Payload bits per second, repeats included, from a flow's first packet to its last."""
    if view is None or view.last_ns <= view.first_ns:
        return None
    return view.payload * 8e9 / (view.last_ns - view.first_ns)


def _data_frames(view: FlowView | None) -> int | None:
    """Packets that belong to messages: requests and responses, no acknowledgements and no CNPs."""
    if view is None:
        return None
    return sum(n for v, n in view.opcodes.items() if v not in _ACK and v != wire.CNP_OPCODE)


def _acks(view: FlowView | None, naks: int) -> int | None:
    if view is None:
        return None
    return max(0, sum(n for v, n in view.opcodes.items() if v in _ACK) - naks)


def _story_times(
    evidence: Evidence, connection: Connection, side: int, stories: Sequence[Story]
) -> dict[str, list[int]]:
    """The times that come from stories and CNPs."""
    times: dict[str, list[int]] = {
        "nak_generation": [],
        "nak_reaction": [],
        "retransmission_latency": [],
        "ack_timeout": [],
        "rnr_wait": [],
        "cnp_spacing": [],
    }
    for story in stories:
        _time_story(story, times)
    back = _view(evidence, connection, 1 - side)
    if back is not None:
        times["cnp_spacing"] = [b - a for (a, _), (b, _) in pairwise(back.cnps)]
    return times


def _time_story(story: Story, times: dict[str, list[int]]) -> None:
    repeats = story.repeats
    if story.rule == RNR:
        for nak in story.rnrs:
            after = [g.time_ns for g in repeats if g.time_ns >= nak.time_ns and g.first_psn <= story.psn]
            if after:
                times["rnr_wait"].append(min(after) - nak.time_ns)
        return
    if story.naks and story.hole is not None and story.naks[0].time_ns >= story.hole.time_ns:
        times["nak_generation"].append(story.naks[0].time_ns - story.hole.time_ns)
    if not repeats:
        return
    if story.naks and repeats[0].cause == "nak":
        times["nak_reaction"].append(repeats[0].time_ns - story.naks[0].time_ns)
    if story.rule in (LOSS, IMPLIED_NAK):
        times["retransmission_latency"].append(max(0, repeats[0].time_ns - story.time_ns))
    if story.rule not in (NEEDLESS, USED_AGAIN):
        # Less than nothing is what a clock that was set back makes of a wait.
        times["ack_timeout"] += [g.waited_ns for g in repeats if g.cause == "timeout" and g.waited_ns >= 0]


def _agreed(evidence: Evidence, connection: Connection, side: int) -> dict[str, Any]:
    """The configured values that belong to the times."""
    negotiated = connection.negotiated[side]
    timeout_ns = evidence.timeout_ns(connection, side)
    timer = evidence.attribute(connection, 1 - side, "min_rnr_timer")
    found = {
        "path_mtu": connection.path_mtu,
        "ack_timeout_us": None if timeout_ns is None else timeout_ns / 1000,
        "min_rnr_timer_us": None if timer is None else wire.RNR_TIMER_US[int(timer)],
        "retry_count": negotiated.retry_count,
        "rnr_retry_count": negotiated.rnr_retry_count,
        "initiator_depth": negotiated.initiator_depth,
        "responder_resources": connection.negotiated[1 - side].responder_resources,
        "dscp": None if negotiated.traffic_class is None else negotiated.traffic_class >> ECN_BITS,
        "service_level": negotiated.service_level,
    }
    return {name: value for name, value in found.items() if value is not None}


def _cm(evidence: Evidence) -> tuple[dict[str, int], dict[str, Spread]]:
    """CM messages counted, and the time between them."""
    counted = Counter(r.message for r in evidence.cm_records)
    counts = {name: counted[message] for message, name in CM_NAMES.items() if counted[message]}
    steps: dict[str, list[int]] = {}
    for exchange in evidence.exchanges:
        first: dict[str, int] = {}
        for record in exchange.records:
            first.setdefault(record.message, record.time_ns)
        for begin, end in _STEPS:
            if begin in first and end in first and first[end] >= first[begin]:
                steps.setdefault(f"{begin}_to_{end}", []).append(first[end] - first[begin])
    return counts, _spreads({name: np.array(took, np.int64) for name, took in steps.items()})
