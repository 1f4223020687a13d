"""``retries-nearly-exhausted``: a PSN was sent again so often that its QP hardly had a retry left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.finding import INFO, MAX_LISTED, WARNING, Finding, Rule
from rocekit.track.transfers import ACKED
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

#: The largest retry count. It means seven retries; only for the RNR retry count does it mean no limit.
_LARGEST: Final = 7
#: With fewer retries than this, one that is left is no sign of trouble.
_SEVERAL: Final = 3


@dataclass(slots=True)
class _Tries:
    """The times gone back to one PSN, without progress between them."""

    psn: int
    transfer: Transfer | None
    repeats: list[Event]
    ended_well: bool = False

    @property
    def retries(self) -> int:
        return len(self.repeats)

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "psn": wire_psn(self.psn),
            "time_ns": self.repeats[0].time_ns,
            "retries": self.retries,
            "repeat_frame": self.repeats[0].frame,
            "trying_for_ns": self.repeats[-1].time_ns - self.repeats[0].time_ns + self.repeats[0].waited_ns,
        }
        if self.transfer is not None:
            found["transfer"] = self.transfer.id
        return found


def _look(evidence: Evidence) -> Iterator[Finding]:
    for connection in evidence.connections:
        for side in (0, 1) if connection.retransmitted_packets else ():
            limit, source = _limit(evidence, connection, side)
            if not limit or evidence.starts_wrong(connection, side):
                continue
            least = limit if limit < _SEVERAL else limit - 1
            near = [t for t in _tries(evidence, connection, side) if t.ended_well and t.retries >= least]
            if near:
                yield _finding(connection, side, near, limit, source)


def _limit(evidence: Evidence, connection: Connection, side: int) -> tuple[int | None, str]:
    """The retry count of a QP, and whether its journal or the CM exchange says so."""
    limit = evidence.attribute(connection, side, "retry_cnt")
    if limit is not None:
        return int(limit), "journal"
    return connection.negotiated[side].retry_count, "cm"


def _tries(evidence: Evidence, connection: Connection, side: int) -> list[_Tries]:
    """The times gone back, in groups without progress. An RNR wait uses up no retry, but another count."""
    marks: list[tuple[Event, Transfer | None]] = [
        (e, t) for t in evidence.transfers_of.get((connection.id, side), ()) if t.events for e in t.events
    ]
    marks += [(e, None) for e in connection.stray_events if e.side == side]
    marks = [m for m in marks if m[0].kind == "repeat" and m[0].opens and m[0].cause != "rnr"]
    marks.sort(key=lambda mark: (mark[0].time_ns, mark[0].frame))
    found: list[_Tries] = []
    for event, transfer in marks:
        if found and event.psn > found[-1].psn:
            found[-1].ended_well = True
        if found and event.psn == found[-1].psn:
            found[-1].repeats.append(event)
        else:
            found.append(_Tries(event.psn, transfer, [event]))
    progress = connection.progress[side]
    for tries in found:
        acked = tries.transfer is not None and tries.transfer.status == ACKED
        tries.ended_well |= acked or (progress is not None and progress.acked > tries.psn)
    return found


def _finding(connection: Connection, side: int, near: list[_Tries], limit: int, source: str) -> Finding:
    worst = max(near, key=lambda t: t.retries)
    used = worst.retries
    first, last = worst.repeats[0], worst.repeats[-1]
    took_ns = last.time_ns - first.time_ns + first.waited_ns
    beyond = used > limit
    who, psn = connection.named(side), wire_psn(worst.psn)
    if beyond:
        title = f"{who} sent PSN {psn} again {plural(used, 'time')}, though its retry count is {limit}"
    else:
        title = f"{who} used {used} of its {plural(limit, 'retry', 'retries')} for PSN {psn}"
    return RULE.finding(
        f"{title}, in {duration(took_ns)}, before it was acknowledged",
        connection=connection,
        transfer=worst.transfer,
        frames=[repeat.frame for tries in near for repeat in tries.repeats],
        evidence={
            "count": len(near),
            "psns": [wire_psn(t.psn) for t in near[:MAX_LISTED]],
            "retry_count": limit,
            "retry_count_from": source,
            "most_retries": used,
            "most_transmissions": used + 1,
            "retries_left": max(0, limit - used),
            "trying_for_ns": took_ns,
            "cases": [t.to_dict() for t in near[:MAX_LISTED]],
        },
        advice=_advice(limit, used, source),
        severity=INFO if beyond else WARNING,
    )


def _advice(limit: int, used: int, source: str) -> str:
    """What to do, by the count and what is left of it."""
    if used > limit:
        words = (
            "The requester does not count its retries as its retry count says, so it was not about to end. "
        )
        if source == "cm":
            words += "Or its QP has another retry count than the CM exchange names. "
    elif used == limit:
        words = "With one retry less, the QP would have ended with WC 12 (RETRY_EXC_ERR). "
    else:
        words = "Two more losses in a row would have ended the QP with WC 12 (RETRY_EXC_ERR). "
    words += RULE.what_to_do
    if limit == _LARGEST:
        words += (
            " 7 is the largest retry_cnt: it means seven retries and not “no limit”, as it does for "
            "rnr_retry; but some drivers (rdma_rxe) never count 7 down."
        )
    else:
        words += (
            f" Or raise retry_cnt, which is {limit} here (ibv_modify_qp, rdma_conn_param.retry_count; at "
            "most 7)."
        )
    return words


RULE = Rule(
    "retries-nearly-exhausted",
    WARNING,
    "a packet came through with its last retries",
    "The requester went back to the same PSN again and again, without progress between, and used all its "
    "retries, or all but one. Then the PSN was acknowledged. Timer and NAK use up the same count "
    "(retry_cnt), and progress restores it; RNR NAKs have a count of their own (rnr_retry). Info if it went "
    "back more often than its retry count allows: then its device does not count.",
    "The times gone back to one PSN, against the retry count that the CM exchange or the journal names.",
    "retry-exceeded: the retries ran out. rnr: RNR NAKs use up another count.",
    "Remove the cause of the losses first: see the other findings of this connection. A longer timeout makes "
    "the same retries last longer.",
    _look,
)
