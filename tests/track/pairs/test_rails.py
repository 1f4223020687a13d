"""The CM on one rail, the data on another: a connection's packets flow between the GIDs of its REQ."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from talk import A, B, Talk

from rocekit.findings import Evidence
from rocekit.track.connections import Connection

RAIL = ("10.77.0.1", "10.77.0.2")
RAIL6 = ("fd00:77::1", "fd00:77::2")


def gids(a: str, b: str) -> dict[str, bytes]:
    parsed = [ip_address(ip) for ip in (a, b)]
    raw = [ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed for ip in parsed]
    return {"primary_local_port_gid": raw[0], "primary_remote_port_gid": raw[1]}


def on(talk: Talk, a: str, b: str) -> None:
    """From now on the hosts send from these addresses."""
    talk.hosts = {"a": (a, b, talk.hosts["a"][2]), "b": (b, a, talk.hosts["b"][2])}


def data(talk: Talk, first: int = 0) -> None:
    for psn in range(first, first + 4):
        talk.send(psn)
        talk.ack(psn)


def only_one(evidence: Evidence) -> Connection:
    assert len(evidence.connections) == 1
    return evidence.connections[0]


@pytest.mark.parametrize("rail", [RAIL, RAIL6])
@pytest.mark.parametrize("by", ["a", "b"])
def test_data_between_the_gids_is_the_connections(rail: tuple[str, str], by: str) -> None:
    talk = Talk()
    talk.connect(**gids(*rail))
    on(talk, *rail)
    talk.send(0, by=by)
    talk.ack(0, by="b" if by == "a" else "a")
    evidence = talk.evidence()
    connection = only_one(evidence)
    assert (connection.ips, connection.qpns) == (list(rail), [0x11, 0x12])
    assert (connection.paired_by, connection.packets) == ("cm", 2)
    assert [t.status for t in evidence.transfers] == ["acked"]
    assert evidence.exchanges[0].connection is connection
    assert (evidence.exchanges[0].src, evidence.exchanges[0].dst) == (A, B)


@pytest.mark.parametrize("fields", [gids(*RAIL), gids(A, B), gids("::", "::"), gids(*RAIL6), {}])
def test_data_between_the_mads_addresses_stays_there(fields: dict[str, Any]) -> None:
    talk = Talk()
    talk.connect(**fields)
    data(talk)
    connection = only_one(talk.evidence())
    assert (connection.ips, connection.paired_by, connection.packets) == ([A, B], "cm", 8)


def test_without_data_it_is_between_the_mads_addresses() -> None:
    talk = Talk()
    talk.connect(**gids(*RAIL))
    assert only_one(talk.evidence()).ips == [A, B]


@pytest.mark.parametrize("fields", [gids(A, B), gids("::", "::"), gids(RAIL[0], RAIL[0]), {}])
def test_other_addresses_are_other_connections(fields: dict[str, Any]) -> None:
    talk = Talk()
    talk.connect(**fields)
    on(talk, *RAIL)
    data(talk)
    assert [(c.ips, c.paired_by) for c in talk.evidence().connections] == [([A, B], "cm"), ([*RAIL], "psn")]


def test_a_psn_far_from_the_start_is_no_data_of_it() -> None:
    talk = Talk()
    talk.connect(**gids(*RAIL))
    on(talk, *RAIL)
    data(talk, 5_000_000)
    assert [(c.ips, c.paired_by) for c in talk.evidence().connections] == [([A, B], "cm"), ([*RAIL], "psn")]


def test_data_after_the_end_of_the_connection_is_no_data_of_it() -> None:
    talk = Talk()
    talk.connect(**gids(*RAIL))
    talk.cm("DREQ", local_comm_id=1, remote_comm_id=2, remote_qpn=0x12)
    on(talk, *RAIL)
    data(talk)
    assert [(c.ips, c.paired_by) for c in talk.evidence().connections] == [([A, B], "cm"), ([*RAIL], "psn")]


def test_data_where_the_connection_has_some_already_is_no_data_of_it() -> None:
    talk = Talk()
    talk.connect(**gids(*RAIL))
    data(talk)
    on(talk, *RAIL)
    data(talk)
    assert [(c.ips, c.paired_by) for c in talk.evidence().connections] == [([A, B], "cm"), ([*RAIL], "psn")]


def test_a_qpn_that_is_used_again_makes_a_new_connection() -> None:
    talk = Talk()
    on(talk, *RAIL)
    data(talk, 900)
    on(talk, A, B)
    for transaction in (7, 8):
        talk.request(transaction_id=transaction, **gids(*RAIL))
        talk.reply(transaction_id=transaction)
        on(talk, *RAIL)
        data(talk)
        on(talk, A, B)
    found = [(c.ips, c.paired_by, c.packets) for c in talk.evidence().connections]
    assert found == [([*RAIL], "psn", 8), ([*RAIL], "cm", 8), ([*RAIL], "cm", 8)]


def test_several_connections_over_the_same_rails_are_told_apart() -> None:
    """They start at PSN 0 and send in step: only the CM can pair them."""
    talk = Talk()
    qpns = [(0x21, 0x32), (0x22, 0x31), (0x23, 0x33)]
    for n, (qa, qb) in enumerate(qpns):
        talk.request(transaction_id=n, local_comm_id=10 + n, local_qpn=qa, **gids(*RAIL))
        talk.reply(transaction_id=n, local_comm_id=20 + n, remote_comm_id=10 + n, local_qpn=qb)
    for psn in range(4):
        for qa, qb in qpns:
            talk.hosts = {"a": (*RAIL, qb), "b": (RAIL[1], RAIL[0], qa)}
            talk.send(psn)
        for qa, qb in reversed(qpns):
            talk.hosts = {"a": (*RAIL, qb), "b": (RAIL[1], RAIL[0], qa)}
            talk.ack(psn)
    connections = talk.evidence().connections
    assert [(c.ips, tuple(c.qpns), c.paired_by) for c in connections] == [
        ([*RAIL], pair, "cm") for pair in qpns
    ]
    assert {c.packets for c in connections} == {8}
