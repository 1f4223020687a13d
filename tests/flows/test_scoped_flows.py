"""Flows of equal addresses in several virtual networks are those of several pairs of hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from encapsulated import ethernet, ipv4, udp, vxlan

import rocekit
from rocekit.wire.build import build_frame


def capture(path: Path, per_network: int, networks: int) -> Path:
    """So many QPs, which all send from one UDP source port, in each virtual network."""
    frames = []
    for number in range(networks):
        for n in range(per_network):
            frame = build_frame(
                "RC_SEND_ONLY",
                src="10.0.0.1",
                dst="10.0.0.2",
                dest_qpn=16 + n,
                psn=number * 1000 + n,
                payload=bytes(8),
            )
            frames.append(ethernet(ipv4(17, udp(4789, vxlan(1 + number, frame)))))
    path.write_bytes(pcap([Frame(frame, n * 1000) for n, frame in enumerate(frames)]))
    return path


@pytest.mark.parametrize(("per_network", "told"), [(3, []), (8, [8] * 6)])
def test_qps_that_share_a_port_are_counted_in_each_network(
    tmp_path: Path, per_network: int, told: list[int]
) -> None:
    """18 QPs of six tenants that have the same addresses share a port by threes, which is nothing."""
    analysis = rocekit.analyze(capture(tmp_path / "x.pcap", per_network, 6))
    assert len({c.encapsulation.vni for c in analysis.connections}) == 6
    found = [f for f in analysis.findings if f.rule == "low-entropy"]
    assert [f.evidence["qps"] for f in found] == told
    assert [str(f.title) for f in found] == [
        f"{count} QPs from 10.0.0.1 to 10.0.0.2 in virtual network {n} share 1 UDP source port"
        for n, count in enumerate(told, 1)
    ]
