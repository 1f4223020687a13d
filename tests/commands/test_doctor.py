"""The doctor: what it says of machines that have, and have not, what rocekit needs."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from places import ROOT

from rocekit.commands.doctor_checks import (
    ABILITIES,
    CHECKS,
    EXTRAS,
    MachineCheck,
    Report,
    examine,
    judge,
)
from rocekit.commands.doctor_machine import Lab, Machine, has_module
from rocekit.lab.checks import LabPiece as Piece
from rocekit.record.build import Found

RXE = "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko"


@pytest.fixture
def bare(tmp_path: Path) -> Machine:
    """A machine with nothing: no module, program or device, and a user without rights."""
    return Machine(
        root=tmp_path,
        release="6.1.0-1-amd64",
        arch="x86_64",
        system="Linux",
        interpreter=tmp_path / "venv/bin/python",
        python=(3, 11),
        euid=1000,
        which=lambda name: None,
        module_found=lambda name: False,
        package_version=lambda name: None,
        first_line=lambda program, option: "1.0",
        ask=lambda command: None,
        compiled=lambda: "missing",
        icrcs=lambda: "missing",
        landlock=lambda: 0,
        interposer=lambda: Found(None, "no C compiler", ("gcc", "libc6-dev")),
        lab=Lab(
            native=lambda: [Piece("root", False, "sudo -s"), Piece("ip", True, "")],
            vm=lambda: [Piece("qemu", False, "apt-get install qemu"), Piece("ip", True, "")],
        ),
    )


def put(machine: Machine, path: str, text: str = "") -> None:
    file = machine.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def check(report: Report, name: str) -> MachineCheck:
    return next(c for c in report.checks if c.name == name)


def able(report: Report) -> set[str]:
    return {ability.name for ability in report.abilities if ability.ok}


def test_a_bare_machine_reads_captures_and_nothing_else(bare: Machine) -> None:
    report = examine(bare)
    assert able(report) == {"read"}
    assert not any(c.ok for c in report.checks)


def test_what_does_not_fit_in_the_set_up_of_a_device_is_said(bare: Machine) -> None:
    """PFC of priority 3 only, and rdma_cm's connections in priority 4, as `dcb` tells it."""
    port = "sys/class/infiniband/mlx5_0/ports/1"
    put(bare, "sys/class/infiniband/mlx5_0/node_guid", "0011:2233:4455:6677\n")
    put(bare, f"{port}/state", "4: ACTIVE\n")
    put(bare, f"{port}/link_layer", "Ethernet\n")
    put(bare, f"{port}/gids/0", "0000:0000:0000:0000:0000:ffff:0a09:0001\n")
    put(bare, f"{port}/gid_attrs/types/0", "RoCE v2\n")
    put(bare, f"{port}/gid_attrs/ndevs/0", "eth0\n")
    put(bare, "sys/class/net/eth0/mtu", "9000\n")
    put(bare, "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos", "96\n")
    answers = {
        "pfc": '{"prio_pfc":[false,false,false,true,false,false,false,false]}',
        "app": '{"default_prio":[0],"dscp_prio":[[24,4],[26,3]]}',
    }
    told = replace(bare, ask=lambda command: next((a for k, a in answers.items() if k in command), None))
    (check,) = [c for c in examine(told).checks if c.name == "roce_setup"]
    assert not check.ok
    assert "traffic class 96 (DSCP 24) of rdma_cm's connections is priority 4" in check.detail
    assert check.fix == "rocekit devices"
    (check,) = [c for c in examine(bare).checks if c.name == "roce_setup"]
    assert not check.ok or "nothing seen" in check.detail


def test_every_missing_piece_that_a_command_adds_names_it(bare: Machine) -> None:
    for c in examine(bare).checks:
        assert c.fix or c.name == "kvm", c.name


