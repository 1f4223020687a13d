"""Tables as lines of text: aligned columns, and colours for terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Style = Callable[[str, str], str]
"""``style(text, kind)`` with kind ``error``, ``warning``, ``info``, ``good``, ``dim`` or ``title``."""


def plain(text: str, kind: str) -> str:
    """No colour at all."""
    return text


def columns(
    rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "  "
) -> list[str]:
    """Rows of cells as aligned lines; columns in ``right`` align to the right, the last one is not padded."""
    rows = [list(row) for row in rows]
    if not rows:
        return []
    widths = [max(len(row[c]) for row in rows if c < len(row)) for c in range(max(map(len, rows)))]
    out = []
    for row in rows:
        cells = [cell.rjust(widths[c]) if c in right else cell.ljust(widths[c]) for c, cell in enumerate(row)]
        out.append(indent + "  ".join(cells).rstrip())
    return out
