"""How much of the lab's tests to run."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

_LONG = "ROCEKIT_LAB_EVERYTHING=1 runs it too, which takes many minutes more in the lab"


def long_lab() -> None:
    """Skip, unless everything is asked for: what takes many minutes more in an emulated machine."""
    if not os.environ.get("ROCEKIT_LAB_EVERYTHING"):
        pytest.skip(_LONG)


def in_a_long_lab(names: Sequence[str]) -> Sequence[object]:
    """Parameters of a test; where there are none, unless everything is asked for: one that is skipped so."""
    return names or [pytest.param("none", marks=pytest.mark.skip(reason=_LONG))]


def more_lab() -> None:
    """Skip, unless more is asked for: what would take the tests past what a change should have to wait."""
    if not (os.environ.get("ROCEKIT_LAB_MORE") or os.environ.get("ROCEKIT_LAB_EVERYTHING")):
        pytest.skip("ROCEKIT_LAB_MORE=1 runs it too, some minutes in the lab (ROCEKIT_LAB_EVERYTHING=1: all)")
