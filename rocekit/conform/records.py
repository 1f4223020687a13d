"""What a run leaves: JUnit's XML, a page with the matrix, and a folder for each failure."""

from __future__ import annotations

import html
import io
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from rocekit.conform.bench import Playing
from rocekit.conform.suite import DrillResult
from rocekit.conform.verdict import FAIL, INCONCLUSIVE, NOT_APPLICABLE, PASS, DrillEvent
from rocekit.errors import ScenarioError
from rocekit.files.outputs import Together, complete, writing
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.journal import JournalWriter
from rocekit.journal.schema import SCHEMA
from rocekit.wire.build import DST_MAC, SRC_MAC, ethernet
from rocekit.wire.network import ETHERTYPE_IPV4, ETHERTYPE_IPV6

_COLOURS: Final = {PASS: "#d7f0d7", FAIL: "#f6c9c4", NOT_APPLICABLE: "#eeeeee", INCONCLUSIVE: "#fbeebc"}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 90em; padding: 0 1em }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ border: 1px solid #ccc; padding: .25em .5em; text-align: left; vertical-align: top }}
th[colspan] {{ background: #f3f3f3 }}
code {{ font-size: 90% }}
</style></head><body><h1>{title}</h1>{body}</body></html>
"""


def written(path: Path, text: str) -> None:
    """Write a text file.

    Raises:
        CaptureError: it cannot be written.
    """
    with writing(path), complete(path) as file:
        file.write(text.encode())


def saved(text: str, folder: Path) -> Path:
    """Write a drill as ``random-N.yaml`` into a folder; the file.

    Raises:
        ScenarioError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScenarioError(f"{folder} cannot be made: {error.strerror or error}") from None
    path = next(p for n in range(1, 1_000_000) if not (p := folder / f"random-{n}.yaml").exists())
    written(path, text)
    return path


def junit(results: Sequence[DrillResult], device: str) -> str:
    """The results as JUnit's XML. A known failure is skipped there, an unknown one is a failure."""
    failed = [r for r in results if r.outcome == FAIL and not r.known]
    skipped = [r for r in results if r.outcome != PASS and r not in failed]
    top = ET.Element("testsuites")
    about = {"name": f"rocekit conform: {device}", "tests": str(len(results)), "errors": "0"}
    about |= {"failures": str(len(failed)), "skipped": str(len(skipped))}
    one = ET.SubElement(top, "testsuite", about)
    for result in results:
        area, _, name = result.drill.name.rpartition("/")
        about = {"classname": area.replace("/", "."), "name": name, "time": f"{result.seconds:.3f}"}
        case = ET.SubElement(one, "testcase", about)
        words = result.playing.verdict.words()
        if result.outcome == FAIL and not result.known:
            failure = ET.SubElement(case, "failure", message=f"{result.drill.claim} ({result.drill.clause})")
            failure.text = words
        elif result.outcome != PASS:
            reason = f"known: {result.known}; {words}" if result.known else words
            ET.SubElement(case, "skipped", message=reason)
    ET.indent(top)
    return ET.tostring(top, encoding="unicode", xml_declaration=True) + "\n"


def page(title: str, columns: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The matrix as an HTML page.

    Args:
        columns: by device, the results as :meth:`DrillResult.to_dict` has them.
    """
    by_name = {device: {row["drill"]: row for row in rows} for device, rows in columns.items()}
    first: dict[str, Mapping[str, Any]] = {}
    for rows in columns.values():
        for row in rows:
            first.setdefault(row["drill"], row)
    head = "".join(f"<th>{html.escape(device)}</th>" for device in columns)
    lines = [f"<table><tr><th>drill</th><th>claim</th><th>clause</th>{head}</tr>"]
    for area, names in groupby(sorted(first), key=lambda name: name.rpartition("/")[0]):
        lines.append(f'<tr><th colspan="{3 + len(columns)}">{html.escape(area)}</th></tr>')
        for name in names:
            row = first[name]
            cells = "".join(_cell(by_name[device].get(name)) for device in columns)
            lines.append(
                f"<tr><td><code>{html.escape(name.rpartition('/')[2])}</code></td><td>{html.escape(row['claim'])}</td>"
                f"<td>{html.escape(row['clause'])}</td>{cells}</tr>"
            )
    lines.append("</table>")
    return _PAGE.format(title=html.escape(title), body="\n".join(lines))


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "<td>not run</td>"
    parts = [row["outcome"]]
    if row["known"]:
        parts.append(f"known: {row['known']}")
    if row["changed"] and row["known"]:
        parts.append("it passes now: take it off the list of known failures")
    parts += [row["reason"] or ""]
    if row["expected"]:
        parts.append(f"expected {row['expected']}; came {row['came']}")
    words = "<br>".join(html.escape(part) for part in parts if part)
    return f'<td style="background:{_COLOURS[row["outcome"]]}">{words}</td>'


def transcript(said: Iterable[DrillEvent]) -> str:
    """What happened, one line each: milliseconds since the drill began, the drill's line, what, and how."""
    return "\n".join(
        f"{one.at_ns / 1e6:10.3f} ms  {f'line {one.line}' if one.line else '':9} {one.what:10}  {one.text}"
        for one in said
    )


def explanation(result: DrillResult, device: str) -> str:
    """A failure in words: the claim, the line beside what came, and all that happened."""
    drill, verdict = result.drill, result.playing.verdict
    lines = [
        f"{drill.name}: {verdict.outcome}",
        f"device: {device}",
        f"claim: {drill.claim}",
        f"clause: {drill.clause}",
    ]
    if drill.source:
        lines.append(f"second source: {drill.source}")
    if result.known:
        lines.append(f"known: {result.known}")
    if verdict.reason:
        lines.append(f"reason: {verdict.reason}")
    if verdict.line:
        lines += [
            "",
            f"line {verdict.line}   {verdict.step}",
            f"  expected {verdict.expected}",
            f"  came     {verdict.came}",
        ]
    return "\n".join([*lines, "", transcript(result.playing.said), "", "The drill:", "", drill.text])


def keep(result: DrillResult, device: str, folder: Path) -> Path:
    """Write a failure's capture, journal and explanation into a folder below ``folder``; that folder.

    All three are of this run, or of an earlier one if the disk is full.

    Raises:
        ScenarioError, CaptureError, JournalError: it cannot be written.
    """
    place = folder / result.drill.name
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScenarioError(f"{place} cannot be made: {error.strerror or error}") from None
    with Together() as files:
        text = place / "explanation.txt"
        with writing(text):
            files.open(text).write(explanation(result, device).encode())
        capture(result.playing, files.open(place / "drill.pcapng"))
        lines = io.TextIOWrapper(files.open(place / "drill.journal.jsonl"), encoding="utf-8")
        journal(result.playing, device, lines)
        lines.detach()  # the file is closed with the others
    return place


def capture(playing: Playing, out: Path | BinaryIO) -> None:
    """Write every packet of a drill to a pcapng file."""
    with PcapngWriter(out, comments=[f"rocekit drill {playing.drill.name}: {playing.drill.claim}"]) as writer:
        for frame in sorted(playing.frames, key=lambda frame: frame.time_ns):
            kind = ETHERTYPE_IPV6 if frame.data[:1] and frame.data[0] >> 4 == 6 else ETHERTYPE_IPV4
            macs = (SRC_MAC, DST_MAC) if frame.sent else (DST_MAC, SRC_MAC)
            header = ethernet(kind, src_mac=macs[0], dst_mac=macs[1])
            writer.write(header + frame.data, frame.time_ns)


def journal(playing: Playing, device: str, out: Path | IO[str]) -> None:
    """Write what the device's program did as a journal."""
    name = device.split(",")[0]
    qp: tuple[str, int] | None = None
    with JournalWriter(out, host=name) as writer:
        for time_ns, call, arguments, result in playing.calls:
            if call == "open":
                qp = (name, result["qpn"])
                setup = arguments["setup"]
                writer.write("qp_created", time_ns=time_ns, qp=qp, transport=setup["transport"])
                known = {k: setup[k] for k in setup if k in SCHEMA["qp_modified"].optional and k != "access"}
                if setup["transport"] == "UD":
                    known = {"qkey": setup["qkey"], "state": setup["state"]}
                writer.write("qp_modified", time_ns=time_ns, qp=qp, dest_qpn=setup["peer_qpn"], **known)
            elif qp is None:
                continue
            elif call == "post":
                writer.write(
                    "wr_posted",
                    time_ns=time_ns,
                    qp=qp,
                    wr_id=arguments.get("wr_id", 1),
                    opcode=arguments["op"],
                    length=arguments.get("length", 0),
                )
            elif call == "recv":
                for i in range(arguments.get("count", 1)):
                    writer.write("recv_posted", time_ns=time_ns, qp=qp, wr_id=arguments.get("wr_id", 1) + i)
            elif call == "modify" and "state" in arguments:
                writer.write("qp_modified", time_ns=time_ns, qp=qp, state=arguments["state"])
            elif call == "poll":
                for completion in result:
                    writer.write("wc_polled", time_ns=time_ns, qp=qp, **completion)
