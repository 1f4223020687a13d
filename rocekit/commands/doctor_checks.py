"""The checks of ``rocekit doctor``: which pieces this machine has, and the command that adds a missing one.

``examine`` changes nothing: it opens no device, loads no module and sends no packet. A failed check is not an
error: reading captures needs almost none of the pieces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocekit import _compiled
from rocekit.commands.doctor_machine import Machine, has_module
from rocekit.errors import installing
from rocekit.lab import checks
from rocekit.lab.checks import KERNEL_PACKAGE
from rocekit.lab.kernels import newest_kernel
from rocekit.lab.vm import virtualises

CAP_NET_RAW = 13
"""Its bit in the capability sets of /proc/PID/status (capability.h); AF_PACKET sockets need it, packet(7)."""


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One piece: whether it is there, the details, and the command that adds it (None without one)."""

    name: str
    title: str
    ok: bool
    detail: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that rocekit does: whether it works here, and the names of the failed checks."""

    name: str
    title: str
    ok: bool
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All checks in order, and what works because of them."""

    system: str
    checks: tuple[MachineCheck, ...]
    abilities: tuple[Ability, ...]

    def to_dict(self) -> dict[str, object]:
        """The report as plain dicts and lists, as ``rocekit doctor --format json`` prints it."""
        return {
            "schema": "rocekit/1",
            "system": self.system,
            "abilities": [
                {"name": a.name, "title": a.title, "ok": a.ok, "missing": list(a.missing)}
                for a in self.abilities
            ],
            "checks": [
                {"name": c.name, "title": c.title, "ok": c.ok, "detail": c.detail, "fix": c.fix}
                for c in self.checks
            ],
        }


ABILITIES: tuple[tuple[str, str, tuple[tuple[str, ...], ...]], ...] = (
    # Name, title, and alternative lists of checks: one complete list is enough.
    ("read", "read captures: analyze, explain, decode", ((),)),
    ("capture", "capture a live interface: trace", (("capture_rights",),)),
    (
        "verbs",
        "make traffic on this machine's own devices: inject, devices",
        (("pyverbs", "kernel_rdma", "devices"),),
    ),
    ("record", "journal any verbs program: record", (("interposer",),)),
    ("lab", "two rxe devices that talk: lab", (("lab_in_place",), ("lab_vm",))),
    ("verify", "compare with tshark: verify", (("tshark",),)),
    ("pyshark", "packets as pyshark's, tshark's tree of a frame: verify --frame", (("tshark", "pyshark"),)),
)


def _capture_rights(machine: Machine) -> MachineCheck:
    title = "capture rights"
    if machine.system != "Linux":
        return MachineCheck(
            "capture_rights", title, False, f"live capture needs Linux; this is {machine.system}"
        )
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.text("proc/self/status"), re.MULTILINE)
    if found and int(found[1], 16) >> CAP_NET_RAW & 1:
        return MachineCheck("capture_rights", title, True, "CAP_NET_RAW is effective")
    # File capabilities belong to the interpreter: the python of a virtual environment is a link to it.
    interpreter = machine.interpreter.resolve()
    return MachineCheck(
        "capture_rights",
        title,
        False,
        "CAP_NET_RAW is not effective",
        f"sudo setcap cap_net_raw+ep {interpreter}",
    )


def _sandbox(machine: Machine) -> MachineCheck:
    title = "sandbox"
    has = machine.landlock()
    if has:
        return MachineCheck(
            "sandbox", title, True, f"Landlock {has}: as root, commands reach only their files"
        )
    return MachineCheck(
        "sandbox",
        title,
        False,
        "no Landlock: commands give up root, and are not confined to their files",
        "boot Linux 5.13 or newer with landlock in lsm= of its command line",
    )


