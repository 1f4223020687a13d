"""What a process frees stays with it once ``keep_freed_memory`` was called: the kernel is not asked again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS, BYTES, PAGE = 40, 4 << 20, 4096

PROGRAM = f"""
import resource, sys
from rocekit.machine.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    keep_freed_memory(64 << 20)
pieces = [bytearray({BYTES}) for _ in range(3)]
del pieces
before = faults()
for _ in range({ROUNDS}):
    pieces = [bytearray({BYTES}) for _ in range(3)]
    for piece in pieces:
        for place in range(0, {BYTES}, {PAGE}):
            piece[place] = 1
    del pieces, piece
print(faults() - before)
"""


def faults(how: str) -> int:
    run = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_arrays_made_again_and_again_cost_page_faults_only_once() -> None:
    once = 3 * BYTES // PAGE
    assert faults("keep") < 2 * once < faults("leave")
