"""What this machine can do: which pieces are here, and the command that adds a missing one.

``examine`` looks and changes nothing: no device is opened, no module loaded, no packet sent. A check that
fails is no error; a machine that only reads captures needs next to none of them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocekit import _compiled
from rocekit.lab import checks
from rocekit.lab.checks import KERNEL_PACKAGE
from rocekit.lab.kernels import has_module as module_installed
from rocekit.lab.kernels import newest_kernel
from rocekit.record import build as record_build

CAP_NET_RAW = 13
"""Its bit in the capability sets of /proc/PID/status (capability.h); AF_PACKET sockets need it, packet(7)."""


@dataclass(frozen=True, slots=True)
class Check:
    """One piece: whether it is here, what was seen, and the command that adds it (None where none would)."""

    name: str
    title: str
    ok: bool
    detail: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Ability:
    """Something rocekit does: whether it works here, and the names of the checks that stand in its way."""

    name: str
    title: str
    ok: bool
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All checks, in the order they are told, and what follows from them."""

    system: str
    checks: tuple[Check, ...]
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
    # Name, title, and the ways to it: any one of them, complete, is enough.
    ("read", "read captures: analyze, explain, decode", ((),)),
    ("capture", "capture a live interface: trace", (("capture_rights",),)),
    (
        "verbs",
        "make traffic on this machine's own devices: inject, devices",
        (("pyverbs", "kernel_rdma", "devices"),),
    ),
    ("record", "journal any verbs program: record", (("interposer",),)),
    ("lab", "two rxe devices that talk: lab", (("lab_in_place",), ("lab_vm",))),
    ("verify", "compare with tshark: verify", (("tshark", "pyshark"),)),
)


def _module_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(program: str, option: str) -> str:
    try:
        done = subprocess.run([program, option], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter((done.stdout or done.stderr).splitlines()), "").strip()


@dataclass(frozen=True, slots=True)
class Lab:
    """What the lab says of itself: the pieces of either way to it."""

    native: Callable[[], Sequence[checks.LabPiece]] = checks.native
    vm: Callable[[], Sequence[checks.LabPiece]] = checks.vm


@dataclass(frozen=True, slots=True)
class Machine:
    """Where to look. The defaults are this machine; tests hand over a folder that stands for one."""

    root: Path = Path("/")
    release: str = field(default_factory=platform.release)
    arch: str = field(default_factory=platform.machine)
    system: str = field(default_factory=platform.system)
    interpreter: Path = field(default_factory=lambda: Path(sys.executable))
    python: tuple[int, int] = sys.version_info[:2]
    euid: int = field(default_factory=os.geteuid)
    which: Callable[[str], str | None] = shutil.which
    module_found: Callable[[str], bool] = _module_found
    package_version: Callable[[str], str | None] = _package_version
    first_line: Callable[[str, str], str] = _first_line
    compiled: Callable[[], str] = lambda: _compiled.state(_compiled.PACKAGE)
    icrcs: Callable[[], str] = lambda: _compiled.icrcs_state(_compiled.PACKAGE)
    interposer: Callable[[], record_build.Found] = record_build.look
    lab: Lab = field(default_factory=Lab)

    def program(self, name: str) -> str | None:
        """A program's path: on PATH, or beside the interpreter as in a virtual environment; else None."""
        found = self.which(name)
        if found is None and os.access(beside := self.interpreter.parent / name, os.X_OK):
            found = str(beside)
        return found

    def text(self, path: str) -> str:
        """A small file's text, or nothing where it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        """What is in a folder, sorted, or nothing where there is none."""
        try:
            return sorted(entry.name for entry in (self.root / path).iterdir())
        except OSError:
            return []

    def sudo(self, command: str) -> str:
        """The command as this user has to type it."""
        return command if self.euid == 0 else f"sudo {command}"

    def install(self, *packages: str) -> str:
        """The command that installs Debian packages."""
        return self.sudo(f"apt-get install --no-install-recommends {' '.join(packages)}")


def has_module(machine: Machine, module: str) -> str | None:
    """``"loaded"``, ``"built in"`` or ``"available"`` when the running kernel has the module, else None."""
    folder = machine.root / "lib/modules" / machine.release
    if (machine.root / "sys/module" / module).exists():
        return "loaded"
    if f"/{module}.ko" in machine.text(f"lib/modules/{machine.release}/modules.builtin"):
        return "built in"
    return "available" if module_installed(folder, module) else None


def _capture_rights(machine: Machine) -> Check:
    title = "capture rights"
    if machine.system != "Linux":
        return Check("capture_rights", title, False, f"live capture needs Linux; this is {machine.system}")
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.text("proc/self/status"), re.MULTILINE)
    if found and int(found[1], 16) >> CAP_NET_RAW & 1:
        return Check("capture_rights", title, True, "CAP_NET_RAW is effective")
    # File capabilities belong to the interpreter itself: a virtual environment's python is a link to it.
    interpreter = machine.interpreter.resolve()
    return Check(
        "capture_rights",
        title,
        False,
        "CAP_NET_RAW is not effective",
        f"sudo setcap cap_net_raw+ep {interpreter}",
    )


def _kernel_rdma(machine: Machine) -> Check:
    title = "RDMA in this kernel"
    if (machine.root / "sys/class/infiniband").exists():
        return Check("kernel_rdma", title, True, "ib_core is there")
    if has_module(machine, "ib_core"):
        return Check("kernel_rdma", title, False, "ib_core is not loaded", machine.sudo("modprobe ib_uverbs"))
    return Check("kernel_rdma", title, False, f"kernel {machine.release} has none", _kernel_fix(machine))


def _rxe(machine: Machine) -> Check:
    state = has_module(machine, "rdma_rxe")
    if state is None:
        return Check("rxe", "rxe module", False, f"kernel {machine.release} has none", _kernel_fix(machine))
    return Check("rxe", "rxe module", True, f"{state} in kernel {machine.release}")


def _kernel_fix(machine: Machine) -> str:
    """A kernel with rxe: the distribution's, unless it is installed and only not the one that runs."""
    kernel = newest_kernel(machine.root / "boot", machine.root / "lib/modules")
    if kernel is not None:
        return f"reboot into {kernel.version}, or rocekit lab -- COMMAND"
    return machine.install(KERNEL_PACKAGE.get(machine.arch, f"linux-image-{machine.arch}"))


