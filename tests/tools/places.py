"""Where things are in the repository, for tests in any folder."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PCAPS = ROOT / "pcaps"
TOOLS = ROOT / "tests" / "tools"
INSIDE = ROOT / "tests" / "inside"
OTHERS = ROOT.parent / "shared" / "captures"
"""Captures that others made; they are not ours to hand on, so the folder may not be there."""
