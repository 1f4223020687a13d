"""Work requests, the memory they name, and completions; the same for every backend.

Names and meanings are those of libibverbs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

LOCAL_WRITE = "LOCAL_WRITE"
REMOTE_WRITE = "REMOTE_WRITE"
REMOTE_READ = "REMOTE_READ"
REMOTE_ATOMIC = "REMOTE_ATOMIC"
MW_BIND = "MW_BIND"
"""Allows memory windows: keys for parts of the region (:meth:`Connection.grant`)."""

ATOMICS = frozenset({"ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP"})


class Region(ABC):
    """Registered memory.

    Attributes:
        addr, length: its address and its bytes.
        lkey, rkey: the keys of local and of remote use.
    """

    addr: int
    length: int
    lkey: int
    rkey: int

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``."""

    @abstractmethod
    def write(self, offset: int, data: bytes) -> None:
        """Put ``data`` at ``offset``."""

    def discard(self, offset: int, length: int) -> None:  # noqa: B027 -- what is pinned stays
        """Nobody needs these bytes any more: the machine may have their memory, and they may be zero."""


class DeviceMemory(Region):
    """A region on the device itself; ``read`` and ``write`` copy over the bus."""


@dataclass(frozen=True, slots=True)
class Sge:
    """A piece of a region, as an element of a scatter-gather list."""

    region: Region
    offset: int
    length: int

    @property
    def addr(self) -> int:
        return self.region.addr + self.offset

    def to_dict(self) -> dict[str, int]:
        return {"addr": self.addr, "length": self.length, "lkey": self.region.lkey}


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a UD request: the address handle's address, the QP there, and its Q_Key."""

    ip: str
    qpn: int
    qkey: int


@dataclass(frozen=True, slots=True)
class SendWr:
    """A work request for the send queue; names and meanings are those of ``ibv_send_wr``.

    ``compare`` and ``swap_add`` have the names of the packet's fields, not those of ``ibv_send_wr``: a
    FETCH_ADD adds ``swap_add``, a CMP_SWAP writes ``swap_add`` if it finds ``compare``.
    """

    wr_id: int
    opcode: str
    sges: tuple[Sge, ...] = ()
    signaled: bool = True
    inline: bool = False
    fenced: bool = False
    solicited: bool = False
    remote_va: int | None = None
    rkey: int | None = None
    imm: int | None = None
    invalidate_rkey: int | None = None
    compare: int | None = None
    swap_add: int | None = None
    to: Target | None = None

    @property
    def length(self) -> int:
        """Its payload bytes."""
        return sum(sge.length for sge in self.sges)


@dataclass(frozen=True, slots=True)
class RecvWr:
    """A work request for the receive queue."""

    wr_id: int
    sges: tuple[Sge, ...] = ()

    @property
    def length(self) -> int:
        return sum(sge.length for sge in self.sges)


@dataclass(frozen=True, slots=True)
class Completion:
    """A work completion. ``opcode`` and ``byte_len`` mean nothing unless the status is SUCCESS.

    Attributes:
        timestamp: when the device completed it, in ticks of its own clock; only of extended CQs.
    """

    qpn: int
    wr_id: int
    status: str
    opcode: str | None = None
    byte_len: int | None = None
    vendor_err: int | None = None
    imm: int | None = None
    src_qpn: int | None = None
    timestamp: int | None = None


WC_MEANINGS = {
    "LOC_LEN_ERR": "a length does not fit: a message and its receive, or a work request and its QP",
    "LOC_QP_OP_ERR": "the QP could not carry the work request out",
    "LOC_PROT_ERR": "the local memory is not registered for this use",
    "WR_FLUSH_ERR": "flushed: the QP had failed before, or the connection ended",
    "LOC_ACCESS_ERR": "the peer wrote where this side does not allow it",
    "REM_INV_REQ_ERR": "the peer found the request invalid",
    "REM_ACCESS_ERR": "the peer does not allow this access (rkey, bounds, permission)",
    "REM_OP_ERR": "the peer could not carry the request out",
    "RETRY_EXC_ERR": "no acknowledgement after all retries: the peer is gone, or packets are lost",
    "RNR_RETRY_EXC_ERR": "the peer had no receive posted, at any retry",
}


def is_receive(completion: Completion) -> bool:
    """Whether a completion is that of a receive."""
    return completion.opcode is not None and completion.opcode.startswith("RECV")
