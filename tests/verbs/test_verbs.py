"""What is missing is said in one line with how to get it; librdmacm's structures are read right."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocekit import verbs
from rocekit.errors import VerbsError
from rocekit.machine.devices import DevicePort, Gid, RdmaDevice, choose, devices, source_address
from rocekit.verbs import librdmacm
from rocekit.verbs.librdmacm import read_sockaddr, sockaddr
from rocekit.verbs.loading import DISTRIBUTION
from rocekit.verbs.rdma_cm import PORT_SPACE_TCP, RdmaCmEvent, RdmaCmId, cm_error

# pyverbs


def test_a_machine_without_pyverbs_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pyverbs", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(VerbsError, match=r"^pyverbs is missing: apt-get install python3-pyverbs$"):
        verbs.load(tmp_path)


def test_a_pyverbs_of_another_python_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyverbs", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    package = tmp_path / "pyverbs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "device.cpython-27-x86_64-linux-gnu.so").touch()
    with pytest.raises(VerbsError, match=r"built for another Python \(cpython-27"):
        verbs.load(tmp_path)
    assert "pyverbs" not in sys.modules


def test_only_pyverbs_is_taken_from_where_the_distribution_keeps_it() -> None:
    """A virtual environment stays without the rest of the distribution's packages."""
    if not (DISTRIBUTION / "pyverbs").is_dir():
        pytest.skip("no python3-pyverbs on this machine")
    code = (
        "import sys; before = list(sys.path)\n"
        "from rocekit import verbs\n"
        "try:\n    pyverbs = verbs.load()\n"
        "except verbs.loading.VerbsError as error:\n    print('not loaded:', error); sys.exit()\n"
        "assert sys.path == before\n"
        "print(pyverbs.enums.IBV_QPT_RC, pyverbs.cq.__file__)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    if "built for another Python" in ran.stdout:
        pytest.skip("python3-pyverbs is for another Python than this one")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.split()[0] == "2"  # IBV_QPT_RC


# Devices


def sysfs(root: Path, *, kind: str = "RoCE v2", state: str = "4: ACTIVE") -> Path:
    device = root / "infiniband" / "rxe0"
    port = device / "ports" / "1"
    files = {
        "node_guid": "0000:00ff:fe00:0001",
        "fw_ver": "",
        "parent": "va",
        "ports/1/state": state,
        "ports/1/link_layer": "Ethernet",
        "ports/1/rate": "2.5 Gb/sec (1X SDR)",
        "ports/1/gids/0": "fe80:0000:0000:0000:0000:00ff:fe00:0001",
        "ports/1/gids/1": "0000:0000:0000:0000:0000:ffff:0a09:0001",
        "ports/1/gids/2": "fd00:0009:0000:0000:0000:0000:0000:0001",
        "ports/1/gids/10": "0000:0000:0000:0000:0000:0000:0000:0000",
    }
    files |= {f"ports/1/gid_attrs/types/{i}": kind for i in range(3)}
    files |= {f"ports/1/gid_attrs/ndevs/{i}": "va" for i in range(3)}
    for name, text in files.items():
        (device / name).parent.mkdir(parents=True, exist_ok=True)
        (device / name).write_text(text + "\n")
    assert port.is_dir()
    return root / "infiniband"


def test_devices_are_read_from_sysfs_without_anything_installed(tmp_path: Path) -> None:
    (device,) = devices(sysfs(tmp_path))
    assert (device.name, device.driver, device.node_guid) == ("rxe0", "rxe", "0000:00ff:fe00:0001")
    (port,) = device.ports
    assert (port.number, port.state, port.link_layer) == (1, "ACTIVE", "Ethernet")
    assert [(gid.index, gid.ip, gid.type, gid.netdev) for gid in port.gids] == [
        (0, "fe80::ff:fe00:1", "RoCE v2", "va"),
        (1, "10.9.0.1", "RoCE v2", "va"),
        (2, "fd00:9::1", "RoCE v2", "va"),
    ]
    assert device.to_dict()["ports"][0]["gids"][1]["ip"] == "10.9.0.1"


def test_a_kernel_without_rdma_and_one_without_a_device_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(VerbsError, match="no RDMA in this kernel: modprobe"):
        devices(tmp_path / "infiniband")
    (tmp_path / "infiniband").mkdir()
    with pytest.raises(VerbsError, match="no RDMA device: rdma link add rxe0 type rxe"):
        devices(tmp_path / "infiniband")


RXE0 = RdmaDevice(
    "rxe0",
    "",
    "",
    "rxe",
    (
        DevicePort(
            1,
            "ACTIVE",
            "Ethernet",
            "",
            (
                Gid(0, "fe80::1", "RoCE v1", "va"),
                Gid(1, "fd00:9::1", "RoCE v2", "va"),
                Gid(2, "::ffff:10.9.0.1", "RoCE v2", "va"),
            ),
        ),
    ),
)
RXE1 = RdmaDevice(
    "rxe1",
    "",
    "",
    "rxe",
    (DevicePort(1, "DOWN", "Ethernet", "", (Gid(1, "::ffff:10.9.0.2", "RoCE v2", "vb"),)),),
)


def chosen(**wanted: object) -> tuple[str, int]:
    given = {"device": None, "port": 1, "gid_index": None, "ip": None} | wanted
    at = choose([RXE0, RXE1], **given)  # type: ignore[arg-type]
    return at.device.name, at.gid.index


def test_a_port_that_is_up_and_an_ipv4_address_come_first() -> None:
    assert chosen() == ("rxe0", 2)
    assert chosen(gid_index=1) == ("rxe0", 1)
    assert chosen(ip="fd00:9::1") == ("rxe0", 1)
    assert chosen(ip="10.9.0.1") == ("rxe0", 2)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"device": "mlx5_0"}, "no RDMA device 'mlx5_0' (-d); there is rxe0, rxe1"),
        ({"device": "rxe0", "gid_index": 7}, "no GID index 7 (-x); there is 0 (fe80::1), 1 (fd00:9::1)"),
        ({"device": "rxe0", "gid_index": 0}, "GID 0 of rxe0 is RoCE v1"),
        ({"device": "rxe0", "port": 2}, "rxe0 has no port 2 (-i)"),
        ({"device": "rxe1"}, "rxe1 port 1 is DOWN; ip link set vb up"),
        ({"ip": "192.0.2.1"}, "no RDMA device has the address 192.0.2.1"),
    ],
)
def test_a_wrong_choice_says_what_there_is(wanted: dict[str, object], message: str) -> None:
    with pytest.raises(VerbsError) as caught:
        chosen(**wanted)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_address_on_the_way_to_a_host() -> None:
    assert source_address("127.0.0.1", 18515) == ("127.0.0.1", "127.0.0.1")
    with pytest.raises(VerbsError, match=r"no route to no\.such\.host\.invalid"):
        source_address("no.such.host.invalid", 18515)


