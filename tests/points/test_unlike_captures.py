"""Two captures of the same packets, of which one was doubled by a mirror, or its clock was set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from capture_bytes import Frame, pcap
from doubled_capture import frames_of, routed

import rocekit

CLEAN: Final = Path(__file__).parents[2] / "pcaps" / "ping-sr-clean.pcapng"


def analysis_of(folder: Path, *captures: list[Frame]) -> rocekit.Analysis:
    paths = [folder / f"{n}.pcap" for n in range(len(captures))]
    for path, frames in zip(paths, captures, strict=True):
        path.write_bytes(pcap(frames, unit="ns"))
    return rocekit.analyze(*paths, journals=())


def test_a_capture_that_has_each_packet_twice_is_of_the_same_traffic(tmp_path: Path) -> None:
    frames = frames_of(CLEAN)
    copies = [replace(f, data=routed(f.data), time_ns=f.time_ns + 2_000) for f in frames]
    doubled = sorted([*frames, *copies], key=lambda f: f.time_ns)
    analysis = analysis_of(tmp_path, frames, [replace(f, time_ns=f.time_ns + 20_000) for f in doubled])
    assert "not the same traffic" not in str(analysis)
    second = analysis.capture.alignments[1]
    assert (second.common, second.offset_ns) == (len(frames), 20_000)


def test_the_bound_of_a_clock_that_was_set_has_its_offsets_before_and_after(tmp_path: Path) -> None:
    frames, step_ns = frames_of(CLEAN), 2_000_000_000
    late = [replace(f, time_ns=f.time_ns + step_ns * (2 * n > len(frames))) for n, f in enumerate(frames)]
    second = analysis_of(tmp_path, frames, late).capture.alignments[1]
    assert second.bound_ns is not None
    for true_ns, told_ns in ((0, second.offset_ns), (step_ns, second.offset_ns + second.step_ns)):
        assert abs(told_ns - true_ns) <= second.bound_ns
