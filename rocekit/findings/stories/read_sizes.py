"""Stories of READs whose two ends count with different path MTUs (see ``findings.read_mtus``).

Their requests are not where the responder expects them, so it sends NAKs, or sends responses again, and the
requester repeats. None of that says that anything was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.findings.read_mtus import read_mtus
from rocekit.findings.stories import DUPLICATE, MTU_MISMATCH
from rocekit.track.passes import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story


def find_unlike_reads(evidence: Evidence, stories: Iterable[Story]) -> None:
    """Name the rule of all that happened to a direction whose READs are counted in two ways.

    RNR NAKs and copies say the same with any path MTU.
    """
    found: dict[tuple[int, int], bool] = {}
    for story in stories:
        connection = story.connection
        if connection.incidents is None or story.rule == DUPLICATE or story.rnrs:
            continue
        key = connection.id, story.side
        if key not in found:
            mtus = read_mtus(evidence, connection, story.side)
            found[key] = mtus is not None
        if found[key]:
            story.rule = MTU_MISMATCH
            for nak in story.naks:
                nak.copy = UNKNOWN
