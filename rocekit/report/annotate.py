"""Write a capture again with a comment on each packet, for Wireshark and tshark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rocekit.errors import CaptureError
from rocekit.explanation.packet_words import describe
from rocekit.explanation.packets import packet_stories
from rocekit.files.frame_names import FRAME_MASK
from rocekit.files.outputs import Together, check_output
from rocekit.files.pcapng_write import whole_pcapng
from rocekit.files.reader import open_capture
from rocekit.track.pairs.handshake import LONGEST_OFFER, parse_offer
from rocekit.wire.words import qpn

if TYPE_CHECKING:
    from rocekit.explanation.packets import Ints, PacketStories
    from rocekit.explanation.results import Results
    from rocekit.files.frames import FrameBatch
    from rocekit.findings import Finding


#: What is said of a copy that was left out (see ``points.doubled``).
_COPY = "a further copy of the same packet, captured at another place: not analyzed"


@dataclass(frozen=True, slots=True)
class Annotated:
    """What was written.

    Attributes:
        path: the file.
        frames: all of them; described: those with a comment from the analysis.
        findings: frames that a finding names.
        left_out: frames of unknown link types, which are not written again.
    """

    path: str
    frames: int
    described: int
    findings: int
    left_out: int


def annotate(analysis: Results, *outs: str | Path) -> list[Annotated]:
    """Write the captures of an analysis with comments: those they had, what each packet is, findings.

    Args:
        analysis: with all its transfers.
        outs: a pcapng file for each capture; ``"-"`` is standard output.

    Raises:
        CaptureError: one of ``outs`` cannot be written, or there are no RoCE packets.
        RocekitError: one of ``outs`` is one of the captures.
        ValueError: not one output for each capture, or a capture is standard input.
    """
    files = analysis.capture.inputs
    if len(files) != len(outs) or "-" in files:
        raise ValueError(
            "annotate reads captures twice: name files, not standard input, and one output for each"
        )
    for out in outs:
        check_output(out, files)
    refusal = analysis.capture.contents.refusal("annotate")
    if refusal is not None:
        raise CaptureError(refusal, file=", ".join(files))
    stories = packet_stories(analysis)
    with Together() as together:
        return [_write(stories, place, out, together) for place, out in enumerate(outs)]


def _write(stories: PacketStories, place: int, out: str | Path, together: Together) -> Annotated:
    analysis = stories.analysis
    capture = analysis.capture
    points = {file: stories.frames_of(file) for file in capture.points_of(place)}
    words = merge(*(_stories(stories, file, numbers) for file, numbers in points.items()))
    numbers = np.concatenate(list(points.values()))
    copies = capture.left_out_of(place)
    found: dict[int, list[Finding]] = {}
    for of_point in points.values():
        by_frame, whole = _findings(stories, of_point)
        found |= by_frame
    described = 0
    with (
        open_capture(capture.inputs[place], file=place) as reader,
        whole_pcapng(together, out, [_words(f) for f in whole]) as writer,
    ):
        for batch in reader:
            own = reader.comments
            comments: list[list[str]] = []
            is_packet = np.isin(batch.number, numbers).tolist()
            for i, (number, known) in enumerate(zip(batch.number.tolist(), is_packet, strict=True)):
                texts = list(own.get(number, ()))
                story = next(words)[1] if known else _COPY if number in copies else _exchange(batch, i)
                if story:
                    described += 1
                    texts.append(story)
                if number in found:
                    texts += [_words(finding) for finding in found[number]]
                comments.append(texts)
            writer.write_batch(batch, comments)
        if reader.dropped is not None:
            writer.write_statistics(reader.frames, reader.dropped)
        return Annotated(str(out), writer.frames, described, len(found), reader.frames - writer.frames)


def _stories(stories: PacketStories, file: int, numbers: Ints) -> Iterator[tuple[int, str]]:
    """The frame numbers of a capture point's packets, in order, and a line about each."""
    rows = np.argsort(numbers, kind="stable")
    rows = rows[np.searchsorted(numbers[rows], 1) :]
    words = describe(stories, rows.tolist(), file=file if stories.analysis.capture.several else None)
    return zip(numbers[rows].tolist(), words, strict=True)


def _findings(stories: PacketStories, numbers: Ints) -> tuple[dict[int, list[Finding]], list[Finding]]:
    """The findings by frame number in a capture, and those that name no frame."""
    findings = stories.analysis.findings
    by_frame: dict[int, list[Finding]] = defaultdict(list)
    for finding in findings:
        if not stories.analysis.capture.several:
            frames = [frame & FRAME_MASK for frame in finding.frames]
        else:
            rows = stories.rows_of(list(finding.frames))
            frames = np.unique(numbers[rows[rows >= 0]]).tolist()
        for frame in frames:
            if frame:
                by_frame[frame].append(finding)
    return dict(by_frame), [finding for finding in findings if not finding.frames]


def _exchange(batch: FrameBatch, i: int) -> str:
    """The QP that a TCP frame announces, as perftest does."""
    offer = parse_offer(batch.frame(i)) if batch.caplen[i] <= LONGEST_OFFER else None
    return "" if offer is None else f"{offer.ip} announces {qpn(offer.qpn)}, first PSN {offer.psn}"


def _words(finding: Finding) -> str:
    return f"{finding.severity}: {finding.rule}: {finding.title}"
