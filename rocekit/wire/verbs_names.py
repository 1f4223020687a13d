"""Names that the verbs give to work completions and CM events, by their numbers."""

from __future__ import annotations

from types import MappingProxyType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: Work completion statuses (11.6.2), with the numbers and names of libibverbs' ``enum ibv_wc_status``.
WC_STATUSES: Final = MappingProxyType(
    dict(
        enumerate(
            _words(
                "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR "
                "BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR "
                "RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR "
                "INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR TM_ERR TM_RNDV_INCOMPLETE"
            )
        )
    )
)

#: librdmacm's ``enum rdma_cm_event_type``.
CM_EVENTS: Final = _words(
    "ADDR_RESOLVED ADDR_ERROR ROUTE_RESOLVED ROUTE_ERROR CONNECT_REQUEST CONNECT_RESPONSE CONNECT_ERROR "
    "UNREACHABLE REJECTED ESTABLISHED DISCONNECTED DEVICE_REMOVAL MULTICAST_JOIN MULTICAST_ERROR ADDR_CHANGE "
    "TIMEWAIT_EXIT"
)
