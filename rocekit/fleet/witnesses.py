"""Captures that have the same traffic, found by fingerprints, and what they show together.

Of every capture the LAKE has a sample of its packets' fingerprints (see ``rates``). Captures of the same two
hosts with fingerprints in common are analysed together, as ``rocekit analyze A B`` does, but only the packets
between these hosts, and only if something went wrong between them.
"""

from __future__ import annotations

import gc
import json
import shlex
import shutil
from collections import defaultdict, deque
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocekit.analysis import analyze, find_journals
from rocekit.errors import RocekitError
from rocekit.fleet.lake import PAIRS, Lake
from rocekit.fleet.query import connect, dicts
from rocekit.fleet.run import FleetProgress, in_turn, reason
from rocekit.fleet.stream_tables import findings_rows, table_of
from rocekit.fleet.work import keep_memory

if TYPE_CHECKING:
    from rocekit.analysis import Analysis

#: Fingerprints in common that are no chance.
_ENOUGH: Final = 8
#: Captures of one conversation that are analysed together: those with most in common.
MOST_TOGETHER: Final = 4

_COMMON: Final = f"""
WITH troubled AS (
    SELECT DISTINCT least(src, dst) AS a, greatest(src, dst) AS b FROM troubles
    WHERE src IS NOT NULL AND dst IS NOT NULL
), prints AS (
    SELECT DISTINCT f.capture, f.fingerprint, least(f.src, f.dst) AS a, greatest(f.src, f.dst) AS b
    FROM fingerprints f
    SEMI JOIN troubled t ON t.a = least(f.src, f.dst) AND t.b = greatest(f.src, f.dst)
)
SELECT x.capture AS first, y.capture AS second, x.a AS a, x.b AS b, count(*) AS common
FROM prints x JOIN prints y ON x.fingerprint = y.fingerprint AND x.a = y.a AND x.b = y.b
WHERE x.capture < y.capture
GROUP BY ALL HAVING count(*) >= {_ENOUGH}
ORDER BY a, b, common DESC, first, second
"""


class Witness(NamedTuple):
    """A capture that has the traffic."""

    capture: str
    point: str
    source: str


class Conversation(NamedTuple):
    """Two hosts, and the captures that have the same packets between them."""

    hosts: tuple[str, str]
    witnesses: tuple[Witness, ...]

    @property
    def folder(self) -> str:
        """The name of its folder in the LAKE."""
        return blake2b(repr(self).encode(), digest_size=12).hexdigest()


def find_conversations(lake: Lake) -> list[Conversation]:
    """What several captures of a LAKE have in common between two hosts with troubles, sorted."""
    connection = connect(lake)
    sql = "SELECT capture, point, source FROM captures WHERE error IS NULL"
    captures = {row["capture"]: Witness(**row) for row in dicts(connection, sql)}
    groups: dict[tuple[str, str], list[set[str]]] = defaultdict(list)
    for row in dicts(connection, _COMMON):
        _join(groups[row["a"], row["b"]], row["first"], row["second"])
    return sorted(
        Conversation(hosts, tuple(sorted((captures[c] for c in group), key=lambda w: (w.point, w.capture))))
        for hosts, own in groups.items()
        for group in own
    )


def _join(groups: list[set[str]], first: str, second: str) -> None:
    """Put two captures into one group, if it does not become too large."""
    one = next((g for g in groups if first in g), {first})
    other = next((g for g in groups if second in g), {second})
    if one is other or len(one | other) > MOST_TOGETHER:
        return
    groups[:] = [g for g in groups if g is not one and g is not other] + [one | other]


