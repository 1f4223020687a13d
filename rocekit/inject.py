"""Traffic: a scenario as server or as client, and what was measured.

    from rocekit.inject import Plan, Settings, call, serve

The packages behind it: :mod:`rocekit.scenarios` (the programs), :mod:`rocekit.endpoint` (the interface of an
RDMA stack), :mod:`rocekit.verbs` and :mod:`rocekit.soft` (its backends).
"""

from __future__ import annotations

from rocekit.endpoint import EndpointOptions, QpOptions
from rocekit.scenarios import SCENARIOS
from rocekit.scenarios.client_server import (
    DEFAULT_PORT,
    Outcome,
    Settings,
    call,
    make_endpoint,
    scenario_named,
    serve,
)
from rocekit.scenarios.scenario import Plan

__all__ = [
    "DEFAULT_PORT",
    "SCENARIOS",
    "EndpointOptions",
    "Outcome",
    "Plan",
    "QpOptions",
    "Settings",
    "call",
    "make_endpoint",
    "scenario_named",
    "serve",
]
