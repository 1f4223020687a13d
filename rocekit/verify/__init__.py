"""A second opinion: rocekit's values beside tshark's, frame by frame, field by field.

Not compared is what tshark does not know:

- whether an ICRC is valid: it shows the four bytes and does not compute them;
- payload, pad and ICRC of a truncated packet;
- the CM messages MRA, LAP, APR, SIDR_REQ and SIDR_REP, which it does not dissect;
- everything across packets (retransmission, pairing, reassembly), which it does not do for RoCE.

The headers after the BTH of a CNP, of RD and XRC opcodes, and of FLUSH and ATOMIC WRITE (which version 4.0
does not know), which tshark misreads, are compared; a difference there is counted under that reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rocekit.errors import CaptureError
from rocekit.explanation.contents import Contents
from rocekit.files.frames import DamageLog
from rocekit.files.joined import is_joined, is_part
from rocekit.files.reader import open_capture
from rocekit.files.remote import local_copy
from rocekit.packets import Row
from rocekit.packets.decoder import COUNTED, Counts, Decoder
from rocekit.packets.mads import find_mads
from rocekit.packets.malformed import IP_LENGTH, MALFORMED, SHORT, UDP_LENGTH
from rocekit.verify.tshark import (
    BTH,
    CM,
    EXTENDED,
    FRAME,
    GRH,
    ICRC,
    IPV4,
    IPV6,
    MAD,
    UDP,
    Answers,
    Question,
    TsharkFrames,
    Value,
    find_tshark,
    number,
)
from rocekit.wire import (
    ACK,
    CNP_OPCODE,
    MAD_QPNS,
    NAK,
    OPCODE_NAMES,
    OPCODES,
    RNR_NAK,
    ROCE_UDP_PORT,
    syndrome_kind,
    syndrome_value,
)
from rocekit.wire.cm import MAD_BYTES
from rocekit.wire.mad import Mad

MOST_LISTED: Final = 1000  #: disagreements that are listed; the rest is only counted


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A value that rocekit and tshark read differently; None: absent."""

    frame: int
    field: str
    ours: Value
    theirs: Value

    def to_dict(self) -> dict[str, object]:
        return {
            "frame": self.frame,
            "field": self.field,
            "ours": plain(self.ours),
            "theirs": plain(self.theirs),
        }

    def __str__(self) -> str:
        return f"frame {self.frame}  {self.field}  ours {words(self.ours)}  tshark {words(self.theirs)}"


def plain(value: Value) -> int | str | None:
    """A value for JSON: bytes as hexadecimal text."""
    return value.hex() if isinstance(value, bytes) else value


def words(value: Value) -> str:
    """A value for people."""
    if value is None:
        return "absent"
    return f"{value} ({value:#x})" if isinstance(value, int) and value > 9 else str(plain(value))


@dataclass(slots=True)
class TsharkComparison:
    """The result of a comparison.

    Attributes:
        file, tshark: the capture, and tshark's version.
        frames, packets: how many frames both read; how many of them at least one takes for RoCE.
        values: how many values were compared.
        total: how many of them differ without a known reason; ``disagreements``: the first of those.
        explained: known reasons for a difference, and how many values each explains.
        left_out: fields that this tshark does not know.
        contents: what rocekit found in the capture.
        problem: tshark's error message, if any; damage: parts of the capture that rocekit could not read.
    """

    file: str
    tshark: str
    frames: int = 0
    packets: int = 0
    values: int = 0
    total: int = 0
    disagreements: list[Disagreement] = field(default_factory=list)
    explained: Counter[str] = field(default_factory=Counter)
    left_out: frozenset[str] = frozenset()
    contents: Contents = field(default_factory=lambda: Contents(Counts()))
    problem: str | None = None
    damage: DamageLog = field(default_factory=DamageLog)

    @property
    def agrees(self) -> bool:
        """Whether every difference has a known reason."""
        return self.total == 0

    def to_dict(self) -> dict[str, object]:
        return {
            "file": self.file,
            "tshark": self.tshark,
            "frames": self.frames,
            "packets": self.packets,
            "values": self.values,
            "roce_packets": self.contents.counts.roce_packets,
            **self.contents.to_dict(),
            "disagreements": self.total,
            "explained": dict(self.explained),
            "listed": [d.to_dict() for d in self.disagreements],
            "left_out": sorted(self.left_out),
            "problem": self.problem,
            "damage": [str(damage) for damage in self.damage],
        }

    def note(self, row: Row, name: str, ours: Value, theirs: Value, reason: str | None) -> None:
        if reason is not None:
            self.explained[reason] += 1
            return
        self.total += 1
        if len(self.disagreements) < MOST_LISTED:
            self.disagreements.append(Disagreement(_int(row["frame"]), name, ours, theirs))