# librdmacm


@given(st.ip_addresses(), st.integers(0, 65535))
def test_a_socket_address_is_read_back(ip: object, port: int) -> None:
    assert read_sockaddr(sockaddr(str(ip), port).ljust(128, b"\0")) == (str(ip), port)


def test_an_address_of_no_family_is_none() -> None:
    assert read_sockaddr(bytes(128)) is None


def test_structures_lie_as_the_headers_say(tmp_path: Path) -> None:
    """The compiler and rdma-core's own headers are asked where each field is."""
    asked = {
        "struct ibv_qp_attr": (librdmacm.QpAttr, ["path_mtu", "rq_psn", "sq_psn", "dest_qp_num", "ah_attr"]),
        "struct ibv_qp_attr ": (librdmacm.QpAttr, ["max_rd_atomic", "min_rnr_timer", "timeout", "rnr_retry"]),
        "struct rdma_conn_param": (librdmacm.ConnParameters, ["private_data_len", "srq", "qp_num"]),
        "struct rdma_cm_event": (librdmacm.EventStruct, ["id", "listen_id", "event", "status"]),
    }
    lines = [
        f'printf("%zu\\n", offsetof({struct}, {name}));'
        for struct, (_, names) in asked.items()
        for name in names
    ]
    sizes = (
        'printf("%zu %zu %d\\n", sizeof(struct ibv_qp_attr), sizeof(struct rdma_conn_param), RDMA_PS_TCP);'
    )
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <rdma/rdma_cma.h>\n"
        f"int main(void) {{ {' '.join(lines)} {sizes} return 0; }}\n"
    )
    program = tmp_path / "layout"
    try:
        built = subprocess.run(["cc", source, "-o", program], capture_output=True, timeout=240, check=False)
    except FileNotFoundError:
        pytest.skip("no C compiler on this machine")
    if built.returncode:
        pytest.skip("no rdma-core headers on this machine (librdmacm-dev)")
    *offsets, told = subprocess.run(
        [program], capture_output=True, text=True, timeout=240, check=True
    ).stdout.splitlines()
    ours = [getattr(kind, name).offset for kind, names in asked.values() for name in names]
    assert [int(offset) for offset in offsets] == ours
    assert [int(value) for value in told.split()] == [
        ctypes.sizeof(librdmacm.QpAttr),
        ctypes.sizeof(librdmacm.ConnParameters),
        PORT_SPACE_TCP,
    ]


class Somewhere:
    remote = ("10.9.0.2", 18515)


def told(event: RdmaCmEvent) -> VerbsError:
    return cm_error(event, Somewhere())  # type: ignore[arg-type]


def test_a_rejection_gives_the_reason_and_a_missing_listener_the_next_question() -> None:
    event = RdmaCmEvent("REJECTED", 1, 8, bytes(148), 0, 0)
    error = told(event)
    assert str(error).startswith("10.9.0.2 port 18515 rejected the connection: ")
    assert "is its server running?" in str(error)
    assert error.errno == errno.ECONNREFUSED
    said = b"this server does ping-read, not ping-sr"
    assert str(told(replace(event, status=28, private_data=said.ljust(148, b"\0")))).endswith(said.decode())
    # Not everything a peer sends can be shown.
    assert "\x1b" not in str(told(replace(event, status=28, private_data=b"\x1b[2J")))


def test_an_unreachable_peer_has_its_errno() -> None:
    error = told(RdmaCmEvent("UNREACHABLE", 1, -errno.ETIMEDOUT, b"", 0, 0))
    assert str(error).startswith("UNREACHABLE on the way to 10.9.0.2 port 18515: ETIMEDOUT")
    assert error.errno == errno.ETIMEDOUT


def test_too_much_private_data_is_the_callers_mistake() -> None:
    class Channel:
        call = staticmethod(lambda *a: None)

    cm = RdmaCmId(Channel(), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="57 bytes of private data; a REQ takes 56"):
        cm.connect(17, bytes(57), reads=1, retry=1, rnr_retry=1)
    with pytest.raises(ValueError, match="197 bytes of private data; a REP takes 196"):
        cm.accept(17, bytes(197), reads=1, rnr_retry=1)
