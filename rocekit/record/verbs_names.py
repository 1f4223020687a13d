"""The journal's names of the numbers that libibverbs and the interposer use."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

# Names by number: enum ibv_wr_opcode, ibv_wc_opcode, ibv_qp_type, ibv_qp_state, ibv_event_type and
# ibv_access_flags of <infiniband/verbs.h>.
WR_OPCODES: Final = {
    0: "RDMA_WRITE",
    1: "RDMA_WRITE_WITH_IMM",
    2: "SEND",
    3: "SEND_WITH_IMM",
    4: "RDMA_READ",
    5: "ATOMIC_CMP_AND_SWP",
    6: "ATOMIC_FETCH_AND_ADD",
    7: "LOCAL_INV",
    8: "BIND_MW",
    9: "SEND_WITH_INV",
    10: "TSO",
    11: "DRIVER1",
    14: "FLUSH",
    15: "ATOMIC_WRITE",
}
WC_OPCODES: Final = {
    0: "SEND",
    1: "RDMA_WRITE",
    2: "RDMA_READ",
    3: "COMP_SWAP",
    4: "FETCH_ADD",
    5: "BIND_MW",
    6: "LOCAL_INV",
    7: "TSO",
    8: "FLUSH",
    9: "ATOMIC_WRITE",
    128: "RECV",
    129: "RECV_RDMA_WITH_IMM",
    130: "TM_ADD",
    131: "TM_DEL",
    132: "TM_SYNC",
    133: "TM_RECV",
    134: "TM_NO_TAG",
    135: "DRIVER1",
    136: "DRIVER2",
    137: "DRIVER3",
}
QP_TYPES: Final = {2: "RC", 3: "UC", 4: "UD", 8: "RAW_PACKET", 9: "XRC_SEND", 10: "XRC_RECV", 255: "DRIVER"}
QP_STATES: Final = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "UNKNOWN")
ASYNC_EVENTS: Final = (
    *(
        "CQ_ERR",
        "QP_FATAL",
        "QP_REQ_ERR",
        "QP_ACCESS_ERR",
        "COMM_EST",
        "SQ_DRAINED",
        "PATH_MIG",
        "PATH_MIG_ERR",
    ),
    *("DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR"),
    *("SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL"),
)
ACCESS: Final = {
    1 << 0: "LOCAL_WRITE",
    1 << 1: "REMOTE_WRITE",
    1 << 2: "REMOTE_READ",
    1 << 3: "REMOTE_ATOMIC",
    1 << 4: "MW_BIND",
    1 << 5: "ZERO_BASED",
    1 << 6: "ON_DEMAND",
    1 << 7: "HUGETLB",
    1 << 8: "FLUSH_GLOBAL",
    1 << 9: "FLUSH_PERSISTENT",
    1 << 20: "RELAXED_ORDERING",
}
CALLS: Final = ("CONNECT", "ACCEPT", "REJECT", "DISCONNECT")
