"""What the counters of drivers mean. A counter is a row of the table.

rxe's meanings are from its source (drivers/infiniband/sw/rxe, Linux 6.1) and checked in the lab. The names of
the others are from their drivers' sources; what their hardware counts is from its makers' descriptions, and
not checked on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

#: Who causes a counter to go up: what the device sends, or what it receives.
SENT, RECEIVED = "sent", "received"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a counter counts.

    Attributes:
        name: in JSON.
        words: for people.
        cause: ``SENT`` or ``RECEIVED``; None: the packets do not show it.
        stateful: whether it follows from the order of a connection's packets, and not from each packet alone.
    """

    name: str
    words: str
    cause: str | None = None
    stateful: bool = False


PACKETS_SENT = Meaning("packets_sent", "packets sent", SENT)
PACKETS_RECEIVED = Meaning("packets_received", "packets received with a right ICRC", RECEIVED)
GAPS = Meaning("gaps", "gaps in received requests, each answered with one NAK", RECEIVED, True)
DUPLICATES = Meaning("duplicate_requests", "requests received again", RECEIVED, True)
NAKS_RECEIVED = Meaning("sequence_naks_received", "NAKs (PSN sequence error) received", RECEIVED)
NAKS_ACKNOWLEDGING = Meaning(
    "sequence_naks_acknowledging",
    "NAKs (PSN sequence error) received that acknowledge earlier requests",
    RECEIVED,
    True,
)
RNR_SENT = Meaning("rnr_naks_sent", "RNR NAKs sent", SENT)
RNR_RECEIVED = Meaning("rnr_naks_received", "RNR NAKs received", RECEIVED)
GO_BACKS = Meaning("go_backs", "times gone back, other than after RNR NAKs", SENT, True)
SENDS = Meaning("sends_completed", "SENDs completed, datagrams and MADs included", RECEIVED, True)
RECEIVES = Meaning("receives_completed", "receives completed, datagrams and MADs included", RECEIVED, True)
GAVE_UP = Meaning("retries_exhausted", "requests given up after retry_cnt retries", SENT, True)
RNR_GAVE_UP = Meaning("rnr_retries_exhausted", "requests given up after rnr_retry RNR NAKs", SENT, True)
CNPS_SENT = Meaning("cnps_sent", "CNPs sent", SENT)
CNPS_RECEIVED = Meaning("cnps_received", "CNPs received", RECEIVED)
CE_RECEIVED = Meaning("ce_received", "packets received with a congestion mark (CE)", RECEIVED)
BAD_ICRC = Meaning("bad_icrc", "packets received with a wrong ICRC", RECEIVED)
LATE = Meaning("out_of_sequence", "requests received out of sequence", None)
TIMEOUTS = Meaning("timeouts", "ACK timeouts", None)
IMPLIED = Meaning("implied_naks", "responses that imply a NAK", None)
NO_RECEIVE = Meaning("no_receive", "packets for which no receive was posted", None)
WRITES_IN = Meaning("writes_received", "WRITE requests received", None)
READS_IN = Meaning("reads_received", "READ requests received", None)
ATOMICS_IN = Meaning("atomics_received", "atomic requests received", None)
SENDS_IN = Meaning("sends_received", "SEND requests received", None)
NOT_SENT = Meaning("send_errors", "packets that the network interface did not take", None)
DEFERRED = Meaning("responses_queued", "responses that waited for the completer", None)
LINK_DOWN = Meaning("link_down", "times the link went down", None)
DROPS = Meaning("drops", "packets dropped by a queue or filter of the interface", None)
PAUSES = Meaning("pauses", "pause frames", None)

