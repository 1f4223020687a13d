"""QP pairs that a journal names, and the attributes that its QPs were given."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from rocekit.correlate.addresses import gid_ip, may_be
from rocekit.journal.work_requests import JournalQp, Programs
from rocekit.track.connections import Negotiated
from rocekit.track.pairs.known_pairs import Pair


def _negotiated(qp: JournalQp, peer: JournalQp | None = None) -> Negotiated:
    """A QP's attributes as the journal has them."""
    a = qp.attributes
    return Negotiated(
        starting_psn=a.get("sq_psn", None if peer is None else peer.attributes.get("rq_psn")),
        path_mtu=a.get("path_mtu"),
        retry_count=a.get("retry_cnt"),
        rnr_retry_count=a.get("rnr_retry"),
        ack_timeout=a.get("timeout"),
        min_rnr_timer=a.get("min_rnr_timer"),
        initiator_depth=a.get("max_rd_atomic"),
        responder_resources=a.get("max_dest_rd_atomic"),
        traffic_class=a.get("traffic_class"),
    )


def journal_pairs(programs: Programs) -> list[Pair]:
    """The QP pairs that a journal names. Either end knows both QPNs, so the journal of one end is enough."""
    paired = ("RC", "UC", "XRC", None)
    connected = [qp for qp in programs.qps if qp.attributes.get("dest_qpn") and qp.transport in paired]
    by_numbers: dict[tuple[int, int], list[JournalQp]] = {}
    for qp in connected:
        by_numbers.setdefault((qp.qpn, int(qp.attributes["dest_qpn"])), []).append(qp)
    pairs = []
    done: set[int] = set()
    for qp in connected:
        if id(qp) in done:
            continue
        peer = _peer(qp, by_numbers.get((int(qp.attributes["dest_qpn"]), qp.qpn), ()))
        done.update((id(qp), id(peer)))
        a = qp.attributes
        other = Negotiated(starting_psn=a.get("rq_psn"), path_mtu=a.get("path_mtu"))
        pairs.append(
            Pair(
                qp.transport or "RC",
                (a.get("local_ip"), a.get("dest_ip") or gid_ip(a.get("dest_gid"))),
                (qp.qpn, int(a["dest_qpn"])),
                (_negotiated(qp, peer), _negotiated(peer, qp) if peer is not None else other),
                span_ns=_span_ns(qp, peer),
            )
        )
    return pairs


def _span_ns(qp: JournalQp, peer: JournalQp | None) -> tuple[int, int] | None:
    """When the journal has events of either QP."""
    spans = [q.span_ns for q in (qp, peer) if q is not None and q.span_ns is not None]
    return (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None


def _peer(qp: JournalQp, others: Iterable[JournalQp]) -> JournalQp | None:
    """The QP that ``qp`` is connected to, if exactly one QP of the journal fits.

    Args:
        others: those with its peer's QPN that are connected to its own.
    """
    fitting = (
        other
        for other in others
        if other is not qp
        and may_be(other.attributes.get("local_ip"), qp.attributes.get("dest_ip"))
        and may_be(qp.attributes.get("local_ip"), other.attributes.get("dest_ip"))
    )
    found = list(islice(fitting, 2))
    return found[0] if len(found) == 1 else None
