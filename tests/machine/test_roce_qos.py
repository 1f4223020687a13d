"""How an interface treats RoCE is read from what the programs really print, and what does not fit is said."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from places import TOOLS

from rocekit.machine.devices import DevicePort, Gid, RdmaDevice
from rocekit.machine.roce_qos import (
    InterfaceQos,
    PortClass,
    ask,
    inconsistent_qos,
    interface_qos,
    mlnx_qos,
    pause,
    port_class,
    qos_lines,
    skprio_class,
)
from rocekit.machine.roce_setup import inconsistent, path_mtu_hint
from rocekit.record.build import compiler

#: As NVIDIA's pages show it, for priority 3.
MLNX = """DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
\tprio:0 dscp:07,06,05,04,03,02,01,00,
\tprio:3 dscp:31,30,29,28,27,26,25,24,
Cable len: 10
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   1   0   0   0   0
\tbuffer      0   0   0   1   0   0   0   0
tc: 0 ratelimit: unlimited, tsa: ets, bw: 10%
\t priority:  1
tc: 1 ratelimit: unlimited, tsa: ets, bw: 10%
\t priority:  0
\t priority:  3
tc: 2 ratelimit: unlimited, tsa: vendor
\t priority:  2
\t priority:  4
\t priority:  5
\t priority:  6
\t priority:  7
"""
#: As iproute2 6.1 printed it on Linux 6.1, after ``tc qdisc replace dev d0 root mqprio num_tc 3 map 0 0 …``.
TC = """[{"kind":"mqprio","handle":"8001:","root":true,"options":{"tc":3,"map":
[0,0,1,2,0,0,2,0,0,0,0,0,0,0,0,0],"queues":[[0,1],[2,3],[4,7]]}},{"kind":"fq_codel","handle":"0:","parent":"8001:8","options":{"limit":10240}}]"""
ETHTOOL = "Pause parameters for eth0:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\toff\n\n"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that answers the real `dcb` as a kernel with a NIC does."""
    if shutil.which("dcb") is None:
        pytest.skip("no dcb (apt-get install iproute2)")
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("dcb") / "kernel.so"
    source = TOOLS / "stub" / "dcb_kernel.c"
    subprocess.run([cc, "-shared", "-fPIC", "-o", str(made), str(source)], check=True, timeout=240)
    return made


def test_what_dcb_prints_is_read(kernel: Path, tmp_path: Path) -> None:
    """The program is iproute2's own, and asks a kernel that has PFC on priority 3, DSCP 26 → 3, 48 → 6."""

    def asked(command: Sequence[str]) -> str | None:
        if command[0] != "dcb" or "apptrust" in command:  # which the program of Debian 12 does not know
            return None
        environment = {**os.environ, "LD_PRELOAD": str(kernel)}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        return done.stdout if done.returncode == 0 else None

    qos = interface_qos("lo", asked=asked, net=tmp_path)
    assert qos == InterfaceQos(
        "lo",
        pfc=frozenset({3}),
        dscp_priority={26: 3, 48: 6},
        default_priority=0,
        priority_class=(0, 3, 2, 3, 4, 5, 6, 7),
    )
    assert qos_lines(qos) == [
        "PFC: priority 3",
        "DSCP to priority: 26 → 3, 48 → 6, others → 0",
        "priority to traffic class: 0 → 0, 1 → 3, 2 → 2, 3 → 3, 4 → 4, 5 → 5, 6 → 6, 7 → 7",
    ]
    assert list(inconsistent_qos("mlx5_0 port 1", qos, PortClass())) == [
        "mlx5_0 port 1: priority 3 of lo has PFC and shares traffic class 3 with priority 1, which has none"
    ]


def test_what_this_kernel_does_not_tell_is_unknown_and_not_off() -> None:
    qos = interface_qos("lo")
    assert (qos.pfc, qos.dscp_priority, qos.pause_rx) == (None, None, None)
    (line,) = qos_lines(qos)
    assert "nothing that" in line
    assert ask(["no-such-program"]) is None


def test_mlnx_qos_and_ethtool_are_read() -> None:
    found = mlnx_qos(MLNX)
    assert found["pfc"] == {3}
    assert found["trust"] == "dscp"
    assert found["dscp_priority"] == {**dict.fromkeys(range(8), 0), **dict.fromkeys(range(24, 32), 3)}
    assert found["priority_class"] == (1, 0, 2, 1, 2, 2, 2, 2)
    assert pause(ETHTOOL) == {"pause_rx": True, "pause_tx": False}
    assert mlnx_qos("command not supported") == {}
    assert pause("netlink error: Operation not supported\n") == {}


def test_the_class_of_each_kernel_priority_is_read_from_tc() -> None:
    table = (0, 0, 1, 2, 0, 0, 2, *[0] * 9)
    assert skprio_class(TC) == table
    qos = interface_qos("lo", asked=lambda command: TC if command[0] == "tc" else None)
    assert qos.skprio_class == table
    assert qos.to_dict()["skprio_class"] == list(table)
    assert qos_lines(qos) == ["skprio to traffic class (tc): 2 → 1, 3 → 2, 6 → 2, others → 0"]


