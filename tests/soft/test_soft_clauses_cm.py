"""What a connection manager answers (IBA Vol. 1, chapter 12): stale connections, alternate paths, DREQs.

A plain peer that shares no code with rocekit asks; MADs by struct, as 12.6 and 13.4.2 have them.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

import plain_peer as p
import pytest
from clause_bench import MS, OWN, PEER

from rocekit.soft import SoftDevice
from rocekit.soft.cm.ids import CmEvent, ConnParam
from rocekit.soft.engine.qp import Qp
from rocekit.wire.build import build_mad

REQ, MRA, REJ, REP, RTU, DREQ, DREP, LAP, APR = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1A
QKEY = 0x8001_0000
PORT = 7471
GUID = 0x1122_3344_5566_7788


class Said(NamedTuple):
    """A CM message of the endpoint."""

    attribute: int
    transaction: int
    data: bytes

    @property
    def ids(self) -> tuple[int, int]:
        """Local and remote communication ID."""
        return int.from_bytes(self.data[:4], "big"), int.from_bytes(self.data[4:8], "big")

    @property
    def reason(self) -> int:
        """Of a REJ."""
        return int.from_bytes(self.data[10:12], "big")


def _gid(ip: str) -> bytes:
    return bytes(10) + b"\xff\xff" + socket.inet_aton(ip)


def req(comm_id: int, qpn: int, guid: int = GUID, *, mtu: int = 3, service_type: int = 0) -> bytes:
    """12.6.5, table "REQ Message Contents"; private data as of rdma_cm (A11.3)."""
    service = 0x01_06_0000 | PORT
    head = struct.pack("!IIQQII", comm_id, 0, service, guid, 0, 0)
    head += struct.pack("!IIII", qpn << 8 | 4, 4, 20 << 3 | service_type << 1, 0x500 << 8 | 20 << 3 | 7)
    head += struct.pack("!HBB", 0xFFFF, mtu << 4 | 7, 15 << 4)
    path = struct.pack("!HH", 0xFFFF, 0xFFFF) + _gid(PEER) + _gid(OWN)
    path += struct.pack("!IBBBB", 3, 0, 64, 0, 14 << 3)
    ip_cm = struct.pack("!BBH", 0, 4 << 4, 50_000) + _mapped(PEER) + _mapped(OWN)
    return (head + path + bytes(44) + ip_cm).ljust(232, b"\0")


def _mapped(ip: str) -> bytes:
    return bytes(12) + socket.inet_aton(ip)


class Table:
    """A device with a listener that accepts everybody, opposite a plain peer."""

    def __init__(self) -> None:
        self.now = 1_000_000_000
        self.device = SoftDevice("table", [OWN], seed=1)
        self._pd, self._cq = self.device.alloc_pd(), self.device.create_cq(64)
        self.told: list[CmEvent] = []
        listener = self.device.cm.create_id()
        self.device.cm.listen(listener, PORT)

    def qp(self) -> Qp:
        """A queue pair in INIT."""
        qp = self.device.create_qp(self._pd, "RC", self._cq)
        self.device.modify_qp(qp, self.now, state="INIT", access=["REMOTE_WRITE"])
        return qp

    def put(self, attribute: int, data: bytes, transaction: int = 7, source: str = PEER) -> list[Said]:
        mad = struct.pack("!BBBBHHQHHI", 1, 7, 2, 3, 0, 0, transaction, attribute, 0, 0) + data.ljust(
            232, b"\0"
        )
        self.device.receive(p.packet(p.UD | p.SEND_ONLY, 1, 1, p.deth(QKEY, 1), mad, source=source), self.now)
        return self.said()

    def said(self) -> list[Said]:
        found: list[Said] = []
        for _ in range(2):
            found += [self._taken(d.data) for d in self.device.datagrams_to_send(self.now)]
            for event in self.device.cm.events():
                self.told.append(event)
                if event.type == "CONNECT_REQUEST":
                    event.id.qp = self.qp()
                    self.device.cm.accept(event.id, ConnParam(), self.now)
        return found

    def _taken(self, data: bytes) -> Said:
        seen = p.take_apart(data)
        assert (seen.opcode, seen.qpn, seen.qkey, len(seen.payload)) == (p.UD | p.SEND_ONLY, 1, QKEY, 256)
        attribute, transaction = struct.unpack("!HQ", seen.payload[16:18] + seen.payload[8:16])
        return Said(attribute, transaction, seen.payload[24:])

    def later(self, ns: int) -> list[Said]:
        self.now += ns
        self.device.handle_timer(self.now)
        return self.said()

    def connected(self, comm_id: int = 0x100, qpn: int = 0x99, guid: int = GUID) -> int:
        """Connect a QP of the peer; the endpoint's communication ID."""
        (rep,) = self.put(REQ, req(comm_id, qpn, guid))
        assert (rep.attribute, rep.ids[1]) == (REP, comm_id)
        assert self.put(RTU, struct.pack("!II", comm_id, rep.ids[0])) == []
        return rep.ids[0]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.told]


def test_12_9_8_3_1_a_req_of_a_qp_that_is_connected_is_rejected_as_stale_and_the_old_connection_ends() -> (
    None
):
    table = Table()
    own = table.connected()
    rej, dreq = table.put(REQ, req(0x200, 0x99), transaction=8)
    assert (rej.attribute, rej.transaction, rej.ids[1], rej.data[8] >> 6, rej.reason) == (
        REJ,
        8,
        0x200,
        0,
        10,
    )
    assert (dreq.attribute, dreq.ids) == (DREQ, (own, 0x100))
    assert int.from_bytes(dreq.data[8:11], "big") == 0x99
    assert "DISCONNECTED" not in table.types
    table.put(DREP, struct.pack("!II", 0x100, own), transaction=dreq.transaction)
    assert table.types[-1] == "DISCONNECTED"
    (rep,) = table.put(REQ, req(0x300, 0x99), transaction=9)
    assert rep.attribute == REP


