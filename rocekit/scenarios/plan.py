"""The plan, which the client sends the server in the private data of its request; and the data to send.

Numbers are in network byte order. Both sides also send the address of their memory: the server in its reply.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from rocekit.endpoint import Region
from rocekit.errors import ScenarioError
from rocekit.wire import MAX_MESSAGE_BYTES

ATOMIC_TYPES = ("FETCH_AND_ADD", "CMP_AND_SWAP")
_MAGIC = b"rcki"
_PLAN = struct.Struct(">4s16sHHIIHHHHQII")
_REPLY = struct.Struct(">4sQII")
_MOST, _MOST_QUEUED = (1 << 32) - 1, (1 << 16) - 1
_PATTERN_STEP = 251
_PATTERN_SPAN = 4093


def check_size(size: int) -> None:
    """Raises ScenarioError if no message may be so large (IBA Vol. 1, 9.7.7)."""
    if size > MAX_MESSAGE_BYTES:
        raise ScenarioError(f"a message has at most {MAX_MESSAGE_BYTES:,} bytes, not {size:,} (-s)")


@dataclass(frozen=True, slots=True)
class Remote:
    """The peer's memory that this side may use; ``length`` is cut at 4 GiB less a byte."""

    addr: int
    rkey: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the client and the server will do.

    Attributes:
        size: bytes of a message.
        iterations: messages, round trips or operations on each QP.
        qps: connections made one after the other.
        window, receives: the most sends and receives outstanding on a QP.
        post_list: WRs in one post.
        cq_mod: one WR in so many is signaled.
        path_mtu: bytes; 0: rdma_cm's.
        atomic: a name of :data:`ATOMIC_TYPES`.

    Raises:
        ScenarioError: a number does not fit into the private data.
    """

    scenario: str
    size: int
    iterations: int
    qps: int = 1
    window: int = 128
    receives: int = 512
    post_list: int = 1
    cq_mod: int = 100
    path_mtu: int = 0
    atomic: str = ATOMIC_TYPES[0]

    def __post_init__(self) -> None:
        for option, number, most in (
            ("-n", self.iterations, _MOST),
            ("-q", self.qps, _MOST_QUEUED),
            ("-t", self.window, _MOST_QUEUED),
            ("-r", self.receives, _MOST_QUEUED),
        ):
            if number > most:
                raise ScenarioError(f"{option} is at most {most:,}, not {number:,}")

    def pack(self, index: int, region: Region) -> bytes:
        """The private data of the request for the connection ``index``."""
        return _PLAN.pack(
            _MAGIC,
            self.scenario.encode(),
            index,
            self.qps,
            self.size,
            self.iterations,
            self.window,
            self.receives,
            self.path_mtu,
            ATOMIC_TYPES.index(self.atomic),
            region.addr,
            region.rkey,
            min(region.length, _MOST),
        )

    @classmethod
    def unpack(cls, data: bytes) -> tuple[Plan, int, Remote]:
        """(plan, index of the connection, the client's memory).

        Raises:
            ScenarioError: it is no such request.
        """
        if len(data) < _PLAN.size or data[:4] != _MAGIC:
            raise ScenarioError("the client is not `rocekit inject`")
        _, name, index, *work, mtu, atomic, addr, rkey, length = _PLAN.unpack_from(data)
        qps, size, iterations, window, receives = work
        if atomic >= len(ATOMIC_TYPES) or not size or not iterations or not qps or not window or not receives:
            raise ScenarioError("the client's plan is invalid")
        plan = cls(
            name.rstrip(b"\0").decode("ascii", "replace"),
            size,
            iterations,
            qps,
            window,
            receives,
            path_mtu=mtu,
            atomic=ATOMIC_TYPES[atomic],
        )
        return plan, index, Remote(addr, rkey, length)


def pack_reply(region: Region) -> bytes:
    """The private data of the server's reply."""
    return _REPLY.pack(_MAGIC, region.addr, region.rkey, min(region.length, _MOST))


def unpack_reply(data: bytes) -> Remote:
    """The server's memory.

    Raises:
        ScenarioError: it is no such reply.
    """
    if len(data) < _REPLY.size or data[:4] != _MAGIC:
        raise ScenarioError("the server is not `rocekit inject`")
    _, addr, rkey, length = _REPLY.unpack_from(data)
    return Remote(addr, rkey, length)


class Pattern:
    """The bytes of the i-th message: consecutive messages differ, and so do the parts of one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._noise = random.Random(size).randbytes(size + _PATTERN_SPAN)

    def __call__(self, i: int) -> bytes:
        start = i * _PATTERN_STEP % _PATTERN_SPAN
        return self._noise[start : start + self._size]

    def check(self, i: int, data: bytes) -> None:
        """Raises :class:`ScenarioError` when the data is not that of message ``i``."""
        wanted = self(i)
        if data != wanted:
            at = next(k for k, (a, b) in enumerate(zip(data, wanted, strict=True)) if a != b)
            raise ScenarioError(f"message {i}: byte {at} is {data[at]:#04x}, not {wanted[at]:#04x}")
