"""The function that makes a record without its constructor gives it the same values."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from places import ROOT

#: Prints every record that is made in the two ways, one attribute a line.
TELL = """
import dataclasses, json
from rocekit.track.events import Event, happened

def told(record):
    return {f.name: repr(getattr(record, f.name)) for f in dataclasses.fields(record)}

pairs = {
    "Event": (Event("hole", 11, 2, 5, 7, 3, last_frame=2), happened("hole", 11, 2, 5, 7, 3)),
}
print(json.dumps({name: [told(record) for record in both] for name, both in pairs.items()}))
"""


def records(compiled: bool) -> str:
    environment = os.environ | {"ROCEKIT_COMPILED": str(int(compiled)), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", TELL], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_the_shorter_way_makes_the_same_record_as_the_constructor(compiled: bool) -> None:
    for name, (one, other) in json.loads(records(compiled)).items():
        assert one == other, name
