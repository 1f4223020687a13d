"""Many ways between hosts are looked at together, and say what each would say by itself."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from amount import examples
from capture_bytes import Frame, pcap
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rocekit
from rocekit.packets.merging import alignment, matching
from rocekit.points import sightings, ways
from rocekit.wire.build import build_frame

START_NS = 1_700_000_000_000_000_000


def points(draw: random.Random, hosts: int, captures: int) -> list[bytes]:
    """Captures of the same packets, most of which pass one point after the other."""
    numbered, one_way, routed = draw.random() < 0.5, draw.random() < 0.3, draw.random() < 0.3
    seen: list[list[Frame]] = [[] for _ in range(captures)]
    offsets = [draw.choice([0, draw.randrange(-(10**7), 10**7)]) for _ in range(captures)]
    now = START_NS
    for pair in range(hosts):
        ends = [f"10.0.{pair}.1", f"10.0.{pair}.2"]
        for psn in range(draw.randrange(1, 12)):
            now += draw.randrange(1, 20_000)
            back = not one_way and draw.random() < 0.4
            src, dst = ends[::-1] if back else ends
            kind: dict[str, Any] = (
                {"opcode": "RC_ACKNOWLEDGE", "msn": psn} if back else {"opcode": "RC_SEND_ONLY"}
            )
            ip_id = draw.randrange(1, 1 << 16) if numbered else 0
            for again in range(1 + (draw.random() < 0.1)):
                passed = now + again * draw.choice([1_000, 3_000_000])
                for n in range(captures)[:: -1 if back else 1]:
                    passed += draw.randrange(300, 5_000)
                    if draw.random() > 0.05:
                        ttl = 64 - (captures - n if back else n + 1) * routed
                        frame = build_frame(
                            src=src,
                            dst=dst,
                            dest_qpn=2 + back,
                            psn=psn,
                            identification=ip_id,
                            ttl=ttl,
                            **kind,
                        )
                        seen[n].append(Frame(frame, passed + offsets[n]))
    return [pcap(sorted(of, key=lambda frame: frame.time_ns), unit="ns") for of in seen]


@settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 32), st.integers(1, 12), st.integers(2, 3))
def test_many_ways_say_what_each_says_by_itself(
    tmp_path_factory: pytest.TempPathFactory, seed: int, hosts: int, captures: int
) -> None:
    folder = tmp_path_factory.mktemp("points")
    files = [folder / f"{n}.pcap" for n in range(captures)]
    for file, data in zip(files, points(random.Random(seed), hosts, captures), strict=True):
        file.write_bytes(data)

    def document(few: int) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ways, "FEW_WAYS", few)
            patch.setattr(sightings, "FEW_WAYS", few)
            patch.setattr(matching, "_FEW_SOURCES", few)
            patch.setattr(alignment, "_FEW_WAYS", few)
            return json.dumps(rocekit.analyze(*files).to_dict())

    assert document(0) == document(1_000)


def lossy(hosts: int) -> list[bytes]:
    """Two captures; of every pair of hosts a request is lost between them, and sent again after a NAK."""
    seen: list[list[Frame]] = [[], []]
    for pair in range(hosts):
        ends = f"10.0.{pair}.1", f"10.0.{pair}.2"
        for step, (psn, back, syndrome) in enumerate(
            [(0, 0, None), (1, 0, None), (2, 0, None), (1, 1, 0x60), (1, 0, None), (2, 0, None), (2, 1, 0x1F)]
        ):
            src, dst = ends[::-1] if back else ends
            fields: dict[str, Any] = {"opcode": "RC_SEND_ONLY"}
            if syndrome is not None:
                fields = {"opcode": "RC_ACKNOWLEDGE", "syndrome": syndrome, "msn": psn}
            number = 1 + pair * 7 + step
            frame = build_frame(src=src, dst=dst, dest_qpn=2 + back, psn=psn, identification=number, **fields)
            at = START_NS + number * 10_000
            if step != 1:
                seen[1].append(Frame(frame, at + (0 if back else 3_000)))
            seen[0].append(Frame(frame, at + (3_000 if back else 0)))
    return [pcap(sorted(of, key=lambda frame: frame.time_ns), unit="ns") for of in seen]


def test_losses_between_many_hosts_cost_no_square_of_them(tmp_path: Path) -> None:
    """Each way with a loss went over all connections, and over all paths: 4,000 hosts took half a minute."""

    def calls(hosts: int) -> int:
        files = [tmp_path / f"{hosts}.{n}.pcap" for n in range(2)]
        for file, data in zip(files, lossy(hosts), strict=True):
            file.write_bytes(data)
        count = 0

        def called(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(called)
        try:
            analysis = rocekit.analyze(*files)
        finally:
            sys.setprofile(None)
        paths = analysis.capture.paths
        assert paths is not None
        assert sum(path.missing for path in paths.every) == hosts
        return count

    calls(1)  # what is loaded once
    assert calls(250) < 5 * calls(60)
