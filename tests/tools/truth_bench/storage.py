"""Experiments of the truth bench with storage of the kernel's own.

Here both ends request: an initiator sends commands, and its target READs what is to be written, WRITEs what
is to be read, and sends answers that invalidate the initiator's memory. Connections and their timers are the
kernel's choice. None of it was written with this project in mind.
"""

from __future__ import annotations

from typing import Final

from truth_bench.experiments import Experiment, Fault

STORAGE: Final = "storage-"
KINDS: Final = ("nvme", "nvme", "iser", "nfs", "nfs")
#: A lost command or answer is sent again after half a second, and a kernel gives up after half a minute.
LIMIT_S: Final = 80.0


def storage(name: str, kind: str, n: int, size: int, *faults: Fault) -> Experiment:
    """``n`` writes and ``n`` reads of ``size`` bytes, from a to a disk of b."""
    program = "$PYTHON $INSIDE/storage_inside.py"
    return Experiment(
        name,
        client=f"{program} use {kind} {n} {n} {size}",
        server=f"{program} serve {kind}",
        faults=faults,
        limit_s=LIMIT_S,
        told={"program": kind, "count": n, "bytes": size, "options": ""},
    )