def test_12_9_8_3_1_the_dreq_for_a_stale_connection_is_repeated_until_a_drep() -> None:
    table = Table()
    table.connected()
    table.put(REQ, req(0x200, 0x99), transaction=8)
    assert [s.attribute for s in table.later(4_400 * MS)] == [DREQ]


def test_12_9_8_3_1_it_is_stale_before_the_rtu_came_too() -> None:
    table = Table()
    table.put(REQ, req(0x100, 0x99))
    assert [s.attribute for s in table.put(REQ, req(0x200, 0x99), transaction=8)] == [REJ, DREQ]


@pytest.mark.parametrize(("qpn", "guid"), [(0x9A, GUID), (0x99, GUID + 1)])
def test_12_9_8_3_1_another_qp_or_the_same_number_at_another_adapter_is_not_stale(
    qpn: int, guid: int
) -> None:
    table = Table()
    table.connected()
    (rep,) = table.put(REQ, req(0x200, qpn, guid), transaction=8)
    assert rep.attribute == REP


def test_12_9_7_a_req_that_came_twice_draws_the_same_rep_again() -> None:
    table = Table()
    (first,) = table.put(REQ, req(0x100, 0x99))
    (again,) = table.put(REQ, req(0x100, 0x99))
    assert again == first


def test_12_9_8_3_1_a_rep_of_a_qp_that_is_connected_is_rejected_as_stale() -> None:
    table = Table()
    own = table.connected()
    cm = table.device.cm
    asking = cm.create_id()
    asking.qp = table.qp()
    cm.resolve_addr(asking, PEER, 9)
    cm.resolve_route(asking)
    cm.connect(asking, ConnParam(), table.now)
    (sent,) = table.said()
    assert sent.attribute == REQ
    mine = struct.unpack("!I", sent.data[:4])[0]
    # 12.6.8: IDs, Q_Key, QPN, EECN, starting PSN, depths, flags, GUID.
    rep = struct.pack("!IIIIIIBBBBQ", 0x700, mine, 0, 0x99 << 8, 0, 5 << 8, 4, 4, 0, 7 << 5, GUID)
    rej, dreq = table.put(REP, rep, transaction=sent.transaction)
    assert (rej.attribute, rej.ids, rej.data[8] >> 6, rej.reason) == (REJ, (mine, 0x700), 1, 10)
    assert (dreq.attribute, dreq.ids) == (DREQ, (own, 0x100))
    assert table.types[-1] == "CONNECT_ERROR"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [({"mtu": code}, 26) for code in (0, 6, 7, 15)] + [({"service_type": code}, 9) for code in (2, 3)],
)
def test_12_6_7_2_a_req_that_cannot_be_served_is_rejected_with_its_reason(
    wrong: dict[str, int], reason: int
) -> None:
    """Codes of path MTUs are 1 to 5; of transports there are RC and UC here, not RD and not XRC."""
    table = Table()
    (rej,) = table.put(REQ, req(0x100, 0x99, **wrong))
    assert (rej.attribute, rej.ids[1], rej.reason) == (REJ, 0x100, reason)
    assert table.types == []


def _lap(comm_id: int, own: int) -> bytes:
    """12.8.1: the IDs, the QPN and timeout, and an alternate path."""
    return struct.pack("!IIIII", comm_id, own, 0, 0x99 << 8 | 20 << 3, 0) + struct.pack("!HH", 1, 2)


def test_12_8_2_a_lap_is_answered_that_alternate_paths_are_not_supported() -> None:
    table = Table()
    own = table.connected()
    (apr,) = table.put(LAP, _lap(0x100, own), transaction=0xAB)
    assert (apr.attribute, apr.transaction, apr.ids, apr.data[9]) == (APR, 0xAB, (own, 0x100), 2)
    assert table.types == ["CONNECT_REQUEST", "ESTABLISHED"]


def test_12_8_2_a_lap_for_a_connection_that_there_is_not_is_answered_by_an_invalid_id() -> None:
    (apr,) = Table().put(LAP, _lap(0x100, 0x1234), transaction=5)
    assert (apr.attribute, apr.transaction, apr.ids, apr.data[9]) == (APR, 5, (0x1234, 0x100), 1)


def test_12_8_2_an_apr_that_nobody_asked_for_is_dropped() -> None:
    table = Table()
    own = table.connected()
    assert table.put(APR, struct.pack("!IIBBH", 0x100, own, 0, 0, 0)) == []


def test_12_6_3_a_drep_has_the_transaction_id_of_its_dreq() -> None:
    table = Table()
    own = table.connected()
    qpn = table.told[-1].id.qpn
    table.put(DREQ, struct.pack("!III", 0x100, own, qpn << 8), transaction=0xD00D)
    table.device.cm.disconnect(table.told[-1].id, table.now)
    (drep,) = table.said()
    assert (drep.attribute, drep.transaction, drep.ids) == (DREP, 0xD00D, (own, 0x100))


def test_the_plain_req_has_the_layout_that_the_tables_of_wire_give() -> None:
    """Two hands wrote the table of 12.6.5 down: they agree."""
    theirs = build_mad("REQ", 7, local_comm_id=5, local_ca_guid=GUID, local_qpn=0x99, responder_resources=4)
    mine = req(5, 0x99)
    assert mine[0:4] == theirs[24:28]
    assert mine[16:24] == theirs[40:48]
    assert mine[32:36] == theirs[56:60]
