"""What the client and the server of perftest's bandwidth tests have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rocekit.endpoint.qp_address import QpAddress
from rocekit.errors import ScenarioError
from rocekit.soft.engine.qp import Qp
from rocekit.soft.peers.party import Party
from rocekit.soft.peers.perftest.exchange import READS

PORT: Final = 18515
QKEY: Final = 0x1111_1111
FIRST_PSN: Final = 0x00ABCD
RECEIVES: Final = 512


@dataclass(frozen=True, slots=True)
class BandwidthTest:
    """A test of perftest.

    Attributes:
        opcode: of the client's requests.
        greetings: how often each side sends its address before the test.
        numbers: how many numbers the client sends after the test.
    """

    opcode: str
    greetings: int
    numbers: int


TESTS: Final = {
    "write_bw": BandwidthTest("RDMA_WRITE", 3, 5),
    "read_bw": BandwidthTest("RDMA_READ", 3, 5),
    "send_bw": BandwidthTest("SEND", 4, 0),
    "atomic_bw": BandwidthTest("ATOMIC_FETCH_AND_ADD", 3, 5),
}
TRANSPORTS: Final = {
    "RC": frozenset(TESTS),
    "UC": frozenset({"write_bw", "send_bw"}),
    "UD": frozenset({"send_bw"}),
}
"""The tests of each transport (table 35 of the IBA specification)."""


def pattern(length: int) -> bytes:
    """Bytes that repeat after 251, so that no two packets are alike."""
    return (bytes(range(1, 252)) * (length // 251 + 1))[:length]


def check_test(test: str, transport: str, rdma_cm: bool) -> None:
    """Raises ScenarioError if the transport does not have the test, or not with rdma_cm."""
    if test not in TRANSPORTS[transport]:
        raise ScenarioError(f"{transport} has no {test}: {', '.join(sorted(TRANSPORTS[transport]))}")
    if rdma_cm and transport == "UD":
        raise ScenarioError(
            "perftest over UD works only over TCP here: --no-rdma_cm, and the other side without -R"
        )


def move_to_rts(party: Party, qp: Qp, mtu: int, peer: QpAddress) -> None:
    """Move a QP from INIT to RTS without a connection manager.

    Raises:
        ScenarioError: the peer names an address that is not its own.
    """
    party.check_address(peer.ip)
    device, now = party.device, party.now
    if qp.transport == "UD":
        device.modify_qp(qp, now, state="RTR")
        device.modify_qp(qp, now, state="RTS", sq_psn=FIRST_PSN)
        return
    receiving: dict[str, Any] = {
        "dest_ip": peer.ip,
        "dest_qpn": peer.qpn,
        "path_mtu": mtu,
        "rq_psn": peer.psn,
    }
    sending: dict[str, Any] = {"sq_psn": FIRST_PSN}
    if qp.transport == "RC":
        receiving |= {"max_dest_rd_atomic": READS, "min_rnr_timer": 12}
        sending |= {"timeout": 18, "retry_cnt": 7, "rnr_retry": 7, "max_rd_atomic": READS}
    device.modify_qp(qp, now, state="RTR", **receiving)
    device.modify_qp(qp, now, state="RTS", **sending)