def _devices(machine: Machine) -> Check:
    devices = machine.names("sys/class/infiniband")
    if not devices:
        if has_module(machine, "rdma_rxe"):
            link = "rdma link add rxe0 type rxe netdev " + (_netdev(machine) or "IFACE")
            return Check("devices", "RDMA devices", False, "none", machine.sudo(link))
        return Check("devices", "RDMA devices", False, "none", _kernel_fix(machine))
    told = ", ".join(devices)
    if not machine.names("dev/infiniband"):
        return Check(
            "devices",
            "RDMA devices",
            False,
            f"{told}, but no /dev/infiniband",
            machine.sudo("modprobe -a ib_uverbs rdma_ucm"),
        )
    return Check("devices", "RDMA devices", True, told)


def _netdev(machine: Machine) -> str | None:
    """An interface an rxe device could stand on."""
    names = [
        n for n in machine.names("sys/class/net") if (machine.root / "sys/class/net" / n / "address").exists()
    ]
    return next((n for n in names if n != "lo"), None)


def _pyverbs(machine: Machine) -> Check:
    """Debian's is compiled for one minor version of Python, and lies outside virtual environments."""
    packages = "usr/lib/python3/dist-packages/pyverbs"
    wanted = f"cpython-{machine.python[0]}{machine.python[1]}-"
    if any(wanted in name for name in machine.names(packages)):
        return Check("pyverbs", "pyverbs", True, f"the distribution's, /{packages}")
    if machine.module_found("pyverbs"):
        return Check("pyverbs", "pyverbs", True, "importable")
    other = re.search(r"cpython-(\d)(\d+)-", " ".join(machine.names(packages)))
    if other:
        theirs, ours = f"{other[1]}.{other[2]}", ".".join(map(str, machine.python))
        return Check(
            "pyverbs",
            "pyverbs",
            False,
            f"the distribution's is for Python {theirs}, this is {ours}",
            f"python{theirs} -m venv .venv && .venv/bin/pip install -e .",
        )
    return Check("pyverbs", "pyverbs", False, "not installed", machine.install("python3-pyverbs"))


def _program(
    machine: Machine, name: str, title: str, program: str, package: str, option: str = "--version"
) -> Check:
    path = machine.program(program)
    if path is None:
        return Check(name, title, False, f"no {program} on PATH", machine.install(package))
    return Check(name, title, True, machine.first_line(path, option) or path)


def _python_package(machine: Machine, name: str, package: str, extra: str) -> Check:
    version = machine.package_version(package)
    if version is None:
        return Check(
            name, package, False, "not installed", f"{machine.interpreter} -m pip install '.[{extra}]'"
        )
    return Check(name, package, True, version)


def _lab(name: str, title: str, pieces: Sequence[checks.LabPiece]) -> Check:
    """A way to the lab. What stands in it is the lab's own finding, so that the two never disagree."""
    lacking = [piece for piece in pieces if not piece.ok]
    if not lacking:
        return Check(name, title, True, "nothing is missing")
    fixes = "; ".join(dict.fromkeys(piece.fix for piece in lacking if piece.fix))
    return Check(name, title, False, f"needs {', '.join(piece.name for piece in lacking)}", fixes or None)