@pytest.mark.parametrize(
    ("flags", "ok"), [("fpu vmx sse", True), ("fpu svm", True), ("fpu hypervisor", False)]
)
def test_kvm_needs_a_processor_that_virtualises(
    bare: Machine, monkeypatch: pytest.MonkeyPatch, flags: str, ok: bool
) -> None:
    """A hypervisor may pass /dev/kvm on without it: QEMU asserts or hangs then."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    put(bare, "dev/kvm")
    put(bare, "proc/cpuinfo", f"processor\t: 0\nflags\t\t: {flags}\n")
    found = check(examine(bare), "kvm")
    assert found.ok is ok
    assert ok or "emulated" in found.detail


def test_abilities_are_built_from_checks_that_exist(bare: Machine) -> None:
    names = [c.name for c in examine(bare).checks]
    assert len(names) == len(set(names)) == len(CHECKS) - 1  # that of the set-up needs a device
    assert {need for _, _, ways in ABILITIES for way in ways for need in way} <= set(names)


@pytest.mark.parametrize(
    ("mask", "ok"), [("0000000000002000", True), ("000001ffffffdfff", False), ("0", False)]
)
def test_capture_rights_are_cap_net_raw(bare: Machine, mask: str, ok: bool) -> None:
    """Bit 13, whatever the user is: root in a container can lack it, a user can hold it."""
    put(bare, "proc/self/status", f"Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{mask}\n")
    assert check(examine(bare), "capture_rights").ok is ok
    assert check(examine(replace(bare, euid=0)), "capture_rights").ok is ok


def test_capture_rights_are_given_to_the_interpreter_behind_a_venv_link(bare: Machine) -> None:
    put(bare, "usr/bin/python3.11")
    bare.interpreter.parent.mkdir(parents=True)
    bare.interpreter.symlink_to(bare.root / "usr/bin/python3.11")
    fix = check(examine(bare), "capture_rights").fix
    assert fix == f"sudo setcap cap_net_raw+ep {(bare.root / 'usr/bin/python3.11').resolve()}"


@pytest.mark.parametrize(
    ("file", "text", "state"),
    [
        ("sys/module/rdma_rxe/refcnt", "0", "loaded"),
        ("lib/modules/6.1.0-1-amd64/modules.builtin", f"{RXE}\n", "built in"),
        ("lib/modules/6.1.0-1-amd64/modules.dep", f"{RXE}: kernel/x.ko\n", "available"),
        ("lib/modules/6.1.0-1-amd64/modules.dep", f"{RXE}.xz: kernel/x.ko\n", "available"),
        ("lib/modules/5.0-cloud/modules.dep", f"{RXE}: kernel/x.ko\n", None),
        ("lib/modules/6.1.0-1-amd64/modules.dep", "kernel/y.ko: " + "kernel/rdma_rxe_not.ko\n", None),
    ],
)
def test_a_module_counts_in_the_running_kernel_only(
    bare: Machine, file: str, text: str, state: str | None
) -> None:
    put(bare, file, text)
    assert has_module(bare, "rdma_rxe") == state


def test_the_lab_works_where_either_way_to_it_does(bare: Machine) -> None:
    assert "lab" not in able(examine(bare))
    in_place = replace(bare, lab=replace(bare.lab, native=list))
    in_a_vm = replace(bare, lab=replace(bare.lab, vm=list))
    assert "lab" in able(examine(in_place))
    assert "lab" in able(examine(in_a_vm))


def test_a_way_to_the_lab_names_its_own_missing_pieces_only(bare: Machine) -> None:
    vm = check(examine(bare), "lab_vm")
    assert vm.detail == "needs qemu"
    assert vm.fix == "apt-get install qemu"


def test_a_kernel_with_rxe_that_is_installed_is_not_installed_again(bare: Machine) -> None:
    assert "apt-get" in (check(examine(bare), "rxe").fix or "")
    put(bare, "boot/vmlinuz-6.1.0-10-amd64")
    put(bare, "lib/modules/6.1.0-10-amd64/modules.dep", f"{RXE}:\n")
    fix = check(examine(bare), "rxe").fix or ""
    assert "6.1.0-10-amd64" in fix
    assert "apt-get" not in fix


def test_what_an_ability_misses_is_told_of_its_nearest_way() -> None:
    names = {need for _, _, ways in ABILITIES for way in ways for need in way}

    def missing(ability: str, *failed: str) -> tuple[str, ...]:
        checks = tuple(MachineCheck(name, name, name not in failed, "") for name in sorted(names))
        return next(a.missing for a in judge(checks) if a.name == ability)

    assert missing("lab", "lab_vm") == ()
    assert missing("lab", "lab_vm", "lab_in_place") == ("lab_in_place",)
    assert missing("verbs", "devices", "pyverbs", "tshark") == ("pyverbs", "devices")


def test_an_rxe_module_without_a_device_is_told_how_to_make_one(bare: Machine) -> None:
    put(bare, "sys/module/rdma_rxe/refcnt")
    put(bare, "sys/class/net/lo/address")
    put(bare, "sys/class/net/eth7/address")
    assert check(examine(bare), "devices").fix == "sudo rdma link add rxe0 type rxe netdev eth7"


def test_a_device_needs_its_device_files(bare: Machine) -> None:
    put(bare, "sys/class/infiniband/rxe0/node_type")
    assert not check(examine(bare), "devices").ok
    put(bare, "dev/infiniband/uverbs0")
    assert check(examine(bare), "devices").detail == "rxe0"
    assert check(examine(bare), "devices").ok


def test_pyverbs_of_another_python_is_no_use(bare: Machine) -> None:
    put(bare, "usr/lib/python3/dist-packages/pyverbs/qp.cpython-311-x86_64-linux-gnu.so")
    assert check(examine(bare), "pyverbs").ok
    other = check(examine(replace(bare, python=(3, 13))), "pyverbs")
    assert not other.ok
    assert "3.11" in other.detail
    assert "3.13" in other.detail


def test_root_is_not_told_to_use_sudo(bare: Machine) -> None:
    fixes = [c.fix for c in examine(replace(bare, euid=0)).checks if c.fix and "apt-get" in c.fix]
    assert fixes
    assert not any("sudo" in fix for fix in fixes)


def test_a_program_beside_the_interpreter_is_found(bare: Machine) -> None:
    put(bare, "venv/bin/tshark")
    (bare.root / "venv/bin/tshark").chmod(0o755)
    assert check(examine(bare), "tshark").ok


def test_a_program_that_does_not_answer_is_still_there(bare: Machine) -> None:
    silent: Callable[[str, str], str] = lambda program, option: ""  # noqa: E731
    report = examine(replace(bare, which=lambda name: f"/opt/{name}", first_line=silent))
    assert check(report, "tshark").detail == "/opt/tshark"


def test_the_report_is_plain_json() -> None:
    document = examine().to_dict()
    assert json.loads(json.dumps(document)) == document


def test_what_recording_lacks_is_told_with_the_packages(bare: Machine) -> None:
    check = next(c for c in examine(bare).checks if c.name == "interposer")
    assert (check.ok, check.detail) == (False, "no C compiler")
    assert check.fix is not None
    assert check.fix.endswith("gcc libc6-dev")


def test_an_interposer_that_can_be_built_is_no_lack(bare: Machine) -> None:
    ready = replace(bare, interposer=lambda: Found(None, can_build=True))
    assert "record" in {ability.name for ability in examine(ready).abilities if ability.ok}


@pytest.mark.parametrize("name", ["compiled", "icrcs"])
def test_what_is_compiled_is_told_with_what_makes_it_anew(bare: Machine, name: str) -> None:
    def at(state: str) -> MachineCheck:
        return check(examine(replace(bare, compiled=lambda: state, icrcs=lambda: state)), name)

    told = {state: at(state) for state in ("compiled", "missing", "outdated", "declined")}
    assert [state for state, c in told.items() if c.ok] == ["compiled"]
    assert "python3-dev" in (told["missing"].fix or "")
    assert "pip install -e ." in (told["outdated"].fix or "")
    assert told["declined"].fix == "unset ROCEKIT_COMPILED"


def test_missing_extras_are_added_by_one_command(bare: Machine) -> None:
    none = check(examine(bare), "extras")
    assert none.fix == f"{bare.interpreter} -m pip install 'rocekit[{','.join(EXTRAS)}]'"
    some = replace(bare, package_version=lambda name: None if name == "textual" else "1.0")
    extras = check(examine(some), "extras")
    assert extras.detail == "missing: textual (top)"
    assert extras.fix == f"{bare.interpreter} -m pip install 'rocekit[top]'"
    assert check(examine(replace(bare, package_version=lambda name: "1.0")), "extras").ok


def test_every_extra_of_the_package_has_its_row(bare: Machine) -> None:
    """Those of pyproject.toml, but what is for developing."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = told["project"]["optional-dependencies"]
    assert set(extras) - {"test", "dev", "docs", "mutate", "tshark", "lab"} == set(EXTRAS)
    for name, (package, _) in EXTRAS.items():
        assert extras[name][0].startswith(package)
