"""A device's counters: rxe's hw_counters under their names, and one for each reason to drop a packet."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

COUNTERS: Final = MappingProxyType(
    {
        # rxe's, as /sys/class/infiniband/DEV/ports/1/hw_counters has them
        "sent_pkts": "packets sent",
        "rcvd_pkts": "packets received with a right ICRC",
        "duplicate_request": "requests received a second time (9.7.5.1.3)",
        "out_of_seq_request": "requests ahead of the expected PSN",
        "rcvd_rnr_err": "RNR NAKs received",
        "send_rnr_err": "RNR NAKs sent",
        "rcvd_seq_err": "NAKs of a PSN sequence error received",
        "ack_deferred": "ACKs that were replaced by a later one before they were sent",
        "retry_exceeded_err": "work requests given up after retry_cnt go-backs",
        "retry_rnr_exceeded_err": "work requests given up after rnr_retry RNR NAKs",
        "completer_retry_err": "go-backs: after timeouts, NAKs and implied NAKs",
        "send_err": "packets that could not be sent",
        "link_downed": "times the link went down",
        "rdma_sends": "work requests posted",
        "rdma_recvs": "messages that consumed a receive request",
        # of our own
        "rcvd_ecn_marked": "packets received with CE",
        "cnp_sent": "CNPs sent",
        "cnp_handled": "CNPs received",
        "naks_sent": "NAKs sent, of all codes",
        "timeouts": "local ACK timeouts",
        "implied_naks": "responses known to be lost because a later one came (9.9.2)",
        "drop_not_roce": "dropped: not IP and UDP with port 4791",
        "drop_icrc": "dropped: wrong ICRC",
        "drop_malformed": "dropped: too short, unknown opcode or wrong lengths",
        "drop_unknown_qp": "dropped: no QP has the destination QPN",
        "drop_qp_state": "dropped: the QP's state does not receive",
        "drop_transport": "dropped: the opcode belongs to another transport than the QP's",
        "drop_source": "dropped: from another address than the connection's",
        "drop_pkey": "dropped: wrong P_Key",
        "drop_qkey": "dropped: wrong Q_Key",
        "drop_out_of_sequence": "dropped: ahead of the expected PSN after a NAK",
        "drop_no_receive": "dropped: no receive request (UC and UD)",
        "drop_too_long": "dropped: longer than the receive buffer or the path MTU (UC and UD)",
        "drop_access": "dropped: the R_Key does not allow it (UC)",
        "drop_sequence": "dropped: the rest of a message whose packet was lost (UC)",
        "drop_duplicate_response": "dropped: a response received before",
        "drop_ghost_response": "dropped: a response without a request",
        "drop_unanswerable_duplicate": "dropped: a duplicate READ or atomic whose result is no longer kept",
        "drop_mad": "dropped: a MAD that is not expected",
        "drop_loopback": "dropped: no device has the destination address",
    }
)


class Counters:
    """Counts by name, all starting at 0; read them with :meth:`as_dict` or ``counters["sent_pkts"]``."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = dict.fromkeys(COUNTERS, 0)

    def count(self, name: str, by: int = 1) -> None:
        self._values[name] += by

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def as_dict(self) -> dict[str, int]:
        return dict(self._values)
