"""Lines of text from columns, each by the template of its kind.

A template is a format string whose fields are the names of columns, such as ``PSN {psn:>10}``. Packets of one
kind (see ``kinds``) have the same template, and differ in the values of its columns only. There are two ways
to the same text: ``str.format`` on each line, and a compiled loop (``line_loop``) that writes all lines of a
batch as bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.printing import line_loop
from rocekit.packets.rows import COMPILED

Ints = NDArray[np.int64]

#: Bytes that the loop writes at once.
_ROOM: Final = 1 << 22
#: With fewer lines, the loop's steps take longer than the lines.
_FEW: Final = 24
#: A width, and "x" for hexadecimal with 0x before it.
_SPEC: Final = re.compile(r"[<>]?#?(\d*)(x?)")


class Words:
    """Texts that a column has by number.

    Args:
        values: what the numbers stand for; it may grow.
        spell: how each of them is written.
    """

    def __init__(self, values: Sequence[Any], spell: Callable[[Any], str]) -> None:
        self._values, self._spell = values, spell
        self.texts: list[str] = []
        self._bytes: list[bytes] = []

    def update(self) -> None:
        """Spell what came to the values."""
        self.texts += [self._spell(value) for value in self._values[len(self.texts) :]]

    def encoded(self) -> list[bytes]:
        """The texts in UTF-8."""
        self._bytes += [text.encode("utf-8", "replace") for text in self.texts[len(self._bytes) :]]
        return self._bytes


@dataclass(frozen=True, slots=True)
class Printed:
    """A column to print: numbers, or the numbers of words.

    Attributes:
        is_time: nanoseconds, to be printed as seconds with nine decimals.
    """

    values: NDArray[Any]
    words: Words | None = None
    is_time: bool = False

    def cells(self) -> list[Any]:
        """The values as ``str.format`` takes them."""
        values = self.values.tolist()
        if self.words is not None:
            texts = self.words.texts
            return [texts[value] for value in values]
        return [seconds_text(value) for value in values] if self.is_time else values

    def longest(self) -> list[str]:
        """Some cells, the longest among them; of words those that are known so far."""
        if self.words is not None:
            return self.words.texts
        return Printed(np.array([self.values.min(), self.values.max()]), None, self.is_time).cells()

    @property
    def form(self) -> int:
        if self.words is not None:
            return line_loop.WORD
        if self.is_time:
            return line_loop.SECONDS
        return line_loop.UNSIGNED if self.values.dtype == np.uint64 else line_loop.DECIMAL


def seconds_text(time_ns: int) -> str:
    """Nanoseconds in seconds."""
    size = abs(time_ns)
    return f"{'-' if time_ns < 0 else ''}{size // 10**9}.{size % 10**9:09}"


def literal(text: str) -> str:
    """A text that stands in a template as it is."""
    return text.replace("{", "{{").replace("}", "}}")


def fields_of(template: str) -> list[str]:
    """The columns that a template has."""
    return [name for _, name, _, _ in Formatter().parse(template) if name is not None]


def texts(templates: Sequence[str], kinds: Ints, columns: Mapping[str, Printed]) -> Iterator[str]:
    """The line of each row.

    Args:
        templates: by kind; kinds: the kind of each row.
    """
    names = list(columns)
    cells = zip(*(column.cells() for column in columns.values()), strict=True)
    for kind, row in zip(kinds.tolist(), cells, strict=True):
        yield templates[kind].format_map(dict(zip(names, row, strict=True)))


def pieces(
    templates: Sequence[str], kinds: Ints, columns: Mapping[str, Printed], *, strip: bool = False
) -> Iterator[bytes | memoryview]:
    """The lines of all rows with their newlines in UTF-8; each piece holds until the next one is asked for.

    Args:
        templates, kinds: see ``texts``; strip: whether spaces at the ends of lines are left out.
    """
    if not COMPILED or len(kinds) < _FEW:
        lines = texts(templates, kinds, columns)
        whole = "".join(f"{line.rstrip(' ') if strip else line}\n" for line in lines)
        yield whole.encode("utf-8", "replace")
        return
    program = _Program(columns)
    longest = max((program.add(template) for template in templates), default=0)
    many = max(1, _ROOM // (longest + 1))
    out = np.empty(min(many, len(kinds)) * (longest + 1), np.uint8)
    loop = program.loop(out, strip)
    numbers = np.empty((max(1, len(columns)), len(kinds)), np.int64)
    for row, column in zip(numbers, columns.values(), strict=False):
        values = column.values
        row[:] = values.view(np.int64) if values.dtype == np.uint64 else values
    for first in range(0, len(kinds), many):
        size = loop.write(kinds, numbers, first, min(first + many, len(kinds)))
        yield out[:size].data


class _Program:
    """The steps of templates, as ``line_loop`` takes them."""

    def __init__(self, columns: Mapping[str, Printed]) -> None:
        self._columns = {name: (i, column) for i, (name, column) in enumerate(columns.items())}
        self._steps: list[tuple[int, ...]] = []
        self._begins = [0]
        self._texts: list[bytes] = []
        self._size = 0
        self._words: list[bytes] = []
        self._widths: list[int] = []
        self._first_word: dict[int, tuple[int, int]] = {}
        for column in columns.values():
            if column.words is not None and id(column.words) not in self._first_word:
                encoded = column.words.encoded()
                longest = max(map(len, encoded), default=0)
                self._first_word[id(column.words)] = len(self._words), longest
                self._words += encoded
                self._widths += map(len, column.words.texts)

    def add(self, template: str) -> int:
        """Add a template, as the next kind; returns the most bytes that its lines can have."""
        longest = 0
        for text, name, spec, _ in Formatter().parse(template):
            encoded = text.encode("utf-8", "replace")
            longest += len(encoded)
            place, self._size = self._size, self._size + len(encoded)
            self._texts.append(encoded)
            if name is None:
                self._steps.append((place, len(encoded), line_loop.NOTHING, 0, 0, 0))
                continue
            found = _SPEC.fullmatch(spec or "")
            assert found is not None, template
            width = int(found[1] or 0)
            row, column = self._columns[name]
            first, room = self._first_word.get(id(column.words), (0, line_loop.LONGEST_NUMBER))
            longest += width + room
            form = line_loop.HEX if found[2] else column.form
            self._steps.append((place, len(encoded), form, row, width, first))
        self._begins.append(len(self._steps))
        return longest

    def loop(self, out: NDArray[np.uint8], strip: bool) -> line_loop.LineLoop:
        """The loop with all steps, which writes into ``out``."""
        text = b"".join((*self._texts, *self._words, b"\0"))
        steps = _numbers([number for step in self._steps for number in step])
        sizes = _numbers([len(word) for word in self._words])
        at = self._size + np.cumsum(sizes) - sizes
        begins, widths = _numbers(self._begins), _numbers(self._widths)
        return line_loop.LineLoop(out, text, steps, begins, at, sizes, widths, strip=strip)


def _numbers(values: list[int]) -> Ints:
    return np.array(values, np.int64)
