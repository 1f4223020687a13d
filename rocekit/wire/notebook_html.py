"""Pieces of HTML for notebooks: tables, findings' badges and pictures, in light and dark themes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

#: Text has the notebook's own colour. Pictures are drawn for a light page, and inverted on a dark one.
_STYLE: Final = """<style>
.rocekit{font-size:13px;line-height:1.45;max-width:1100px}
.rocekit h4{margin:.7em 0 .3em;font-size:14px}
.rocekit p{margin:.25em 0}
.rocekit table{border-collapse:collapse;margin:.3em 0;font-size:12px}
.rocekit th,.rocekit td{padding:2px 10px 2px 0;text-align:left;vertical-align:top;background:none;
border:0;border-bottom:1px solid rgba(128,128,128,.3);color:inherit;white-space:nowrap}
.rocekit td.wide{white-space:normal}
.rocekit th.n,.rocekit td.n{text-align:right;font-variant-numeric:tabular-nums}
.rocekit .dim{opacity:.7}
.rocekit tr.trouble td{color:#c4691c}
.rocekit .sev{font-weight:600}
.rocekit .sev.error{color:#d13438}.rocekit .sev.warning{color:#c4691c}.rocekit .sev.info{color:#3a87c2}
.rocekit img{max-width:100%;background:none}
@media (prefers-color-scheme:dark){.rocekit img{filter:invert(.92) hue-rotate(180deg)}}
[data-jp-theme-light="true"] .rocekit img,.vscode-light .rocekit img{filter:none}
[data-jp-theme-light="false"] .rocekit img,.vscode-dark .rocekit img,html[theme=dark] .rocekit img
{filter:invert(.92) hue-rotate(180deg)}
</style>"""


def escape(text: object) -> str:
    """Text as HTML: nothing of a capture becomes markup."""
    import html

    return html.escape(str(text))


def block(*parts: str) -> str:
    """A whole output of a cell."""
    return f'{_STYLE}<div class="rocekit">{"".join(parts)}</div>'


def heading(text: str) -> str:
    return f"<h4>{escape(text)}</h4>"


def paragraph(text: str, *, dim: bool = False) -> str:
    return f"<p{' class=dim' if dim else ''}>{escape(text)}</p>"


def badge(severity: str) -> str:
    """A finding's severity."""
    return f'<span class="sev {escape(severity)}">{escape(severity)}</span>'


def html_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Iterable[str] = (),
    wide: Iterable[str] = (),
    trouble: frozenset[int] = frozenset(),
) -> str:
    """A table.

    Args:
        right: heads of columns of numbers; wide: of columns whose text wraps.
        trouble: numbers of rows that are marked.
    """
    kinds = [' class="n"' if head in right else ' class="wide"' if head in wide else "" for head in heads]
    lines = ["<table><thead><tr>"]
    lines += [f"<th{kind}>{escape(head)}</th>" for head, kind in zip(heads, kinds, strict=True)]
    lines.append("</tr></thead><tbody>")
    for n, row in enumerate(rows):
        lines.append('<tr class="trouble">' if n in trouble else "<tr>")
        for cell, kind in zip(row, kinds, strict=True):
            lines.append(f"<td{kind}>{'' if cell is None else escape(cell)}</td>")
        lines.append("</tr>")
    lines.append("</tbody></table>")
    return "".join(lines)


def picture(svg: bytes, alt: str) -> str:
    """An SVG, as a picture of its own: its names do not meet those of other pictures."""
    from base64 import b64encode

    return f'<p><img alt="{escape(alt)}" src="data:image/svg+xml;base64,{b64encode(svg).decode()}"></p>'
