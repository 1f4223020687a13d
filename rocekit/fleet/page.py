"""The page of a LAKE: who lost packets to whom, since when, and the commands that show the packets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocekit.fleet.lake import Lake
from rocekit.fleet.page_commands import command_of, commands_of_sums
from rocekit.fleet.query import connect, dicts
from rocekit.report.page import page

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Rows of each table in the page, the worst; the LAKE has all.
MOST_ROWS: Final = 500
#: Host pairs in the timeline, hosts in the matrix, and columns of time.
PAIRS_SHOWN, HOSTS_SHOWN, BINS = 24, 40, 96
#: What begins within this time of each other, by the captures' own clocks, began together.
TOGETHER_NS: Final = 1_000_000_000
SCRIPTS: Final = ("data", "format", "table", "fleet")

Row = dict[str, Any]


class Span(NamedTuple):
    """A part of a LAKE in time, ns since the epoch; None: open."""

    since_ns: int | None = None
    until_ns: int | None = None

    def sql(self, column: str, unit_ns: int = 1) -> str:
        """The condition that a column of times is in it."""
        parts = ["true"]
        if self.since_ns is not None:
            parts.append(f"{column} >= {-(-self.since_ns // unit_ns)}")
        if self.until_ns is not None:
            parts.append(f"{column} < {-(-self.until_ns // unit_ns)}")
        return " AND ".join(parts)


WHOLE: Final = Span()


def fleet_page(
    lake: Lake,
    span: Span = WHOLE,
    other: tuple[Lake, Span, str, str] | None = None,
    compared: Span = WHOLE,
) -> str:
    """The HTML of a LAKE.

    Args:
        span: what of it is shown; compared: what of it is compared.
        other: a LAKE, or a span of this one, to compare with, and the names of both.

    Raises:
        RocekitError: there is no LAKE, or a package is missing.
    """
    meta = document(lake, span)
    if other is not None:
        meta["comparison"] = comparison(lake, compared, *other)
    return page(f"rocekit fleet: {lake.folder.name}", meta, {}, template="fleet", scripts=SCRIPTS)


def document(lake: Lake, span: Span = WHOLE) -> Row:
    """What the page shows."""
    connection = connect(lake)
    within = span.sql("time_ns")
    sources = {
        r["capture"]: r for r in dicts(connection, "SELECT capture, point, source, error FROM captures")
    }

    def ask(sql: str) -> list[Row]:
        return dicts(connection, sql)

    def with_command(rows: list[Row]) -> list[Row]:
        return [row | {"command": command_of(row, sources)} for row in rows]

    (total,) = ask(
        "SELECT count(*) FILTER (part IS NULL OR part LIKE '1/%') AS captures, "
        "count(error) AS unreadable, count(DISTINCT point) AS points, "
        "coalesce(sum(roce_packets), 0)::BIGINT AS packets, min(first_ns) AS first_ns, "
        "max(last_ns) AS last_ns, coalesce(sum(dropped), 0)::BIGINT AS dropped, "
        "count(notice) AS notices FROM captures"
    )
    of_all = span == WHOLE and lake.judged
    ways = _ways(ask, span, exactly=of_all)
    lost = sum(row["lost_packets"] for row in ways)
    troubled = [row for row in ways if row["troubles"]]
    first = with_command(
        ask(
            f"SELECT t.*, c.point AS at FROM troubles t JOIN captures c USING (capture) WHERE {within} "
            f"ORDER BY time_ns, capture, connection, frame LIMIT 50"
        )
    )
    rules = ask(
        "SELECT rule, severity, count(*) AS findings, count(DISTINCT capture) AS captures, "
        "coalesce(sum(added_ns), 0)::BIGINT AS added_ns, min(first_ns) AS first_ns, "
        f"{_shown('min', '(coalesce(first_ns, 9223372036854775807), capture)')} "
        f"FROM findings WHERE first_ns IS NULL OR ({span.sql('first_ns')}) GROUP BY rule, severity ORDER BY "
        "CASE severity WHEN 'error' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END, findings DESC, rule"
    )
    points = ask(
        "SELECT c.point, c.capture, c.source, c.taken_at, c.taken_surely, c.roce_packets, c.error, c.notice, "
        "c.damage, c.dropped, coalesce(t.n, 0)::BIGINT AS troubles, "
        "coalesce(t.lost, 0)::BIGINT AS lost_packets, t.transfer FROM captures c "
        "LEFT JOIN (SELECT capture, count(*) AS n, sum(lost_packets) AS lost, "
        "arg_max(transfer, (added_ns, -frame)) AS transfer FROM troubles "
        f"WHERE {within} GROUP BY capture) t USING (capture) "
        f"ORDER BY c.error IS NULL, lost_packets DESC, troubles DESC, c.point LIMIT {MOST_ROWS}"
    )
    hosts = ask("SELECT * FROM hosts ORDER BY lost_packets DESC, host, way")
    for row in hosts:
        column = "dst" if row["way"] == "to" else "src"
        own = [w for w in ways if w[column] == row["host"] and w["lost_packets"]]
        row["command"] = own[0]["command"] if own else None
    links = ask("SELECT * FROM links ORDER BY lost_packets DESC, src, dst LIMIT 50")
    by_way = {(w["src"], w["dst"]): w["command"] for w in ways}
    for row in links:
        row["command"] = by_way.get((row["src"], row["dst"]))
    return {
        "lake": str(lake.folder),
        "total": total | {"began": _utc(total["first_ns"]), "ended": _utc(total["last_ns"])},
        "commands": _sums(lake, span),
        "span": [_utc(span.since_ns), _utc(span.until_ns)],
        "lost": lost,
        "judged": lake.judged,
        "judged_whole": span == WHOLE,
        "troubled_ways": len(troubled),
        "all_ways": len(ways),
        "hosts": hosts,
        "links": links,
        "ways": troubled[:MOST_ROWS],
        "addresses": _addresses(ways),
        "points": with_command(points),
        "first": [row | {"at_utc": _utc(row["time_ns"])} for row in first],
        "rules": with_command([row | {"first": _utc(row["first_ns"])} for row in rules]),
        "together": _together(ask, within, with_command),
        "timeline": _timeline(ask, within, sources, by_way),
        "matrix": _matrix(ways),
        "paths": ask(
            "SELECT src, dst, first_point, second_point, packets, missing, overtaken, doubled, corrupted, "
            f"order_by, command FROM paths ORDER BY missing DESC, overtaken DESC, src, dst LIMIT {MOST_ROWS}"
        ),
        "clocks": ask(
            "SELECT point, other_point, a_ip, b_ip, common, offset_ns, bound_ns, error, command FROM matches "
            f"ORDER BY abs(offset_ns) DESC, point, other_point LIMIT {MOST_ROWS}"
        ),
    }


def _ways(ask: Any, span: Span, *, exactly: bool) -> list[Row]:
    """Every way from one host to another, those with most losses first, each with its command.

    Args:
        exactly: whether what was counted between two capture points is of this time.
    """
    rows: list[Row] = ask(
        f"""
        WITH sent AS (
            SELECT src, dst, max(n)::BIGINT AS packets, arg_max(seen, (n, point)) AS seen
            FROM (SELECT point, src, dst, sum(packets) AS n, arg_max(capture, (packets, capture)) AS seen
            FROM rates WHERE {span.sql("second", 1_000_000_000)} GROUP BY ALL) GROUP BY ALL
        ), per_point AS (
            SELECT point, src, dst, sum(lost_packets) AS lost, sum(added_ns) AS added, count(*) AS troubles,
                min(time_ns) AS first_ns, {_shown("max", "(lost_packets, added_ns, capture)")}
            FROM troubles WHERE {span.sql("time_ns")} GROUP BY ALL
        ), bad AS (
            SELECT src, dst, max(lost)::BIGINT AS lost, max(added)::BIGINT AS added_ns,
                max(troubles)::BIGINT AS troubles, min(first_ns) AS first_ns,
                {_shown("max", "(lost, point)")}
            FROM per_point GROUP BY ALL
        )
        SELECT src, dst, coalesce(packets, 0) AS packets, coalesce(lost, 0) AS seen_lost,
            coalesce(added_ns, 0) AS added_ns, coalesce(troubles, 0) AS troubles, bad.first_ns, bad.capture,
            transfer, c.source FROM sent FULL JOIN bad USING (src, dst)
            LEFT JOIN captures c ON c.capture = coalesce(bad.capture, seen)
        WHERE src IS NOT NULL AND dst IS NOT NULL
        """
    )
    exact: dict[tuple[str, str], int] = {}
    if exactly:
        found = ask("SELECT src, dst, max(missing) AS n FROM paths WHERE order_by <> 'files' GROUP BY ALL")
        exact = {(r["src"], r["dst"]): r["n"] for r in found}
    for row in rows:
        row["lost_packets"] = max(row["seen_lost"], exact.get((row["src"], row["dst"]), 0))
        row["first"] = _utc(row["first_ns"])
        own = {"capture": {"source": row.pop("source"), "error": None}}
        row["command"] = command_of({"capture": "capture", "transfer": row["transfer"]}, own)
    rows.sort(key=lambda r: (-r["lost_packets"], -r["added_ns"], -r["troubles"], r["src"], r["dst"]))
    return rows


def _addresses(ways: Iterable[Row]) -> list[Row]:
    """Hosts with what is lost on the way to them and from them, those with most first."""
    sums: dict[str, Row] = {}
    for way in ways:
        for host, side in ((way["dst"], "to"), (way["src"], "from")):
            own = sums.setdefault(
                host,
                {
                    "host": host,
                    "to": 0,
                    "from": 0,
                    "to_packets": 0,
                    "from_packets": 0,
                    "peers": 0,
                    "command": None,
                },
            )
            own[side] += way["lost_packets"]
            own[f"{side}_packets"] += way["packets"]
            own["peers"] += side == "to"
            if own["command"] is None:
                own["command"] = way["command"]
    worst = sorted(sums.values(), key=lambda r: (-(r["to"] + r["from"]), r["host"]))
    return worst[:MOST_ROWS]


def _timeline(
    ask: Any, within: str, sources: Mapping[str, Row], commands: Mapping[tuple[str, str], str | None]
) -> Row:
    """Troubles by host pair and time: the pairs with most, in columns of equal time."""
    (span,) = ask(f"SELECT min(time_ns) AS a, max(time_ns) AS b FROM troubles WHERE {within}")
    if span["a"] is None:
        return {"pairs": [], "bins": 0}
    width = max(1, -(-(span["b"] - span["a"] + 1) // BINS))
    if width > 1_000_000_000:  # whole seconds where there is room for them
        width = -(-width // 1_000_000_000) * 1_000_000_000
    cells = ask(
        f"WITH own AS (SELECT src, dst, (time_ns - {span['a']}) // {width} AS bin, point, count(*) AS n, "
        f"{_shown('min', '(time_ns, capture)')} "
        f"FROM troubles WHERE {within} AND src IS NOT NULL AND dst IS NOT NULL GROUP BY ALL), "
        f"most AS (SELECT src, dst, bin, max(n) AS n, {_shown('max', '(n, point)')} FROM own GROUP BY ALL), "
        "chosen AS (SELECT src, dst, sum(n) AS total, min(bin) AS first FROM most GROUP BY ALL "
        f"ORDER BY total DESC, src, dst LIMIT {PAIRS_SHOWN}) "
        "SELECT src, dst, bin::BIGINT AS bin, n, capture, transfer "
        "FROM most SEMI JOIN chosen USING (src, dst) ORDER BY ALL"
    )
    pairs: dict[tuple[str, str], list[tuple[int, int, str | None]]] = {}
    for cell in cells:
        own = pairs.setdefault((cell["src"], cell["dst"]), [])
        own.append((cell["bin"], cell["n"], command_of(cell, sources)))
    order = sorted(pairs, key=lambda p: (pairs[p][0][0], p))  # who began first stands first
    return {
        "began": _utc(span["a"]),
        "bins": (span["b"] - span["a"]) // width + 1,
        "width_ns": width,
        "pairs": [
            {"src": p[0], "dst": p[1], "cells": pairs[p], "command": commands.get(p)} for p in order
        ],
    }  # fmt: skip


def _shown(which: str, key: str) -> str:
    """The capture and the transfer of the row with the least or greatest key ("min", "max"), as SQL.

    DuckDB passes over rows whose argument is NULL: the transfer would be another row's.
    """
    return (
        f"arg_{which}(capture, {key}) AS capture, "
        f"nullif(arg_{which}(coalesce(transfer, -1), {key}), -1) AS transfer"
    )


def _matrix(ways: Sequence[Row]) -> Row:
    """Losses from host (row) to host (column), of the hosts with most."""
    weight: dict[str, int] = {}
    for way in ways:
        for host in (way["src"], way["dst"]):
            weight[host] = weight.get(host, 0) + way["lost_packets"]
    chosen = sorted(weight, key=lambda h: (-weight[h], h))[:HOSTS_SHOWN]
    hosts = sorted(chosen, key=_by_address)
    place = {host: i for i, host in enumerate(hosts)}
    cells = [
        [place[w["src"]], place[w["dst"]], w["lost_packets"], w["packets"], w["command"]]
        for w in ways
        if w["src"] in place and w["dst"] in place
    ]
    return {"hosts": hosts, "of": len(weight), "cells": cells}


def _by_address(host: str) -> tuple[int, int, str]:
    """The order of hosts: that of their numbers, and not of their digits."""
    try:
        address = ip_address(host)
    except ValueError:
        return 0, 0, host
    return address.version, int(address), host


def _together(ask: Any, within: str, with_command: Any) -> list[Row]:
    """Groups of (rule, way) that began within a second of the one before, the earliest first."""
    rows = with_command(
        ask(
            "SELECT rule, src, dst, min(time_ns) AS time_ns, "
            f"{_shown('min', '(time_ns, capture)')} FROM troubles "
            f"WHERE {within} AND src IS NOT NULL AND dst IS NOT NULL "
            "GROUP BY rule, src, dst ORDER BY time_ns, rule, src, dst"
        )
    )
    groups: list[list[Row]] = []
    for row in rows:
        if groups and row["time_ns"] - groups[-1][-1]["time_ns"] <= TOGETHER_NS:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [
        {
            "at": _utc(group[0]["time_ns"]),
            "span_ns": group[-1]["time_ns"] - group[0]["time_ns"],
            "members": len(group),
            "rules": sorted({row["rule"] for row in group}),
            "ways": len({(row["src"], row["dst"]) for row in group}),
            "first": f"{group[0]['rule']} {group[0]['src']} → {group[0]['dst']}",
            "command": group[0]["command"],
        }
        for group in groups[:MOST_ROWS]
    ]


def _sums(lake: Lake, span: Span) -> dict[str, str]:
    seconds = span.sql("second", 1_000_000_000)
    return commands_of_sums(lake.folder, span.sql("time_ns"), seconds, of_all=span == WHOLE and lake.judged)


def _ways_of(lake: Lake, span: Span) -> list[Row]:
    connection = connect(lake)
    return _ways(lambda sql: dicts(connection, sql), span, exactly=span == WHOLE and lake.judged)


def comparison(lake: Lake, span: Span, other: Lake, other_span: Span, name: str, other_name: str) -> Row:
    """Ways in two LAKEs or spans: what was lost of a million packets in the one and in the other."""
    sides = []
    for one, part in ((lake, span), (other, other_span)):
        sides.append({(w["src"], w["dst"]): w for w in _ways_of(one, part)})
    rows = []
    for key in sorted(set(sides[0]) | set(sides[1])):
        a, b = (side.get(key) for side in sides)
        if not any(w and w["lost_packets"] + w["troubles"] for w in (a, b)):
            continue
        rows.append(
            {
                "src": key[0],
                "dst": key[1],
                **{f"{n}_packets": w and w["packets"] for n, w in (("a", a), ("b", b))},
                **{f"{n}_lost": w and w["lost_packets"] for n, w in (("a", a), ("b", b))},
                **{f"{n}_added_ns": w and w["added_ns"] for n, w in (("a", a), ("b", b))},
                "a_command": a and a["command"],
                "b_command": b and b["command"],
            }
        )
    rows.sort(key=lambda r: (-abs(_ppm(r, "b") - _ppm(r, "a")), r["src"], r["dst"]))
    totals = [
        {"packets": sum(w["packets"] for w in s.values()), "lost": sum(w["lost_packets"] for w in s.values())}
        for s in sides
    ]
    commands = [_sums(one, part)["lost"] for one, part in ((lake, span), (other, other_span))]
    return {
        "names": [name, other_name],
        "totals": totals,
        "commands": commands,
        "rows": rows[:MOST_ROWS],
        "all": len(rows),
    }


def _ppm(row: Row, side: str) -> float:
    packets = row[f"{side}_packets"]
    return 1e6 * (row[f"{side}_lost"] or 0) / packets if packets else 0.0


def _utc(ns: int | None) -> str | None:
    """A time in words, to the microsecond; None stays None."""
    if ns is None:
        return None
    try:
        moment = datetime.fromtimestamp(ns // 1_000_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ns % 1_000_000_000 // 1000:06} UTC"


def lake_name(folder: str | Path) -> str:
    """How a LAKE is called in a page."""
    return Path(folder).name or str(folder)
