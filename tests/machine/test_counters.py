"""Counters are read from folders as the kernel shows them, and from what tc and ethtool print."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocekit.errors import RocekitError
from rocekit.machine.counter_files import read_all
from rocekit.machine.counters import CounterPlace, CounterReader
from rocekit.machine.ethtool_counters import parse
from rocekit.machine.tc_counters import filter_counts, qdisc_counts


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.fixture
def reader(tmp_path: Path) -> CounterReader:
    """An rxe device on eth1, a device with two ports of which the second is on eth0, and an interface."""
    zero = ":".join(["0000"] * 8)
    put(
        tmp_path / "rdma",
        {
            "rxe0/node_guid": "0:0:0:1",
            "rxe0/parent": "eth1",
            "rxe0/ports/1/state": "4: ACTIVE",
            "rxe0/ports/1/gids/0": "0000:0000:0000:0000:0000:ffff:0a09:0001",
            "rxe0/ports/1/gids/1": "0000:0000:0000:0000:0000:ffff:0a09:0001",
            "rxe0/ports/1/gids/2": "fd00:0009:0000:0000:0000:0000:0000:0001",
            "rxe0/ports/1/gids/3": zero,
            "rxe0/ports/1/gid_attrs/ndevs/1": "eth1",
            "rxe0/ports/1/gid_attrs/types/0": "IB/RoCE v1",
            "rxe0/ports/1/gid_attrs/types/1": "RoCE v2",
            "rxe0/ports/1/gid_attrs/types/2": "RoCE v2",
            "rxe0/ports/1/hw_counters/sent_pkts": "12",
            "rxe0/ports/1/hw_counters/rcvd_pkts": "0",
            "rxe0/ports/1/hw_counters/lifespan": "12",
            "rxe0/ports/1/hw_counters/odd": "N/A",
            "mlx5_0/node_guid": "0:0:0:2",
            "mlx5_0/hw_counters/device_wide": "5",
            "mlx5_0/ports/1/state": "1: DOWN",
            "mlx5_0/ports/1/gids/0": zero,
            "mlx5_0/ports/2/state": "4: ACTIVE",
            "mlx5_0/ports/2/gids/0": "0000:0000:0000:0000:0000:ffff:0a09:0002",
            "mlx5_0/ports/2/gid_attrs/ndevs/0": "eth0",
            "mlx5_0/ports/2/gid_attrs/types/0": "RoCE v2",
            "mlx5_0/ports/2/counters/port_rcv_packets": "77",
        },
    )
    put(
        tmp_path / "net",
        {
            "bonding_masters": "",
            "eth0/statistics/rx_dropped": "3",
            "eth1/statistics/rx_dropped": "0",
            "eth2/statistics/tx_packets": "9",
        },
    )
    return CounterReader(tmp_path / "rdma", tmp_path / "net", programs=False)


def test_without_names_every_port_of_every_device(reader: CounterReader) -> None:
    assert [str(place) for place in reader.places()] == ["mlx5_0", "mlx5_0 port 2 (eth0)", "rxe0 (eth1)"]


def test_a_device_brings_its_interface_and_an_interface_its_device(reader: CounterReader) -> None:
    rxe = CounterPlace("rxe0", 1, "rxe", "eth1", ("10.9.0.1", "fd00:9::1"))
    assert reader.places(["rxe0"]) == reader.places(["eth1"]) == reader.places(["eth1", "rxe0"]) == [rxe]
    assert reader.places(["eth2"]) == [CounterPlace(None, None, None, "eth2", ())]


def test_an_unknown_name_is_refused_with_those_there_are(reader: CounterReader) -> None:
    with pytest.raises(RocekitError) as caught:
        reader.places(["mlx5_1"])
    assert str(caught.value) == (
        "no device or interface 'mlx5_1'; RDMA devices: mlx5_0, rxe0; interfaces: eth0, eth1, eth2"
    )


def test_a_machine_without_rdma_says_so_once_a_device_is_wanted(tmp_path: Path) -> None:
    put(tmp_path / "net", {"lo/statistics/rx_packets": "1"})
    reader = CounterReader(tmp_path / "rdma", tmp_path / "net", programs=False)
    assert reader.rdma_places() == []
    with pytest.raises(RocekitError, match="there is no RDMA device; interfaces: lo"):
        reader.places()


def test_a_snapshot_has_numbers_only_and_no_setting(reader: CounterReader) -> None:
    (place,) = reader.places(["rxe0"])
    snapshot = reader.snapshot(place)
    assert snapshot.counts == {
        "hw_counters": {"rcvd_pkts": 0, "sent_pkts": 12},
        "link": {"rx_dropped": 0},
    }
    (second,) = reader.places(["eth0"])
    assert reader.snapshot(second).counts == {
        "device_counters": {"device_wide": 5},
        "port_counters": {"port_rcv_packets": 77},
        "link": {"rx_dropped": 3},
    }


def test_a_device_that_goes_away_leaves_an_empty_snapshot(reader: CounterReader) -> None:
    gone = CounterPlace("rxe9", 1, "rxe", "eth9")
    assert reader.snapshot(gone).counts == {}


def test_a_difference_has_the_counters_of_both(reader: CounterReader, tmp_path: Path) -> None:
    (place,) = reader.places(["rxe0"])
    before = reader.snapshot(place)
    folder = tmp_path / "rdma/rxe0/ports/1/hw_counters"
    (folder / "sent_pkts").write_text("20\n")
    (folder / "new").write_text("4\n")
    assert reader.snapshot(place).since(before)["hw_counters"] == {"rcvd_pkts": 0, "sent_pkts": 8}


def test_queues_are_named_by_the_side_on_which_they_act() -> None:
    counts = qdisc_counts(
        [
            {"kind": "noqueue", "handle": "0:", "root": True, "packets": 5, "drops": 0},
            {"kind": "netem", "handle": "8001:", "root": True, "packets": 70, "bytes": 700, "drops": 3},
            {"kind": "ingress", "handle": "ffff:", "parent": "ffff:fff1", "packets": 9, "drops": 2},
            {"kind": "clsact", "handle": "ffff:", "drops": 1, "options": {}},
        ]
    )
    assert counts["egress netem 8001: drops"] == 3
    assert counts["egress netem 8001: packets"] == 70
    assert counts["ingress ingress ffff: drops"] == 2
    assert counts["both clsact ffff: drops"] == 1
    assert not any("noqueue" in name for name in counts)


def test_the_actions_of_filters_are_added_up() -> None:
    action = {"order": 1, "kind": "gact", "stats": {"bytes": 40, "packets": 4, "drops": 4, "requeues": 0}}
    rules = [
        {"protocol": "ip", "pref": 49152, "kind": "flower", "chain": 0},
        {"pref": 49152, "kind": "flower", "options": {"keys": {}, "actions": [action]}},
        {"pref": 49152, "kind": "flower", "options": {"keys": {}, "actions": [action]}},
    ]
    counts = filter_counts(rules, "ingress")
    assert counts["ingress filter 49152 flower gact: drops"] == 8
    assert counts["ingress filter 49152 flower gact: packets"] == 8


def test_of_ethtool_only_numbers_are_read() -> None:
    said = """NIC statistics:
     rx_packets: 12
     rx_prio3_pause: 7
     [0]: rx_ucast: 5
     speed: 100Gb
