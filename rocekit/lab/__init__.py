"""Real rxe devices on any Linux machine: ``rocekit lab -- COMMAND``.

Runs a command where two of the kernel's own RoCE v2 devices, rxe0 and rxe1, talk over a veth pair that
tcpdump can watch: in place where this kernel has the module and the user is root, else in a small VM.

``front`` is what callers use, and stands here too; ``net`` tells what the wire looks like, ``agent`` what
runs beside it, ``link`` how the two sides talk, ``vm`` and ``native`` where the agent runs, ``checks`` what
is missing, ``jobs`` how several programs are run and captured in one lab.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.lab.net import LabError

if TYPE_CHECKING:
    from rocekit.lab.checks import Check, check, missing
    from rocekit.lab.front import LabResult, pick_mode, run

__all__ = ["Check", "LabError", "LabResult", "check", "missing", "pick_mode", "run"]

_ROOM = {
    "Check": "checks",
    "check": "checks",
    "missing": "checks",
    "LabResult": "front",
    "pick_mode": "front",
    "run": "front",
}


def __getattr__(name: str) -> object:
    """Load the starter's side when it is asked for: in an emulated VM the agent's every import counts."""
    if name not in _ROOM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"rocekit.lab.{_ROOM[name]}"), name)
