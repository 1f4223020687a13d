"""A part of a capture: its packets, the exchange that connected its QPs, and its part of the journal.

Frames keep their times, lengths and link types; their numbers start at 1 again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.edit.redact import Redactor
from rocekit.edit.redact_frames import redact_batch
from rocekit.edit.redact_journal import redact_event
from rocekit.edit.slice_journal import slice_journal
from rocekit.errors import CaptureError, RocekitError, check_number
from rocekit.explanation.packets import CM, IGNORED, PacketStories, packet_stories
from rocekit.files.capture_names import JOURNAL_SUFFIX, stem
from rocekit.files.outputs import Together, check_output
from rocekit.files.pcapng_write import whole_pcapng
from rocekit.files.reader import open_capture
from rocekit.journal.writing import whole_journal
from rocekit.packets import HEADERS_BYTES, ICRC_INVALID, Packets
from rocekit.packets.decoder import Decoder
from rocekit.packets.locations import Locations
from rocekit.track.pairs.handshake import LONGEST_OFFER, parse_offer
from rocekit.wire.network import ETHERTYPE_MAC_CONTROL

if TYPE_CHECKING:
    from rocekit.analysis import Analysis
    from rocekit.files.frames import FrameBatch

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to keep: all that is given together, limited by the times.

    Attributes:
        connections, transfers: by id; findings: by rule.
        from_ns, to_ns: times on the capture's clock, both included; None: no limit.
    """

    connections: tuple[int, ...] = ()
    transfers: tuple[int, ...] = ()
    findings: tuple[str, ...] = ()
    from_ns: int | None = None
    to_ns: int | None = None

    @property
    def everything(self) -> bool:
        """Whether it limits nothing: then only frames that are not RoCE are left out."""
        return not (self.connections or self.transfers or self.findings) and not self.timed

    @property
    def timed(self) -> bool:
        return self.from_ns is not None or self.to_ns is not None


@dataclass(slots=True)
class Slice:
    """The part of a capture that was written.

    Attributes:
        path: the file; None if the capture has none of the chosen packets.
        frames: how many; sources: their numbers in the original capture.
        other_frames: TCP exchanges of QP numbers and pause frames among ``frames``.
        left_out: frames that are not RoCE and were not kept.
        wrong_icrcs: frames with an invalid ICRC, which cannot be checked without their payload.
    """

    path: str | None = None
    frames: int = 0
    sources: list[int] = field(default_factory=list)
    other_frames: int = 0
    left_out: int = 0
    wrong_icrcs: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """The files that were written.

    Attributes:
        slices: of each capture.
        journal: the journal's path, None if there is none; events: how many it has.
    """

    slices: list[Slice]
    journal: Path | None = None
    events: int = 0


def journal_beside(out: str | Path) -> Path:
    """Where an analysis looks for the journal of a capture: ``x.journal.jsonl`` beside ``x.pcapng``."""
    return Path(out).parent / f"{stem(out)}{JOURNAL_SUFFIX}"


def cut(
    analysis: Analysis,
    outs: Sequence[str | Path],
    choice: Choice,
    *,
    headers_only: bool = False,
    redactor: Redactor | None = None,
) -> Cut:
    """Write a part of an analysis's captures, and of its journal beside the first of them.

    Args:
        analysis: with all its transfers.
        outs: a pcapng file for each capture; ``"-"`` is standard output, which takes no journal.
        headers_only: leave out payloads, except the CM's; frames keep their wire length.
        redactor: replaces addresses, keys and payload; see ``rocekit.edit.redact``.

    Raises:
        CaptureError: one of ``outs`` cannot be written, or nothing is left to write.
        RocekitError: there is no such connection, transfer or finding, or one of ``outs`` is one of the
        captures. ValueError: there are not as many outputs as captures, or a capture is standard input.
    """
    files = analysis.capture.inputs
    if len(files) != len(outs) or "-" in files:
        raise ValueError("a capture is sliced by reading it again: give an output for each file")
    for out in outs:
        check_output(out, files)
    refusal = analysis.capture.contents.refusal("cut out")
    if refusal is not None:
        raise CaptureError(refusal, file=", ".join(files))
    stories = packet_stories(analysis)
    selected = _select(stories, choice)
    if not selected.any():
        raise CaptureError("it has no RoCE packets in that part", file=", ".join(files))
    with Together() as together:
        slices = [
            _write(stories, place, selected, out, choice, headers_only, redactor, together)
            for place, out in enumerate(outs)
        ]
        written = [s.path for s in slices if s.path is not None]
        if analysis.journal is None or "-" in written:
            return Cut(slices)
        whole = _whole(stories, selected)
        events = slice_journal(stories, selected, everything=choice.everything, whole=whole)
        if redactor is not None:
            events = [redact_event(event, redactor) for event in events]
        journal = journal_beside(written[0])
        with whole_journal(together, journal) as writer:
            for event in events:
                writer.write_event(event)
        return Cut(slices, journal, len(events))


