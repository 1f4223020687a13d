"""``rocekit.lab.run``: decides where the command runs, and brings back its output folder."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from rocekit.lab.agent import Order
from rocekit.lab.checks import native_obstacle, vm_obstacle
from rocekit.lab.native import run_in_place
from rocekit.lab.net import MOST_DEVICES, LabError
from rocekit.lab.vm import Guest, run_in_vm

Mode = Literal["auto", "native", "vm"]


@dataclass(frozen=True, slots=True)
class LabResult:
    """A command that ran in the lab.

    ``returncode`` is the command's own (128 + n after signal n), or 124 if its time limit passed. ``out`` is
    the folder with what it wrote to ``$ROCEKIT_LAB_OUT``, or None if it wrote nothing and no folder was
    named. ``mode`` is "native" or "vm", ``kernel`` the version that ran, ``accelerator`` the VM's ("kvm" or
    "tcg"), ``log`` what its boot printed. ``setup_s`` is the time before the command, ``command_s`` the
    command's.
    """

    returncode: int
    timed_out: bool
    out: Path | None
    mode: str
    kernel: str
    accelerator: str | None
    setup_s: float
    command_s: float
    log: str


def run(
    command: Sequence[str],
    *,
    netem: str | None = None,
    netem_b: str | None = None,
    devices: int = 2,
    timeout_s: float = 600.0,
    out: Path | str | None = None,
    mode: Mode = "auto",
    memory: str = "2G",
    cpus: int = 2,
    boot_timeout_s: float = 300.0,
    counted: bool = False,
    kernel: str | None = None,
    environment: Mapping[str, str] | None = None,
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
) -> LabResult:
    """Run a command where two rxe devices are connected by a veth pair, and wait for its end.

    It runs in the caller's directory (read-only in a VM, where /tmp is lost at the end), as root, with
    ``ROCEKIT_LAB=1``, this Python's folder first on PATH, and a folder ``ROCEKIT_LAB_OUT`` whose content is
    brought back. Its standard input is empty.

    Args:
        command: the program and its arguments; no shell.
        netem: what tc-netem does to packets that rxe0's end sends, in its own words: ``loss 2%``.
        netem_b: the same for rxe1's end.
        devices: how many, 2 to 8; more than two are connected by a bridge.
        timeout_s: the command's time limit, in seconds.
        out: where the output folder goes; by default ``lab-out``, ``lab-out-2``, … in the current directory,
            made only if something was written.
        mode: "native", "vm", or "auto": in place if that is possible.
        memory, cpus: the VM's size.
        boot_timeout_s: the VM's time limit until its agent's first message.
        counted: in a VM whose clock counts instructions: for measurements on a busy machine; slow.
        kernel: the version of an installed kernel, or how it starts, for a VM; by default the newest.
        environment: instead of the caller's own.
        stdout, stderr: where the command's output goes, as it is printed; by default the caller's own.

    Raises:
        LabError: something is missing, the lab did not start, or it no longer answers.
        ValueError: an empty command, a limit that is not positive, an unknown mode.
    """
    if not command:
        raise ValueError("no command to run")
    if timeout_s <= 0 or boot_timeout_s <= 0:
        raise ValueError("a time limit must be more than 0 seconds")
    if mode not in ("auto", "native", "vm"):
        raise ValueError(f"mode must be auto, native or vm, not {mode!r}")
    if not 2 <= devices <= MOST_DEVICES:
        raise ValueError(f"the lab has 2 to {MOST_DEVICES} devices, not {devices}")
    if counted and mode == "native":
        raise ValueError("only a VM's clock can count instructions")
    if kernel is not None and mode == "native":
        raise ValueError("only a VM can boot another kernel")
    chosen = "vm" if counted or kernel is not None else pick_mode() if mode == "auto" else mode
    obstacle = native_obstacle() if chosen == "native" else vm_obstacle()
    if obstacle:
        raise LabError(obstacle)
    for words in (netem, netem_b):
        if words is not None:
            try:
                shlex.split(words)
            except ValueError as error:
                raise ValueError(f"netem words {words!r}: {error}") from error
    sinks = (stdout or _binary(sys.stdout), stderr or _binary(sys.stderr))
    with tempfile.TemporaryDirectory(prefix="rocekit-lab-out-") as landing:
        order = Order(
            tuple(command),
            str(Path.cwd()),
            _environment(environment if environment is not None else os.environ),
            timeout_s,
            netem,
            netem_b,
            landing,
            devices=devices,
        )
        try:
            if chosen == "native":
                session, booted, accelerator, log = (*run_in_place(order, sinks), None, "")
            else:
                guest = Guest(memory, cpus, boot_timeout_s, counted, kernel)
                ended_vm = run_in_vm(order, guest, sinks, Path(landing))
                session, booted = ended_vm.session, ended_vm.kernel
                accelerator, log = ended_vm.accelerator, ended_vm.log
        finally:
            kept = _keep(Path(landing), None if out is None else Path(out))
    ended = session.said["ended"]
    return LabResult(
        returncode=int(ended["returncode"]),
        timed_out=bool(ended["timed_out"]),
        out=kept,
        mode=chosen,
        kernel=booted,
        accelerator=accelerator,
        setup_s=(session.up_at or 0.0) - session.started_at,
        command_s=(session.ended_at or 0.0) - (session.up_at or 0.0),
        log=log,
    )


def pick_mode() -> Literal["native", "vm"]:
    """The mode that "auto" chooses on this machine."""
    return "native" if native_obstacle() is None else "vm"


def _binary(stream: object) -> BinaryIO:
    """The byte stream of a text stream; a replacement without one (a test's) gets an unused one."""
    buffer = getattr(stream, "buffer", None)
    return buffer if buffer is not None else io.BytesIO()


def _environment(caller: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in caller.items() if key not in ("TMPDIR", "LD_PRELOAD")}
    source = str(Path(__file__).resolve().parents[2])
    path = kept.get("PATH", "/usr/bin:/bin").split(os.pathsep)
    path = [str(Path(sys.executable).parent), *path, "/usr/local/sbin", "/usr/sbin", "/sbin"]
    kept["PATH"] = os.pathsep.join(dict.fromkeys(path))
    if not any((Path(folder) / "rocekit").is_dir() for folder in sys.path if "site-packages" in folder):
        # In a source tree that is not installed, the command finds the same rocekit.
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (source, kept.get("PYTHONPATH"))))
    return kept


def _keep(landing: Path, out: Path | None) -> Path | None:
    """Move the output to the folder that the user named, or to a new one."""
    if out is None:
        if not any(landing.iterdir()):
            return None
        out = _fresh(Path.cwd())
    out.mkdir(parents=True, exist_ok=True)
    shutil.copytree(landing, out, symlinks=True, dirs_exist_ok=True)
    return out


def _fresh(folder: Path) -> Path:
    number = 1
    while True:
        candidate = folder / ("lab-out" if number == 1 else f"lab-out-{number}")
        try:
            candidate.mkdir()
        except FileExistsError:
            number += 1
        else:
            return candidate
