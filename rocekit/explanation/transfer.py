"""The explanation of one transfer: its steps with their times, and where the time went.

It reads the transfer, its work request and completion, and its events. It decides nothing that ``track`` or
``correlate`` has not found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rocekit.correlate import Timing, timing
from rocekit.correlate.matching import MATCHED_BY, ORDER
from rocekit.explanation.alike_steps import filled_late, summed_up
from rocekit.explanation.collective import collective_of
from rocekit.explanation.event_steps import Step, event_step, frame_words
from rocekit.findings.text import finding
from rocekit.track.transfers import ACKED, INCOMPLETE, NAK_PREFIX, RESPONSE_CUT, SENT
from rocekit.wire.notebook_html import block, escape
from rocekit.wire.psn import wire_psn
from rocekit.wire.text_table import Style, columns, plain
from rocekit.wire.words import duration, end, plural, size

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.findings import Finding
    from rocekit.track.transfers import Transfer

_LONG_OPERATION = {"WRITE": "RDMA WRITE", "READ": "RDMA READ", "ATOMIC_WRITE": "ATOMIC WRITE"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """A transfer with its work request, its steps, its time split up, and its verdict."""

    transfer: Transfer
    title: str
    steps: tuple[Step, ...]
    timing: Timing
    verdict: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    several: bool
    in_notebook: Callable[[Any], str] | None = field(default=None, repr=False, compare=False)

    def _repr_html_(self) -> str:
        return block(f"<pre>{escape(self)}</pre>") if self.in_notebook is None else self.in_notebook(self)

    @property
    def origin_ns(self) -> int:
        """Where the times start: when the WR was posted, or the first packet."""
        return self.steps[0].time_ns if self.steps else self.transfer.first_ns

    def summed_steps(self) -> tuple[Step, ...]:
        """The steps; of more than fill a screen, many alike ones as one."""
        return tuple(summed_up(self.steps, self.transfer, self.several))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the transfer with ``timing``, ``steps``, ``verdict``, ``notes``, ``findings``."""
        return {
            **self.transfer.to_dict(several=self.several),
            "timing": self.timing.to_dict(),
            "steps": [
                {"time_ns": s.time_ns, "what": s.what, "detail": s.detail, "trouble": s.trouble}
                for s in self.steps
            ],
            "verdict": self.verdict,
            "notes": list(self.notes),
            "findings": [f.to_dict(several=self.several) for f in self.findings],
        }

    def __str__(self) -> str:
        return story(self)


def story(explanation: Explanation, *, style: Style = plain, every: bool = False) -> str:
    """An explanation in text: title, verdict, findings, steps, notes. Times start at the first step.

    Args:
        every: print each step; else many alike ones as one line.
    """
    origin, steps = explanation.origin_ns, explanation.steps if every else explanation.summed_steps()
    rows = []
    for step in steps:
        offset = duration(step.time_ns - origin)
        rows.append((f"+{offset}", step.what, step.detail))
    lines = [style(explanation.title, "title"), f"  {explanation.verdict}"]
    for f in explanation.findings:
        lines += finding(f, style, several=explanation.several)
    aligned = columns(rows, right=frozenset({0}))
    for line, step in zip(aligned, steps, strict=True):
        lines.append(style(line, "warning") if step.trouble else line)
    if len(steps) < len(explanation.steps):
        words = f"{len(explanation.steps):,} steps, alike ones summed up (--steps lists each)"
        lines.append(style(f"  {words}", "dim"))
    lines += [style(f"  {note}", "dim") for note in explanation.notes]
    return "\n".join(lines)


def operation_name(transfer: Transfer) -> str:
    """The operation as people write it, with its immediate or invalidated rkey."""
    name = _LONG_OPERATION.get(transfer.operation, transfer.operation.replace("_", " "))
    for has, word, value in (
        (transfer.with_immediate, "immediate", transfer.immediate),
        (transfer.with_invalidate, "invalidate", transfer.invalidate_rkey),
    ):
        if has:
            name += f" with {word} " + ("(value cut)" if value is None else f"{value:#x}")
    return name