def originals(analysis: Analysis) -> Iterable[str]:
    """The IP addresses in an analysis, which no replacement may equal."""
    for connection in analysis.connections:
        yield from (ip for ip in connection.ips if ip is not None)
        yield from (ip for around in connection.around for ip in around.outer)
    for record in analysis.cm:
        yield from (record.src, record.dst)
        yield from (str(v) for v in (record.cm.ip_cm or {}).values() if isinstance(v, str))
        yield from (v for v in record.cm.fields.values() if isinstance(v, str))
    if analysis.journal is not None:
        programs = analysis.journal.programs
        for qp in programs.qps:
            yield from qp.addresses
            yield from (str(v) for k, v in qp.attributes.items() if k in ("local_ip", "dest_ip", "dest_gid"))
        for event in programs.cm_events:
            yield from (str(v) for k, v in event.fields.items() if k in ("local_ip", "remote_ip"))


# ---------------------------------------------------------------------- which packets


def _select(stories: PacketStories, choice: Choice) -> Bools:
    """Which packets are chosen: one value for each row."""
    p = stories.packets
    selected = np.full(len(p), not (choice.connections or choice.transfers or choice.findings))
    for number in choice.connections:
        check_number(number, len(stories.analysis.connections), "connection")
        selected |= stories.connection == number
    for number in choice.transfers:
        check_number(number, len(stories.analysis.transfers), "transfer")
        selected |= _of_transfer(stories, number)
    for rule in choice.findings:
        selected |= _of_finding(stories, rule)
    if choice.timed:
        first = choice.from_ns if choice.from_ns is not None else -(1 << 62)
        last = choice.to_ns if choice.to_ns is not None else 1 << 62
        selected &= (p.time_ns >= first) & (p.time_ns <= last)
    if selected.any():
        used = np.zeros(len(stories.analysis.connections) + 1, np.bool_)
        used[stories.connection[selected]] = True
        used[-1] = False
        selected |= (stories.role == CM) & used[stories.connection]
    return selected


def _of_transfer(stories: PacketStories, number: int) -> Bools:
    """A transfer's packets, those that caused its repeats, and those that acknowledged it."""
    transfer = stories.analysis.transfers[number]
    mine = stories.transfer == number
    frames = [transfer.first_frame, transfer.last_frame]
    frames += [] if transfer.acked_frame is None else [transfer.acked_frame]
    for event in transfer.events:
        frames += [event.frame, event.last_frame, event.answer_frame]
    rows = stories.rows_of([frame for frame in frames if frame])
    causes = stories.cause_row[mine]
    mine[rows[rows >= 0]] = True
    mine[causes[causes >= 0]] = True
    return mine


def _of_finding(stories: PacketStories, rule: str) -> Bools:
    """A finding's connections from first packet to last, or its frames if it has no connection."""
    analysis = stories.analysis
    found = [finding for finding in analysis.findings if finding.rule == rule]
    if not found:
        rules = ", ".join(dict.fromkeys(f.rule for f in analysis.findings))
        have = f"it has {rules}" if rules else "it has none"
        raise RocekitError(f"no finding {rule} in this capture: {have}")
    selected = np.zeros(len(stories), np.bool_)
    for finding in found:
        rows = stories.rows_of(list(finding.frames))
        rows = rows[rows >= 0]
        selected[rows] = True
        numbers = set(stories.connection[rows].tolist()) - {-1}
        if finding.connection is not None:
            numbers.add(finding.connection.id)
        for number in numbers:
            selected |= stories.connection == number
    return selected


def _whole(stories: PacketStories, selected: Bools) -> bool:
    """Whether the chosen connections are complete, from first packet to last."""
    used = np.unique(stories.connection[selected])
    return bool(selected[np.isin(stories.connection, used[used >= 0])].all())


# ---------------------------------------------------------------------- writing