_RXE: Final = {
    "sent_pkts": PACKETS_SENT,
    "rcvd_pkts": PACKETS_RECEIVED,
    "duplicate_request": DUPLICATES,
    "out_of_seq_request": GAPS,
    "rcvd_rnr_err": RNR_RECEIVED,
    "send_rnr_err": RNR_SENT,
    # A NAK of the PSN that is the oldest unacknowledged one anyway is not counted.
    "rcvd_seq_err": NAKS_ACKNOWLEDGING,
    "completer_retry_err": GO_BACKS,
    "retry_exceeded_err": GAVE_UP,
    "retry_rnr_exceeded_err": RNR_GAVE_UP,
    "rdma_sends": SENDS,
    "rdma_recvs": RECEIVES,
    "ack_deferred": DEFERRED,
    "send_err": NOT_SENT,
    "link_downed": LINK_DOWN,
}
_MLX5: Final = {
    "rdma_tx_packets": PACKETS_SENT,
    "rdma_rx_packets": PACKETS_RECEIVED,
    "duplicate_request": DUPLICATES,
    "out_of_sequence": LATE,
    "packet_seq_err": NAKS_RECEIVED,
    "rnr_nak_retry_err": RNR_RECEIVED,
    "implied_nak_seq_err": IMPLIED,
    "local_ack_timeout_err": TIMEOUTS,
    "out_of_buffer": NO_RECEIVE,
    "req_transport_retries_exceeded": GAVE_UP,
    "req_rnr_retries_exceeded": RNR_GAVE_UP,
    "np_cnp_sent": CNPS_SENT,
    "cc_tx_cnp_pkts": CNPS_SENT,
    "rp_cnp_handled": CNPS_RECEIVED,
    "cc_rx_cnp_pkts": CNPS_RECEIVED,
    "np_ecn_marked_roce_packets": CE_RECEIVED,
    "cc_rx_ce_pkts": CE_RECEIVED,
    "rx_icrc_encapsulated": BAD_ICRC,
    "rx_write_requests": WRITES_IN,
    "rx_read_requests": READS_IN,
    "rx_atomic_requests": ATOMICS_IN,
}
_BNXT: Final = {
    "tx_pkts": PACKETS_SENT,
    "rx_pkts": PACKETS_RECEIVED,
    "dup_req": DUPLICATES,
    "oos_drop_count": LATE,
    "seq_err_naks_rcvd": NAKS_RECEIVED,
    "rnr_naks_rcvd": RNR_RECEIVED,
    "to_retransmits": TIMEOUTS,
    "missing_resp": IMPLIED,
    "max_retry_exceeded": GAVE_UP,
    "rx_out_of_buffer": NO_RECEIVE,
    "rx_write_req": WRITES_IN,
    "rx_read_req": READS_IN,
    "rx_atomic_req": ATOMICS_IN,
    "rx_send_req": SENDS_IN,
}
_IRDMA: Final = {
    "cnpSent": CNPS_SENT,
    "cnpHandled": CNPS_RECEIVED,
    "RxECNMrkd": CE_RECEIVED,
    "RNR sent": RNR_SENT,
    "RNR received": RNR_RECEIVED,
    "Nak Sequence Error": NAKS_RECEIVED,
    "Nak Sequence Error Implied": IMPLIED,
    "RTO": TIMEOUTS,
    "Rcvd Out of order packets": LATE,
    "CRC errors": BAD_ICRC,
    "InRdmaWrites": WRITES_IN,
    "InRdmaReads": READS_IN,
    "InRdmaSends": SENDS_IN,
}
_MANA: Final = {
    "tx_packets": PACKETS_SENT,
    "rx_packets": PACKETS_RECEIVED,
    "responder_dup_request": DUPLICATES,
    "responder_oos": LATE,
    "requester_oos_nak": NAKS_RECEIVED,
    "requester_rnr_nak": RNR_RECEIVED,
    "responder_rnr_nak": RNR_SENT,
    "requester_implicit_nak": IMPLIED,
    "requester_timeout": TIMEOUTS,
    "requester_retries_exceeded": GAVE_UP,
    "requester_rnr_nak_retries_exceeded": RNR_GAVE_UP,
    "received_cnps": CNPS_RECEIVED,
    "received_cnp_count": CNPS_RECEIVED,
    "sent_cnps": CNPS_SENT,
    "received_ecns": CE_RECEIVED,
    "rx_write_requests": WRITES_IN,
    "rx_read_requests": READS_IN,
    "rx_send_requests": SENDS_IN,
}
#: By the driver as sysfs names it: that of the PCI device, or rxe.
_DRIVERS: Final[Mapping[str, Mapping[str, Meaning]]] = MappingProxyType(
    {
        "rxe": _RXE,
        "mlx5_core": _MLX5,
        "bnxt_en": _BNXT,
        "ice": _IRDMA,
        "i40e": _IRDMA,
        "idpf": _IRDMA,
        "mana": _MANA,
    }
)
#: Drivers whose meanings were checked: rocekit's lab runs them.
CHECKED: Final = frozenset({"rxe"})


def meaning_of(driver: str | None, group: str, name: str) -> Meaning | None:
    """What a counter means; None: it is in no table."""
    if group in ("hw_counters", "device_counters"):
        return _DRIVERS.get(driver or "", {}).get(name)
    if group == "tc":
        return DROPS if name.endswith(": drops") else None
    return PAUSES if group == "pause" else None
