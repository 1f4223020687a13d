"""What the queues and filters of an interface have counted, from tc's JSON.

A queue (qdisc) at the root handles what the interface sends, before a capture on it. A filter at the ingress
handles what it receives, behind a capture. So each counter's name starts with ``egress`` or ``ingress``.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

_PATIENCE_S: Final = 5
_COUNTED: Final = ("packets", "bytes", "drops", "overlimits", "requeues")
_INGRESS: Final = frozenset({"ingress", "clsact"})


def tc_counts(interface: str) -> tuple[dict[str, int], str | None]:
    """The counters of an interface's queues and filters by name, and why there are none."""
    try:
        qdiscs = _tc("qdisc", "show", "dev", interface)
        counts = qdisc_counts(qdiscs)
        kinds = {str(qdisc.get("kind")) for qdisc in qdiscs}
        sides = [("ingress", "ingress")] if kinds & _INGRESS else []
        sides += [("egress", "egress")] if "clsact" in kinds else []
        for side, where in sides:
            counts |= filter_counts(_tc("filter", "show", "dev", interface, where), side)
    except FileNotFoundError:
        return {}, "the program tc is not installed"
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return {}, f"tc failed: {error}"
    return counts, None


def _tc(*arguments: str) -> list[dict[str, Any]]:
    said = subprocess.run(
        ["tc", "-s", "-j", *arguments], capture_output=True, timeout=_PATIENCE_S, check=True
    ).stdout
    found = json.loads(said or b"[]")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def qdisc_counts(qdiscs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The counters in the output of ``tc -s -j qdisc show dev IFACE``."""
    counts: Counter[str] = Counter()
    for qdisc in qdiscs:
        kind = str(qdisc.get("kind"))
        if kind == "noqueue":
            continue  # it counts nothing
        side = "ingress" if kind == "ingress" else "both" if kind == "clsact" else "egress"
        _add(counts, f"{side} {kind} {qdisc.get('handle', '')}".rstrip(" :"), qdisc)
    return dict(counts)


def filter_counts(filters: Iterable[Mapping[str, Any]], side: str) -> dict[str, int]:
    """The counters of the actions in the output of ``tc -s -j filter show dev IFACE ingress``."""
    counts: Counter[str] = Counter()
    for rule in filters:
        options = rule.get("options")
        actions = options.get("actions", ()) if isinstance(options, Mapping) else ()
        for action in actions:
            stats = action.get("stats")
            if isinstance(stats, Mapping):
                name = f"{side} filter {rule.get('pref', '')} {rule.get('kind', '')} {action.get('kind', '')}"
                _add(counts, " ".join(name.split()), stats)
    return dict(counts)


def _add(counts: Counter[str], name: str, stats: Mapping[str, Any]) -> None:
    for what in _COUNTED:
        value = stats.get(what)
        if isinstance(value, int) and not isinstance(value, bool):
            counts[f"{name}: {what}"] += value
