"""The fields of packets, as ``rocekit decode`` lists them, takes their names, and prints them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from rocekit.packets import Packets, Row
    from rocekit.packets.printing.lines import Printed


def list_fields(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """``--fields help``: a table of the fields, in place of anything else."""
    if value != "help" or ctx.resilient_parsing:
        return value
    import shutil
    import textwrap

    from rocekit.packets.field_words import field_table
    from rocekit.wire.text_table import columns

    head, *rows = [("field", "headers", "tshark", "meaning"), *field_table()]
    width = shutil.get_terminal_size().columns
    if sys.stdout.isatty():
        # The meaning wraps below the name, where it does not fit beside it.
        for name, headers, theirs, meaning in rows:
            beside = "  ".join(filter(None, (click.style(name, bold=True), headers, theirs)))
            click.echo(beside)
            click.echo(textwrap.fill(meaning, width, initial_indent="    ", subsequent_indent="    "))
    else:
        click.echo("\n".join(columns([head, *rows], indent="")))
    raise click.exceptions.Exit(0)


def complete_fields(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The last of the fields, which are separated by commas."""
    from click.shell_completion import CompletionItem

    from rocekit.packets import COLUMNS

    before, comma, word = incomplete.rpartition(",")
    names = [name for name in (*COLUMNS, *(() if comma else ("help",))) if name.startswith(word)]
    return [CompletionItem(before + comma + name) for name in names]


def field_names(fields: str | None) -> list[str]:
    """The columns named, tshark's fields included. UsageError: one is unknown."""
    from rocekit.packets import COLUMNS
    from rocekit.packets.field_words import FROM_TSHARK

    names = [name.strip() for name in (fields or "").split(",") if name.strip()]
    names = [FROM_TSHARK[name][0] if name in FROM_TSHARK else name for name in names]
    for name in names:
        if name not in COLUMNS:
            import difflib

            near = difflib.get_close_matches(name, [*COLUMNS, *FROM_TSHARK], n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise click.UsageError(
                f"there is no field {name!r}. {hint}`rocekit decode --fields help` lists them"
            )
    if fields is not None and not names:
        raise click.UsageError("--fields takes names separated by commas")
    return names


class FieldLines:
    """Fields of packets: chosen columns, separated by tabs under their names, or each packet as JSON.

    Args:
        names: the columns; none: all that a packet has, and its MAD.
    """

    def __init__(self, names: list[str], as_json: bool) -> None:
        from rocekit.packets.printing.kinds import Kinds
        from rocekit.packets.printing.mad_words import MadWords
        from rocekit.packets.printing.printed_columns import PrintedColumns

        self._names = names
        self._json = as_json
        self._ascii = bool(names) or sys.stdout.isatty()
        self._head = not as_json
        self._kinds = Kinds(self._kind)
        self._columns = PrintedColumns(self._spelled)
        self._mads = MadWords(lambda mad, port: self._spelled(mad.to_dict(port)))

    def _spelled(self, value: object) -> str:
        return json.dumps(value, ensure_ascii=self._ascii) if self._json else _text(value)

    def pieces(self, packets: Packets) -> Iterator[bytes | memoryview]:
        """The lines as bytes, with their newlines."""
        from rocekit.packets.printing.lines import pieces

        if self._head:
            yield ("\t".join(self._names) + "\n").encode()
            self._head = False
        yield from pieces(*self.made(packets))

    def made(self, packets: Packets) -> tuple[list[str], Any, dict[str, Printed]]:
        """The templates, the kind of each packet, and the columns, for ``printing.lines``."""
        from rocekit.packets.printing.printed_columns import presence

        kinds = self._kinds.of(packets, presence(packets))
        names = dict.fromkeys(name for _, fields in self._kinds.every for name in fields)
        columns = {name: self._columns.of(packets, name) for name in names}
        if self._names:
            return [template for (template, _), _ in self._kinds.every], kinds, columns
        kinds = self._mads.insert(packets, kinds, columns)
        return [template for pair, _ in self._kinds.every for template in pair], kinds, columns

    def _kind(self, row: Row) -> tuple[tuple[str, str], list[str]]:
        """The templates of packets that have the fields of this one, without and with a MAD; the columns."""
        from rocekit.packets.printing.lines import literal
        from rocekit.packets.printing.printed_columns import is_printed

        cells: dict[str, str] = {}
        for name in dict.fromkeys(self._names or row):
            there = is_printed(name, row)
            cells[name] = f"{{{name}}}" if there else literal(self._spelled(row.get(name)))
        fields = [name for name in cells if is_printed(name, row)]
        if not self._json:
            return ("\t".join(cells.values()), ""), fields
        pairs = [f"{literal(json.dumps(name))}: {cell}" for name, cell in cells.items()]
        return (f"{{{{{', '.join(pairs)}}}}}", f"{{{{{', '.join([*pairs, _MAD])}}}}}"), fields


_MAD: Final = '"mad": {mad}'


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return "" if value is None else str(value)


class VerboseLines:
    """Every field of every header of a packet, a line each, under the packet's own line."""

    def lines(self, packets: Packets) -> Iterator[str]:
        from rocekit.packets import FIELD_HOMES, HAS
        from rocekit.wire import HEADERS

        homes = {name for name in FIELD_HOMES if name != "opcode"}
        masks = packets.has.tolist()
        for row, has in zip(packets.rows(), masks, strict=True):
            yield click.style(f"Frame {row['frame']}  {_opcode(row['opcode'])}", bold=True)
            yield from _field_lines({k: v for k, v in row.items() if k not in {*homes, "frame", "opcode"}})
            for name, header in HEADERS.items():
                if has & HAS[name]:
                    yield click.style(f"  {name}", bold=True)
                    own = [field.name for field in header.fields if field.name in row]
                    yield from _field_lines({field: row[field] for field in own}, 4)


def _opcode(opcode: object) -> str:
    return f"opcode {opcode:#04x}" if isinstance(opcode, int) else str(opcode or "no opcode")


def _field_lines(values: Row, indent: int = 2) -> Iterator[str]:
    """A line for each field that has a value; numbers also in hexadecimal."""
    for name, value in values.items():
        if value is None:
            continue
        words = _text(value)
        if isinstance(value, bool):
            words = "yes" if value else "no"
        elif isinstance(value, int) and value > 9 and name not in ("frame", "file", "time_ns"):
            words = f"{value:,} ({value:#x})" if name.endswith("length") else f"{value} ({value:#x})"
        yield f"{'':{indent}}{name:<{20 - indent}}{words}"