def explain(transfer: Transfer, analysis: Results | None = None) -> Explanation:
    """Explain a transfer: what happened to it, when and why. ``analysis`` adds clocks and findings."""
    several = analysis is not None and analysis.capture.several
    journal = None if analysis is None else analysis.journal
    clocks = {} if journal is None else journal.clocks
    time = timing(transfer, clocks)
    steps = sorted(_steps(transfer, time, several), key=lambda step: step.time_ns)
    findings = () if analysis is None else analysis.findings_of(transfer)
    return Explanation(
        transfer,
        _title(transfer, time),
        tuple(steps),
        time,
        verdict(transfer, time),
        tuple(_notes(transfer, analysis)),
        findings,
        several,
        None if analysis is None else analysis.html_of,
    )


def _title(transfer: Transfer, time: Timing) -> str:
    took = time.total_ns if time.total_ns is not None else time.wire_ns
    outcome = {
        ACKED: f"completed in {duration(took)}",
        SENT: "sent",
        INCOMPLETE: "seen in part",
        RESPONSE_CUT: "the response is cut: ACK or NAK unknown",
    }.get(transfer.status, transfer.status)
    if transfer.status.startswith(NAK_PREFIX):
        outcome = f"failed: NAK {transfer.status.removeprefix(NAK_PREFIX).replace('_', ' ')}"
    if transfer.wc is not None and transfer.wc.status != "SUCCESS":
        outcome = f"failed with {transfer.wc.status} after {duration(took)}"
    return (
        f"Transfer {transfer.id} · {operation_name(transfer)} {size(transfer.bytes)} · "
        f"{end(transfer.requester)} → {end(transfer.responder)} · {outcome}"
    )


def _steps(transfer: Transfer, time: Timing, several: bool) -> list[Step]:
    steps: list[Step] = []
    wr, wc = transfer.wr, transfer.wc
    if wr is not None:
        posted = wr.posted_ns - (wr.clock_offset_ns or 0)
        if time.software_ns is not None:
            posted = transfer.first_ns - time.software_ns
        steps.append(Step(posted, f"WR {wr.wr_id} posted", _wr_words(transfer)))
    steps.append(_first(transfer, several))
    late = filled_late(transfer.events)
    steps += [event_step(transfer, e, several, late=id(e) in late) for e in transfer.events]
    if transfer.is_read:
        steps += _responses(transfer, several)
    elif transfer.last_psn > transfer.first_psn and transfer.status != INCOMPLETE:
        last = transfer.request_end_ns
        again = any(e.kind == "repeat" and e.last_ns >= last for e in transfer.events)
        if last > transfer.first_ns and not again:
            steps.append(Step(last, f"PSN {wire_psn(transfer.last_psn)} last packet", ""))
    acked = _acknowledged(transfer, several)
    if acked is not None:
        steps.append(acked)
    if wc is not None:
        response = "the last response" if transfer.is_read else "the last ACK"
        answered = transfer.is_read or time.acknowledging_ns is not None
        after = response if answered and transfer.acked_ns is not None else "the last packet"
        at, when = wc.polled_ns - (wc.clock_offset_ns or 0), f"before {after}"
        if time.completion_ns is not None:
            at = transfer.first_ns + time.wire_ns + time.completion_ns
            when = f"{duration(time.completion_ns)} after {after}"
        vendor = wc.event.get("vendor_err")
        error = f", vendor error {vendor:#x}" if vendor else ""
        steps.append(
            Step(
                at,
                f"WC {wc.wr_id} {wc.status}",
                f"{when}{error}",
                wc.status != "SUCCESS",
            )
        )
    return steps


def _wr_words(transfer: Transfer) -> str:
    wr = transfer.wr
    assert wr is not None
    words = [wr.opcode]
    sges = wr.event.get("sges")
    if sges is not None:
        words.append(plural(len(sges), "SGE"))
    if wr.event.get("rkey") is not None:
        words.append(f"rkey {wr.event.get('rkey'):#x}")
    if wr.event.get("remote_va") is not None:
        words.append(f"remote {wr.event.get('remote_va'):#x}")
    if not wr.signaled:
        words.append("unsignaled")
    return ", ".join(words)


def _first(transfer: Transfer, several: bool) -> Step:
    if not transfer.started:
        what, detail = f"PSN {wire_psn(transfer.first_psn)} first seen", "the message started earlier"
    elif transfer.is_read:
        count = transfer.last_psn - transfer.first_psn + 1
        what = f"PSN {wire_psn(transfer.first_psn)} READ request"
        detail = f"{plural(count, 'response packet')} expected"
    else:
        count = transfer.last_psn - transfer.first_psn + 1
        what = f"PSN {wire_psn(transfer.first_psn)} {'first' if count > 1 else 'only'} packet"
        detail = plural(count, "packet") if count > 1 else size(transfer.bytes)
    return Step(transfer.first_ns, what, f"{frame_words(transfer.first_frame, several)}, {detail}")


