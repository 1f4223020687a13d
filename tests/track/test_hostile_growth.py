"""What a capture costs grows with its length, also where each packet was made to meet all others.

Counted are the lines of Python that run, without compiled loops: four times the packets may take no more than
six times the lines (the square would be sixteen times).
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest

COUNTED = r"""
import json, struct, sys, tempfile
from pathlib import Path

import rocekit
from rocekit.machine.limits import PAIRING_LOOKS, choose_limit
from rocekit.wire.build import build_frame

choose_limit(PAIRING_LOOKS, 1)  # flows that responses look at beside what each packet pays for
START_NS = 1_700_000_000_000_000_000


def send(psn, opcode="RC_SEND_ONLY", **fields):
    known = {"src": "10.0.0.1", "dst": "10.0.0.2", "dest_qpn": 0x12, "payload": b"", "psn": psn & 0xFFFFFF}
    return build_frame(opcode, **(known | fields))


def back(psn, opcode="RC_ACKNOWLEDGE", **fields):
    return send(psn, opcode, **({"src": "10.0.0.2", "dst": "10.0.0.1", "dest_qpn": 0x11} | fields))


def addresses_that_collide(n):
    for i in range(n):
        yield send(i, src=f"2001:{i:x}::{i ^ 0x77:x}:0:0:0", dst="2001::1")


def flows_with_one_psn(n):
    for i in range(n // 2):
        yield send(7, dest_qpn=2 + i)
    for i in range(n // 2):
        yield back(7, msn=0, dest_qpn=2 + n + i)


def responses_to_none_of_many_flows(n):
    for i in range(n // 2):
        yield send(i * 5000, dest_qpn=2 + i)
    for i in range(n // 2):
        yield back(i * 5000 + 77, msn=0, dest_qpn=9)


def scopes(n):
    for i in range(n):
        frame = send(i // 2) if i % 2 else back(i // 2, msn=i)
        yield frame[:12] + b"\x81\x00" + struct.pack(">H", i & 0xFFF) + frame[12:]


def lines_of(case, n):
    step_ns = 24 * 10**9 // n if case is responses_to_none_of_many_flows else 1000
    with tempfile.TemporaryDirectory() as folder:
        path, now = Path(folder, "x.pcap"), START_NS
        with path.open("wb") as file:
            file.write(struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1))
            for frame in case(n):
                now += step_ns
                file.write(struct.pack("<IIII", now // 10**9, now % 10**9, len(frame), len(frame)) + frame)
        count = 0

        def trace(frame, event, arg):
            nonlocal count
            count += event == "line"
            return trace

        sys.settrace(trace)
        rocekit.analyze(path)
        sys.settrace(None)
    return count


cases = [addresses_that_collide, flows_with_one_psn, responses_to_none_of_many_flows, scopes]
for case in cases:
    lines_of(case, 8)  # what is loaded and made once
print(json.dumps({case.__name__: [lines_of(case, n) for n in (150, 600)] for case in cases}))
"""


@functools.cache
def counted() -> dict[str, list[int]]:
    environment = os.environ | {"ROCEKIT_COMPILED": "0", "COVERAGE_PROCESS_START": ""}
    done = subprocess.run(
        [sys.executable, "-c", COUNTED], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "case",
    ["addresses_that_collide", "flows_with_one_psn", "responses_to_none_of_many_flows", "scopes"],
)
def test_four_times_the_packets_take_no_sixteen_times_the_work(case: str) -> None:
    few, many = counted()[case]
    assert many < 6 * few, (few, many)
