"""In a small machine with rxe, `rocekit trace` keeps every packet that tcpdump keeps beside it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import trace_inside
from lab_boot import Boot, Part

from rocekit.files.reader import open_capture


def obstacle() -> str | None:
    missing = [name for name in ("tcpdump", "ib_send_bw") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


PART = Part("trace", (trace_inside.__file__,), timeout_s=400, loads=trace_inside.LOADS, obstacle=obstacle)
pytestmark = pytest.mark.lab(PART)


def frames(path: Path) -> Counter[bytes]:
    with open_capture(path) as reader:
        return Counter(frame for batch in reader for frame in batch.frames())


def test_what_tcpdump_keeps_is_in_the_trace_and_nothing_is_dropped(boot: Boot) -> None:
    folder = boot.of(PART)
    kept, traced = frames(folder / "tcpdump.pcap"), frames(folder / "trace.pcapng")
    assert kept.total() > trace_inside.PACKETS // 2
    assert not kept - traced
    capture = json.loads((folder / "lines.json").read_text().splitlines()[-1])
    assert capture["type"] == "capture"
    assert capture["dropped"] == 0
    assert capture["received"] == capture["frames"] == traced.total()
    assert traced.total() >= trace_inside.PACKETS
