"""``rocekit devices``: what it tells of a device, and of a machine without one."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rocekit import cli, verbs
from rocekit.errors import VerbsError
from rocekit.machine.devices import DevicePort, Gid, RdmaDevice

GIDS = (Gid(0, "fe80::ff:fe00:1", "RoCE v1", "va"), Gid(1, "::ffff:10.9.0.1", "RoCE v2", "va"))
RXE = RdmaDevice(
    name="rxe0",
    node_guid="0000:00ff:fe00:0001",
    firmware="",
    driver="rxe",
    ports=(
        DevicePort(1, "ACTIVE", "Ethernet", "10 Gb/sec", GIDS, 1024, 4096),
        DevicePort(2, "DOWN", "Ethernet", "", ()),
    ),
    limits={"max_qp": 1048560},
)


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "devices", lambda: [RXE])


@pytest.mark.usefixtures("one_device")
def test_what_perftest_s_options_ask_for_is_in_the_text() -> None:
    """-d takes the device, -i the port, -x the GID's number, -m a path MTU within the port's."""
    text = CliRunner().invoke(cli.rocekit, ["devices"]).output
    assert "rxe0" in text
    assert "port 1  ACTIVE  Ethernet  MTU 1024 of 4096" in text
    assert "GID 1  RoCE v2  10.9.0.1" in text
    assert "max_qp 1,048,560" in text
    assert "port 2  DOWN" in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]


@pytest.mark.usefixtures("one_device")
def test_json_has_every_field() -> None:
    result = CliRunner().invoke(cli.rocekit, ["devices", "--format", "json"])
    (device,) = json.loads(result.output)["devices"]
    assert device["ports"][0]["gids"][1]["ip"] == "10.9.0.1"
    assert device["limits"] == {"max_qp": 1048560}


def test_a_machine_without_rdma_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[RdmaDevice]:
        raise VerbsError("no RDMA in this kernel: modprobe rdma_rxe")

    monkeypatch.setattr(verbs, "devices", none)
    result = CliRunner().invoke(cli.rocekit, ["devices"])
    assert result.exit_code == 1
    assert result.stderr == "rocekit: error: no RDMA in this kernel: modprobe rdma_rxe\n"
    assert not result.stdout