@pytest.mark.parametrize(
    "said", [None, "", "[]", "no JSON", '{"kind": "mqprio"}', '[{"kind":"mqprio","options":1}]']
)
def test_where_tc_has_no_such_table_nothing_is_claimed(said: str | None) -> None:
    assert skprio_class(said) is None


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The files of an mlx5 port, and of rdma_cm in configfs."""
    files = {
        "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos": "96\n",
        "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode": "IB/RoCE v1\n",
        "sys/class/infiniband/mlx5_0/tc/1/traffic_class": "Global tclass=106\n",
        "sys/class/net/eth0/ecn/roce_rp/rpg_ai_rate": "5\n",
        "sys/class/net/eth0/ecn/roce_rp/clamp_tgt_rate": "0\n",
        "sys/class/net/eth0/mtu": "1500\n",
    }
    for priority in range(8):
        files[f"sys/class/net/eth0/ecn/roce_rp/enable/{priority}"] = f"{int(priority == 5)}\n"
        files[f"sys/class/net/eth0/ecn/roce_np/enable/{priority}"] = "1\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def device() -> RdmaDevice:
    gid = Gid(1, "::ffff:10.9.0.1", "RoCE v2", "eth0")
    port = DevicePort(1, "ACTIVE", "Ethernet", "100 Gb/sec", (gid,), 1024, 4096)
    return RdmaDevice("mlx5_0", "0011:2233:4455:6677", "1", "mlx5_core", (port,))


def test_the_class_of_rdma_cm_and_the_files_of_dcqcn_are_read(machine: Path) -> None:
    classes = port_class(device(), device().ports[0], machine)
    assert classes == PortClass(cm_tos=96, forced=106, cm_mode="IB/RoCE v1")
    qos = interface_qos("eth0", asked=lambda command: None, net=machine / "sys/class/net")
    assert qos.ecn == {"roce_rp": frozenset({5}), "roce_np": frozenset(range(8))}
    assert qos.dcqcn == {"roce_rp": {"clamp_tgt_rate": 0, "rpg_ai_rate": 5}}
    assert "DCQCN, sends CNPs: priority 0–7" in qos_lines(qos)


def test_a_class_whose_priority_has_no_pfc_or_no_dcqcn_is_said(machine: Path) -> None:
    qos = InterfaceQos(
        "eth0",
        pfc=frozenset({3}),
        dscp_priority={26: 3, 24: 4},
        default_priority=0,
        ecn={"roce_rp": frozenset({3}), "roce_np": frozenset(range(8))},
    )
    net = machine / "sys/class/net"
    told = "mlx5_0 port 1: traffic class 96 (DSCP 24) of rdma_cm's connections"
    told += " is priority 4 by the table of eth0"
    assert inconsistent(device(), net, {"eth0": qos}, machine) == [
        "mlx5_0 port 1: rdma_cm connects by IB/RoCE v1 by default, though there are RoCE v2 GIDs",
        f"{told}, which has PFC on for priority 3 only",
        f"{told}, which reacts to CNPs on priority 3 only",
    ]


def test_what_is_not_known_is_not_blamed(machine: Path) -> None:
    """No table of DSCPs, or one that is not trusted: then the priority of a packet is not known."""
    classes = PortClass(cm_tos=96)
    on = frozenset({3})
    for qos in (
        InterfaceQos("eth0", pfc=on),
        InterfaceQos("eth0", pfc=on, dscp_priority={}),
        InterfaceQos("eth0", pfc=on, dscp_priority={24: 4}, trust="pcp"),
        InterfaceQos("eth0", pfc=on, dscp_priority={26: 3}),  # nothing says what others get
        InterfaceQos("eth0", pfc=on, dscp_priority={24: 3}),
        InterfaceQos("eth0", dscp_priority={24: 4}),
        InterfaceQos("eth0", pfc=frozenset(), dscp_priority={24: 4}, pause_rx=True, pause_tx=True),
    ):
        assert list(inconsistent_qos("x", qos, classes)) == []


def test_pfc_beside_global_pause_and_half_a_dcqcn_are_said() -> None:
    qos = InterfaceQos(
        "eth0",
        pfc=frozenset({3}),
        pause_rx=True,
        ecn={"roce_rp": frozenset(), "roce_np": frozenset({3})},
    )
    assert list(inconsistent_qos("x", qos, PortClass())) == [
        "x: eth0 has PFC and global pause on: 802.1Qbb allows one of them",
        "x: eth0 does not react to CNPs, though the other half of DCQCN is on",
    ]


def test_an_mtu_that_keeps_the_path_mtu_small_is_a_hint_and_no_fault(machine: Path) -> None:
    net = machine / "sys/class/net"
    assert inconsistent(device(), net) == []
    assert path_mtu_hint(device().ports[0], net) == (
        "MTU 1,500 of eth0 allows path MTU 1,024; 4,096 needs MTU 4,192 there and on the way"
    )
