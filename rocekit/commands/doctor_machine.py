"""The machine that ``rocekit doctor`` looks at: its files, programs, packages and kernel modules."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocekit import _compiled
from rocekit.lab import checks
from rocekit.lab.kernels import has_module as module_installed
from rocekit.machine import landlock
from rocekit.machine.roce_qos import ask
from rocekit.record import build as record_build


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
    """The lab's own checks: for running in place, and in a VM."""

    native: Callable[[], Sequence[checks.LabPiece]] = checks.native
    vm: Callable[[], Sequence[checks.LabPiece]] = checks.vm


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine to check. The defaults are this machine; tests pass a folder instead."""

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
    ask: Callable[[Sequence[str]], str | None] = ask
    compiled: Callable[[], str] = lambda: _compiled.state(_compiled.PACKAGE)
    icrcs: Callable[[], str] = lambda: _compiled.icrcs_state(_compiled.PACKAGE)
    interposer: Callable[[], record_build.Found] = record_build.look
    landlock: Callable[[], int] = landlock.version
    lab: Lab = field(default_factory=Lab)

    def program(self, name: str) -> str | None:
        """The path of a program: on PATH, or beside the interpreter in a virtual environment; else None."""
        found = self.which(name)
        if found is None and os.access(beside := self.interpreter.parent / name, os.X_OK):
            found = str(beside)
        return found

    def text(self, path: str) -> str:
        """The text of a small file, or an empty string if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder, or an empty list if there is none."""
        try:
            return sorted(entry.name for entry in (self.root / path).iterdir())
        except OSError:
            return []

    def sudo(self, command: str) -> str:
        """The command as this user must run it."""
        return command if self.euid == 0 else f"sudo {command}"

    def install(self, *packages: str) -> str:
        """The command that installs Debian packages."""
        return self.sudo(f"apt-get install --no-install-recommends {' '.join(packages)}")


def has_module(machine: Machine, module: str) -> str | None:
    """``"loaded"``, ``"built in"`` or ``"available"`` if the running kernel has the module, else None."""
    folder = machine.root / "lib/modules" / machine.release
    if (machine.root / "sys/module" / module).exists():
        return "loaded"
    if f"/{module}.ko" in machine.text(f"lib/modules/{machine.release}/modules.builtin"):
        return "built in"
    return "available" if module_installed(folder, module) else None