def _kvm(machine: Machine) -> Check:
    path = machine.root / "dev/kvm"
    if not path.exists():
        return Check("kvm", "KVM", False, "no /dev/kvm: the lab's VM is emulated, and slower")
    if not os.access(path, os.R_OK | os.W_OK):
        return Check(
            "kvm",
            "KVM",
            False,
            "/dev/kvm is not ours to open",
            "sudo usermod -aG kvm $USER  # then log in again",
        )
    return Check("kvm", "KVM", True, "/dev/kvm")


def _crc(machine: Machine) -> Check:
    version = machine.package_version("isal")
    if version is None:
        fix = f"{machine.interpreter} -m pip install isal"
        return Check("crc", "fast CRC-32", False, "zlib's is used, which is slower", fix)
    return Check("crc", "fast CRC-32", True, f"isal {version}")


def _built(machine: Machine, name: str, title: str, state: str, what: str, slower: str) -> Check:
    """A part in C, which has a slower one in Python beside it."""
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
    return Check(name, title, state == _compiled.COMPILED, details[state], fixes.get(state))


def _loops(machine: Machine) -> Check:
    slower = "they run as plain Python, ten times slower"
    return _built(machine, "compiled", "compiled", machine.compiled(), "the loops over packets", slower)


def _icrcs(machine: Machine) -> Check:
    what = "in C" if machine.package_version("isal") else "in C, but not used without isal"
    return _built(machine, "icrcs", "verifying ICRCs", machine.icrcs(), what, "packet by packet, in Python")


def _extras(machine: Machine) -> Check:
    """What only some commands need: one piece, for one command adds it."""
    missing = {extra: what for extra, what in EXTRAS.items() if machine.package_version(what[0]) is None}
    if not missing:
        return Check("extras", "extras", True, ", ".join(package for package, _ in EXTRAS.values()))
    told = ", ".join(f"{package} ({use})" for package, use in missing.values())
    fix = f"{machine.interpreter} -m pip install '.[{','.join(missing)}]'"
    return Check("extras", "extras", False, f"missing: {told}", fix)


EXTRAS = {
    "plot": ("matplotlib", "plot"),
    "export": ("polars", "export"),
    "top": ("textual", "top"),
    "metrics": ("prometheus-client", "trace --metrics"),
}
"""Extras by name: the package that each adds, and the command that needs it. `verify` and `lab` have rows."""


def _interposer(machine: Machine) -> Check:
    """The library that goes into recorded programs; nothing is built here."""
    title = "interposer"
    found = machine.interposer()
    if found.path is not None:
        return Check("interposer", title, True, str(found.path))
    if found.can_build:
        return Check("interposer", title, True, "not built yet: the first `rocekit record` builds it")
    fix = machine.install(*found.packages) if found.packages else None
    return Check("interposer", title, False, found.obstacle or "missing", fix)


def _programs(machine: Machine) -> Check:
    missing = [package for program, package in PROGRAMS.items() if machine.program(program) is None]
    if missing:
        return Check(
            "programs",
            "others' RDMA programs",
            False,
            f"missing: {', '.join(missing)}",
            machine.install(*missing),
        )
    return Check("programs", "others' RDMA programs", True, ", ".join(PROGRAMS))


PROGRAMS = {
    "ib_write_bw": "perftest",
    "rping": "rdmacm-utils",
    "ibv_rc_pingpong": "ibverbs-utils",
    "rdma": "iproute2",
}
"""Programs nobody here wrote that the lab's tests run, and the Debian packages they come in."""


CHECKS: tuple[Callable[[Machine], Check], ...] = (
    _capture_rights,
    _kernel_rdma,
    _rxe,
    _devices,
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
"""Every check, in the order it is told; a new one is a row."""


def judge(checks: tuple[Check, ...]) -> tuple[Ability, ...]:
    """What works, given the checks. What an ability misses is told of the way that lacks least."""
    failed = {check.name for check in checks if not check.ok}
    abilities = []
    for name, title, ways in ABILITIES:
        gaps = [tuple(need for need in way if need in failed) for way in ways]
        missing = min(gaps, key=len)
        abilities.append(Ability(name, title, not missing, missing))
    return tuple(abilities)


def examine(machine: Machine | None = None) -> Report:
    """Look at this machine, or at the one handed over."""
    machine = machine or Machine()
    checks = tuple(check(machine) for check in CHECKS)
    python = ".".join(map(str, machine.python))
    version = machine.package_version("rocekit") or "(not installed)"
    system = f"rocekit {version}, Python {python}, {machine.system} {machine.release} {machine.arch}"
    return Report(system, checks, judge(checks))
