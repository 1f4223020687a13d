"""Compiled or plain, the analysis is the same; and what is compiled from older sources is never used."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from amount import runs
from capture_bytes import enhanced, interface, section

import rocekit
from rocekit import _compiled
from rocekit._compiled import (
    COMPILED,
    DECLINED,
    ICRCS,
    MISSING,
    MODULES,
    OUTDATED,
    SHARED,
    icrcs_state,
    state,
)
from rocekit.capture import open_capture
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import random_program
from rocekit.soft.wires.faults import at_random

PACKAGE = Path(rocekit.__file__).resolve().parent
SEEDS = runs(60)
WEATHER: tuple[dict[str, float], ...] = ({}, {"drop": 0.03}, {"drop": 0.15, "duplicate": 0.02})

#: Prints all that an analysis says of captures, and which tracker said it.
TELL = """
import dataclasses, json, sys, rocekit, rocekit.track.tracker
from rocekit.errors import CaptureError
def plain(value):
    if isinstance(value, bool):
        return int(value)
    if type(value).__name__ == "Pass":
        return [value.number, value.first, value.last, value.began_ns, value.ended_ns, value.gaps]
    return value


def told(events):
    return [[plain(getattr(e, f.name)) for f in dataclasses.fields(e)] for e in events]
for path in sys.argv[1:]:
    try:
        a = rocekit.analyze(path)
    except CaptureError as error:
        print(path, error)
        continue
    events = [told(t.events) for t in a.transfers]
    times = [[t.request_end_ns, t.acked_frame, sorted(t.missing), t.original] for t in a.transfers]
    strays = [told([*c.missed, *c.unfilled, *c.jumps, *c.stray_events]) for c in a.connections]
    print(path, json.dumps([a.to_dict(), events, times, strays], sort_keys=True))
print(rocekit.track.tracker.__file__, file=sys.stderr)
"""


#: Makes one record of each class and prints the first values of its public attributes.
BEGIN = """
import json, sys
from rocekit.flows.silences import Silences
from rocekit.flows.sums import FlowSums
from rocekit.packets import empty_packets
from rocekit.packets.dissect import Dissector
from rocekit.packets.flow_numbers import FlowNumbers, PairNumbers
from rocekit.packets.walk import Walk
from rocekit.packets.rows import Rows
from rocekit.track.connections import Connection
from rocekit.track.events import Event
from rocekit.track.progress import Progress
from rocekit.track.recent import Recent
from rocekit.track.transfers import Transfer
def value(record, name):
    try:
        found = getattr(record, name)
    except AttributeError:
        return "no value"
    if isinstance(found, (bool, int)):
        return int(found)
    return repr(list(found) if type(found).__name__ in ("_memoryviewslice", "memoryview", "array") else found)
