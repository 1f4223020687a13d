"""Drills against the kernel's rxe, by a raw socket at the other end of its veth pair."""

from __future__ import annotations

import json

import conform_inside
import pytest
from lab_boot import Boot, Part
from places import INSIDE

from rocekit.conform.verdict import INCONCLUSIVE, PASS

PART = Part("conform", (str(INSIDE / "conform_inside.py"),), timeout_s=900, loads=conform_inside.LOADS)
pytestmark = pytest.mark.lab(PART)


def test_rxe_keeps_the_drills_that_every_rxe_keeps(boot: Boot) -> None:
    found = json.loads((boot.of(PART) / "results.json").read_text())
    assert found["device"].startswith("rxe0, Linux ")
    outcomes = {row["drill"]: row for row in found["results"]}
    assert set(outcomes) == set(conform_inside.DRILLS)
    wrong = [row for row in outcomes.values() if row["outcome"] not in (PASS, INCONCLUSIVE)]
    assert wrong == []
    assert sum(row["outcome"] == PASS for row in outcomes.values()) > len(outcomes) // 2


def test_random_drills_are_played_on_rxe_and_their_exchanges_counted(boot: Boot) -> None:
    found = json.loads((boot.of(PART) / "random.json").read_text())
    assert found["device"].startswith("rxe0, Linux ")
    assert found["drills"] == 4
    assert found["exchanges"] >= 4
    assert found["packets"] > found["exchanges"]
    differing = sum(found["explained"].values()) + sum(found["repeated"].values()) + len(found["differences"])
    assert found["agreed"] + found["inconclusive"] + found["unconfirmed"] + differing == 4


def test_rxe_keeps_drills_of_the_connection_manager(boot: Boot) -> None:
    rows = json.loads((boot.of(PART) / "cm.json").read_text())["results"]
    assert {row["drill"] for row in rows} == set(conform_inside.CM_DRILLS)
    assert [row for row in rows if row["outcome"] not in (PASS, INCONCLUSIVE)] == []


def test_a_device_beside_that_has_the_packet_sides_address_is_named(boot: Boot) -> None:
    (row,) = json.loads((boot.of(PART) / "cm_beside.json").read_text())["results"]
    assert (row["outcome"], "rxe1 has 10.9.0.2 too" in row["reason"]) == (INCONCLUSIVE, True)


def test_an_agent_does_the_same_for_a_packet_side_in_another_process(boot: Boot) -> None:
    (row,) = json.loads((boot.of(PART) / "agent.json").read_text())["results"]
    assert row["outcome"] in (PASS, INCONCLUSIVE), row


def test_a_qp_is_not_connected_to_an_address_that_nobody_named(boot: Boot) -> None:
    status, said = json.loads((boot.of(PART) / "refused.json").read_text())
    assert status == 1
    assert "192.0.2.9 is no address of this machine or its namespaces" in said
