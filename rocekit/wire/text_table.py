"""Tables and prose as lines of text: aligned columns, colours, and what fits the width of a terminal.

Own code, although Rich has tables: into a pipe the same lines must go in full width, columns are dropped by
importance and cells not cut, and a command may not wait for Rich to load. Rich draws where cells change in
place: `rocekit top`, whose library, textual, brings it (the extra ``top``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

Style = Callable[[str, str], str]
"""``style(text, kind)`` with kind ``error``, ``warning``, ``info``, ``good``, ``dim`` or ``title``."""


def plain(text: str, kind: str) -> str:
    """No colour at all."""
    return text


_ROOM = 20
"""So much room the last cell of a row shall have, if it needs it."""


def _fitting(row: Sequence[str], line: str, widths: Sequence[int], width: int, indent: str) -> Iterator[str]:
    """A row's line; of one that is too long, the cells that have no room stand below it, whole."""
    if len(line) <= width:
        yield line
        return
    ends, used = [], len(indent)
    for own in widths[: len(row)]:
        used += own + 2
        ends.append(used - 2)
    # The last cell may be prose: it goes below whole, or is broken there.
    kept = max((c for c in range(1, len(row)) if ends[c - 1] <= width), default=1)
    head = line[: ends[kept - 1]].rstrip()
    if head.strip():
        yield from wrapped([head], width)
    if rest := [cell for cell in row[kept:] if cell]:
        yield from filled(rest, width, f"{indent}    ")


def filled(
    pieces: Iterable[str], width: int | None, indent: str = "  ", most: int | None = None
) -> list[str]:
    """Pieces side by side, as many in a line as fit, none broken unless it is longer than a line.

    Args:
        most: so many in a line at most, also where more would fit.
    """
    lines: list[str] = []
    line, count = "", 0
    for piece in pieces:
        full = width is not None and seen_width(line) + 2 + seen_width(piece) > width
        if line and (full or count == most):
            lines.append(line)
            line = ""
        line, count = (f"{line}  {piece}", count + 1) if line else (indent + piece, 1)
    return list(wrapped([*lines, *([line] if line else [])], width))


def columns(
    rows: Iterable[Sequence[str]],
    *,
    right: frozenset[int] = frozenset(),
    indent: str = "  ",
    width: int | None = None,
    spare: Sequence[int] = (),
    room: int = _ROOM,
) -> list[str]:
    """Rows of cells as aligned lines; columns in ``right`` align to the right, the last one is not padded.

    Args:
        width: of the terminal. While the cells leave no room for the last one, the columns in ``spare`` are
            left out, one after the other. Cells that still do not fit stand below their row, in the same
            string.
        room: so much the last cell shall have, if it needs it, before columns are left out.
    """
    rows = [list(row) for row in rows]
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    if width is not None:
        left_out: set[int] = set()
        for column in spare:
            kept = [w for c, w in enumerate(widths[:-1]) if c not in left_out]
            if len(indent) + sum(kept) + 2 * len(kept) + min(widths[-1], room) <= width:
                break
            left_out.add(column)
        if left_out:
            rows = [[cell for c, cell in enumerate(row) if c not in left_out] for row in rows]
            right = frozenset(c - sum(o < c for o in left_out) for c in right - left_out)
            widths = [w for c, w in enumerate(widths) if c not in left_out]
        return [
            "\n".join(_fitting(row, line, widths, width, indent))
            for row, line in zip(rows, columns(rows, right=right, indent=indent), strict=True)
        ]
    cells = [f"%{w}s" if c in right else f"%-{w}s" for c, w in enumerate(widths)]
    forms = ["  ".join(cells[:count]) for count in range(len(widths) + 1)]
    return [indent + (forms[len(row)] % tuple(row)).rstrip() for row in rows]


_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What begins a formula; the last four are full-width forms of the others."""
_RESET: Final = "\x1b[0m"
#: A cell with less room than this is not worth a column of its own.
_LEAST_ROOM: Final = 24
#: Between words; a number and its unit are one.
_WORDS: Final = re.compile(r"((?<!\d) +| ++(?!(?:ns|µs|ms|s|B|[KMG]i?B|[KMGT]?b/s|bytes?)(?!\w)))")


def seen_width(text: str) -> int:
    """How many columns a text takes on a terminal, without its colours."""
    return len(_ESCAPE.sub("", text))


def wrapped(lines: Iterable[str], width: int | None) -> Iterator[str]:
    """The lines, those that are longer than ``width`` as several; None: as they are.

    A word that is longer than the line stays whole. Colours end with a line and begin again on the next.
    """
    for text in lines:
        for line in text.split("\n"):
            if width is None or seen_width(line) <= width:
                yield line
            else:
                yield from _broken(line, width)


def _broken(line: str, width: int) -> Iterator[str]:
    indent = len(line) - len(line.lstrip(" "))
    words = _WORDS.split(line[indent:])
    hang = indent + (2 if words[0] == "→" else 4)
    out, used, colour = " " * indent, indent, ""
    gap = ""
    for word in words:
        if not word or word.isspace():
            gap = word
            continue
        length = seen_width(word)
        if len(gap) > 1 and used + len(gap) + _LEAST_ROOM <= width:
            hang = used + len(gap)  # a cell begins
        if used + len(gap) + length > width and used > hang:
            yield out + (_RESET if colour else "")
            hang = min(hang, width // 2)
            out, used, gap = " " * hang + colour, hang, ""
        out += gap + word
        used += len(gap) + length
        for escape in _ESCAPE.findall(word):
            colour = "" if escape == _RESET else colour + escape
        gap = ""
    yield out


def safe(text: str) -> str:
    """The text, with what does not show as itself written as Python writes it: ``\\x1b``, ``\\u202e``.

    Terminals obey control characters and escape sequences, a newline forges a line of ours, and marks of the
    writing direction (``Bidi_Control``) reverse what stands behind them. What can be seen stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def safe_cell(text: str) -> str:
    """The text for a cell of CSV: :func:`safe`, and with an apostrophe before what would be a formula.

    Spreadsheets compute cells that begin with one of these characters, also where they are quoted, and show
    an apostrophe at the beginning as nothing. Numbers are no text: they stay as they are.
    """
    return f"'{safe(text)}" if text.startswith(_FORMULA) else safe(text)