Autonegotiate:	off
RX:		on
Statistics:
  tx_pause_frames: 3
"""
    assert parse(said) == {"rx_packets": 12, "rx_prio3_pause": 7, "[0]: rx_ucast": 5, "tx_pause_frames": 3}


def test_what_was_read_before_is_what_a_snapshot_of_then_has(reader: CounterReader, tmp_path: Path) -> None:
    """Places are known only later: a program that is recorded waits for the numbers alone."""
    then = [reader.snapshot(place) for place in reader.rdma_places()]
    before = read_all(str(reader.rdma), str(reader.net))
    assert before is not None
    for name in ("rdma/rxe0/ports/1/hw_counters/sent_pkts", "net/eth1/statistics/rx_dropped"):
        (tmp_path / name).write_text("99\n")
    found = reader.snapshots_of(reader.rdma_places(), before)
    assert [(s.place, s.counts) for s in found] == [(s.place, s.counts) for s in then]
    assert all(s.time_ns > 0 and s.took_ns >= 0 for s in found)


def test_a_device_that_came_later_has_no_snapshot_of_before(reader: CounterReader, tmp_path: Path) -> None:
    before = read_all(str(reader.rdma), str(reader.net))
    assert before is not None
    new = {"node_guid": "0:0:0:3", "ports/1/state": "4: ACTIVE", "ports/1/gids/0": "fe80::1"}
    put(tmp_path / "rdma/rxe1", new)
    places = reader.rdma_places()
    assert "rxe1" in {place.device for place in places}
    assert "rxe1" not in {s.place.device for s in reader.snapshots_of(places, before)}


def test_not_all_of_very_many_are_read(reader: CounterReader, tmp_path: Path) -> None:
    put(tmp_path / "net", {f"veth{n}/statistics/rx_dropped": "0" for n in range(17)})
    assert read_all(str(reader.rdma), str(reader.net)) is None
    nothing = read_all(str(tmp_path / "none"), str(reader.net))
    assert nothing is not None, "without RDMA devices there is nothing to read"
    assert nothing(f"{reader.net}/veth1/statistics") is None
