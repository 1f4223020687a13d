"""rocekit explains RDMA transfers: RoCE v2 packets with the work requests and completions they belong to.

    import rocekit
    a = rocekit.analyze("x.pcapng")
    print(a)
    for finding in a.findings:
        print(finding)
    print(rocekit.explain(a.transfers[12], a))
    for item in rocekit.trace("eth0"):
        print(item)

Everything loads when it is first used: ``import rocekit`` itself costs nothing.
"""

from __future__ import annotations

import importlib

from rocekit import _compiled

TYPE_CHECKING = False  # to import typing takes longer than all of this
if TYPE_CHECKING:
    from typing import Any

    from rocekit.analysis import Analysis, analyze
    from rocekit.errors import CaptureError, JournalError, RocekitError, ScenarioError, VerbsError
    from rocekit.explanation.packets import packet_stories
    from rocekit.explanation.transfer import Explanation, explain
    from rocekit.files.reader import open_capture
    from rocekit.findings.finding import Finding
    from rocekit.journal import read_journal
    from rocekit.live.tracing import Trace, trace
    from rocekit.packets import Packets
    from rocekit.packets.decoder import Decoder
    from rocekit.packets.filters import Filter
    from rocekit.report.export import tables
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

__all__ = [
    "analyze",
    "trace",
    "explain",
    "tables",
    "packet_stories",
    "open_capture",
    "Decoder",
    "read_journal",
    "Analysis",
    "Trace",
    "Explanation",
    "Finding",
    "Connection",
    "Transfer",
    "Packets",
    "Filter",
    "RocekitError",
    "CaptureError",
    "JournalError",
    "VerbsError",
    "ScenarioError",
]

_HOMES = {
    "analyze": "analysis",
    "Analysis": "analysis",
    "trace": "live.tracing",
    "Trace": "live.tracing",
    "explain": "explanation.transfer",
    "Explanation": "explanation.transfer",
    "packet_stories": "explanation.packets",
    "tables": "report.export",
    "open_capture": "files.reader",
    "Decoder": "packets.decoder",
    "read_journal": "journal",
    "Finding": "findings.finding",
    "Connection": "track.connections",
    "Transfer": "track.transfers",
    "Packets": "packets",
    "Filter": "packets.filters",
}

#: Modules for users: Scapy's layers, captures as frames, decoding, scenarios.
_FACES = ("capture", "decode", "inject", "layers")

_CHOICE = _compiled.choice(_compiled.PACKAGE)


def __getattr__(name: str) -> Any:
    if name == "COMPILED":
        return _CHOICE.choose()
    if name in _FACES:
        return importlib.import_module(f"rocekit.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'rocekit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rocekit.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_FACES, *(name for name in globals() if name.startswith("__"))})