def _responses(transfer: Transfer, several: bool) -> list[Step]:
    if transfer.packets == 0 or transfer.last_ns <= transfer.first_ns:
        return []
    detail = plural(transfer.packets, "response")
    if transfer.status != ACKED:
        return [Step(transfer.last_ns, "last response seen", detail)]
    detail = f"{frame_words(transfer.last_frame, several)}, {detail}, {size(transfer.bytes)}"
    return [Step(transfer.last_ns, f"PSN {wire_psn(transfer.last_psn)} last response", detail)]


def _acknowledged(transfer: Transfer, several: bool) -> Step | None:
    if transfer.acked_ns is None or transfer.acked_frame is None or transfer.is_read:
        return None
    frame = frame_words(transfer.acked_frame, several)
    if transfer.operation in ("FETCH_ADD", "CMP_SWAP"):
        before = "" if transfer.original is None else f", original value {transfer.original:#x}"
        return Step(transfer.acked_ns, f"PSN {wire_psn(transfer.first_psn)} response", f"{frame}{before}")
    if transfer.acked_by_cut:
        what = f"response that acknowledges PSN {wire_psn(transfer.last_psn)}"
        return Step(transfer.acked_ns, what, f"{frame}, cut before its AETH")
    return Step(transfer.acked_ns, f"ACK to PSN {wire_psn(transfer.last_psn)}", frame)


def _notes(transfer: Transfer, analysis: Results | None) -> list[str]:
    notes = []
    if (application := transfer.connection.application) is not None:
        notes.append(f"application: {application}")
    wr = transfer.wr
    if analysis is not None and analysis.journal is not None:
        if wr is None:
            notes.append("no work request of the journal matches this transfer")
        else:
            notes.append(f"work request matched by {MATCHED_BY[wr.matched_by or ORDER]}")
            if wr.wc is None and wr.implied_by is not None:
                notes.append(f"unsignaled: WC {wr.implied_by.wr_id} implies its completion")
            elif wr.wc is None:
                notes.append(
                    "its completion was not polled"
                    if wr.qp.is_whole
                    else "its completion was not polled, or is among what the journal lacks"
                )
            clock = analysis.journal.clocks.get(wr.qp.host)
            if clock is not None and clock.offset_ns:
                bounds = [b for b in (clock.low_ns, clock.high_ns) if b is not None]
                span = ", ".join(duration(b) for b in bounds)
                ahead = duration(clock.offset_ns)
                notes.append(f"clock of {clock.host}: {ahead} ahead of the capture (bounds: {span})")
            if clock is not None and clock.crossed_ns:
                notes.append(clock.crossing)
    if analysis is not None and (told := collective_of(transfer, analysis)) is not None:
        notes.append(told)
    if transfer.recv_wc is not None:
        received = transfer.recv_wc
        notes.append(f"received by RECV WR {received.wr_id}, WC {received.status}")
    if transfer.missing:
        notes.append(f"{plural(len(transfer.missing), 'packet')} of it not in the capture")
    if transfer.is_short:
        notes.append(f"{transfer.bytes:,} B came, and its first packet announced {transfer.length:,} B")
    if transfer.maybe_several and transfer.is_read:
        notes.append(
            "perhaps fewer packets and another message: with a larger path MTU, both fit into what is not in "
            "the capture"
        )
    elif transfer.maybe_several:
        notes.append(
            "perhaps more than one message: the end of one and the start of another fit into what is not in "
            "the capture"
        )
    return notes


def verdict(transfer: Transfer, time: Timing) -> str:
    """Where the time went, in one line."""
    parts = []
    if time.software_ns is not None:
        parts.append(f"software {duration(time.software_ns)}")
    wire_words = f"wire {duration(time.wire_ns)}"
    if time.recovery_ns:
        wire_words += f" ({duration(time.recovery_ns)} of it for {_recovered(transfer)})"
    parts.append(wire_words)
    if time.completion_ns is not None:
        parts.append(f"completion {duration(time.completion_ns)}")
    return " · ".join(parts)


def _recovered(transfer: Transfer) -> str:
    repeats = [e for e in transfer.events if e.kind == "repeat"]
    runs = len({e.run for e in repeats})
    waits = all(e.cause == "rnr" and e.doubt is None for e in repeats)
    return plural(runs, "RNR wait" if waits else "go-back")
