"""The page of a report: one file that needs no network."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from rocekit._version import VERSION
from rocekit.report.pack import pack
from rocekit.wire.text_table import safe

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The scripts in the order of their dependence; the page has them as one.
SCRIPTS: Final = (
    *(
        "data",
        "format",
        "table",
        "glyphs",
        "timeline",
        "psn",
        "companions",
        "save",
        "ladder",
        "topology",
        "app",
    ),
)


def page(
    title: str,
    meta: Mapping[str, Any],
    columns: Mapping[str, NDArray[Any]],
    *,
    template: str = "page",
    scripts: Sequence[str] = SCRIPTS,
) -> str:
    """The HTML of a document (see ``document``).

    Args:
        template: the name of its HTML; scripts: of its scripts, in the order of their dependence.

    Data of captures and journals is base64 and becomes text nodes: it cannot become markup.
    """
    script = "\n".join(_asset(f"{name}.js") for name in scripts)
    chart = _asset("uplot.js")
    known = re.search(r"v(\d+\.\d+\.\d+)", chart)
    parts = {
        "title": html.escape(safe(title)),
        "style": _asset("uplot.css") + _asset("page.css"),
        "version": VERSION,
        "uplot": known[1] if known else "",
        "uplot_script": f"/*\n{_asset('uplot.LICENSE')}*/\n{chart}",
        "script": f'"use strict";\n(() => {{\n{script}\n}})();',
        "data": pack(meta, columns),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset(f"{template}.html"))


def _asset(name: str) -> str:
    return (resources.files("rocekit.report") / "web" / name).read_text(encoding="utf-8")