connection = Connection(0, "RC", ["10.0.0.1", "10.0.0.2"], [17, 18])
records = {
    "packets.rows.Rows": Rows(empty_packets()),
    "packets.flow_numbers.PairNumbers": PairNumbers(),
    "packets.flow_numbers.FlowNumbers": FlowNumbers(),
    "packets.walk.Walk": Walk(),
    "packets.dissect.Dissector": Dissector(),
    "packets.dissecting.plain_frames.PlainFrames": Dissector(),  # with what it has of its base
    "flows.sums.FlowSums": FlowSums(),
    "flows.silences.Silences": Silences(),
    "track.connections.Connection": connection,
    "track.events.Event": Event("repeat", 1, 2, 3, 4),
    "track.progress.Progress": Progress(True),
    "track.recent.Recent": Recent(),
    "track.transfers.Transfer": Transfer(0, connection, 0, "WRITE", 1, 2, 3),
}
names = json.loads(sys.argv[1])
print(json.dumps({cls: {name: value(records[cls], name) for name in names[cls]} for cls in names}))
"""
RECORDS = (
    *("packets.rows.Rows", "packets.flow_numbers.PairNumbers", "packets.flow_numbers.FlowNumbers"),
    *("packets.walk.Walk", "packets.dissect.Dissector", "packets.dissecting.plain_frames.PlainFrames"),
    *("flows.sums.FlowSums", "flows.silences.Silences"),
    *("track.connections.Connection", "track.events.Event", "track.transfers.Transfer"),
    *("track.progress.Progress", "track.recent.Recent"),
)


def _run(script: str, *arguments: str, compiled: bool) -> subprocess.CompletedProcess[str]:
    """A Python program with this package, its modules compiled or plain."""
    environment = os.environ | {"ROCEKIT_COMPILED": str(int(compiled)), "PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )


def _told(paths: list[Path], compiled: bool) -> tuple[str, str]:
    """What an analysis says of captures, and the file of the tracker that said it."""
    done = _run(TELL, *map(str, paths), compiled=compiled)
    return done.stdout, done.stderr.strip().splitlines()[-1]


@pytest.fixture
def built() -> None:
    """The compiled modules are there and up to date."""
    found = state(PACKAGE)
    if found in (MISSING, OUTDATED):
        pytest.skip(f"compiled modules are {found} (pip install -e . makes them, with a C compiler)")


def test_a_compiler_makes_all_of_the_loops_or_there_is_none() -> None:
    """One that does not compile is left out, and then all of them run as plain Python."""
    every = [SHARED, *MODULES]
    made = [name for name in every if any(PACKAGE.glob(f"{name.replace('.', '/')}.*.so"))]
    assert made in ([], every), set(every) - set(made)


def _same(paths: list[Path]) -> None:
    compiled, by = _told(paths, compiled=True)
    plain, by_source = _told(paths, compiled=False)
    assert by.endswith(tuple(EXTENSION_SUFFIXES))
    assert by_source.endswith(".py")
    for one, other in zip(compiled.splitlines(), plain.splitlines(), strict=True):
        assert one == other


def test_captures_of_others_are_told_alike(built: None, others: Path) -> None:
    _same(sorted(others.glob("*.pcap")))


def test_our_own_captures_are_told_alike(built: None, pcaps: Path) -> None:
    paths = sorted(p for p in pcaps.glob("**/*.pcap*") if p.is_file())
    if not paths:
        pytest.skip("no captures in pcaps")
    _same(paths)


def test_random_talks_between_soft_endpoints_are_told_alike(built: None, tmp_path: Path) -> None:
    paths = []
    for seed in range(SEEDS):
        path = tmp_path / f"{seed}.pcapng"
        journal = tmp_path / f"{seed}.journal.jsonl" if seed % 2 else None
        run(random_program(seed), at_random(WEATHER[seed % 3]), seed, capture=path, journal=journal)
        paths.append(path)
    _same(paths)


def test_synthetic_traffic_is_told_alike(built: None, tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=5000, operations=OPERATIONS, sizes=(0, 100, 9000), loss=0.03, ecn=0.05))
    _same([path])


def test_times_beyond_all_reason_are_told_alike(built: None, tmp_path: Path) -> None:
    """Times at both ends of what a file can say, jumping to and fro: differences of them fit no clock."""
    plain = tmp_path / "plain.pcap"
    generate(plain, Traffic(packets=3000, operations=OPERATIONS, sizes=(100, 9000), loss=0.03, pairs=4))
    with open_capture(plain) as reader:
        frames = [frame for batch in reader for frame in batch.frames()]
    paths = []
    for seed in range(4):
        draw = random.Random(seed)
        far = tmp_path / f"far-{seed}.pcapng"
        stamps = (0, 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1, draw.getrandbits(63), 10**18)
        # Ticks of a nanosecond, counted from a time long before or after the epoch.
        since = draw.choice([-(1 << 62), -(1 << 40), 0, 1 << 40, 1 << 62])
        blocks = [section(), interface(1, tsresol=9, tsoffset=since)]
        now = 10**18
        for frame in frames:
            now = draw.choice(stamps) if draw.random() < 0.02 else now + draw.randrange(10**6)
            blocks.append(enhanced(frame, now & (1 << 64) - 1))
        far.write_bytes(b"".join(blocks))
        paths.append(far)
    _same(paths)


def _public_attributes(record: str) -> list[str]:
    """The attributes of a compiled class that Python can read, by its module's types."""
    module, _, cls = record.rpartition(".")
    lines = twin(PACKAGE, module, ".pxd").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if re.match(rf"cdef class {cls}\b", line)) + 1
    end = next((i for i, line in enumerate(lines[start:], start) if line and line[0] != " "), len(lines))
    found = [re.match(r"    cdef public .*?(\w+)$", line) for line in lines[start:end]]
    return [match[1] for match in found if match]