def verify(file: str | Path) -> TsharkComparison:
    """Compare rocekit's reading of a capture with tshark's.

    Raises:
        CaptureError: rocekit or tshark cannot read the capture at all, or there is no tshark.
    """
    if str(file) == "-":
        raise CaptureError("verify reads its file twice; give a file and not standard input")
    if is_joined(file):
        raise CaptureError(
            "verify compares one file with what tshark reads: name one of the rotation", file=file
        )
    if is_part(file):
        raise CaptureError("verify compares a whole file with what tshark reads: name the file", file=file)
    with open_capture(file) as capture:
        path, version = find_tshark()
        comparison = TsharkComparison(str(file), version)
        decoder = Decoder(foreign=COUNTED)
        with local_copy(str(file)) as local, TsharkFrames(path, local) as lines:
            comparison.left_out = lines.left_out
            for batch in capture:
                packets = decoder.decode(batch)
                mads = dict(find_mads(packets)) if len(packets) else {}
                rows = {row["frame"]: (row, mads.get(i)) for i, row in enumerate(packets.rows())}
                for at, frame in enumerate(batch.number.tolist()):
                    theirs = lines.of(frame)
                    if theirs is None:
                        continue
                    comparison.frames += 1
                    if frame in rows:
                        _compare(comparison, *rows[frame], theirs, batch.frame(at))
                    elif theirs("infiniband.bth.opcode"):
                        only_tshark(comparison, frame, theirs)
            lines.finish()
        decoder.rest()
        comparison.contents = Contents(decoder.counts, capture.skipped)
        comparison.problem, comparison.damage = lines.problem, capture.damage
        if lines.problem is not None and not lines.frames and capture.frames:
            raise CaptureError(f"tshark cannot read it: {lines.problem}", file=file)
        if capture.frames != lines.frames:
            reason = "the capture is damaged" if capture.damage or lines.problem else None
            comparison.note({"frame": capture.frames}, "frames", capture.frames, lines.frames, reason)
    return comparison


def only_tshark(comparison: TsharkComparison, frame: int, theirs: Answers) -> None:
    """A frame that only tshark takes for RoCE."""
    comparison.packets += 1
    comparison.values += 1
    reason = None
    if theirs("udp.dstport") != str(ROCE_UDP_PORT) and theirs("udp.srcport") == str(ROCE_UDP_PORT):
        reason = "tshark takes UDP source port 4791 for RoCE too"
    opcode = theirs("infiniband.bth.opcode").split(",")[0]
    comparison.note({"frame": frame}, "opcode", None, number(opcode), reason)


def _compare(comparison: TsharkComparison, row: Row, mad: Mad | None, theirs: Answers, frame: bytes) -> None:
    comparison.packets += 1
    for question, ours in asked(row, mad):
        text = theirs(question.field)
        if question.field in comparison.left_out or (ours is None and not text):
            continue
        comparison.values += 1
        value = question.value_of(text)
        if value != ours:
            reason = difference(row, question, value, theirs, frame)
            comparison.note(row, question.name, ours, value, reason)


