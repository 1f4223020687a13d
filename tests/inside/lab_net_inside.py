"""What test_lab_net.py runs in a network namespace: the lab's wires without devices, and who gets where."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from itertools import permutations
from typing import Any

from rocekit.lab import net


def route(target: str, *more: str) -> dict[str, Any]:
    """The kernel's own answer to where a packet made here goes."""
    (found,) = json.loads(subprocess.check_output(["ip", "-j", "route", "get", target, *more]))
    return dict(found)


def arrives(family: socket.AddressFamily, source: str, target: str) -> str:
    """From whom a datagram comes that was sent for real."""
    with socket.socket(family, socket.SOCK_DGRAM) as there, socket.socket(family, socket.SOCK_DGRAM) as here:
        there.bind((target, 0))
        there.settimeout(1)
        here.bind((source, 0))
        for _ in range(20):  # one may be lost while the neighbour is not known yet
            here.sendto(b"x", (target, there.getsockname()[1]))
            with contextlib.suppress(TimeoutError):
                return str(there.recvfrom(10)[1][0])
        raise TimeoutError(f"nothing arrives at {target}")


def ways(ends: tuple[net.End, ...], family: socket.AddressFamily, name: str) -> list[dict[str, Any]]:
    """Of each pair of ends: where look-ups lead that name the source, the device, or neither."""
    found = []
    for here, there in permutations(ends, 2):
        source, target = getattr(here, name), getattr(there, name)
        found.append(
            {
                "from": here.interface,
                "to": there.interface,
                "by source": route(target, "from", source)["dev"],
                "by device": route(target, "oif", here.interface)["dev"],
                "by nothing": route(target)["dev"],
                "source": source,
                "arrives from": arrives(family, source, target),
            }
        )
    return found


def main(devices: int) -> int:
    ends = net.ends(devices)
    facts: dict[str, object] = {"collisions": net.collisions(devices)}
    net._link(ends)
    for family in net.families():
        net._batch(*net._addressing(family, ends), family=family)
    facts["ipv4"] = ways(ends, socket.AF_INET, "ipv4")
    facts["ipv6"] = ways(ends, socket.AF_INET6, "ipv6") if "-6" in net.families() else []
    facts["in the way"] = net.collisions(devices)
    net.take_down()
    facts["left over"] = net.collisions(devices)
    facts["links"] = [link["ifname"] for link in json.loads(subprocess.check_output(["ip", "-j", "link"]))]
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