def add_conversations(
    client: Any, lake: Lake, tell: Callable[[FleetProgress], None] = lambda progress: None
) -> FleetProgress:
    """Analyse what several captures have together, on the workers; forget what no longer is.

    Raises:
        RocekitError: the LAKE cannot be written.
    """
    wanted = find_conversations(lake)
    names = {one.folder for one in wanted}
    for folder in sorted((lake.folder / PAIRS).glob("*")):
        if folder.name not in names:
            shutil.rmtree(folder, ignore_errors=True)
    missing = [one for one in wanted if not (lake.folder / PAIRS / one.folder).is_dir()]
    progress = FleetProgress(len(missing), what="conversation")

    def submit(one: Conversation) -> Any:
        return client.submit(add_conversation, str(lake.folder.resolve()), one, pure=False)

    for one, outcome in in_turn(client, deque(missing), submit, progress, tell):
        if isinstance(outcome, BaseException):
            hosts = " and ".join(one.hosts)
            progress.failed.append((hosts, reason(outcome)))
            progress.troubles.append(f"failed: {hosts}: {reason(outcome)}")
        elif outcome is not None:
            raise RocekitError(
                f"{lake.folder}: cannot be written: {outcome}; what is complete stays: run it again"
            )
        progress.done += 1
        tell(progress)
    return progress


def add_conversation(folder: str, one: Conversation) -> str | None:
    """Analyse the captures of a conversation together. Returns why it could not be written, or None."""
    lake = Lake(folder)
    keep_memory()
    files = [witness.source for witness in one.witnesses]
    error: str | None = None
    analysis = None
    try:
        journals = [path for file in files for path in find_journals(file)]
        analysis = analyze(*files, journals=journals or None, hosts=frozenset(one.hosts), plain=0)
    except RocekitError as problem:
        error = str(problem)
    first = one.witnesses[0].capture
    tables = {"matches": table_of("matches", _matches(one, analysis, error), first)}
    if analysis is not None:
        tables["paths"] = table_of("paths", _paths(one, analysis), first)
        tables["placed_findings"] = table_of("placed_findings", _findings(one, analysis), first)
    try:
        lake.write(lake.folder / PAIRS / one.folder, {n: t for n, t in tables.items() if len(t)})
    except OSError as problem:
        return problem.strerror or str(problem)
    finally:
        gc.collect()
    return None


def command(one: Conversation) -> str:
    """The command that shows what the captures show together."""
    return "rocekit analyze " + " ".join(shlex.quote(w.source) for w in one.witnesses)


def _matches(one: Conversation, analysis: Analysis | None, error: str | None) -> dict[str, list[Any]]:
    others = range(1, len(one.witnesses))
    clocks = {} if analysis is None else {a.file: a for a in analysis.capture.alignments}
    n = len(others)
    return {
        "other": [one.witnesses[i].capture for i in others],
        "point": [one.witnesses[0].point] * n,
        "other_point": [one.witnesses[i].point for i in others],
        "a_ip": [one.hosts[0]] * n,
        "b_ip": [one.hosts[1]] * n,
        "common": [clocks[i].common if i in clocks else None for i in others],
        "offset_ns": [clocks[i].offset_ns if i in clocks else None for i in others],
        "bound_ns": [clocks[i].bound_ns if i in clocks else None for i in others],
        "error": [error] * n,
        "command": [command(one)] * n,
    }


def _paths(one: Conversation, analysis: Analysis) -> dict[str, list[Any]]:
    paths = [] if analysis.capture.paths is None else list(analysis.capture.paths.every)
    counted = ("packets", "missing", "overtaken", "doubled", "corrupted", "only_second", "missed_second")
    return {
        "capture": [one.witnesses[p.first].capture for p in paths],
        "other": [one.witnesses[p.second].capture for p in paths],
        "src": [p.src for p in paths],
        "dst": [p.dst for p in paths],
        "first_point": [one.witnesses[p.first].point for p in paths],
        "second_point": [one.witnesses[p.second].point for p in paths],
        **{name: [getattr(p, name) for p in paths] for name in counted},
        "order_by": [p.by for p in paths],
        "command": [command(one)] * len(paths),
    }


def _findings(one: Conversation, analysis: Analysis) -> dict[str, list[Any]]:
    rows = findings_rows(analysis.findings, several=True)
    n = len(analysis.findings)
    return {
        **{name: list(values) for name, values in rows.items()},
        "others": [json.dumps([w.capture for w in one.witnesses[1:]])] * n,
        "command": [command(one)] * n,
    }