def asked(row: Row, mad: Mad | None) -> Iterator[tuple[Question, Value]]:
    """The values to compare of a packet, each with rocekit's own."""
    ours: dict[str, Value] = dict(row)
    name = row["opcode"]
    ours["opcode"] = OPCODE_NAMES[name] if isinstance(name, str) else name
    syndrome = row.get("syndrome")
    if isinstance(syndrome, int):
        kind, value = syndrome_kind(syndrome), syndrome_value(syndrome)
        ours["syndrome_kind"] = kind
        ours[{ACK: "syndrome_credits", RNR_NAK: "syndrome_timer", NAK: "syndrome_code"}.get(kind, "")] = value
    over_ip = (*(IPV4 if row["ip_version"] == 4 else IPV6), *UDP)
    network = GRH if row["roce_version"] == 1 else over_ip
    for question in (*FRAME, *network, *BTH, *EXTENDED, *ICRC):
        yield question, ours.get(question.name)
    if mad is None or row["truncated"]:
        return
    for question in MAD:
        yield question, mad.fields.get(question.name)
    if mad.cm is not None:
        fields: dict[str, Value] = dict(mad.cm.fields)
        ip = mad.cm.ip_cm
        if ip is not None:
            fields |= {name: ip[name] for name in ("source_port", "destination_port")}
            fields |= {
                f"{end}_ipv{ip['ip_version']}": ip[f"{end}_address"] for end in ("source", "destination")
            }
            fields["ip_cm_private_data"] = mad.cm.private_data
        for question in CM.get(mad.cm.message, ()):
            yield question, fields.get(question.name)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def difference(row: Row, question: Question, value: Value, theirs: Answers, frame: bytes) -> str | None:
    """Why tshark may differ in this value, or None."""
    name = row["opcode"]
    opcode = OPCODES.get(OPCODE_NAMES.get(name, -1)) if isinstance(name, str) else None
    if question in ICRC:
        if row["truncated"]:
            return "a truncated packet has no ICRC; tshark shows its last bytes"
        if row["fragment"]:
            return "a first fragment has no ICRC; tshark shows its last bytes"
        if isinstance(name, int) and value is None:
            return "tshark shows no ICRC after an opcode that it does not know"
        if opcode is not None and not opcode.payload and row["payload_length"] and value is None:
            return "tshark shows no ICRC after a payload that it does not expect"
        if row.get("dest_qpn") in MAD_QPNS and value is None and _int(row["payload_length"]) < MAD_BYTES:
            return "tshark expects a whole MAD in every packet to QP 0 or 1, and shows no ICRC after less"
        if row["roce_version"] == 1 and value == int.from_bytes(frame[-4:], "little"):
            return "tshark takes the end of a RoCE v1 packet from the frame, not from the GRH"
    if opcode is not None and (question in EXTENDED or question in ICRC):
        if opcode.value == CNP_OPCODE:
            return "tshark does not know CNP"
        if opcode.operation in ("FLUSH", "ATOMIC_WRITE"):
            return "tshark 4.0 does not know FLUSH and ATOMIC WRITE (newer ones do)"
    # tshark shows not even the BTH of a short one of those.
    behind = question in EXTENDED or question in ICRC or not theirs("infiniband.bth.opcode")
    if opcode is not None and opcode.transport in ("RD", "XRC") and behind:
        return f"tshark takes {opcode.transport} opcodes for others"
    if value is None or row.get(question.name) is None:
        if row["malformed"] in _LENGTHS:
            return "lengths contradict each other: rocekit and tshark stop reading at different places"
        if value is None and "IPv6" in theirs("_ws.malformed"):
            return "tshark stops at a damaged IPv6 option, which rocekit skips"
    return None


#: Malformed lengths.
_LENGTHS: Final = frozenset(MALFORMED[code] for code in (SHORT, IP_LENGTH, UDP_LENGTH))
