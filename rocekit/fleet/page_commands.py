"""The commands that show what is behind the numbers of a fleet's page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_FIRST_PARTS: Final = "part IS NULL OR part LIKE '1/%'"


def command_of(row: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The command that shows a row's packets: its transfer, else the findings of its capture."""
    capture = sources.get(row.get("capture") or "")
    if capture is None:
        return None
    source = shlex.quote(capture["source"])
    transfer = row.get("transfer")
    if transfer is not None and capture["error"] is None:
        return f"rocekit explain {source} --transfer {transfer}"
    return f"rocekit analyze {source}"


def commands_of_sums(lake: Path, within: str, seconds: str, *, of_all: bool) -> dict[str, str]:
    """For each number that is a sum over captures, the command that lists what it is the sum of.

    Args:
        within, seconds: the conditions that ``time_ns`` and ``second`` are in the time that is shown.
        of_all: whether the tables of the whole LAKE are of this time.
    """
    troubles = f"SELECT point, src, dst, sum(lost_packets) AS lost FROM troubles WHERE {within} GROUP BY ALL"
    lost = f"SELECT src, dst, max(lost) AS lost FROM ({troubles}) GROUP BY ALL HAVING max(lost) > 0"
    if of_all:
        lost = "SELECT src, dst, lost_packets AS lost FROM ways WHERE lost_packets > 0"
    rates = f"SELECT src, dst FROM rates WHERE {seconds}"
    questions = {
        "hosts": "SELECT words FROM hosts ORDER BY lost_packets DESC",
        "lost": f"{lost} ORDER BY lost DESC, src, dst",
        "troubled_ways": f"SELECT src, dst, count(*) AS troubles FROM troubles WHERE {within} "
        "AND src IS NOT NULL AND dst IS NOT NULL GROUP BY ALL ORDER BY troubles DESC, src, dst",
        "all_ways": f"SELECT src, dst FROM troubles WHERE {within} AND src IS NOT NULL AND dst IS NOT NULL "
        f"UNION {rates} ORDER BY ALL",
        "packets": "SELECT point, source, roce_packets FROM captures ORDER BY roce_packets DESC, point",
        "captures": f"SELECT point, source, frames FROM captures WHERE {_FIRST_PARTS} ORDER BY point",
        "unreadable": "SELECT point, source, error FROM captures WHERE error IS NOT NULL ORDER BY point",
        "notices": "SELECT point, source, notice FROM captures WHERE notice IS NOT NULL ORDER BY point",
        "dropped": "SELECT point, source, dropped FROM captures WHERE dropped > 0 ORDER BY dropped DESC",
        "points": "SELECT DISTINCT point FROM captures ORDER BY point",
    }
    return {name: f"rocekit fleet query {shlex.quote(str(lake))} {shlex.quote(sql)}"
            for name, sql in questions.items()}  # fmt: skip
