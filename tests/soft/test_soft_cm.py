"""Connections made and ended by the connection manager of soft devices (IBA chapter 12, annex A11)."""

from __future__ import annotations

import pytest
from soft_world import PORT, Party, World

from rocekit.errors import VerbsError
from rocekit.soft import RecvWR, SendWR, Sge
from rocekit.soft.cm.ids import CmEvent, ConnParam, private_data_limit
from rocekit.soft.engine.qp import Qp
from rocekit.soft.wires.faults import Fault, at_random
from rocekit.wire import CM_EVENTS


@pytest.mark.parametrize("ip_version", [4, 6])
@pytest.mark.parametrize("transport", ["RC", "UC"])
def test_three_messages_connect_two_queue_pairs(ip_version: int, transport: str) -> None:
    world = World(ip_version=ip_version, transport=transport)
    world.connect(path_mtu=2048)
    assert world.client.types == ["ADDR_RESOLVED", "ROUTE_RESOLVED", "ESTABLISHED"]
    assert world.server.types == ["CONNECT_REQUEST", "ESTABLISHED"]
    assert world.accepted is not None
    a, b = world.id.qp, world.accepted.qp
    assert a is not None
    assert b is not None
    assert (a.state, b.state) == ("RTS", "RTS")
    assert (a.dest_qpn, b.dest_qpn) == (b.qpn, a.qpn)
    assert (a.sq_psn, b.sq_psn) == (b.rq_psn, a.rq_psn)
    assert a.path_mtu == b.path_mtu == 2048
    assert world.wire.packets == 3


def test_private_data_reaches_the_other_side_with_zeros_behind_it() -> None:
    world = World()
    world.connect(ConnParam(private_data=b"count 7"))
    assert world.server.told[0].private_data == b"count 7".ljust(56, b"\0")
    assert world.client.told[-1].private_data == b"welcome".ljust(196, b"\0")
    assert [private_data_limit(m) for m in ("REQ", "REP", "REJ", "DREQ")] == [56, 196, 148, 220]


def test_private_data_that_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(VerbsError, match="REQ has room for 56 bytes"):
        World().connect(ConnParam(private_data=bytes(57)))


def test_depths_are_what_one_wants_and_the_other_serves() -> None:
    world = World()
    world.reply = ConnParam(responder_resources=2, initiator_depth=8)
    world.connect(ConnParam(responder_resources=3, initiator_depth=9))
    assert world.id.qp is not None
    assert world.accepted is not None
    assert world.accepted.qp is not None
    assert (world.id.qp.max_rd_atomic, world.id.qp.max_dest_rd_atomic) == (2, 3)
    assert (world.accepted.qp.max_rd_atomic, world.accepted.qp.max_dest_rd_atomic) == (3, 2)


def test_nobody_listening_is_a_rejection_with_reason_eight() -> None:
    world = World()
    world.connect(port=PORT + 1)
    assert (world.client.told[-1].type, world.client.told[-1].status) == ("REJECTED", 8)


def test_a_program_may_say_no_in_its_own_words() -> None:
    world = World()
    cm = world.server.device.cm
    world.server.react["CONNECT_REQUEST"] = lambda e: cm.reject(e.id, b"not today", world.wire.now)
    world.connect()
    last = world.client.told[-1]
    assert (last.type, last.status, last.private_data.rstrip(b"\0")) == ("REJECTED", 28, b"not today")


def test_a_silent_server_is_asked_sixteen_times_and_then_told_so_and_unreachable() -> None:
    world = World(faults=at_random({"drop": 1.0}))
    start = world.wire.now
    world.connect()
    assert (world.client.told[-1].type, world.client.told[-1].status) == ("UNREACHABLE", -110)
    assert world.wire.packets == 16 + 1  # the REJ "timeout" (12.6.5)
    assert world.wire.now - start >= 16 * 4_294_967_296


@pytest.mark.parametrize("seed", range(12))
def test_lost_messages_are_sent_again_until_both_sides_agree(seed: int) -> None:
    world = World(faults=at_random({"drop": 0.4, "duplicate": 0.2}), seed=seed)
    world.connect()
    assert world.client.types.count("ESTABLISHED") == 1
    assert world.server.types.count("CONNECT_REQUEST") == 1
    assert world.server.types[1:] in (["ESTABLISHED"], ["UNREACHABLE"])


def test_an_mra_buys_the_server_time() -> None:
    world = World()
    cm = world.server.device.cm

    def slowly(event: CmEvent) -> None:
        cm.delay(event.id, 24, world.wire.now)  # 68.7 s
        world.wire.at(world.wire.now + 30_000_000_000, lambda: later(event))

    def later(event: CmEvent) -> None:
        world.accept(event)
        world.wire.kick(world.server.port)

    world.server.react["CONNECT_REQUEST"] = slowly
    world.connect()
    assert world.client.types[-1] == "ESTABLISHED"
    assert world.wire.packets == 4  # REQ, MRA, REP, RTU: nothing was repeated


