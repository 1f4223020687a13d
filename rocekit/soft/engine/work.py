"""Work requests and work completions (10.7, 10.8, 11.4).

Names are those of libibverbs without their prefixes: ``RDMA_WRITE_WITH_IMM`` is
``IBV_WR_RDMA_WRITE_WITH_IMM``, ``REM_ACCESS_ERR`` is ``IBV_WC_REM_ACCESS_ERR``. Each row of :data:`VERBS`
describes one send opcode.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rocekit.soft.engine.memory import Sge
from rocekit.soft.engine.windows import Binding
from rocekit.wire import ATOMIC_BYTES


@dataclass(frozen=True, slots=True)
class Verb:
    """A send opcode.

    Attributes:
        operation: as in ``wire.Opcode.operation``.
        wc_opcode: the opcode of its completion.
        transports: those that have it (10.7.2.2, table "Work Request/Operation Type").
        immediate, invalidate: what its last packet carries.
        has_response: whether it gets its own response (READ, atomics, FLUSH, ATOMIC WRITE), which takes one
            of the responder's resources.
        reads_back: whether the response is written to the request's SGEs.
        fixed_length: the number of bytes that the request must have, or None.
        local: whether the device does it without a packet.
    """

    operation: str
    wc_opcode: str
    transports: frozenset[str]
    immediate: bool = False
    invalidate: bool = False
    has_response: bool = False
    reads_back: bool = False
    fixed_length: int | None = None
    local: bool = False


_RC, _RC_UC, _ANY = frozenset({"RC"}), frozenset({"RC", "UC"}), frozenset({"RC", "UC", "UD"})

VERBS: Final = MappingProxyType(
    {
        "SEND": Verb("SEND", "SEND", _ANY),
        "SEND_WITH_IMM": Verb("SEND", "SEND", _ANY, immediate=True),
        "SEND_WITH_INV": Verb("SEND", "SEND", _RC, invalidate=True),
        "RDMA_WRITE": Verb("WRITE", "RDMA_WRITE", _RC_UC),
        "RDMA_WRITE_WITH_IMM": Verb("WRITE", "RDMA_WRITE", _RC_UC, immediate=True),
        "RDMA_READ": Verb("READ", "RDMA_READ", _RC, has_response=True, reads_back=True),
        "ATOMIC_FETCH_AND_ADD": Verb(
            "FETCH_ADD", "FETCH_ADD", _RC, has_response=True, reads_back=True, fixed_length=ATOMIC_BYTES
        ),
        "ATOMIC_CMP_AND_SWP": Verb(
            "CMP_SWAP", "COMP_SWAP", _RC, has_response=True, reads_back=True, fixed_length=ATOMIC_BYTES
        ),
        "FLUSH": Verb("FLUSH", "FLUSH", _RC, has_response=True),
        "ATOMIC_WRITE": Verb(
            "ATOMIC_WRITE", "ATOMIC_WRITE", _RC, has_response=True, fixed_length=ATOMIC_BYTES
        ),
        # The specification has them on UC too; here only RC has them.
        "BIND_MW": Verb("", "BIND_MW", _RC, local=True),
        "LOCAL_INV": Verb("", "LOCAL_INV", _RC, local=True),
    }
)


@dataclass(frozen=True, slots=True)
class SendWR:
    """A send work request; fields that its opcode does not use are ignored, as in ``struct ibv_send_wr``.

    Attributes:
        opcode: a key of :data:`VERBS`.
        sges: source of the payload; for a READ or an atomic, where the result is written.
        inline: payload copied when it is posted, instead of ``sges``.
        flush_length: bytes that a FLUSH covers, from ``remote_va`` on.
        dest_ip, dest_qpn, qkey: address handle, remote QP and Q_Key of a UD request.
        binding: what a BIND_MW binds; ``rkey`` contains the low byte of the new key.
    """

    wr_id: int
    opcode: str
    sges: tuple[Sge, ...] = ()
    inline: bytes | None = None
    signaled: bool = True
    solicited: bool = False
    fenced: bool = False
    remote_va: int = 0
    rkey: int = 0
    imm: int = 0
    invalidate_rkey: int = 0
    compare: int = 0
    swap_add: int = 0
    flush_length: int = 0
    placement_type: int = 1
    selectivity: int = 0
    dest_ip: str | None = None
    dest_qpn: int = 0
    qkey: int = 0
    binding: Binding | None = None

    @property
    def length(self) -> int:
        """Bytes of payload."""
        return len(self.inline) if self.inline is not None else sum(s.length for s in self.sges)


@dataclass(frozen=True, slots=True)
class RecvWR:
    """A receive work request."""

    wr_id: int
    sges: tuple[Sge, ...] = ()

    @property
    def length(self) -> int:
        return sum(s.length for s in self.sges)


@dataclass(frozen=True, slots=True)
class WC:
    """A work completion (11.4.2.1). If it failed, only ``wr_id``, ``qpn`` and ``status`` are valid.

    Attributes:
        grh: the receive buffer starts with the 40 bytes of the GRH area (UD, 11.4.2.1).
        invalidated_rkey: the key that the peer's SEND WITH INVALIDATE invalidated.
        timestamp: when it was completed, by the clock of an extended CQ.
    """

    wr_id: int
    qpn: int
    status: str
    opcode: str
    byte_len: int = 0
    imm: int | None = None
    invalidated_rkey: int | None = None
    src_qpn: int | None = None
    src_ip: str | None = None
    grh: bool = False
    vendor_err: int = 0
    solicited: bool = False
    timestamp: int | None = None