def _kernel_rdma(machine: Machine) -> MachineCheck:
    title = "RDMA in this kernel"
    if (machine.root / "sys/class/infiniband").exists():
        return MachineCheck("kernel_rdma", title, True, "ib_core is there")
    if has_module(machine, "ib_core"):
        return MachineCheck(
            "kernel_rdma", title, False, "ib_core is not loaded", machine.sudo("modprobe ib_uverbs")
        )
    return MachineCheck(
        "kernel_rdma", title, False, f"kernel {machine.release} has none", _kernel_fix(machine)
    )


def _rxe(machine: Machine) -> MachineCheck:
    state = has_module(machine, "rdma_rxe")
    if state is None:
        return MachineCheck(
            "rxe", "rxe module", False, f"kernel {machine.release} has none", _kernel_fix(machine)
        )
    return MachineCheck("rxe", "rxe module", True, f"{state} in kernel {machine.release}")


def _kernel_fix(machine: Machine) -> str:
    """How to get a kernel with rxe: reboot if it is installed, else install the distribution's."""
    kernel = newest_kernel(machine.root / "boot", machine.root / "lib/modules")
    if kernel is not None:
        return f"reboot into {kernel.version}, or rocekit lab -- COMMAND"
    return machine.install(KERNEL_PACKAGE.get(machine.arch, f"linux-image-{machine.arch}"))


def _devices(machine: Machine) -> MachineCheck:
    devices = machine.names("sys/class/infiniband")
    if not devices:
        if has_module(machine, "rdma_rxe"):
            link = "rdma link add rxe0 type rxe netdev " + (_netdev(machine) or "IFACE")
            return MachineCheck("devices", "RDMA devices", False, "none", machine.sudo(link))
        return MachineCheck("devices", "RDMA devices", False, "none", _kernel_fix(machine))
    names = ", ".join(devices)
    if not machine.names("dev/infiniband"):
        return MachineCheck(
            "devices",
            "RDMA devices",
            False,
            f"{names}, but no /dev/infiniband",
            machine.sudo("modprobe -a ib_uverbs rdma_ucm"),
        )
    return MachineCheck("devices", "RDMA devices", True, names)


