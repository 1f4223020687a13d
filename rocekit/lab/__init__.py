"""Real rxe devices on any Linux machine: ``rocekit lab -- COMMAND``.

Runs a command where two of the kernel's own RoCE v2 devices, rxe0 and rxe1, are connected by a veth pair that
tcpdump can watch: in place if this kernel has the module and the user is root, else in a small VM.

Callers use ``run``, from ``front``. ``net`` sets up the wire, ``agent`` runs the command beside it, ``link``
is the channel between agent and caller, ``vm`` and ``native`` start the agent, ``checks`` finds what is
missing, and ``jobs`` runs and captures several programs in one lab.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.lab.net import LabError

if TYPE_CHECKING:
    from rocekit.lab.checks import LabPiece, check, missing
    from rocekit.lab.front import LabResult, pick_mode, run

__all__ = ["LabError", "LabPiece", "LabResult", "check", "missing", "pick_mode", "run"]

_MODULE = {
    "LabPiece": "checks",
    "check": "checks",
    "missing": "checks",
    "LabResult": "front",
    "pick_mode": "front",
    "run": "front",
}


def __getattr__(name: str) -> object:
    """Load a module when one of its names is used: in an emulated VM every import of the agent counts."""
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"rocekit.lab.{_MODULE[name]}"), name)
