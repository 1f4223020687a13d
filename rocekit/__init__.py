"""rocekit explains RDMA transfers: RoCE v2 packets beside the work requests and completions they belong to.

    import rocekit
    a = rocekit.analyze("x.pcapng")
    print(a)
    for item in rocekit.trace("eth0"):
        print(item)

Everything loads when it is first used: ``import rocekit`` itself costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rocekit import _compiled

if TYPE_CHECKING:
    from rocekit.analysis import Analysis, analyze
    from rocekit.errors import CaptureError, JournalError, RocekitError, ScenarioError, VerbsError
    from rocekit.live.tracing import Trace, trace

__all__ = [
    "analyze",
    "trace",
    "Analysis",
    "Trace",
    "RocekitError",
    "CaptureError",
    "JournalError",
    "VerbsError",
    "ScenarioError",
]

_HOMES = {
    "analyze": "rocekit.analysis",
    "Analysis": "rocekit.analysis",
    "trace": "rocekit.live.tracing",
    "Trace": "rocekit.live.tracing",
} | dict.fromkeys(__all__[4:], "rocekit.errors")

COMPILED = _compiled.choose(_compiled.PACKAGE)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rocekit' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
