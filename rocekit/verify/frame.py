"""One frame as tshark reads all of it, and rocekit's values beside its fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocekit.errors import CaptureError, RocekitError
from rocekit.files.reader import open_capture
from rocekit.packets import Row
from rocekit.packets.decoder import GIVEN, Decoder
from rocekit.packets.mads import find_mads
from rocekit.verify import TsharkComparison, asked, difference, only_tshark, plain
from rocekit.verify.pdml import need_pyshark, read_pdml
from rocekit.verify.tshark import Question, Value, find_tshark
from rocekit.wire.mad import Mad

#: What is compared under other names of rocekit's.
_COVERED: Final = frozenset({"frame", "file", "tclass"})
#: tshark's own account of a frame, which is not in its bytes; and what it puts around fields of no protocol.
_NOT_SHOWN: Final = frozenset({"geninfo"})
_WRAPPER: Final = "fake-field-wrapper"


class Beside(NamedTuple):
    """A value of rocekit's beside a field of tshark's.

    Attributes:
        name, value: rocekit's.
        theirs: tshark's value, if the two differ; None with ``agrees``.
        agrees: whether they are the same.
        reason: why they differ, if that is known.
    """

    name: str
    value: Value
    theirs: Value = None
    agrees: bool = True
    reason: str | None = None

    def to_dict(self) -> dict[str, object]:
        return self._asdict() | {"value": plain(self.value), "theirs": plain(self.theirs)}


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A line of tshark's tree.

    Attributes:
        depth: 0 for a protocol.
        field: tshark's name of it.
        text: as tshark shows it.
        ours: rocekit's values of the same; empty where rocekit compares nothing.
    """

    depth: int
    field: str
    text: str
    ours: tuple[Beside, ...] = ()

    def to_dict(self) -> dict[str, object]:
        ours = [one.to_dict() for one in self.ours]
        return {"depth": self.depth, "field": self.field, "text": self.text, "ours": ours}


@dataclass(slots=True)
class FrameComparison:
    """A frame's reading by both.

    Attributes:
        comparison: the values compared and the differences, of this frame only.
        lines: tshark's tree.
        others: rocekit's values that are compared with nothing, by name.
        absent: values that rocekit has, and tshark, which has fields for them, does not show.
    """

    frame: int
    comparison: TsharkComparison
    lines: list[TreeLine]
    others: dict[str, Any] = field(default_factory=dict)
    absent: list[Beside] = field(default_factory=list)

    @property
    def is_roce(self) -> bool:
        """Whether rocekit takes the frame for RoCE."""
        return bool(self.others)

    def to_dict(self) -> dict[str, object]:
        c = self.comparison
        return {
            "file": c.file,
            "tshark": c.tshark,
            "frame": self.frame,
            "values": c.values,
            "disagreements": c.total,
            "explained": dict(c.explained),
            "tree": [line.to_dict() for line in self.lines],
            "not_compared": {name: plain(value) for name, value in self.others.items()},
            "absent_in_tshark": [one.to_dict() for one in self.absent],
        }


def compare_frame(file: str | Path, frame: int) -> FrameComparison:
    """tshark's whole tree of a frame, beside rocekit's values.

    Raises:
        CaptureError: rocekit or tshark cannot read the capture, or there is no tshark.
        RocekitError: there is no such frame, or pyshark is not installed.
    """
    if str(file) == "-":
        raise CaptureError("verify reads its file twice; give a file and not standard input")
    made = need_pyshark("verify --frame")
    _, version = find_tshark()
    row, mad, captured = _our_reading(file, frame)
    element = next(read_pdml(str(file), [frame], "verify --frame"))
    packet = made.packet_from_xml_packet(element)
    comparison = TsharkComparison(str(file), version, frames=1)
    result = FrameComparison(frame, comparison, [])
    beside = _compare(result, row, mad, packet, captured)
    result.lines = list(_tree(element, beside))
    return result


def _our_reading(file: str | Path, frame: int) -> tuple[Row | None, Mad | None, bytes]:
    """rocekit's row of a frame, None if it is no RoCE packet; its MAD; its bytes."""
    decoder = Decoder(foreign=GIVEN)
    with open_capture(file) as capture:
        for batch in capture:
            packets = decoder.decode(batch)
            numbers = batch.number.tolist()
            if frame not in numbers:
                continue
            captured = batch.frame(numbers.index(frame))
            mads = dict(find_mads(packets)) if len(packets) else {}
            for at in (packets.frame == frame).nonzero()[0].tolist():
                return packets.row(at), mads.get(at), captured
            return None, None, captured
        have = f"there are {capture.frames:,}, counted from 1"
        raise RocekitError(f"{file}: no frame {frame}: {have}")


def _compare(
    result: FrameComparison, row: Row | None, mad: Mad | None, packet: Any, captured: bytes
) -> dict[str, list[tuple[Question, Beside]]]:
    """Compare each value; returns what stands beside each of tshark's fields, and notes what only one has."""
    comparison = result.comparison

    def theirs(name: str) -> str:
        """As ``tshark -T fields`` gives it, from pyshark's layers."""
        texts: list[str] = []
        for layer in (packet.frame_info, *packet.layers):
            container = getattr(layer, "_all_fields", {}).get(name)
            if container is not None:
                texts += [one.show or "" for one in container.all_fields]
        return ",".join(texts)

    if row is None:
        if theirs("infiniband.bth.opcode"):
            only_tshark(comparison, result.frame, theirs)
        return {}
    comparison.packets = 1
    beside: dict[str, list[tuple[Question, Beside]]] = {}
    compared = set(_COVERED)
    for question, ours in asked(row, mad):
        compared.add(question.name)
        text = theirs(question.field)
        if ours is None and not text:
            continue
        comparison.values += 1
        value = question.value_of(text)
        one = Beside(question.name, ours)
        if value != ours:
            reason = difference(row, question, value, theirs, captured)
            comparison.note(row, question.name, ours, value, reason)
            one = Beside(question.name, ours, value, False, reason)
        if value is None:
            result.absent.append(one)
        else:
            beside.setdefault(question.field, []).append((question, one))
    result.others = {
        name: value for name, value in row.items() if name not in compared and value not in (None, False)
    }
    return beside


def _tree(element: bytes, beside: dict[str, list[tuple[Question, Beside]]]) -> Iterator[TreeLine]:
    """The lines of tshark's tree; a value stands beside the occurrence that it is compared with."""
    from lxml import etree  # pyshark's own

    whole = etree.fromstring(element, etree.XMLParser(recover=True, huge_tree=True))
    chosen: dict[str, Any] = {}
    for node in whole.iter("field"):
        name = node.get("name")
        if name in beside and (name not in chosen or beside[name][0][0].last):
            chosen[name] = node

    def lines(node: Any, depth: int) -> Iterator[TreeLine]:
        name = node.get("name") or ""
        is_compared = chosen.get(name) is node
        if name in _NOT_SHOWN or (node.get("hide") == "yes" and not is_compared):
            return
        text = node.get("showname") or node.get("show") or name
        ours = tuple(one for _, one in beside[name]) if is_compared else ()
        yield TreeLine(depth, name, text, ours)
        for child in node:
            yield from lines(child, depth + 1)

    for proto in whole:
        for node in proto if proto.get("name") == _WRAPPER else (proto,):
            yield from lines(node, 0)
