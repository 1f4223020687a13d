"""What a process frees stays with it once ``keep_freed_memory`` was called: the kernel is not asked again."""

from __future__ import annotations

import os
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
elif sys.argv[1] == "worker":
    from rocekit.fleet.work import keep_memory
    keep_memory()
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


def faults(how: str, **environment: str) -> int:
    program = [sys.executable, "-c", PROGRAM, how]
    run = subprocess.run(program, capture_output=True, text=True, check=True, env=os.environ | environment)
    return int(run.stdout)


needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory"
)


@needs_glibc
def test_arrays_made_again_and_again_cost_page_faults_only_once() -> None:
    once = 3 * BYTES // PAGE
    assert faults("keep") < 2 * once < faults("leave")


@needs_glibc
def test_a_fleets_worker_keeps_memory_although_dask_has_it_give_all_back() -> None:
    once = 3 * BYTES // PAGE
    dask = {"MALLOC_TRIM_THRESHOLD_": "65536"}  # what a Dask nanny sets
    assert faults("worker", **dask) < 2 * once < faults("leave", **dask)
