"""A fleet of 12 hosts, one of which loses what arrives, and LAKEs of its captures."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet_captures import Fleet

for package in ("distributed", "fsspec", "polars", "duckdb"):
    pytest.importorskip(package, reason=f"no {package} (pip install 'rocekit[fleet]')")

from rocekit.fleet.judgement import summarize  # noqa: E402
from rocekit.fleet.lake import Lake  # noqa: E402
from rocekit.fleet.stream_tables import LakeSettings  # noqa: E402
from rocekit.fleet.streams import find_streams  # noqa: E402
from rocekit.fleet.witnesses import add_conversation, find_conversations  # noqa: E402
from rocekit.fleet.work import add_stream  # noqa: E402

FLEET = Fleet(12, frozenset({7}), packets=2000, clocks_ns=tuple(n * 1_000_003 for n in range(12)))
KEPT = LakeSettings()


def made(folder: Path, *sources: Path | str, settings: LakeSettings = KEPT) -> Path:
    """A LAKE of sources, made in this process, one after the other."""
    Lake(folder).make(settings)
    for stream in find_streams(sources):
        done = add_stream(str(folder), stream, settings)
        assert done.full is None
        for part, own in done.parts:
            assert add_stream(str(folder), part, settings, own).full is None
        Lake(folder).forget_others(stream, done.captures)
    for one in find_conversations(Lake(folder)):
        assert add_conversation(str(folder), one) is None
    summarize(Lake(folder))
    (folder / ".staging").rmdir()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a LAKE, by its place."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