def test_disconnecting_tells_both_sides_flushes_and_waits() -> None:
    world = World()
    world.server.react["DISCONNECTED"] = lambda e: world.server.device.cm.disconnect(e.id, world.wire.now)
    world.connect()
    assert world.id.qp is not None
    world.client.device.post_recv(world.id.qp, RecvWR(5), world.wire.now)
    world.client.device.cm.disconnect(world.id, world.wire.now)
    world.settle()
    for party in (world.client, world.server):
        assert party.types[-2:] == ["DISCONNECTED", "TIMEWAIT_EXIT"]
    assert [wc.status for wc in world.client.cq.poll(9)] == ["WR_FLUSH_ERR"]


def test_both_may_disconnect_at_once() -> None:
    world = World()
    world.connect()
    assert world.accepted is not None
    world.client.device.cm.disconnect(world.id, world.wire.now)
    world.server.device.cm.disconnect(world.accepted, world.wire.now)
    world.settle()
    for party in (world.client, world.server):
        assert party.types.count("DISCONNECTED") == 1


def test_a_peer_that_vanished_is_disconnected_after_all_repeats() -> None:
    world = World()
    world.connect()
    assert world.accepted is not None
    world.server.device.cm.ids.remove(world.accepted)
    world.server.device.addresses = ("10.0.0.9",)
    del world.wire._by_address["10.0.0.2"]
    world.client.device.cm.disconnect(world.id, world.wire.now)
    world.settle()
    assert (world.client.told[-2].type, world.client.told[-2].status) == ("DISCONNECTED", -110)


def test_data_does_what_a_lost_rtu_would_have_done() -> None:
    # Of all MADs only the third, the RTU, gets lost.
    world = World(faults=(Fault("drop", psn=2, of="mad"),))
    world.client.react["ESTABLISHED"] = lambda e: post(world)
    world.connect()
    assert world.wire.faults.done["drop"] == 1
    assert world.server.types == ["CONNECT_REQUEST", "ESTABLISHED"]


def post(world: World) -> None:
    device, qp = world.client.device, world.id.qp
    assert qp is not None
    mr = device.reg_mr(world.client.pd, device.memory.alloc(64), 64, [])
    device.post_send(qp, SendWR(1, "RDMA_WRITE", (Sge(mr.addr, 0, mr.lkey),)), world.wire.now)


def test_a_datagram_service_tells_its_queue_pair_and_key() -> None:
    world = World(transport="UD")
    server_qp = world.server.device.create_qp(world.server.pd, "UD", world.server.cq)
    cm = world.server.device.cm

    def serve(event: CmEvent) -> None:
        event.id.qp = server_qp
        cm.accept(event.id, ConnParam(qkey=0x01234567, private_data=b"ud"), world.wire.now)

    world.server.react["CONNECT_REQUEST"] = serve
    client = world.client.device.cm
    client.resolve_addr(world.id, "10.0.0.2", PORT)
    client.resolve_route(world.id)
    client.connect(world.id, ConnParam(), world.wire.now)
    world.settle()
    told = world.client.told[-1]
    assert told.type == "ESTABLISHED"
    assert (told.param["local_qpn"], told.param["qkey"]) == (server_qp.qpn, 0x01234567)


def test_a_queue_pair_of_the_programs_own_is_moved_by_the_program() -> None:
    world = World()
    cm = world.client.device.cm
    qp = world.client.qp()
    cm.resolve_addr(world.id, "10.0.0.2", PORT)
    cm.resolve_route(world.id)
    cm.connect(world.id, ConnParam(qp_num=qp.qpn), world.wire.now)
    world.client.react["CONNECT_RESPONSE"] = lambda e: move(world, qp)
    world.settle()
    assert world.client.types[-1] == "CONNECT_RESPONSE"
    assert world.server.types[-1] == "ESTABLISHED"
    assert qp.state == "RTS"


def move(world: World, qp: Qp) -> None:
    cm, now = world.client.device.cm, world.wire.now
    for state in ("RTR", "RTS"):
        world.client.device.modify_qp(qp, now, **cm.qp_attributes(world.id, state))
    cm.accept(world.id, ConnParam(), now)