def test_records_start_with_the_same_values(built: None) -> None:
    names = json.dumps({record: _public_attributes(record) for record in RECORDS})
    compiled, plain = (json.loads(_run(BEGIN, names, compiled=mode).stdout) for mode in (True, False))
    for record in RECORDS:
        assert compiled[record], f"{record} has no public attributes"
        assert compiled[record] == plain[record], record


def twin(folder: Path, name: str, suffix: str) -> Path:
    """A module's source, types or library."""
    return folder.joinpath(*name.split(".")).with_suffix(suffix)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all modules and their compiled twins, the twins newer."""
    monkeypatch.delenv("ROCEKIT_COMPILED", raising=False)
    folder = tmp_path / "rocekit"
    folder.mkdir()
    for name in MODULES:
        for suffix, at in ((".py", 100), (".pxd", 100), (EXTENSION_SUFFIXES[0], 200)):
            path = twin(folder, name, suffix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.utime(path, (at, at))
    twin(folder, SHARED, EXTENSION_SUFFIXES[0]).touch()
    return folder


@pytest.mark.parametrize("name", [MODULES[3], SHARED])
def test_twins_are_used_all_together_or_not_at_all(package: Path, name: str) -> None:
    assert state(package) == COMPILED
    twin(package, name, EXTENSION_SUFFIXES[0]).unlink()
    assert state(package) == MISSING


@pytest.mark.parametrize("kind", ["py", "pxd"])
def test_an_edited_source_puts_the_twins_out_of_use(package: Path, kind: str) -> None:
    (package.parent / "pyproject.toml").touch()
    assert state(package) == COMPILED
    os.utime(twin(package, MODULES[-1], f".{kind}"), (300, 300))
    assert state(package) == OUTDATED


def test_an_installed_package_is_not_judged_by_its_times(package: Path) -> None:
    os.utime(twin(package, MODULES[0], ".py"), (300, 300))
    assert state(package) == COMPILED


def test_the_environment_declines(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCEKIT_COMPILED", "0")
    assert state(package) == DECLINED
    before = list(sys.meta_path)
    try:
        finder = _compiled.choice(package)
        assert sys.meta_path == [finder, *before]
        assert finder.choose() == DECLINED
        spec = finder.find_spec(f"rocekit.{MODULES[0]}", None)
        assert spec is not None
        assert spec.origin == str(twin(package, MODULES[0], ".py"))
        assert finder.find_spec("rocekit.wire", None) is None
    finally:
        sys.meta_path[:] = before


def test_the_loop_over_icrcs_is_judged_alone(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert icrcs_state(package) == MISSING
    built, source = twin(package, ICRCS, EXTENSION_SUFFIXES[0]), twin(package, ICRCS, ".c")
    built.touch()
    source.touch()
    (package.parent / "pyproject.toml").touch()
    os.utime(built, (200, 200))
    os.utime(source, (100, 100))
    assert (icrcs_state(package), state(package)) == (COMPILED, COMPILED)
    os.utime(source, (300, 300))
    assert (icrcs_state(package), state(package)) == (OUTDATED, COMPILED)
    monkeypatch.setenv("ROCEKIT_COMPILED", "0")
    assert icrcs_state(package) == DECLINED


def test_every_module_that_is_compiled_has_its_types_beside_it() -> None:
    for name in MODULES:
        assert twin(PACKAGE, name, ".pxd").is_file(), name


def test_no_module_imports_a_name_that_only_compiled_code_has() -> None:
    """A global that a ``.pxd`` types is no attribute of its compiled module: there its import fails."""
    hidden = {
        ".".join(("rocekit", *pxd.relative_to(PACKAGE).with_suffix("").parts)): set(
            re.findall(r"^cdef (?:[\w\[\]]+ )+(\w+)$", pxd.read_text(), re.MULTILINE)
        )
        for pxd in PACKAGE.rglob("*.pxd")
    }
    assert sum(map(len, hidden.values())) > 100
    # To parse all files takes seconds; names in comments would be taken for imported ones, and are none here.
    statement = re.compile(r"^ *from (rocekit[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
    sources = [*PACKAGE.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]
    imports = [
        (path, module, name)
        for path in sources
        for module, names in statement.findall(path.read_text())
        if module in hidden
        for name in re.findall(r"(?:^|,|\()\s*(\w+)", names)
    ]
    assert imports
    assert not [found for found in imports if found[2] in hidden[found[1]]]
