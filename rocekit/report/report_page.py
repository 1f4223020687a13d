"""The page of an analysis, for notebooks and files."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocekit.explanation.packets import tracked_packets
from rocekit.files.outputs import check_output, complete, writing
from rocekit.report.collector import Collector
from rocekit.report.document import document
from rocekit.report.lane_columns import build_lanes
from rocekit.report.page import page
from rocekit.wire.text_table import safe

if TYPE_CHECKING:
    from rocekit.explanation.results import Results

_HEIGHT: Final = 860
#: Larger pages are not put into a notebook's output: its file would carry them.
_LARGEST: Final = 8_000_000


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A report.

    Attributes:
        title: of the page.
        text: the page's HTML.
        inputs: the files that it was made from, which are never written over.
    """

    title: str
    text: str = field(repr=False)
    inputs: tuple[str, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write the page.

        Raises:
            RocekitError: the file cannot be written, or is one of those that were read.
        """
        check_output(path, self.inputs)
        with writing(path), complete(path) as part:
            part.write(self.text.encode())

    def _repr_html_(self) -> str:
        if len(self.text) > _LARGEST:
            return f"<p>This page has {len(self.text) / 1e6:.1f} MB: save(path) writes it to a file.</p>"
        return (
            f'<iframe title="{html.escape(self.title)}" srcdoc="{html.escape(self.text)}" '
            f'style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'
        )


def report_page(analysis: Results) -> ReportPage:
    """The page of an analysis; its captures are read again.

    Raises:
        ValueError: standard input was analysed.
    """
    collector = Collector()
    collector(tracked_packets(analysis))
    title = f"rocekit: {', '.join(safe(Path(f).name) for f in analysis.capture.inputs)}"
    text = page(title, *document(analysis, build_lanes(collector, analysis)))
    return ReportPage(title, text, analysis.paths)
