"""The scenarios of ``rocekit inject``: small programs over :mod:`rocekit.endpoint`, written to be read.

Each module has one class; the same class runs over every backend.
"""

from __future__ import annotations

from types import MappingProxyType

from rocekit.scenarios.atomic import Atomic
from rocekit.scenarios.blast_rdma import BlastRead, BlastWrite
from rocekit.scenarios.blast_sr import BlastSr
from rocekit.scenarios.cq_ex import ExtendedCq
from rocekit.scenarios.device_memory import DeviceMemoryScenario
from rocekit.scenarios.failures import Failures
from rocekit.scenarios.group_scenario import GroupScenario
from rocekit.scenarios.immediate import Immediate
from rocekit.scenarios.invalidate import Invalidate
from rocekit.scenarios.mesh import Mesh
from rocekit.scenarios.ping_read import PingRead
from rocekit.scenarios.ping_sr import PingSr
from rocekit.scenarios.ping_sr_variants import PingSr0, PingSr1, PingSr2, PingSr3, PingSr4
from rocekit.scenarios.ping_write import PingWrite
from rocekit.scenarios.ring import Ring
from rocekit.scenarios.scenario import Scenario
from rocekit.scenarios.sge import ScatterGather
from rocekit.scenarios.srq import SharedReceiveQueue
from rocekit.scenarios.uc import UnreliableConnection
from rocekit.scenarios.ud import UnreliableDatagrams
from rocekit.scenarios.wr_list import WrList

_ALL: tuple[type[Scenario], ...] = (
    *(PingSr, PingSr0, PingSr1, PingSr2, PingSr3, PingSr4, BlastSr),
    *(PingWrite, PingRead, BlastWrite, BlastRead, Atomic),
    *(UnreliableDatagrams, UnreliableConnection, Immediate, Invalidate, ScatterGather, WrList),
    *(SharedReceiveQueue, ExtendedCq, DeviceMemoryScenario, Failures),
)
SCENARIOS: MappingProxyType[str, type[Scenario]] = MappingProxyType(
    {scenario.name: scenario for scenario in _ALL}
)

#: Scenarios of more than two hosts.
GROUPS: MappingProxyType[str, type[GroupScenario]] = MappingProxyType(
    {scenario.name: scenario for scenario in (Mesh, Ring)}
)

__all__ = ["GROUPS", "SCENARIOS", "Scenario"]
