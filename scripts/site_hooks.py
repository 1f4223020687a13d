"""What MkDocs does to a page of docs/ before it becomes HTML.

`rocekit decode --fields` separates columns with tabs, which a browser would set at stops that fit no column.
"""

from __future__ import annotations

import re
from itertools import groupby

BLOCK = re.compile(r"^```console\n.*?^```$", re.MULTILINE | re.DOTALL)


def aligned(block: str) -> str:
    """An example with its tabbed lines as a table of aligned columns."""
    lines: list[str] = []
    for tabbed, group in groupby(block.splitlines(), key=lambda line: "\t" in line):
        rows = [line.split("\t") for line in group]
        columns = max(map(len, rows))
        widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(columns)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join(cells).rstrip() if tabbed else row[0])
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: object) -> str:
    """MkDocs calls this with each page."""
    return BLOCK.sub(lambda found: aligned(found[0]), markdown)
