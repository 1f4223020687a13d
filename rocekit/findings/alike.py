"""Many alike findings as one: the same rule, severity and advice on several connections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.findings.finding import Finding
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.track.connections import Connection

#: So many alike findings are printed one by one; more become one.
FEW: Final = 4
#: The same of findings without a connection: each names hosts or messages of its own.
FEW_OF_NONE: Final = 20
_VARIED: Final = re.compile(r"0x[0-9a-f]+|[\d,]+(?:\.\d+)? (?:ns|µs|ms|s)\b")
_PROBABLY: Final = "probably"
#: So many pairs of hosts are named.
_PAIRS: Final = 2


class AlikeFindings(NamedTuple):
    """Findings of one rule, severity and advice, each on a connection, or all on none.

    Attributes:
        findings: in their order; worst: the one that cost most time, or else the most packets sent again.
    """

    findings: tuple[Finding, ...]
    worst: Finding

    @property
    def connections(self) -> list[Connection]:
        """Their connections, once each."""
        return list(
            {f.connection.id: f.connection for f in self.findings if f.connection is not None}.values()
        )

    def title(self) -> str:
        """``on 412 connections between 10.9.0.1 and 10.9.0.2: 1,803 packets sent again, …``, or ``412 times``
        where they are on no connection.
        """
        connections = self.connections
        if not connections:
            costs = _costs(self.findings)
            return f"{len(self.findings):,} times{f': {costs}' if costs else ''}"
        where = f"on {plural(len(connections), 'connection')} {_hosts(connections)}"
        likely = {f.connection.id for f in self.findings if f.connection is not None and _PROBABLY in f.title}
        if likely:
            where += f" (on {len(likely):,} of them probably)"
        costs = _costs(self.findings)
        return f"{where}: {costs}" if costs else where


def gathered(findings: Sequence[Finding]) -> list[Finding | AlikeFindings]:
    """The findings; more than ``FEW`` alike ones as one, where the first of them stood.

    Alike are those of one rule, severity and advice, in which durations and QPNs may differ.
    """
    advice: dict[str, str] = {}  # a flood has the same words again and again
    kinds: dict[tuple[str, str, str, bool], list[Finding]] = {}
    of = []
    for f in findings:
        words = advice.get(f.advice)
        if words is None:
            words = advice[f.advice] = _VARIED.sub("…", f.advice)
        alike = kinds.setdefault((f.rule, f.severity, words, f.connection is None), [])
        alike.append(f)
        of.append(alike)
    found: list[Finding | AlikeFindings] = []
    for f, alike in zip(findings, of, strict=True):
        if len(alike) <= (FEW_OF_NONE if f.connection is None else FEW):
            found.append(f)
        elif f is alike[0]:
            found.append(AlikeFindings(tuple(alike), max(alike, key=_weight)))
    return found


def _number(f: Finding, name: str) -> int:
    value = f.evidence.get(name)
    return value if isinstance(value, int) else 0


def _weight(f: Finding) -> tuple[int, int, int]:
    return _number(f, "added_ns"), _number(f, "repeated_packets"), len(f.frames)


def _numbers(findings: Sequence[Finding], name: str) -> list[int]:
    """The numbers of those that have one."""
    return [_number(f, name) for f in findings if name in f.evidence]


def _costs(findings: Sequence[Finding]) -> str:
    """What they cost: packets as a sum; delays, which may overlap, from the smallest to the largest."""
    words = []
    if lost := sum(_numbers(findings, "lost_packets")):
        words.append(f"at least {plural(lost, 'packet')} lost")
    if packets := sum(_numbers(findings, "repeated_packets")):
        words.append(f"{plural(packets, 'packet')} sent again")
    delays = _numbers(findings, "added_ns")
    delays += [0] * (len(delays) < len(findings))
    longest = max(delays)
    if longest:
        least, most = duration(min(delays)), duration(longest)
        each = least if least == most else f"{least} to {most}"
        words.append(f"{each} of delay each")
    return ", ".join(words)


def _hosts(connections: Sequence[Connection]) -> str:
    """The hosts of connections: the pairs, where they are few."""
    pairs = Counter(tuple(sorted(ip or "?" for ip in c.ips)) for c in connections)
    named = [f"between {a} and {b}" for (a, b), _ in pairs.most_common(_PAIRS)]
    if len(pairs) > _PAIRS:
        return f"between {plural(len(pairs), 'pair')} of hosts"
    return " and ".join(named)
