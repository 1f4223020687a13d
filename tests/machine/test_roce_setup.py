"""What of a port's GIDs and its interfaces' MTUs does not fit together is said, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocekit.machine.devices import DevicePort, Gid, RdmaDevice
from rocekit.machine.roce_setup import inconsistent, mtu_chain


def device(*, mtu: int | None = 1024, kind: str = "RoCE v2", layer: str = "Ethernet") -> RdmaDevice:
    gid = Gid(1, "::ffff:10.9.0.1", kind, "vlan7")
    port = DevicePort(1, "ACTIVE", layer, "100 Gb/sec", (gid,), mtu, 4096)
    return RdmaDevice("mlx5_0", "0011:2233:4455:6677", "1", "mlx5_core", (port,))


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """An interface vlan7 over eth0, as sysfs shows them."""
    for name, mtu in (("vlan7", 1500), ("eth0", 1500)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mtu").write_text(f"{mtu}\n")
        (tmp_path / name / "operstate").write_text("up\n")
    (tmp_path / "vlan7" / "lower_eth0").symlink_to(tmp_path / "eth0")
    return tmp_path


def test_a_port_that_fits_is_not_blamed(net: Path) -> None:
    assert inconsistent(device(), net) == []
    assert inconsistent(device(mtu=None), net) == []
    assert inconsistent(device(layer="InfiniBand", kind="IB"), net) == []
    assert mtu_chain("vlan7", net) == [("vlan7", 1500), ("eth0", 1500)]


def test_a_path_mtu_that_no_full_packet_of_fits_the_interface_is_said(net: Path) -> None:
    """A packet in the middle of a message has 44 bytes beside its payload: IPv4, UDP, BTH, ICRC."""
    (words,) = inconsistent(device(mtu=4096), net)
    assert "path MTU 4,096 needs MTU 4,140 or more of vlan7, which has 1,500" in words
    (net / "vlan7" / "mtu").write_text("4140\n")
    (net / "eth0" / "mtu").write_text("4140\n")
    assert inconsistent(device(mtu=4096), net) == []


def test_an_interface_below_with_a_smaller_mtu_is_said(net: Path) -> None:
    (net / "vlan7" / "mtu").write_text("9000\n")
    (words,) = inconsistent(device(), net)
    assert "MTU 1,500 of eth0 is smaller than MTU 9,000 of vlan7" in words


def test_a_port_without_a_roce_v2_gid_and_an_interface_that_is_down_are_said(net: Path) -> None:
    (words,) = inconsistent(device(kind="RoCE v1"), net)
    assert "no RoCE v2 GID" in words
    (net / "vlan7" / "operstate").write_text("down\n")
    assert inconsistent(device(), net) == ["mlx5_0 port 1: its interface vlan7 is down"]