def _set_up(machine: Machine) -> MachineCheck | None:
    """Whether GIDs, MTUs, priorities, PFC and ECN of the devices fit together; None without a device."""
    from rocekit.errors import VerbsError
    from rocekit.machine.devices import devices
    from rocekit.machine.roce_setup import inconsistent, settings_of

    title = "RoCE set-up"
    try:
        found = devices(machine.root / "sys/class/infiniband")
    except (VerbsError, OSError):
        return None
    net = machine.root / "sys/class/net"
    settings = settings_of(found, net, machine.ask)
    wrong = [words for d in found for words in inconsistent(d, net, settings, machine.root)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return MachineCheck("roce_setup", title, False, f"{wrong[0]}{more}", "rocekit devices")
    return MachineCheck("roce_setup", title, True, "nothing seen here that does not fit: rocekit devices")


def _netdev(machine: Machine) -> str | None:
    """An interface for an rxe device."""
    names = [
        n for n in machine.names("sys/class/net") if (machine.root / "sys/class/net" / n / "address").exists()
    ]
    return next((n for n in names if n != "lo"), None)


def _pyverbs(machine: Machine) -> MachineCheck:
    """Debian's package is compiled for one minor version of Python, and outside virtual environments."""
    packages = "usr/lib/python3/dist-packages/pyverbs"
    wanted = f"cpython-{machine.python[0]}{machine.python[1]}-"
    if any(wanted in name for name in machine.names(packages)):
        return MachineCheck("pyverbs", "pyverbs", True, f"the distribution's, /{packages}")
    if machine.module_found("pyverbs"):
        return MachineCheck("pyverbs", "pyverbs", True, "importable")
    other = re.search(r"cpython-(\d)(\d+)-", " ".join(machine.names(packages)))
    if other:
        theirs, ours = f"{other[1]}.{other[2]}", ".".join(map(str, machine.python))
        return MachineCheck(
            "pyverbs",
            "pyverbs",
            False,
            f"the distribution's is for Python {theirs}, this is {ours}",
            f"python{theirs} -m venv .venv && .venv/bin/pip install -e .",
        )
    return MachineCheck("pyverbs", "pyverbs", False, "not installed", machine.install("python3-pyverbs"))


def _program(
    machine: Machine, name: str, title: str, program: str, package: str, option: str = "--version"
) -> MachineCheck:
    path = machine.program(program)
    if path is None:
        return MachineCheck(name, title, False, f"no {program} on PATH", machine.install(package))
    return MachineCheck(name, title, True, machine.first_line(path, option) or path)


def _python_package(machine: Machine, name: str, package: str, extra: str) -> MachineCheck:
    version = machine.package_version(package)
    if version is None:
        return MachineCheck(
            name, package, False, "not installed", installing(extra, python=machine.interpreter)
        )
    return MachineCheck(name, package, True, version)


def _lab(name: str, title: str, pieces: Sequence[checks.LabPiece]) -> MachineCheck:
    """A way to run the lab, by the lab's own checks."""
    lacking = [piece for piece in pieces if not piece.ok]
    if not lacking:
        return MachineCheck(name, title, True, "nothing is missing")
    fixes = "; ".join(dict.fromkeys(piece.fix for piece in lacking if piece.fix))
    return MachineCheck(
        name, title, False, f"needs {', '.join(piece.name for piece in lacking)}", fixes or None
    )


def _kvm(machine: Machine) -> MachineCheck:
    path = machine.root / "dev/kvm"
    if not path.exists():
        return MachineCheck("kvm", "KVM", False, "no /dev/kvm: the lab's VM is emulated, which is slower")
    if not os.access(path, os.R_OK | os.W_OK):
        return MachineCheck(
            "kvm",
            "KVM",
            False,
            "no permission to open /dev/kvm",
            "sudo usermod -aG kvm $USER  # then log in again",
        )
    if not virtualises(machine.root / "proc/cpuinfo"):
        lacks = "/dev/kvm is there, and the processor offers no virtualisation"
        return MachineCheck("kvm", "KVM", False, f"{lacks}: the lab's VM is emulated, which is slower")
    return MachineCheck("kvm", "KVM", True, "/dev/kvm")


def _crc(machine: Machine) -> MachineCheck:
    version = machine.package_version("isal")
    if version is None:
        fix = f"{machine.interpreter} -m pip install isal"
        return MachineCheck("crc", "fast CRC-32", False, "zlib is used instead, which is slower", fix)
    return MachineCheck("crc", "fast CRC-32", True, f"isal {version}")


def _built(machine: Machine, name: str, title: str, state: str, what: str, slower: str) -> MachineCheck:
    """A compiled part with a slower alternative in Python."""
    details = {
        _compiled.COMPILED: what,
        _compiled.MISSING: f"no: {slower}",
        _compiled.OUTDATED: f"no: older than the sources; {slower}",
        _compiled.DECLINED: f"no: ROCEKIT_COMPILED=0; {slower}",
    }
    fixes = {
        _compiled.DECLINED: "unset ROCEKIT_COMPILED",
        _compiled.MISSING: f"{machine.install('gcc', 'python3-dev')}; {machine.interpreter} -m pip install .",
        _compiled.OUTDATED: f"{machine.interpreter} -m pip install -e .",
    }
    return MachineCheck(name, title, state == _compiled.COMPILED, details[state], fixes.get(state))


def _loops(machine: Machine) -> MachineCheck:
    slower = "they run as plain Python, ten times slower"
    return _built(machine, "compiled", "compiled", machine.compiled(), "the loops over packets", slower)


def _icrcs(machine: Machine) -> MachineCheck:
    what = "in C" if machine.package_version("isal") else "in C, but not used without isal"
    return _built(machine, "icrcs", "verifying ICRCs", machine.icrcs(), what, "packet by packet, in Python")


def _extras(machine: Machine) -> MachineCheck:
    """Packages that only some commands need: one check, because one command adds them."""
    missing = {extra: what for extra, what in EXTRAS.items() if machine.package_version(what[0]) is None}
    if not missing:
        return MachineCheck("extras", "extras", True, ", ".join(package for package, _ in EXTRAS.values()))
    packages = ", ".join(f"{package} ({use})" for package, use in missing.values())
    fix = installing(*missing, python=machine.interpreter)
    return MachineCheck("extras", "extras", False, f"missing: {packages}", fix)


EXTRAS = {
    "plot": ("matplotlib", "plot"),
    "export": ("polars", "export"),
    "top": ("textual", "top"),
    "metrics": ("prometheus-client", "trace --metrics"),
    "notebook": ("pandas", "notebooks"),
    "perfetto": ("perfetto", "export --to perfetto"),
    "fleet": ("distributed", "fleet, and captures at URLs"),
    "conform": ("hypothesis", "conform --random"),
}
"""Extras by name: the package of each, and the command that needs it."""


def _interposer(machine: Machine) -> MachineCheck:
    """The library that is loaded into recorded programs; it is not built here."""
    title = "interposer"
    found = machine.interposer()
    if found.path is not None:
        return MachineCheck("interposer", title, True, str(found.path))
    if found.can_build:
        return MachineCheck("interposer", title, True, "not built yet: the first `rocekit record` builds it")
    fix = machine.install(*found.packages) if found.packages else None
    return MachineCheck("interposer", title, False, found.obstacle or "missing", fix)


def _programs(machine: Machine) -> MachineCheck:
    missing = [package for program, package in PROGRAMS.items() if machine.program(program) is None]
    if missing:
        return MachineCheck(
            "programs",
            "others' RDMA programs",
            False,
            f"missing: {', '.join(missing)}",
            machine.install(*missing),
        )
    return MachineCheck("programs", "others' RDMA programs", True, ", ".join(PROGRAMS))


PROGRAMS = {
    "ib_write_bw": "perftest",
    "rping": "rdmacm-utils",
    "ibv_rc_pingpong": "ibverbs-utils",
    "rdma": "iproute2",
}
"""Programs of others that the lab's tests run, and their Debian packages."""


CHECKS: tuple[Callable[[Machine], MachineCheck | None], ...] = (
    _capture_rights,
    _sandbox,
    _kernel_rdma,
    _rxe,
    _devices,
    _set_up,
    _pyverbs,
    lambda m: _lab("lab_in_place", "lab in place", m.lab.native()),
    lambda m: _lab("lab_vm", "lab in a VM", m.lab.vm()),
    _kvm,
    lambda m: _program(m, "tcpdump", "tcpdump", "tcpdump", "tcpdump"),
    lambda m: _program(m, "tshark", "tshark", "tshark", "tshark"),
    lambda m: _python_package(m, "pyshark", "pyshark", "tshark"),
    _programs,
    _crc,
    _loops,
    _icrcs,
    _extras,
    _interposer,
)
"""All checks in order; a new one is a row."""


def judge(checks: tuple[MachineCheck, ...]) -> tuple[Ability, ...]:
    """What works, given the checks. If nothing is complete, the list with the fewest gaps is reported."""
    failed = {check.name for check in checks if not check.ok}
    abilities = []
    for name, title, ways in ABILITIES:
        gaps = [tuple(need for need in way if need in failed) for way in ways]
        missing = min(gaps, key=len)
        abilities.append(Ability(name, title, not missing, missing))
    return tuple(abilities)


def examine(machine: Machine | None = None) -> Report:
    """Check this machine, or ``machine``."""
    machine = machine or Machine()
    checks = tuple(found for check in CHECKS if (found := check(machine)) is not None)
    python = ".".join(map(str, machine.python))
    version = machine.package_version("rocekit") or "(not installed)"
    system = f"rocekit {version}, Python {python}, {machine.system} {machine.release} {machine.arch}"
    return Report(system, checks, judge(checks))
