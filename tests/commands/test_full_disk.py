"""A full disk under each command that writes: one line, status 1, and what was there is as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from places import PCAPS, ROOT

from rocekit.record.build import look

#: What its fixture makes takes long: for all of them once.
pytestmark = pytest.mark.xdist_group("full disk")

OLD = "of yesterday"
#: A journal that leaves too little room behind it for a snapshot of counters.
FIRST = '{"time_ns":1,"clock":"realtime","host":"h","pid":1,"event":"mr_registered","device":"rxe0","addr":0,'
LINE = FIRST + '"length":1,"lkey":1,"rkey":1}\n'
PAGE = 4096


@dataclass(frozen=True)
class Writing:
    """A command, the old file that it would replace, and how much room there is."""

    words: tuple[str, ...]
    old: str
    text: str = OLD
    kilobytes: int = 64
    fail: bool = False
    needs: tuple[str, ...] = field(default=())


#: With four kilobytes the old file alone fills the disk.
WRITING: dict[str, Writing] = {
    "annotate": Writing(("annotate", "BIG", "DISK/x.pcapng"), "x.pcapng"),
    "check": Writing(("check", "LOSS", "-o", "DISK/x.xml"), "x.xml", kilobytes=4),
    "conform failures": Writing(
        ("conform", "responder/length/empty_last", "--failures", "DISK"),
        "responder/length/empty_last/explanation.txt",
        kilobytes=4,
        fail=True,
    ),
    "conform html": Writing(("conform", "responder/length", "--html", "DISK/x.html"), "x.html", kilobytes=4),
    "conform junit": Writing(("conform", "responder/length", "--junit", "DISK/x.xml"), "x.xml", kilobytes=4),
    "counters": Writing(
        ("counters", "lo", "-o", "DISK/x.jsonl"), "x.jsonl", text=LINE * (PAGE // len(LINE)), kilobytes=4
    ),
    "craft": Writing(("craft", "--op", "RC_SEND_ONLY", "--count", "5000", "-w", "DISK/x.pcap"), "x.pcap"),
    "export csv": Writing(("export", "BIG", "--to", "csv", "-o", "DISK/out"), "out/packets.csv"),
    "export qlog": Writing(("export", "BIG", "--to", "qlog", "-o", "DISK/x.sqlog"), "x.sqlog"),
    "fleet report": Writing(
        ("fleet", "report", "LAKE", "-o", "DISK/x.html"),
        "x.html",
        kilobytes=4,
        needs=("duckdb", "distributed", "polars"),
    ),
    "generate": Writing(("generate", "DISK/x.pcap", "--packets", "5000"), "x.pcap"),
    "inject capture": Writing(
        ("inject", "ping-write", "--both", "--backend", "soft", "-n", "5", "--capture", "DISK/x.pcapng"),
        "x.pcapng",
        kilobytes=4,
    ),
    "inject journal": Writing(
        (
            "inject",
            "ping-write",
            "--both",
            "--backend",
            "soft",
            "-n",
            "5",
            "--journal",
            "DISK/x.journal.jsonl",
        ),
        "x.journal.jsonl",
        kilobytes=4,
    ),
    "plot": Writing(("plot", "BIG", "-o", "DISK/x.png", "--dpi", "600"), "x.png"),
    "replay": Writing(("replay", "BIG", "-w", "DISK/x.pcap"), "x.pcap"),
    "report": Writing(("report", "BIG", "-o", "DISK/x.html"), "x.html"),
    "slice": Writing(("slice", "BIG", "DISK/x.pcapng", "--from", "0"), "x.pcapng"),
}
"""``fleet analyze`` has its own test, in tests/fleet/test_run.py."""
#: The program goes on, and its exit status is that of the command.
RECORD = Writing(("record", "-o", "DISK/x.journal.jsonl", "--", "true"), "x.journal.jsonl", kilobytes=4)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, root: None) -> dict[str, Any]:
    """All commands in one process, since to start one takes longer than most of them."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"]
    probe = subprocess.run(command, capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no file system of our own in a namespace: {probe.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("disks")
    from click.testing import CliRunner

    from rocekit.cli import rocekit

    big, lake = folder / "big.pcap", folder / "lake"
    CliRunner().invoke(rocekit, ["generate", str(big), "--packets", "2000"], catch_exceptions=False)
    possible = {name: case for name, case in WRITING.items() if all(map(installed, case.needs))}
    recorder = look()
    if recorder.path is not None or recorder.can_build:
        possible["record"] = RECORD
    if "fleet report" in possible:
        from fleet_lake import made

        made(lake, PCAPS / "ping-write-loss-behind.pcap")
    cases = []
    for number, case in enumerate(possible.values()):
        disk = folder / f"disk-{number}"
        disk.mkdir()
        places = {"DISK": disk, "BIG": big, "LAKE": lake, "LOSS": PCAPS / "ping-write-loss-behind.pcap"}
        words = list(case.words)
        for key, place in places.items():
            words = [word.replace(key, str(place)) for word in words]
        cases.append(
            {
                "disk": str(disk),
                "kilobytes": case.kilobytes,
                "old": {case.old: case.text},
                "words": words,
                "fail": case.fail,
            }
        )
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, ROOT / "tests/tools/full_disks.py"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(possible, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_a_full_disk_does_not_end_the_program_that_is_recorded(results: dict[str, Any]) -> None:
    if "record" not in results:
        pytest.skip("the recorder cannot be built here")
    result = results["record"]
    assert result["status"] == 0
    failed, *others = result["err"].strip().splitlines()
    assert "x.journal.jsonl: cannot be written: No space left on device: what was" in failed
    assert not any("journal" in line for line in others)
    assert result["left"] == {RECORD.old: RECORD.text}


def installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


@pytest.mark.parametrize("name", WRITING)
def test_a_full_disk_is_one_line_and_the_old_file_stays(name: str, results: dict[str, Any]) -> None:
    if name not in results:
        pytest.skip(f"not installed: {', '.join(WRITING[name].needs)}")
    result, case = results[name], WRITING[name]
    assert result["status"] == 1, result
    said = result["err"].strip().splitlines()
    assert len(said) == 1, said
    assert "No space left on device" in said[0]
    assert result["left"] == {case.old: case.text}
