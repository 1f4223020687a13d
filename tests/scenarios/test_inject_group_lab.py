"""A mesh and a ring over three of the kernel's rxe devices: what soft devices do, real ones do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import group_inside
import pytest
from lab_boot import Boot, Part
from lab_forks import PRELOADED

import rocekit
from rocekit.explanation.topology import topology
from rocekit.scenarios.group_run import soft_group

PART = Part("group", (group_inside.__file__,), timeout_s=600, devices=group_inside.HOSTS, loads=PRELOADED)
pytestmark = pytest.mark.lab(PART)

ADDRESSES = ("10.9.0.1", "10.9.0.2", "10.9.0.3")


@pytest.fixture(scope="module")
def out(boot: Boot) -> Path:
    return boot.of(PART)


@pytest.fixture(scope="module")
def facts(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "facts.json").read_text())
    return found


@pytest.mark.parametrize("name", group_inside.RUNS)
def test_the_data_is_right_and_all_is_counted_as_on_soft_devices(facts: dict[str, Any], name: str) -> None:
    assert "error" not in facts[name], facts[name]
    assert "\n0 packets dropped by kernel" in facts[name]["tcpdump"]
    told, soft = facts[name]["outcome"], soft_group(group_inside.RUNS[name][0], seed=1).to_dict()
    for key in ("qps", "links", "size", "iterations", "path_mtu", "link_bytes"):
        assert told[key] == soft[key], key
    for key in ("exchange", "messages", "bytes", "hops"):
        assert [e[key] for e in told["exchanges"]] == [e[key] for e in soft["exchanges"]], key
    assert [host["ip"] for host in told["hosts"]] == list(ADDRESSES)


@pytest.mark.parametrize("name", group_inside.RUNS)
def test_the_capture_shows_the_shape_and_every_work_request(
    out: Path, facts: dict[str, Any], name: str
) -> None:
    analysis = rocekit.analyze(out / f"{name}.pcap")
    drawn = topology(analysis)
    plan, netem = group_inside.RUNS[name]
    assert (drawn.shape, drawn.hosts, drawn.qps) == (plan.scenario, ADDRESSES, 6)
    carried = {(link["from"], link["to"]): link["bytes"] for link in facts[name]["outcome"]["link_bytes"]}
    seen = {ranks: drawn.sent(ADDRESSES[ranks[0]], ADDRESSES[ranks[1]]) for ranks in carried}
    repeated = sum(c.retransmitted_packets for c in analysis.connections)
    assert seen == carried or repeated
    assert repeated or netem is None
    assert {t.status for t in analysis.transfers} == {"acked"}
    assert analysis.journal is not None
    assert not analysis.journal.unmatched
    assert all(t.wr is not None and t.wc is not None and t.recv_wc is not None for t in analysis.transfers)


def test_the_kernel_takes_what_was_crafted_and_drops_what_has_a_bad_icrc(facts: dict[str, Any]) -> None:
    fact = facts["crafted"]
    assert fact["status"] == 0, fact["printed"]
    assert fact["printed"].startswith("4 packets, ")
    told = [(c["wr_id"], c["status"], c["opcode"], c["byte_len"], c["imm"]) for c in fact["completions"]]
    # Had the first been taken, its text would stand there and the second be a duplicate.
    assert told == [(0, "SUCCESS", "RECV", 5, None), (1, "SUCCESS", "RECV_RDMA_WITH_IMM", 1029, 77)]
    assert fact["sent"] == "right"
    assert bytes.fromhex(fact["written"]) == bytes(range(256)) * 4 + bytes(range(5))