def _write(
    stories: PacketStories,
    place: int,
    selected: Bools,
    out: str | Path,
    choice: Choice,
    headers_only: bool,
    redactor: Redactor | None,
    together: Together,
) -> Slice:
    """Read a capture again and write the chosen part of it."""
    capture = stories.analysis.capture
    numbers = np.stack([stories.frames_of(file) for file in capture.points_of(place)])
    mine = selected & (numbers > 0)
    if not mine.any():
        return Slice()
    done = Slice(str(out))
    wanted = numbers[mine]
    copies = capture.left_out_of(place)
    if copies and choice.everything:
        wanted = np.union1d(wanted, np.fromiter(copies, np.int64))
    ends = _ends(stories, selected)
    ignored = numbers[(stories.role == IGNORED) & (numbers > 0)]
    times = stories.packets.time_ns[selected]
    if capture.several:
        times = capture.alignments[place].own(times)
    first, last = int(times.min()), int(times.max())
    decoder = Decoder()
    with open_capture(capture.inputs[place], file=place) as reader, whole_pcapng(together, out) as writer:
        for batch in reader:
            packets, network = decoder.decode(batch), decoder.network
            rows = np.flatnonzero(np.isin(batch.number, wanted))
            others = _offers(batch, decoder.others, ends, choice.everything)
            others += _pauses(batch, decoder.others, network, first, last)
            done.other_frames += len(others)
            done.left_out += len(decoder.others) - len(others)
            keep = np.union1d(rows, np.array(others, np.int64))
            if not len(keep):
                continue
            done.sources += batch.number[keep].tolist()
            wrong = np.zeros(len(batch), np.bool_)
            own = np.searchsorted(batch.number, packets.frame)
            wrong[own] = packets.icrc_state == ICRC_INVALID
            caplen = _headers(batch, packets, network, own) if headers_only else batch.caplen
            lost = np.flatnonzero(wrong[keep]).tolist() if headers_only else []
            known = reader.comments if redactor is None else {}
            comments = None
            if known or lost:
                comments = [list(known.get(number, ())) for number in batch.number[keep].tolist()]
                for place in lost:
                    comments[place].append("the ICRC was wrong before the payload was left out")
                done.wrong_icrcs += len(lost)
            if redactor is not None:
                batch = redact_batch(
                    batch, packets, network, others, redactor, np.isin(packets.frame, ignored)
                )
            writer.write_batch(_take(replace(batch, caplen=caplen), keep), comments)
        if reader.dropped is not None and choice.everything:
            writer.write_statistics(reader.frames, reader.dropped)
        done.frames = writer.frames
    return done


def _take(batch: FrameBatch, rows: Ints) -> FrameBatch:
    names = ("offset", "caplen", "wirelen", "time_ns", "number", "linktype")
    return replace(batch, **{name: getattr(batch, name)[rows] for name in names})


def _ends(stories: PacketStories, selected: Bools) -> set[tuple[str | None, int | None]]:
    """The two sides of each chosen connection: address and QPN."""
    used = np.unique(stories.connection[selected])
    chosen = [stories.analysis.connections[i] for i in used[used >= 0].tolist()]
    return {(c.ips[side], c.qpns[side]) for c in chosen for side in (0, 1)}


def _offers(
    batch: FrameBatch, others: Ints, ends: set[tuple[str | None, int | None]], every: bool
) -> list[int]:
    """The TCP frames in which programs exchange the QPs of the chosen connections."""
    found = []
    for i in others[batch.caplen[others] <= LONGEST_OFFER].tolist():
        offer = parse_offer(batch.frame(i))
        if offer is not None and (every or (offer.ip, offer.qpn) in ends):
            found.append(i)
    return found


def _pauses(batch: FrameBatch, others: Ints, network: Locations, first: int, last: int) -> list[int]:
    """The PAUSE and PFC frames between the first packet and the last."""
    inside = (batch.time_ns[others] >= first) & (batch.time_ns[others] <= last)
    pauses: list[int] = others[inside & (network.ethertype[others] == ETHERTYPE_MAC_CONTROL)].tolist()
    return pauses


def _headers(batch: FrameBatch, packets: Packets, network: Locations, own: Ints) -> Ints:
    """Captured lengths without payloads: packets end with their last header; MADs stay complete."""
    caplen = batch.caplen.copy()
    mads = np.isin(packets.dest_qpn, wire.MAD_QPNS)
    length = network.bth + HEADERS_BYTES[packets.opcode] - batch.offset[own]
    caplen[own] = np.where(mads, caplen[own], np.minimum(caplen[own], length))
    return caplen


def describe_choice(choice: Choice) -> Sequence[str]:
    """What was chosen, as text."""
    words = [f"connection {n}" for n in choice.connections]
    words += [f"transfer {n}" for n in choice.transfers]
    words += [f"finding {rule}" for rule in choice.findings]
    return words or ["all RoCE packets"]
