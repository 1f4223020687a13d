"""The packets of an analysis, which know their captures: chosen ones as pyshark's, each with its story."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rocekit.explanation.packet_words import describe
from rocekit.explanation.packets import CAUSES, ROLES, packet_stories
from rocekit.files.frame_names import FRAME_BITS, frame_name
from rocekit.findings.finding import SEVERITIES
from rocekit.packets import Packets
from rocekit.verify.pdml import need_pyshark, read_pdml
from rocekit.wire import OPCODES

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from rocekit.explanation.packets import PacketStories
    from rocekit.explanation.results import Results
    from rocekit.findings import Finding
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer


@dataclass(frozen=True, slots=True)
class PacketStory:
    """What rocekit knows of a packet: ``.rocekit`` of a pyshark packet.

    Attributes:
        frame: its number in its capture, or ``"i:n"`` with several captures.
        connection, transfer: those that it belongs to; None where it belongs to none.
        role: what it is, one of ``ROLES`` (``request``, ``response``, ``ack``, ``nak`` …).
        round: 1 for a packet sent the first time, 2 for the second …; 0 where nothing is counted (ACKs).
        cause: why it was sent again, one of ``CAUSES``; None where it was not.
        findings: those that name its frame, the worst first.
        words: all this in one line, as `rocekit annotate` writes it.
    """

    frame: int | str
    connection: Connection | None
    transfer: Transfer | None
    role: str
    round: int
    cause: str | None
    findings: tuple[Finding, ...]
    words: str

    @property
    def finding(self) -> Finding | None:
        """The worst finding that names the frame; None without any."""
        return self.findings[0] if self.findings else None

    def __str__(self) -> str:
        return self.words


class CapturedPackets(Packets):
    """RoCE packets of an analysis: see :class:`rocekit.packets.Packets`."""

    __slots__ = ("_analysis",)

    _analysis: Results

    @classmethod
    def of(cls, packets: Packets, analysis: Results) -> CapturedPackets:
        """These packets, which are of this analysis."""
        mine: CapturedPackets = cls.__new__(cls)
        for name in Packets.__slots__:
            setattr(mine, name, getattr(packets, name))
        mine._analysis = analysis
        return mine

    def where(self, rows: NDArray[np.bool_] | NDArray[np.int64] | slice | str) -> CapturedPackets:
        """Some of the packets: by a mask, an array of indices, a slice, or a filter's expression.

        Raises:
            FilterError: the expression is none.
        """
        if isinstance(rows, str):
            from rocekit.packets.filters import Filter

            rows = Filter(rows)(self)
        return CapturedPackets.of(super().where(rows), self._analysis)

    def _repr_html_(self) -> str:
        from rocekit.report.record_table import SHOWN
        from rocekit.wire.notebook_html import block, heading, html_table, paragraph
        from rocekit.wire.words import plural

        shown = self.where(slice(SHOWN))
        frames = list(zip(shown["file"].tolist(), shown["frame"].tolist(), strict=True))
        stories = _Stories(packet_stories(self._analysis)).of(frames)
        rows = (
            (story.frame, src, dst, _opcode(opcode), f"0x{qpn:x}", psn, story.words)
            for story, src, dst, opcode, qpn, psn in zip(
                stories,
                (shown.addresses[n] for n in shown["src"].tolist()),
                (shown.addresses[n] for n in shown["dst"].tolist()),
                *(shown[name].tolist() for name in ("opcode", "dest_qpn", "psn")),
                strict=True,
            )
        )
        table = html_table(
            ("frame", "from", "to", "opcode", "to QP", "PSN", "story"),
            rows,
            right=("frame", "to QP", "PSN"),
            wide=("story",),
        )
        more = len(self) - SHOWN
        note = paragraph(f"… and {more:,} more: to_polars() and to_pandas() have all", dim=True)
        return block(heading(plural(len(self), "packet")), table, note if more > 0 else "")

    def to_polars(self) -> pl.DataFrame:
        """These packets as a polars data frame, with the columns of `rocekit export`: fields and story.

        Raises:
            RocekitError: polars is not installed.
            ValueError: the analysis did not keep all transfers.
        """
        from rocekit.report.export import need_polars
        from rocekit.report.tables.packet_table import packets_table

        need_polars()
        stories = packet_stories(self._analysis)
        rows = stories.rows_of(self["frame"] + (self["file"].astype(np.int64) << FRAME_BITS))
        return packets_table(stories)[rows[rows >= 0].tolist()]

    def to_pandas(self) -> pd.DataFrame:
        """These packets as a pandas data frame (see :meth:`to_polars`).

        Raises:
            RocekitError: polars, pandas or pyarrow is not installed.
        """
        from rocekit.report.record_table import as_pandas

        return as_pandas(self.to_polars())

    def pyshark(self, *, guess: bool = False) -> Iterator[Any]:
        """These packets as pyshark's, read by tshark, in the order of files and frames.

        Each has its layers as pyshark gives them, its frame's number in its file (``packet.number``), and
        ``packet.rocekit``, a :class:`PacketStory`. Works in notebooks: no event loop is used. Expect some
        hundred packets a second.

        Args:
            guess: let tshark guess protocols in payloads (NVMe over RDMA, RPC-over-RDMA, SMB Direct, iSER),
                which it also sees where they are not.

        Raises:
            CaptureError: there is no tshark, or it cannot read a capture.
            RocekitError: pyshark is not installed.
            ValueError: the analysis did not keep all transfers.
        """
        made = need_pyshark("pyshark()")
        capture = self._analysis.capture
        chosen: dict[int, set[int]] = defaultdict(set)
        for file, frame in zip(self["file"].tolist(), self["frame"].tolist(), strict=True):
            chosen[file].add(frame)
        stories = _Stories(packet_stories(self._analysis))
        for place, name in enumerate(capture.inputs):
            point = {frame: file for file in capture.points_of(place) for frame in chosen.get(file, ())}
            frames = sorted(point)
            if not frames:
                continue
            told = zip(frames, stories.of([(point[frame], frame) for frame in frames]), strict=True)
            for element in read_pdml(name, frames, "pyshark()", guess=guess):
                packet = made.packet_from_xml_packet(element)
                number = int(packet.number)
                packet.rocekit = next(story for frame, story in told if frame == number)
                yield packet


def _opcode(opcode: int) -> str:
    known = OPCODES.get(opcode)
    return f"0x{opcode:02x}" if known is None else known.name


class _Stories:
    """The stories of frames."""

    def __init__(self, stories: PacketStories) -> None:
        self._stories = stories
        self._several = stories.analysis.capture.several
        order = {severity: n for n, severity in enumerate(SEVERITIES)}
        self._found: dict[int, list[Finding]] = defaultdict(list)
        for finding in sorted(stories.analysis.findings, key=lambda f: order[f.severity]):
            for row in np.unique(stories.rows_of(list(finding.frames))).tolist():
                if row >= 0:
                    self._found[row].append(finding)

    def of(self, frames: list[tuple[int, int]]) -> Iterator[PacketStory]:
        """The story of each (file, frame)."""
        stories = self._stories
        references = [file << FRAME_BITS | frame for file, frame in frames]
        rows = stories.rows_of(references).tolist()
        files = sorted({file for file, _ in frames})
        words: dict[tuple[int, int], str] = {}
        for file in files:
            own = [row for row, (of, _) in zip(rows, frames, strict=True) if of == file and row >= 0]
            lines = describe(stories, own, file=file if self._several else None)
            words |= {(file, row): line for row, line in zip(own, lines, strict=True)}
        for reference, row, (file, _) in zip(references, rows, frames, strict=True):
            name = frame_name(reference, several=self._several)
            if row < 0:  # a further copy of a packet, which the analysis leaves out
                yield PacketStory(name, None, None, "other", 0, None, (), "")
                continue
            cause = int(stories.cause[row])
            yield PacketStory(
                name,
                stories.connection_of(row),
                stories.transfer_of(row),
                ROLES[int(stories.role[row])],
                int(stories.round[row]),
                CAUSES[cause] if cause > 0 else None,
                tuple(self._found.get(row, ())),
                words[file, row],
            )
