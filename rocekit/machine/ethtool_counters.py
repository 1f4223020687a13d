"""What an interface's driver has counted, by the program ethtool."""

from __future__ import annotations

import re
import subprocess
from typing import Final

_PATIENCE_S: Final = 5
_LINE: Final = re.compile(r"^\s+(?P<name>\S.*?):\s+(?P<value>\d+)\s*$", re.MULTILINE)
_MISSING: Final = "the program ethtool is not installed"


def ethtool_counts(interface: str) -> tuple[dict[str, int], str | None]:
    """The counters of ``ethtool -S``, and why there are none."""
    said, why = _ethtool("-S", interface)
    return parse(said), why


def pause_counts(interface: str) -> tuple[dict[str, int], str | None]:
    """The pause frames of ``ethtool -I -a``, and why there are none."""
    said, why = _ethtool("-I", "-a", interface)
    # Beside statistics it prints settings, which are no numbers.
    return parse(said), None if why == _MISSING else why


def parse(said: str) -> dict[str, int]:
    """The numbers in ethtool's lines ``name: number``."""
    return {match["name"]: int(match["value"]) for match in _LINE.finditer(said)}


def _ethtool(*arguments: str) -> tuple[str, str | None]:
    try:
        done = subprocess.run(["ethtool", *arguments], capture_output=True, timeout=_PATIENCE_S, check=False)
    except FileNotFoundError:
        return "", _MISSING
    except (OSError, subprocess.SubprocessError) as error:
        return "", f"ethtool failed: {error}"
    # A driver without counters is no failure that anybody must know.
    return done.stdout.decode(errors="replace"), None
