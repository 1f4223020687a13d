"""The lab's wires: what one end sends to another leaves at its own interface, and nothing stays behind.

In a network namespace, which any root can make; tests in the lab try the rxe devices.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import lab_net_inside
import pytest
from places import ROOT

from rocekit.lab.net import BRIDGE, MOST_DEVICES, A, B, ends

pytestmark = pytest.mark.usefixtures("root")


@cache
def facts(devices: int) -> dict[str, Any]:
    script = (
        "mount -t sysfs sysfs /sys && ip link set lo up && "
        f"exec {sys.executable} {Path(lab_net_inside.__file__)} {devices}"
    )
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)},
    )
    if "not permitted" in done.stderr or "Unknown device type" in done.stderr:
        pytest.skip(f"no network namespaces or veth pairs here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_what_an_end_sends_leaves_at_its_interface(devices: int, family: str) -> None:
    ways = facts(devices)[family]
    if not ways:
        pytest.skip("this kernel has no IPv6")
    assert len(ways) == devices * (devices - 1)
    for way in ways:
        assert way["by source"] == way["by device"] == way["from"]
        # Whichever it is, it is another end's: what is delivered locally leaves nowhere.
        assert way["by nothing"] not in (way["to"], "lo")
        assert way["arrives from"] == way["source"]


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_a_lab_that_is_up_is_in_the_way_of_another_and_goes_whole(devices: int) -> None:
    found = facts(devices)
    assert found["collisions"] == []
    assert "an interface named va exists" in found["in the way"]
    if devices > 2:
        assert f"an interface named {BRIDGE} exists" in found["in the way"]
    assert found["left over"] == []
    assert found["links"] == ["lo"]


def test_the_ends_are_all_different_and_the_first_two_are_the_lab_s() -> None:
    every = ends(MOST_DEVICES)
    assert every[:2] == (A, B)
    for name in ("interface", "device", "mac", "ipv4", "ipv6", "table"):
        assert len({getattr(end, name) for end in every}) == MOST_DEVICES
