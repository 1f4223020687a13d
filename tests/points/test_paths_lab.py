"""The sets between two captures are what tc and rxe counted: real devices, a fault between the captures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lab_boot import Boot, Part
from places import INSIDE

import rocekit
from rocekit.points.paths import Path

PART = Part("paths", (str(INSIDE / "paths_inside.py"),), timeout_s=400, devices=3)
pytestmark = pytest.mark.lab(PART)

A, B = "10.9.0.1", "10.9.0.2"


def ran(boot: Boot, name: str) -> tuple[dict[str, Any], Path, Path]:
    """What was counted, and the paths from A to B and back."""
    folder = boot.of(PART)
    facts = json.loads((folder / "facts.json").read_text())[name]
    analysis = rocekit.analyze(*(folder / f"{name}.{tap}.pcap" for tap in ("va", "vb")))
    paths = analysis.capture.paths
    assert paths is not None
    assert facts["dropped_by_kernel"] == [0, 0]
    (there,), (back,) = paths.of(A, B), paths.of(B, A)
    refused = 0
    for path, sender, receiver in ((there, "rxe0", "rxe1"), (back, "rxe1", "rxe0")):
        assert path.packets == facts["hw"][sender]["sent_pkts"]
        # What was lost before the second capture's first packet, or behind its last, is outside of its time.
        arrived = path.packets - path.missing - path.outside + path.doubled
        assert arrived >= facts["hw"][receiver]["rcvd_pkts"]
        refused += arrived - facts["hw"][receiver]["rcvd_pkts"]
        assert (path.only_second, path.missed_second, path.outside_second) == (0, 0, 0)
    # What came to a device that dropped it, before it counted it, as of a QP that is gone.
    assert refused == facts["refused"]
    return dict(facts), there, back


def test_lost_requests(boot: Boot) -> None:
    facts, there, back = ran(boot, "requests")
    assert there.missing + there.outside == facts["tc"]["dropped"]
    assert there.missing == there.kinds["requests"] > 0
    assert (there.doubled, back.missing, back.outside) == (0, 0, 0)


def test_lost_responses(boot: Boot) -> None:
    facts, there, back = ran(boot, "responses")
    assert back.missing + back.outside == facts["tc"]["dropped"]
    assert back.missing == back.kinds["responses"] > 0
    assert (there.missing, there.outside, back.doubled) == (0, 0, 0)


def test_duplicates(boot: Boot) -> None:
    facts, there, _ = ran(boot, "duplicate")
    assert there.doubled == facts["hw"]["rxe1"]["rcvd_pkts"] - facts["hw"]["rxe0"]["sent_pkts"] > 0
    assert (there.missing, there.outside) == (0, 0)


def test_reordering(boot: Boot) -> None:
    """netem holds one packet of 20: those, and no more, are behind packets that were sent later."""
    _, there, back = ran(boot, "reorder")
    assert (there.missing, there.outside, there.doubled, back.missing) == (0, 0, 0, 0)
    assert 0 < there.overtaken <= there.packets * 0.15
