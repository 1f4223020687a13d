"""What a process frees stays with it once ``keep_freed_memory`` was called: the kernel is not asked again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from rocekit import _compiled

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


OBJECTS = """
import resource, sys
from rocekit.machine.large_pages import objects_in_large_pages

def maps():
    return open("/proc/self/smaps").read().split("VmFlags:")

def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

if sys.argv[1] != "small":
    assert objects_in_large_pages()
if sys.argv[1] == "narrow":
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20),) * 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
objects = [(n, n) for n in range(1 << 17)]
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
large = sum("hg" in flags.split("\\n")[0].split() for flags in maps()[1:])
most = held()
assert sum(a == b == n for n, (a, b) in enumerate(objects)) == len(objects)
del objects
print(faults, large, most - held())
"""


def objects(how: str) -> tuple[int, int, int]:
    """Page faults that many objects take, mappings advised to have large pages, and bytes given back."""
    run = subprocess.run([sys.executable, "-c", OBJECTS, how], capture_output=True, text=True, check=True)
    faults, large, back = map(int, run.stdout.split())
    return faults, large, back


has_large_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists()
    or _compiled.native_state(_compiled.PACKAGE, _compiled.ARENAS) != _compiled.COMPILED,
    reason="the kernel has no large pages, or the package was installed without a C compiler",
)


@has_large_pages
def test_objects_are_in_large_pages_and_their_memory_goes_back() -> None:
    small, none, _ = objects("small")
    faults, large, back = objects("large")
    assert none == 0
    assert large >= 1
    assert back > 8 << 20
    if "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        assert faults < small // 2


@has_large_pages
def test_objects_have_memory_where_no_stretch_of_addresses_is_left() -> None:
    assert objects("narrow")[1] == 0
