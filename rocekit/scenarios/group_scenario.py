"""What ``mesh`` and ``ring`` have in common: n hosts, and two exchanges that each does in its own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rocekit.errors import ScenarioError
from rocekit.scenarios.group_member import Member, Steps

WORD = 4
"""Bytes of a number that an all-reduce adds up."""
MOST_HOSTS = 64


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What the hosts of a group do.

    Attributes:
        size: bytes that each host sends each other one in an all-to-all, and bytes of each host's vector in
            an all-reduce.
        iterations: of each exchange.
        path_mtu: bytes.
    """

    scenario: str
    hosts: int
    size: int
    iterations: int
    path_mtu: int = 1024

    @property
    def words(self) -> int:
        """Numbers in a host's vector: at least the size, and a multiple of the hosts."""
        return max(1, -(-self.size // (WORD * self.hosts))) * self.hosts


@dataclass(frozen=True, slots=True)
class Load:
    """What one host sends a neighbour in one exchange: messages, their bytes, the bytes of the longest."""

    messages: int
    bytes: int
    longest: int


class GroupScenario(ABC):
    """A topology of n hosts, and how they exchange data over it. The docstring of a subclass lists its steps.

    Attributes:
        summary: a sentence for ``--list``.
        least: the fewest hosts.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    least: ClassVar[int] = 2
    default_size: ClassVar[int] = 4096
    default_iterations: ClassVar[int] = 5

    def check(self, plan: GroupPlan) -> None:
        """Raises :class:`ScenarioError` for a plan that this scenario cannot follow."""
        if not self.least <= plan.hosts <= MOST_HOSTS:
            raise ScenarioError(f"a {self.name} has {self.least} to {MOST_HOSTS} hosts, not {plan.hosts}")

    @abstractmethod
    def pairs(self, count: int) -> list[tuple[int, int]]:
        """Which ranks are connected, each pair once."""

    @abstractmethod
    def loads(self, plan: GroupPlan, src: int, dst: int) -> tuple[Load, Load]:
        """What ``src`` sends the neighbour ``dst`` in an all-to-all and in an all-reduce."""

    @abstractmethod
    def all_to_all(self, member: Member, group: Sequence[Member], blocks: list[bytes]) -> Steps[list[bytes]]:
        """Send block i to host i; gives the blocks that each host sent to this one, by rank."""

    @abstractmethod
    def all_reduce(self, member: Member, group: Sequence[Member], vector: array[int]) -> Steps[array[int]]:
        """The sum of all hosts' vectors, at every host."""


def add(into: array[int], other: array[int]) -> array[int]:
    """The sum, element by element, of 32-bit words that wrap around."""
    if len(into) != len(other):
        raise ValueError(f"{len(into)} and {len(other)} words cannot be added")
    return array("I", np.add(np.frombuffer(into, np.uint32), np.frombuffer(other, np.uint32)).tobytes())
