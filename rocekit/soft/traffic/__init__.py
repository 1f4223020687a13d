"""Traffic as generators make it: many soft hosts on a switch with queues, whose truth is known.

    plan = incast(senders=4)                     # or read_otg("config.yaml")
    done = run_traffic(plan, capture="x.pcapng", journal="x.journal.jsonl")
    done.flows[0].cnp_rx

A plan and a seed are the whole input: they give the same packets and the same journal in every run.
"""

from __future__ import annotations

from rocekit.soft.traffic.patterns import PATTERNS, PatternSettings, pattern
from rocekit.soft.traffic.plan import FlowPlan, HostPlan, TrafficPlan
from rocekit.soft.traffic.run import TrafficRun, run_traffic

__all__ = [
    "run_traffic",
    "TrafficRun",
    "TrafficPlan",
    "HostPlan",
    "FlowPlan",
    "pattern",
    "PATTERNS",
    "PatternSettings",
]
