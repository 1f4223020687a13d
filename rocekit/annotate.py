"""A capture again, with each packet's story as its comment, for Wireshark and tshark to show."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rocekit.capture import open_capture
from rocekit.errors import CaptureError
from rocekit.handshake import LONGEST_OFFER, parse_offer
from rocekit.outputs import check_output
from rocekit.packet_stories import packet_stories
from rocekit.packet_words import describe
from rocekit.pcapng_write import PcapngWriter
from rocekit.report.units import qpn
from rocekit.transfers import FRAME_MASK

if TYPE_CHECKING:
    from rocekit.analysis import Analysis
    from rocekit.findings import Finding
    from rocekit.frames import FrameBatch


@dataclass(frozen=True, slots=True)
class Annotated:
    """What was written.

    Attributes:
        frames: all of them; described: those that are part of a story.
        findings: frames that a finding names.
        left_out: frames of link types that cannot be read, and so not be written again.
    """

    frames: int
    described: int
    findings: int
    left_out: int


def annotate(analysis: Analysis, out: str | Path) -> Annotated:
    """Write an analysis' capture with comments: those it had, each packet's story, the findings that name it.

    Args:
        analysis: of one capture, with all its transfers.
        out: the pcapng file; ``"-"`` is standard output.

    Raises:
        CaptureError: ``out`` cannot be written, or there is nothing to say.
        RocekitError: ``out`` is the capture itself.
        ValueError: the analysis is of several captures, or of standard input, which cannot be read again.
    """
    files = analysis.capture.files
    if len(files) != 1 or files[0] == "-":
        raise ValueError("a capture is annotated by reading it again: give one file")
    check_output(out, files)
    if not analysis.capture.counts.roce_packets:
        raise CaptureError("no RoCE packets in it, so there is nothing to annotate", file=files[0])
    stories = packet_stories(analysis)
    numbers = stories.packets.frame
    words = describe(stories)
    found, whole = _findings(analysis)
    described = 0
    with open_capture(files[0]) as reader, PcapngWriter(out, comments=[_words(f) for f in whole]) as writer:
        for batch in reader:
            own = reader.comments
            comments: list[list[str]] = []
            is_packet = np.isin(batch.number, numbers).tolist()
            for i, (number, known) in enumerate(zip(batch.number.tolist(), is_packet, strict=True)):
                texts = list(own.get(number, ()))
                story = next(words) if known else _exchange(batch, i)
                if story:
                    described += 1
                    texts.append(story)
                if number in found:
                    texts += [_words(finding) for finding in found[number]]
                comments.append(texts)
            writer.write_batch(batch, comments)
        if reader.dropped is not None:
            writer.write_statistics(reader.frames, reader.dropped)
        return Annotated(writer.frames, described, len(found), reader.frames - writer.frames)


def _findings(analysis: Analysis) -> tuple[dict[int, list[Finding]], list[Finding]]:
    """The findings by frame number, and those that name no frame."""
    by_frame: dict[int, list[Finding]] = defaultdict(list)
    for finding in analysis.findings:
        for frame in finding.frames:
            by_frame[frame & FRAME_MASK].append(finding)
    return dict(by_frame), [finding for finding in analysis.findings if not finding.frames]


def _exchange(batch: FrameBatch, i: int) -> str:
    """What a frame that is no RoCE packet says of a QP: the exchange of perftest and its like."""
    offer = parse_offer(batch.frame(i)) if batch.caplen[i] <= LONGEST_OFFER else None
    return "" if offer is None else f"{offer.ip} names its {qpn(offer.qpn)}, which begins at PSN {offer.psn}"


def _words(finding: Finding) -> str:
    return f"{finding.severity}: {finding.rule}: {finding.title}"