def test_each_of_the_sixteen_events_can_happen() -> None:
    seen: set[str] = set()

    world = World()
    world.server.react["DISCONNECTED"] = lambda e: world.server.device.cm.disconnect(e.id, world.wire.now)
    world.connect()
    world.client.device.cm.report_all("ADDR_CHANGE")
    world.client.device.cm.disconnect(world.id, world.wire.now)
    world.settle()
    world.client.device.remove(world.wire.now)
    world.settle()
    seen |= {*world.client.types, *world.server.types}

    world = World()
    cm = world.client.device.cm
    cm.resolve_addr(world.id, "fd00::2", PORT)  # no address of that version here
    other = cm.create_id()
    cm.resolve_addr(other, "10.0.0.2", PORT)
    world.client.device.remove(world.wire.now)
    cm.resolve_route(other)
    group = cm.create_id("UD")
    cm.join_multicast(group, "239.1.1.1")
    cm.join_multicast(group, "10.0.0.2")
    world.settle()
    seen |= set(world.client.types)

    world = World()
    world.connect(port=1)
    seen |= set(world.client.types)

    world = World(faults=at_random({"drop": 1.0}))
    world.connect()
    seen |= set(world.client.types)

    world = World()
    qp = world.client.qp()
    world.client.react["CONNECT_RESPONSE"] = lambda e: move(world, qp)
    cm = world.client.device.cm
    cm.resolve_addr(world.id, "10.0.0.2", PORT)
    cm.resolve_route(world.id)
    cm.connect(world.id, ConnParam(qp_num=qp.qpn), world.wire.now)
    world.settle()
    seen |= set(world.client.types)

    world = World()
    broken = world.client.qp()
    cm = world.client.device.cm
    cm.resolve_addr(world.id, "10.0.0.2", PORT)
    cm.resolve_route(world.id)
    world.id.qp = broken
    cm.connect(world.id, ConnParam(), world.wire.now)
    world.client.device.modify_qp(broken, world.wire.now, state="ERR")  # it cannot become ready any more
    world.settle()
    seen |= set(world.client.types)

    assert seen == set(CM_EVENTS)


def test_a_lost_sidr_rep_is_sent_again_when_the_peer_asks_again() -> None:
    # Of all MADs the second, the SIDR_REP, gets lost.
    world = World(faults=(Fault("drop", psn=1, of="mad"),), transport="UD")
    world.connect()
    assert world.wire.faults.done["drop"] == 1
    assert world.client.types[-1] == "ESTABLISHED"
    assert world.server.types == ["CONNECT_REQUEST"]


def test_a_peer_that_rejects_a_disconnect_is_disconnected() -> None:
    # It has no such connection any more, as after a restart: the REJ is its word for that.
    world = World()
    world.connect()
    assert world.accepted is not None
    server = world.server.device.cm
    world.client.device.cm.disconnect(world.id, world.wire.now)
    (dreq,) = world.client.device.datagrams_to_send(world.wire.now)
    assert dreq
    server._reject(world.accepted, "REP", world.wire.now)
    world.settle()
    assert world.client.types[-2:] == ["DISCONNECTED", "TIMEWAIT_EXIT"]


# -- many


def test_hundreds_that_ask_at_once_are_connected_by_three_messages_each() -> None:
    # A REQ that is dropped comes again only after 4.3 s.
    world = World()
    clients = [Party(world.wire, f"client{n}", f"10.0.1.{n}", seed=n) for n in range(4)]
    for party in clients:
        cm = party.device.cm
        for _ in range(100):
            cm_id = cm.create_id()
            cm.resolve_addr(cm_id, "10.0.0.2", PORT)
            cm.resolve_route(cm_id)
            cm_id.qp = party.qp()
            cm.connect(cm_id, ConnParam(), world.wire.now)
        world.wire.kick(party.port)
    world.wire.run()
    assert [party.types.count("ESTABLISHED") for party in clients] == [100] * 4
    assert world.server.types.count("ESTABLISHED") == 400
    assert world.wire.packets == 3 * 400


def test_a_listener_drops_the_requests_above_its_backlog_until_they_come_again() -> None:
    world = World()
    cm = world.server.device.cm
    small = cm.create_id()
    cm.listen(small, PORT + 1, backlog=4)
    held: list[CmEvent] = []
    world.server.react["CONNECT_REQUEST"] = held.append
    asking = world.client.device.cm
    for _ in range(10):
        cm_id = asking.create_id()
        asking.resolve_addr(cm_id, "10.0.0.2", PORT + 1)
        asking.resolve_route(cm_id)
        cm_id.qp = world.client.qp()
        asking.connect(cm_id, ConnParam(), world.wire.now)
    world.wire.kick(world.client.port)
    world.wire.run(world.wire.now + 1_000_000_000)
    assert len(held) == 4
    world.server.react["CONNECT_REQUEST"] = world.accept
    for event in held:
        world.accept(event)
    world.wire.kick(world.server.port)
    world.settle()
    assert world.client.types.count("ESTABLISHED") == 10


def test_what_ended_is_forgotten_by_the_side_that_was_asked() -> None:
    world = World()
    world.server.react["DISCONNECTED"] = lambda e: world.server.device.cm.disconnect(e.id, world.wire.now)
    world.connect()
    world.client.device.cm.disconnect(world.id, world.wire.now)
    world.settle()
    assert list(world.server.device.cm.ids) == [world.listener]
