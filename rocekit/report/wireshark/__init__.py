"""What Wireshark reads of rocekit: a Lua post-dissector, and the sidecar with each frame's story."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocekit.errors import RocekitError
from rocekit.explanation.packet_words import describe
from rocekit.explanation.packets import CAUSES, ROLES, PacketStories, packet_stories
from rocekit.files.outputs import check_output, complete, writing
from rocekit.findings.finding import SEVERITIES

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.findings import Finding

#: The first line of a sidecar; the Lua script takes no other.
VERSION: Final = "#rocekit-sidecar/1"
COLUMNS: Final = (
    *("frame", "time", "connection", "transfer", "role", "round", "cause", "findings", "severity", "story"),
)


def lua_script() -> Path:
    """The post-dissector."""
    return Path(str(resources.files("rocekit.report.wireshark") / "rocekit.lua"))


def write_sidecar(analysis: Results, out: str | Path) -> int:
    """Write what each RoCE packet of a capture is, for the post-dissector: a line a frame, cells with tabs.

    Returns:
        how many frames it tells of.

    Raises:
        RocekitError: there are several captures, or the file cannot be written.
    """
    if analysis.capture.several:
        raise RocekitError(
            "a sidecar is for one capture: annotate each alone, or one that has no packet twice"
        )
    check_output(out, analysis.capture.inputs)
    stories = packet_stories(analysis)
    with writing(out), complete(out) as file:
        file.write((f"{VERSION}\n#" + "\t".join(COLUMNS) + "\n").encode())
        count = 0
        for count, cells in enumerate(_lines(stories), 1):  # noqa: B007
            file.write(("\t".join(cells) + "\n").encode())
    return count


def _lines(stories: PacketStories) -> Iterator[list[str]]:
    packets = stories.packets
    findings: dict[int, list[Finding]] = defaultdict(list)
    for finding in stories.analysis.findings:
        for row in set(stories.rows_of(list(finding.frames)).tolist()):
            findings[row].append(finding)
    columns = zip(
        *(column.data for column in (packets.frame, packets.time_ns, stories.connection, stories.transfer)),
        *(column.data for column in (stories.role, stories.round, stories.cause)),
        describe(stories),
        strict=True,
    )
    for row, (frame, time, connection, transfer, role, sent, cause, words) in enumerate(columns):
        own = findings.get(row, [])
        worst = min((SEVERITIES.index(f.severity) for f in own), default=-1)
        yield [
            str(frame),
            f"{time // 10**9}.{time % 10**9:09d}",
            _known(connection, connection >= 0),
            _known(transfer, transfer >= 0),
            ROLES[role],
            _known(sent, sent > 0),
            CAUSES[cause] if cause > 0 else "",
            ",".join(dict.fromkeys(f.rule for f in own)),
            SEVERITIES[worst] if worst >= 0 else "",
            " ".join(words.split()),
        ]


def _known(value: int, there: bool) -> str:
    return str(value) if there else ""
