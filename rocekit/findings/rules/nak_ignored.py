"""``nak-ignored``: a requester did not obey a NAK, but waited for its timer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocekit.findings.costs import against_timeout
from rocekit.findings.finding import MAX_LISTED, WARNING, Finding, Rule
from rocekit.findings.stories import is_sequence_nak
from rocekit.track.causes import OBEYED_NS
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer


class _Ignored(NamedTuple):
    """A NAK that was not obeyed, and the repeat that the timer caused instead."""

    nak: Event
    repeat: Event
    transfer: Transfer | None
    came_ns: int

    @property
    def waited_ns(self) -> int:
        return self.repeat.time_ns - self.came_ns

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "psn": wire_psn(self.nak.psn),
            "time_ns": self.nak.time_ns,
            "nak_frame": self.nak.frame,
            "repeat_frame": self.repeat.frame,
            "waited_ns": self.waited_ns,
        }
        if self.transfer is not None:
            found["transfer"] = self.transfer.id
        return found


def _look(evidence: Evidence) -> Iterator[Finding]:
    for connection in evidence.connections:
        if connection.naks and (evidence.met.ignored or connection.stray_events):
            for side in (0, 1):
                ignored, obeyed = _of_direction(evidence, connection, side)
                if ignored:
                    yield _finding(evidence, connection, side, ignored, obeyed)


def _of_direction(evidence: Evidence, connection: Connection, side: int) -> tuple[list[_Ignored], list[int]]:
    """The NAKs that a requester did not obey, and the times in which it obeyed others."""
    own = evidence.transfers_of.get((connection.id, side), ())
    refused = [e for t in own if t.naks for e in t.events]
    if not any(e.ignored for e in (*refused, *connection.stray_events)):
        return [], []
    marks: list[tuple[Event, Transfer | None]] = [(e, t) for t in own if t.events for e in t.events]
    marks += [(e, None) for e in connection.stray_events if e.side == side]
    marks.sort(key=lambda mark: (mark[0].time_ns, mark[0].frame))
    pending: list[tuple[Event, Transfer | None]] = []
    ignored: list[_Ignored] = []
    obeyed: list[int] = []
    repeated = -1  # what was sent when it last went back
    for event, transfer in marks:
        if event.kind == "nak" and is_sequence_nak(event):
            pending.append((event, transfer))
        elif event.kind == "repeat" and event.opens:
            if event.cause == "timeout":
                for nak, t in pending:
                    came_ns = _came_ns(evidence, nak) if nak.ignored and nak.psn <= repeated else None
                    if came_ns is not None and event.time_ns - came_ns > OBEYED_NS:
                        ignored.append(_Ignored(nak, event, t, came_ns))
            elif event.cause == "nak" and event.doubt is None and pending:
                obeyed.append(event.time_ns - (_came_ns(evidence, pending[-1][0]) or event.time_ns))
            repeated = event.sent_psn
            pending.clear()
        elif event.kind == "repeat" and pending:
            pending = [(nak, t) for nak, t in pending if not _is_sent_behind(evidence, nak, event)]
    return ignored, obeyed


def _is_sent_behind(evidence: Evidence, nak: Event, repeat: Event) -> bool:
    """Whether a go-back under way went on behind a NAK with the packet that it names.

    To obey the NAK, the requester would have sent just that one. It was lost, so the timer ran out.
    """
    if not (nak.ignored and repeat.psn <= nak.psn <= repeat.last_psn):
        return False
    came_ns = _came_ns(evidence, nak)
    return came_ns is not None and came_ns <= repeat.time_ns


def _came_ns(evidence: Evidence, nak: Event) -> int | None:
    """When a NAK passed the last capture point on its way to the requester; None if it did not."""
    sightings = evidence.sightings
    if sightings is None or evidence.paths is None:
        return nak.time_ns
    row = sightings.row_of(nak.frame)
    if row < 0 or evidence.paths.lost_between(nak.frame) is not None:
        return None
    return max(sightings.times_of(row).values())


def _is_proven(evidence: Evidence, each: _Ignored) -> bool:
    """Whether a second capture has the NAK too, so that the way from the first delayed nothing.

    That one, at the requester, must have what the requester sends as well: repeats may have been lost behind
    it. Two points of one capture, as before and behind a router, are both as far from the requester as that
    is.
    """
    sightings = evidence.sightings
    if sightings is None or sightings.one_clock:
        return False
    row, repeat = sightings.row_of(each.nak.frame), sightings.row_of(each.repeat.frame)
    if row < 0 or repeat < 0 or evidence.paths is None:
        return False
    came = sightings.times_of(row)
    last = max(came, key=lambda file: came[file])
    return len(came) > 1 and last in sightings.times_of(repeat) and not evidence.paths.missed_shares.get(last)


def _waited_ns(ignored: Sequence[_Ignored]) -> dict[int, int]:
    """How long each wait took, by the frame that ended it. NAKs before the same repeat share a wait."""
    waits: dict[int, int] = {}
    for each in ignored:
        waits[each.repeat.frame] = max(each.waited_ns, waits.get(each.repeat.frame, 0))
    return waits


def _finding(
    evidence: Evidence, connection: Connection, side: int, ignored: Sequence[_Ignored], obeyed: Sequence[int]
) -> Finding:
    waits = sorted(_waited_ns(ignored).values())
    pace_ns = sorted(obeyed)[len(obeyed) // 2] if obeyed else None
    proven = all(_is_proven(evidence, each) for each in ignored)
    found: dict[str, Any] = {
        "count": len(ignored),
        "psns": [wire_psn(each.nak.psn) for each in ignored[:MAX_LISTED]],
        "waits": len(waits),
        "waited_ns": sum(waits),
        "waited_min_ns": waits[0],
        "waited_max_ns": waits[-1],
        "obeyed_naks": len(obeyed),
        "obeyed_median_ns": pace_ns,
        "waited_beyond_pace_ns": sum(w - (pace_ns or 0) for w in waits),
        "or_lost_behind_capture": not proven,
        "cases": [each.to_dict() for each in ignored[:MAX_LISTED]],
    } | against_timeout(evidence.timeout_ns(connection, side), waits)
    likely = "" if proven else "probably "
    what = "a NAK" if len(ignored) == 1 else plural(len(ignored), "NAK")
    others = ""
    if pace_ns is not None:
        others = f" (others that it obeyed: {len(obeyed):,}, median {duration(pace_ns)})"
    return RULE.finding(
        f"{connection.named(side)} {likely}ignored {what} while it was repeating, and waited "
        f"{duration(sum(waits))} for its timer{others}",
        connection=connection,
        transfer=ignored[0].transfer,
        frames=[frame for each in ignored for frame in (each.nak.frame, each.repeat.frame)],
        evidence=found,
        advice=RULE.what_to_do + ("" if proven else _PROBABLY),
    )


_PROBABLY: Final = (
    " “Probably” means: the NAK is in the capture, and the requester went on only after its timer. Open: a "
    "NAK that was lost or delayed behind the capture point looks the same, and so do repeats that were lost "
    "before it, or that it missed."
)
RULE = Rule(
    "nak-ignored",
    WARNING,
    "a requester ignored a NAK and waited for its timer",
    "A NAK “PSN sequence error” came while the requester was already repeating. The requester did not obey "
    "it, but waited until its timer expired: each such NAK costs a timeout instead of a round trip. Linux's "
    "rdma_rxe does this: once it has gone back, it obeys no NAK until an ACK or a response comes.",
    "A go-back, then a NAK for a PSN that was sent before it, then silence for many times as long as the "
    "requester needs to obey a NAK, then a repeat from that PSN or from before it. With several captures, "
    "the wait starts when the NAK passed the last one on its way.",
    "loss: says what was lost; its delay contains the same wait. tail-loss: no NAK came. A NAK that was lost "
    "or delayed behind the capture point looks the same, and so do repeats that were lost before it. A "
    "second capture, at the requester, decides.",
    "The device or its driver does this, the network does not. Fewer losses make it rarer. A smaller timeout "
    "(rdma_cm: RDMA_OPTION_ID_ACK_TIMEOUT; perftest: --qp-timeout; ibv_modify_qp: timeout) makes each wait "
    "shorter: keep it above the worst round trip. Report it to the maker of the requester's driver.",
    _look,
)
