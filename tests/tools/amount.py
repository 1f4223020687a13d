"""How much the tests do: what every change waits for, more of it, or everything.

The one place that reads these environment variables, which ``scripts/test`` describes:

* ``ROCEKIT_TESTS=more`` runs more in the lab, ``ROCEKIT_TESTS=everything`` leaves nothing out anywhere;
* ``ROCEKIT_SEEDS=N``: each test that counts random runs does N of them;
* ``ROCEKIT_LAB_OUTPUT=FOLDER``: what the lab's programs left in FOLDER is judged again; a program that left
  nothing there runs, and leaves it there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

AMOUNTS = ("", "more", "everything")
_AMOUNT = os.environ.get("ROCEKIT_TESTS", "")
if _AMOUNT not in AMOUNTS:
    raise ValueError(f"ROCEKIT_TESTS is more or everything, not {_AMOUNT!r}")
EVERYTHING = _AMOUNT == "everything"
MORE = EVERYTHING or _AMOUNT == "more"

LESS_EXAMPLES = 6 if MORE else 12
"""A property is tried with one in so many of its examples."""
FEWEST_EXAMPLES = 10

_NEEDS_MORE = "scripts/test --more runs it too: some minutes more in the lab"
_NEEDS_EVERYTHING = "scripts/test --everything runs it too: many minutes more in the lab"


def lab_output() -> Path | None:
    """Where output of the lab's programs is kept from one run of the tests to the next."""
    folder = os.environ.get("ROCEKIT_LAB_OUTPUT")
    return Path(folder) if folder else None


def runs(everything: int, *, always: bool = False, share: int = LESS_EXAMPLES) -> int:
    """How many random runs a test does that does so many where nothing is left out.

    ``always``: by default too, because it claims a share of them, which fewer would not show.
    ``share``: but for everything, one in so many.
    """
    wanted = os.environ.get("ROCEKIT_SEEDS")
    return int(wanted) if wanted else everything if always else examples(everything, share)


def examples(everything: int, share: int = LESS_EXAMPLES) -> int:
    """How many examples of a property are tried, of which there are so many where nothing is left out."""
    return everything if EVERYTHING else min(everything, max(everything // share, FEWEST_EXAMPLES))


def lacks_more() -> str | None:
    """Why what takes some minutes in the lab does not run, if it does not."""
    return None if MORE else _NEEDS_MORE


def needs_more() -> None:
    """Skip the test unless more is asked for."""
    if not MORE:
        import pytest  # programs inside the lab, where each import takes a second, do without

        pytest.skip(_NEEDS_MORE)


def needs_everything() -> None:
    """Skip the test unless everything is asked for."""
    if not EVERYTHING:
        import pytest

        pytest.skip(_NEEDS_EVERYTHING)


def or_skipped(names: Sequence[str]) -> Sequence[object]:
    """Parameters of a test; where there are none unless everything is asked for: one that is skipped."""
    import pytest

    return names or [pytest.param("none", marks=pytest.mark.skip(reason=_NEEDS_EVERYTHING))]
