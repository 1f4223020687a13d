"""``ecn-unanswered`` and ``cnp-storm``: congestion control that does not work (IBA Vol. 1, A17.9.3)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.finding import MAX_LISTED, WARNING, Finding, Rule
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.flows.view import FlowView
    from rocekit.track.connections import Connection

#: A mark this close to the end of the capture is ignored: the CNP may come after the end.
_ANSWER_NS: Final = 1_000_000
#: CNPs for one QP closer together than most NICs are set to (mlx5: min_time_between_cnps is 4 µs in what
#: `mlxconfig` prints of most of NVIDIA's; of ConnectX-4 it is 0).
_CLOSE_NS: Final = 4_000
#: The fewest CNPs that are called a storm.
_STORM: Final = 10
#: The rate before the first CNP is measured over at most this time.
_BEFORE_NS: Final = 10_000_000
#: A sender that keeps at least this share of its rate has not slowed down.
_SLOWED: Final = 0.9
#: CNPs further apart than this say nothing of a sender's rate: DCQCN raises it again after each time of 55 µs
#: without one (Zhu et al., SIGCOMM 2015; mlx5: 300 µs), so it may cut its rate at each and keep its average.
_RECOVERY_NS: Final = 60_000


def _look_unanswered(evidence: Evidence) -> Iterator[Finding]:
    if evidence.observer is None:
        return
    marked = evidence.survey.sending("marked", 1)
    notified = evidence.observer.table.notified_pairs() if marked else frozenset()
    for connection in marked:
        for side in (0, 1):
            view = evidence.survey.flow(connection, side)
            back = evidence.survey.flow(connection, 1 - side)
            if view is None or back is None or not view.marked_count:
                continue
            if (back.src, back.dst) in notified or evidence.last_ns - view.marked[0][0] < _ANSWER_NS:
                continue
            span = view.marked[-1][0] - view.marked[0][0]
            yield UNANSWERED.finding(
                f"{plural(view.marked_count, 'packet')} on {connection.way(side)} "
                f"{'was' if view.marked_count == 1 else 'were'} marked CE, but {connection.named(1 - side)} "
                "sent no CNP",
                connection=connection,
                frames=[frame for _, frame in view.marked],
                evidence={
                    "marked_packets": view.marked_count,
                    "packets": view.packets,
                    "cnps": 0,
                    "marked_span_ns": span,
                },
            )


def _look_storm(evidence: Evidence) -> Iterator[Finding]:
    if evidence.observer is None:
        return
    for connection in evidence.survey.sending("cnps", _STORM):
        for side in (0, 1):
            view = evidence.survey.flow(connection, side)
            back = evidence.survey.flow(connection, 1 - side)
            if view is not None and back is not None and len(back.cnps) >= _STORM:
                yield from _storm(evidence, connection, side, view, back)


def _storm(
    evidence: Evidence, connection: Connection, side: int, view: FlowView, back: FlowView
) -> Iterator[Finding]:
    times = [time for time, _ in back.cnps]
    gaps = sorted(b - a for a, b in pairwise(times))
    close = sum(gap < _CLOSE_NS for gap in gaps)
    rates = rates_around(view, times)
    lasting = gaps[len(gaps) // 2] <= _RECOVERY_NS
    kept_rate = lasting and rates is not None and rates[1] >= _SLOWED * rates[0]
    if not kept_rate and close * 2 < len(gaps):
        return
    found: dict[str, Any] = {
        "cnps": back.cnp_count,
        "spacing_min_ns": gaps[0],
        "spacing_median_ns": gaps[len(gaps) // 2],
        "closer_than_4_us": close,
        "marked_packets": view.marked_count,
    }
    if rates is not None:
        found |= {"rate_before_bps": round(rates[0]), "rate_after_bps": round(rates[1])}
    why = f"{duration(gaps[len(gaps) // 2])} apart"
    if kept_rate and rates is not None:
        why += f"; its rate: {rates[0] / 1e9:.3g} Gb/s before, {rates[1] / 1e9:.3g} Gb/s during them"
    yield STORM.finding(
        f"{connection.named(side)} got {plural(back.cnp_count, 'CNP')} {why}",
        connection=connection,
        frames=[frame for _, frame in back.cnps][:MAX_LISTED],
        evidence=found,
        advice=STORM.what_to_do
        if kept_rate
        else "The receiver sends CNPs less than 4 µs apart, which is what most of NVIDIA's NICs are set to: "
        "raise its minimum time between CNPs (mlx5: "
        "/sys/kernel/debug/mlx5/PCI/cc_params/np_min_time_between_cnps, or of MLNX_OFED "
        "/sys/class/net/IFACE/ecn/roce_np/min_time_between_cnps), or find out who else sends CNPs.",
    )


def rates_around(view: FlowView, cnps: list[int]) -> tuple[float, float] | None:
    """The sender's rate before the first CNP and in the later half of them."""
    before = view.rate_between(max(view.first_ns, cnps[0] - _BEFORE_NS), cnps[0])
    after = view.rate_between(cnps[len(cnps) // 2], cnps[-1])
    return None if not before or after is None else (before, after)


UNANSWERED = Rule(
    "ecn-unanswered",
    WARNING,
    "packets were marked CE, and no CNP came",
    "Switches marked packets of this connection with CE in the IP header (congestion), but the receiver "
    "sent no CNP. The sender does not learn that it should slow down, so queues fill until packets are "
    "dropped or the fabric pauses.",
    "CE on data packets, and no CNP (opcode 0x81) to the sender's QP.",
    "A capture of one direction has no CNPs; then nothing is reported. Some receivers send one CNP for all "
    "QPs of a host: a CNP for any QP of the two hosts counts. Soft RoCE never sends CNPs.",
    "Enable congestion notification at the receiver for the priority of these packets (mlx5: "
    "ROCE_CC_PRIO_MASK_P1 of `mlxconfig`, or of MLNX_OFED /sys/class/net/IFACE/ecn/roce_np/enable/PRIO). "
    "Check that CNPs are not dropped: np_ecn_marked_roce_packets and np_cnp_sent at the receiver, "
    "rp_cnp_handled at the sender.",
    _look_unanswered,
)
STORM = Rule(
    "cnp-storm",
    WARNING,
    "CNPs keep coming and the rate does not fall, or they come too close together",
    "CNPs keep coming to a sender that does not slow down, or they come less than 4 µs apart, which is what "
    "most of NVIDIA's NICs are set to (a ConnectX-4 is set to none).",
    "The time between CNPs for one QP, and the sender's rate before the first and during the later ones.",
    "Congestion control at work: if the sender's rate falls, any number of CNPs is normal. So are CNPs more "
    "than 60 µs apart: the rate rises again between them. A sender whose rate other senders or pauses limit "
    "has no rate of its own to judge by: then nothing is reported.",
    "Check that the sender reacts: rate control is enabled for that priority (mlx5: ROCE_CC_PRIO_MASK_P1 of "
    "`mlxconfig`, or of MLNX_OFED /sys/class/net/IFACE/ecn/roce_rp/enable/PRIO); compare rp_cnp_handled with "
    "rp_cnp_ignored. If it does react, find the congested port: an incast, or a marking threshold (ECN Kmin) "
    "that is too low.",
    _look_storm,
)
RULES = (UNANSWERED, STORM)
