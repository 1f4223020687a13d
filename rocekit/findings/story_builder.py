"""Makes the stories of a capture. What makes them is imported only where something happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story


def build_stories(evidence: Evidence) -> list[Story]:
    """The stories, in order of time (``stories.build``)."""
    from rocekit.findings.stories import build

    return build.build_stories(evidence)
