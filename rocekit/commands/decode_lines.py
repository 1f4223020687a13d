"""The lines that ``rocekit decode`` prints for people: common fields in columns, then all others in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import click
import numpy as np

from rocekit.commands.screen import width
from rocekit.packets import ICRC_INVALID, Packets, Row
from rocekit.packets.flow_numbers import PairNumbers
from rocekit.packets.malformed import CUT, MALFORMED
from rocekit.packets.printing.kinds import Kinds, Part
from rocekit.packets.printing.lines import Printed, Words, fields_of, pieces, seconds_text, texts
from rocekit.packets.printing.mad_words import MadWords
from rocekit.wire import OPCODE_NAMES, OPCODES, syndrome_kind, syndrome_name
from rocekit.wire.network import ECN_CE
from rocekit.wire.text_table import seen_width

_FLAGS: Final = {"ackreq": "ack requested", "solicited": "solicited", "fecn": "FECN", "becn": "BECN"}
_SWAPS: Final = frozenset(f"{transport}_COMPARE_SWAP" for transport in ("RC", "RD", "XRC"))
_ACKS: Final = frozenset(opcode.name for opcode in OPCODES.values() if opcode.operation == "ACK")
#: Times since the first frame that are counted as numbers; those of real clocks are far within.
_FAR_NS: Final = 1 << 62


class _LineKind(NamedTuple):
    """What the lines of one kind of packets have in common; ``details``: templates without and with a MAD."""

    opcode: str
    has_bth: bool
    details: tuple[str, str]
    fields: tuple[str, ...]


class _Made(NamedTuple):
    """The templates of all lines in two parts, the kind of each packet, and the columns."""

    beginnings: list[str]
    details: list[str]
    kinds: Any
    columns: dict[str, Printed]


class PacketLines:
    """Lines for people. Widths grow with what is printed.

    Args:
        coloured: whether there may be colours.
    """

    def __init__(self, *, coloured: bool = True) -> None:
        self._style: Callable[..., str] = click.style if coloured else _plain
        self._widths = {"frame": 5, "seconds": 12, "route": 0, "opcode": 0, "dest_qpn": 6}
        self._head = True
        self._terminal = width()
        self._route_below = False
        self._kinds = Kinds(self._kind)
        self._mads = MadWords(lambda mad, port: self._style(mad.summary(port), fg="cyan"))
        self._ways = PairNumbers()
        self._words: dict[str, Words] = {}

    def lines(self, packets: Packets, first_ns: int) -> Iterator[str]:
        """The lines as text; the details of one that is too long for the terminal stand below it.

        Args:
            first_ns: the time that seconds are counted from.
        """
        made = self._made(packets, first_ns)
        yield from self._title()
        beginnings = texts(made.beginnings, made.kinds, made.columns)
        details = texts(made.details, made.kinds, made.columns)
        for line, detail in zip(beginnings, details, strict=True):
            detail = detail.rstrip()
            if self._terminal is not None and seen_width(line) + 2 + seen_width(detail) > self._terminal:
                yield line.rstrip()
                line = " " * 5
            yield f"{line}  {detail}".rstrip()

    def pieces(self, packets: Packets, first_ns: int) -> Iterator[bytes | memoryview]:
        """The same lines as bytes, with their newlines, however long they are."""
        made = self._made(packets, first_ns)
        for title in self._title():
            yield f"{title}\n".encode()
        templates = [f"{one}  {more}" for one, more in zip(made.beginnings, made.details, strict=True)]
        yield from pieces(templates, made.kinds, made.columns, strip=True)

    def _title(self) -> Iterator[str]:
        if self._head:
            template = self._beginning("opcode", f"{'to QP':>{self._widths['dest_qpn']}}{'PSN':>10}")
            title = template.format(frame="frame", seconds="seconds", route="from → to")
            yield self._style(title, bold=True)
            self._head = False

    def _beginning(self, opcode: str, numbers: str) -> str:
        """The template of the common fields; ``numbers``: that of QPN and PSN."""
        w = self._widths
        route = "" if self._route_below else f"{{route:<{w['route']}}}  "
        return (
            f"{{frame:>{w['frame']}}}  {{seconds:>{w['seconds']}}}  {route}{opcode:<{w['opcode']}}  {numbers}"
        )

    def _made(self, packets: Packets, first_ns: int) -> _Made:
        kinds = self._kinds.of(packets, _parts(packets))
        columns = {
            "frame": Printed(packets.frame),
            "seconds": _seconds(packets, first_ns),
            "route": self._route(packets),
            "around": self._around(packets),
        }
        every: list[_LineKind] = self._kinds.every
        for name in dict.fromkeys(name for kind in every for name in kind.fields):
            columns[name] = Printed(packets[name])
        kinds = self._mads.insert(packets, kinds, columns)
        self._widen(packets, columns)
        w = self._widths["dest_qpn"]
        with_bth, without = f"{{dest_qpn:>#{w}x}}{{psn:>10}}", " " * (w + 10)
        beginnings = [self._beginning(kind.opcode, with_bth if kind.has_bth else without) for kind in every]
        twice = [beginning for beginning in beginnings for _ in range(2)]
        route = "{route}  " if self._route_below else ""
        return _Made(twice, [route + detail for kind in every for detail in kind.details], kinds, columns)

    def _route(self, packets: Packets) -> Printed:
        numbers = self._ways.of(packets.src.astype(np.uint64), packets.dst.astype(np.uint64))
        names = packets.addresses
        words = self._words.setdefault(
            "route", Words(self._ways.known, lambda way: f"{names[way[0]]} → {names[way[1]]}")
        )
        words.update()
        return Printed(numbers, words)

    def _around(self, packets: Packets) -> Printed:
        words = self._words.setdefault("around", Words(packets.wrappings, lambda w: ", ".join(w.short)))
        words.update()
        return Printed(packets.encapsulation, words)

    def _widen(self, packets: Packets, columns: dict[str, Printed]) -> None:
        """Make the common columns as wide as what they get."""
        cells = {
            "frame": [str(packets.frame.max())],
            "seconds": columns["seconds"].longest(),
            "route": columns["route"].longest(),
            "opcode": [kind.opcode for kind in self._kinds.every],
            "dest_qpn": [f"{int(packets.dest_qpn.max()):#x}"],
        }
        for name, found in cells.items():
            self._widths[name] = max(self._widths[name], *map(len, found))
        common = sum(self._widths.values()) + 2 * (len(self._widths) - 1) + 10  # the PSN
        if self._terminal is not None and not self._route_below and common > self._terminal:
            self._route_below = self._head = True

    def _kind(self, row: Row) -> _LineKind:
        opcode = row["opcode"]
        name = f"opcode {opcode:#04x}" if isinstance(opcode, int) else opcode or "?"
        details = self._details(row), self._details(row, has_mad=True)
        has_bth = "psn" in row
        fields = {"dest_qpn", "psn"} if has_bth else set()
        fields.update(*map(fields_of, details))
        return _LineKind(name, has_bth, details, tuple(sorted(fields - {"around", "mad"})))

    def _details(self, row: Row, *, has_mad: bool = False) -> str:
        """The template of the fields of extended headers, the flags and the checks, in words."""
        parts: list[str] = []

        def add(name: str, template: str) -> None:
            if name in row:
                parts.append(template)

        style = self._style
        if has_mad:
            parts.append("{mad}")
        else:
            add("src_qpn", "from QP {src_qpn:#x}")
            add("qkey", "qkey {qkey:#x}")
        syndrome = row.get("syndrome")
        if row["opcode"] in _ACKS and syndrome is None and row["truncated"]:
            parts.append("ACK or NAK unknown")
        if isinstance(syndrome, int):
            words = syndrome_name(syndrome)
            parts.append(words if syndrome_kind(syndrome) == 0 else style(words, fg="red"))
        add("msn", "MSN {msn}")
        add("ee_context", "EE context {ee_context:#x}")
        add("xrc_srqn", "SRQ {xrc_srqn:#x}")
        add("remote_va", "va {remote_va:#x}")
        add("rkey", "rkey {rkey:#x}")
        add("dma_length", "length {dma_length}")
        if row["opcode"] in _SWAPS:
            add("swap_add", "swap {swap_add:#x}")
            add("compare", "compare {compare:#x}")
        else:
            add("swap_add", "add {swap_add:#x}")
        add("original", "original {original:#x}")
        add("immediate", "immediate {immediate:#x}")
        add("invalidate_rkey", "invalidate {invalidate_rkey:#x}")
        add("placement_type", "placement {placement_type}")
        add("selectivity", "selectivity {selectivity}")
        if row["payload_length"] and not has_mad:
            parts.append("{payload_length} bytes")
        flags = [word for name, word in _FLAGS.items() if row.get(name)]
        if row["ecn"] == ECN_CE:
            flags.append("CE")
        if row["roce_version"] == 1:
            flags.append("RoCE v1")
        if any(not layer.startswith("IPv") for layer in row["encapsulation"] or ()):
            flags.append("{around}")
        if row["fragment"]:
            flags.append("first fragment")
        if row["truncated"]:
            header = _cut_off(row)
            flags.append(f"truncated, no {header}" if header else "truncated")
        if flags:
            parts.append(style(f"[{', '.join(flags)}]", dim=True))
        if row["icrc_state"] == "invalid":
            parts.append(style("ICRC INVALID", fg="red", bold=True))
        if row["malformed"] and row["malformed"] != MALFORMED[CUT]:
            parts.append(style(f"MALFORMED: {row['malformed']}", fg="red", bold=True))
        return "  ".join(parts)


def _parts(packets: Packets) -> list[Part]:
    """What the words of a line depend on, beside numbers and the words of columns."""
    around = np.array([bool(wrapping.short) for wrapping in packets.wrappings])
    return [
        (packets.has, 16),
        (packets.opcode & 0x1FF, 9),
        (packets.syndrome, 8),
        (packets.malformed, 8),
        (packets.roce_version == 1, 1),
        (packets.payload_length != 0, 1),
        (packets.ecn == ECN_CE, 1),
        (around[packets.encapsulation], 1),
        (packets.fragment, 1),
        (packets.truncated, 1),
        (packets.icrc_state == ICRC_INVALID, 1),
        *((packets[name], 1) for name in _FLAGS),
    ]


def _seconds(packets: Packets, first_ns: int) -> Printed:
    """The times since the first frame."""
    times = packets.time_ns
    if max(abs(int(end) - first_ns) for end in (times.min(), times.max())) < _FAR_NS:
        return Printed(times - first_ns, is_time=True)
    words = Words([time - first_ns for time in times.tolist()], seconds_text)
    words.update()
    return Printed(np.arange(len(packets)), words)


def _plain(text: str, **_style: Any) -> str:
    return text


def _cut_off(row: Row) -> str:
    """The first header that a truncated packet has not; empty if it has all."""
    if row["opcode"] is None:
        return "BTH"
    opcode = OPCODES.get(OPCODE_NAMES.get(row["opcode"], -1))
    for header in () if opcode is None else opcode.headers:
        names = [field.name for field in header.fields if not field.reserved and not field.is_bytes]
        if names and not any(name in row for name in names):
            return header.name
    return ""
