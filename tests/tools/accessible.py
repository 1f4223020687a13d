"""What makes a page usable for everyone: axe-core's judgement of it, and the contrast of colours."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

# All rules: also those that are WCAG 2.2's alone, and what axe takes for good practice.
RUN = "() => axe.run(document, { rules: { 'target-size': { enabled: true } } })"


def violations(page: Page) -> list[tuple[str, str, str]]:
    """What axe-core says against a page: rule, element, how to repair it.

    axe-core is Deque's, and comes with the package axe-playwright-python: it is no part of rocekit.
    """
    pytest.importorskip("axe_playwright_python", reason="no axe-core (pip install axe-playwright-python)")
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    result = page.evaluate(RUN)
    assert len(result["passes"]) > 20  # it has looked
    return [
        (rule["id"], " ".join(map(str, node["target"])), node["failureSummary"])
        for rule in result["violations"]
        for node in rule["nodes"]
    ]


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours (#rrggbb), by WCAG 2.2's definition."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
