"""What a command loads at its start: of a short one, that is most of its time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from capture_bytes import Frame, pcap
from handmade import ethernet

from rocekit.craft.generate import Traffic, generate
from rocekit.wire.build import build_frame

#: What an analysis of a capture without troubles has no use for.
HEAVY = ("numpy.ma", "random", "decimal", "email", "importlib.metadata", "polars", "scapy", "secrets")
#: What it reads or says only where there is something to say: losses, findings, journals, notebooks, JSON.
NOTHING_TO_SAY = (
    *("json", "queue", "rocekit.findings.stories.story", "rocekit.findings.stories.early_answers"),
    *("rocekit.findings.alike", "rocekit.findings.text", "rocekit.findings.errors_in_time"),
    *("rocekit.findings.passed_sizes", "rocekit.explanation.collective", "rocekit.wire.notebook_html"),
    *("rocekit.flows.view", "rocekit.packets.locations", "rocekit.packets.pauses"),
    "rocekit.files.read_ahead",
)
#: Runs a command line and prints what it has loaded.
PROGRAM = """
import sys
from rocekit.commands.command_line import rocekit
rocekit.main(sys.argv[1:], prog_name="rocekit", standalone_mode=False)
print("LOADED", *sys.modules, file=sys.stderr)
"""


def loaded(*arguments: str | Path) -> set[str]:
    """The modules that a command has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    line = next(line for line in done.stderr.splitlines() if line.startswith("LOADED "))
    return set(line.split()[1:])


def test_a_plain_capture_needs_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=100))
    assert loaded("analyze", path) & set(HEAVY) == set()


def test_a_plain_capture_needs_nothing_of_what_others_have(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=100))
    assert loaded("analyze", path) & set(NOTHING_TO_SAY) == set()


def test_one_with_findings_loads_how_they_are_said(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=2_000, loss=0.02))
    assert {"rocekit.findings.text", "rocekit.findings.stories.story"} <= loaded("analyze", path)


def times_asked(folder: Path, module: str, function: str) -> int:
    """How often `analyze` of a small capture calls a function of a module."""
    path = folder / "x.pcap"
    generate(path, Traffic(packets=100))
    count = f"import {module} as m; asked = []; old = m.{function}\n"
    count += f"m.{function} = lambda *a: asked.append(a) or old(*a)\n"
    done = subprocess.run(
        [sys.executable, "-c", count + PROGRAM + "print(len(asked), file=sys.stderr)", "analyze", path],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stderr.splitlines()[-1])


def test_a_small_capture_is_not_asked_twice_whether_loops_are_compiled(tmp_path: Path) -> None:
    """To look at each of the modules takes half a millisecond."""
    assert times_asked(tmp_path, "rocekit._compiled", "state") == 1


def test_few_compiled_records_are_dataclasses(tmp_path: Path) -> None:
    """Cython asks ``inspect`` at each start for each field of one (25 µs): the large ones are none."""
    assert times_asked(tmp_path, "inspect", "getfullargspec") < 70


def test_nor_does_one_with_frames_of_other_protocols(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=100))
    frame = ethernet(bytes(46), 0x88CC)
    record = (0).to_bytes(8, "little") + len(frame).to_bytes(4, "little") * 2
    whole = path.read_bytes()
    path.write_bytes(whole[:24] + record + frame + whole[24:])
    found = loaded("analyze", path)
    assert "rocekit.analysis" in found
    assert found & set(HEAVY) == set()


def test_nor_do_repeats_and_naks(tmp_path: Path) -> None:
    """What is loaded once counts for each packet of a flood of them."""
    way: dict[str, Any] = {"src": "10.0.0.1", "dst": "10.0.0.2", "dest_qpn": 0x12, "payload": b""}
    back = way | {"src": "10.0.0.2", "dst": "10.0.0.1", "dest_qpn": 0x11}
    frames = []
    for n in range(0, 100, 2):
        frames += [
            build_frame("RC_SEND_ONLY", psn=n, ackreq=1, **way),
            build_frame("RC_SEND_ONLY", psn=n + 1, ackreq=1, **way),
            build_frame("RC_ACKNOWLEDGE", psn=n, syndrome=0x60, **back),
            build_frame("RC_SEND_ONLY", psn=n, ackreq=1, **way),
        ]
    path = tmp_path / "naks.pcap"
    path.write_bytes(pcap([Frame(frame, n * 1_000) for n, frame in enumerate(frames)], unit="ns"))
    found = loaded("analyze", path)
    assert "rocekit.findings.stories.build" in found  # they are looked at
    assert found & set(HEAVY) == set()
    assert "rocekit.wire.applications" not in found  # messages without a payload name no application
