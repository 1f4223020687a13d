"""What is posted and what comes back: work requests and work completions (IBA 10.7, 10.8, 11.4).

The names are those of libibverbs without their prefixes: ``RDMA_WRITE_WITH_IMM`` is
    ``IBV_WR_RDMA_WRITE_WITH_IMM``,
``REM_ACCESS_ERR`` is ``IBV_WC_REM_ACCESS_ERR``. :data:`VERBS` says in one row what each send opcode is on the
wire.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.errors import VerbsError

if TYPE_CHECKING:
    from rocekit.soft.engine.windows import Binding


class PostError(VerbsError):
    """A work request that was refused at once (11.4.1.1).

    Attributes:
        errno: why; the message begins with its name.
        bad_wr: which request of the list; those before it were posted.
    """

    def __init__(self, code: int, message: str, *, bad_wr: int = 0) -> None:
        self.bad_wr = bad_wr
        super().__init__(f"{errno.errorcode.get(code, code)}: {message}", errno=code)


def refuse(code: int, message: str) -> VerbsError:
    """The error of a verb, its message beginning with the errno's name."""
    return VerbsError(f"{errno.errorcode.get(code, code)}: {message}", errno=code)


@dataclass(frozen=True, slots=True)
class Verb:
    """A send opcode.

    Attributes:
        operation: as ``wire.Opcode.operation`` has it.
        wc_opcode: what its completion carries.
        transports: where it is legal (10.7.2.2, table "Work Request/Operation Type").
        immediate, invalidate: what rides on its last packet.
        answered: whether the responder sends a response of its own (READ, atomics, FLUSH, ATOMIC WRITE),
            which takes one of the responder's resources.
        reads_back: whether the response is written to the request's own SGEs.
        fixed_length: bytes the request must have, or None.
        local: whether it is done within the device, without a packet.
    """

    operation: str
    wc_opcode: str
    transports: frozenset[str]
    immediate: bool = False
    invalidate: bool = False
    answered: bool = False
    reads_back: bool = False
    fixed_length: int | None = None
    local: bool = False


_RC, _RC_UC, _ANY = frozenset({"RC"}), frozenset({"RC", "UC"}), frozenset({"RC", "UC", "UD"})
ATOMIC_BYTES: Final = 8  # 9.4.5

VERBS: Final = MappingProxyType(
    {
        "SEND": Verb("SEND", "SEND", _ANY),
        "SEND_WITH_IMM": Verb("SEND", "SEND", _ANY, immediate=True),
        "SEND_WITH_INV": Verb("SEND", "SEND", _RC, invalidate=True),
        "RDMA_WRITE": Verb("WRITE", "RDMA_WRITE", _RC_UC),
        "RDMA_WRITE_WITH_IMM": Verb("WRITE", "RDMA_WRITE", _RC_UC, immediate=True),
        "RDMA_READ": Verb("READ", "RDMA_READ", _RC, answered=True, reads_back=True),
        "ATOMIC_FETCH_AND_ADD": Verb(
            "FETCH_ADD", "FETCH_ADD", _RC, answered=True, reads_back=True, fixed_length=ATOMIC_BYTES
        ),
        "ATOMIC_CMP_AND_SWP": Verb(
            "CMP_SWAP", "COMP_SWAP", _RC, answered=True, reads_back=True, fixed_length=ATOMIC_BYTES
        ),
        "FLUSH": Verb("FLUSH", "FLUSH", _RC, answered=True),
        "ATOMIC_WRITE": Verb("ATOMIC_WRITE", "ATOMIC_WRITE", _RC, answered=True, fixed_length=ATOMIC_BYTES),
        # On UC too by the specification; here on RC only.
        "BIND_MW": Verb("", "BIND_MW", _RC, local=True),
        "LOCAL_INV": Verb("", "LOCAL_INV", _RC, local=True),
    }
)


class Sge(NamedTuple):
    """A scatter-gather element: ``length`` bytes at ``addr``, which ``lkey`` gives access to."""

    addr: int
    length: int
    lkey: int


@dataclass(frozen=True, slots=True)
class SendWR:
    """A send work request; what its opcode does not use is ignored, as in ``struct ibv_send_wr``.

    Attributes:
        opcode: a key of :data:`VERBS`.
        sges: where the payload comes from (or, for a READ and an atomic, goes to).
        inline: payload copied at the time of posting, instead of ``sges``.
        flush_length: bytes that a FLUSH covers from ``remote_va`` on.
        dest_ip, dest_qpn, qkey: a UD request's address handle, remote QP and Q_Key.
        binding: what a BIND_MW binds; ``rkey`` has the new key's low byte.
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
        """Bytes that the message carries."""
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
    """A work completion (11.4.2.1). Of an unsuccessful one only ``wr_id``, ``qpn`` and ``status`` count.

    Attributes:
        grh: the receive buffer begins with the 40 bytes of the GRH area (UD, 11.4.2.1).
        invalidated_rkey: the key that the peer's SEND WITH INVALIDATE took away.
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
