"""Whether the lab works on this machine, and the command that adds each missing piece."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import NamedTuple

from rocekit.errors import installing
from rocekit.lab.kernels import has_module, newest_kernel
from rocekit.lab.net import PACKAGE_OF
from rocekit.lab.vm import QEMU_PACKAGE, qemu, virtme_run

KERNEL_PACKAGE = {"x86_64": "linux-image-amd64", "aarch64": "linux-image-arm64"}
SET_UP_TOOLS = ("ip", "rdma", "tc", "modprobe")


class LabPiece(NamedTuple):
    """A piece of the lab: whether it is here, and the command that adds it ("" if there is none)."""

    name: str
    ok: bool
    fix: str


def _which(program: str) -> str | None:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return shutil.which(program, path=path)


def native() -> list[LabPiece]:
    """Every piece of a lab in place."""
    modules = Path("/lib/modules", os.uname().release)
    has_rxe = Path("/sys/module/rdma_rxe").exists() or has_module(modules, "rdma_rxe")
    return [
        LabPiece("root", os.geteuid() == 0, "sudo rocekit lab …"),
        LabPiece(
            "rxe in the running kernel", has_rxe, "boot a kernel that has rdma_rxe, or let the lab use its VM"
        ),
        LabPiece("first network namespace", _first_namespace(), "run it outside of the container"),
        *_both(),
    ]


def _first_namespace() -> bool:
    """Whether this is process 1's network namespace, which is probably the first."""
    try:
        return Path("/proc/self/ns/net").readlink() == Path("/proc/1/ns/net").readlink()
    except OSError:
        return False


def _both() -> list[LabPiece]:
    """The tools that set devices up and the provider that verbs programs need, in place and in a VM."""
    providers = any(
        Path(base).exists() for base in ("/etc/libibverbs.d/rxe.driver", "/usr/share/libibverbs.d/rxe.driver")
    )
    return [
        *(
            LabPiece(name, _which(name) is not None, f"apt-get install {PACKAGE_OF[name]}")
            for name in SET_UP_TOOLS
        ),
        LabPiece("rxe's verbs provider", providers, "apt-get install ibverbs-providers"),
    ]


def vm() -> list[LabPiece]:
    """Every piece of a lab in a VM."""
    machine = platform.machine()
    package = QEMU_PACKAGE.get(machine, "qemu-system")
    image = KERNEL_PACKAGE.get(machine, "linux-image-generic")
    return [
        LabPiece(f"qemu-system-{machine}", qemu() is not None, f"apt-get install {package}"),
        LabPiece("a kernel with rdma_rxe in /boot", newest_kernel() is not None, f"apt-get install {image}"),
        LabPiece(
            "virtme-ng",
            virtme_run() is not None and importlib.util.find_spec("virtme") is not None,
            installing("lab"),
        ),
        LabPiece("static busybox", _which("busybox") is not None, "apt-get install busybox-static"),
        *_both(),
    ]


def check() -> list[LabPiece]:
    """Every piece of both kinds of lab, each once; changes and loads nothing."""
    return list(dict.fromkeys([*native(), *vm()]))


def missing() -> list[str]:
    """The missing pieces of the lab, each with the command that adds it; [] if the lab runs."""
    if native_obstacle() is None or vm_obstacle() is None:
        return []
    return [_line(piece) for piece in vm() if not piece.ok]


def native_obstacle() -> str | None:
    """Why the lab cannot be set up in place, in one line; None if it can."""
    return _obstacle("two rxe devices cannot be set up in place", native())


def vm_obstacle() -> str | None:
    """Why the lab's VM cannot be started, in one line; None if it can."""
    return _obstacle("the lab's VM cannot be started", vm())


def _obstacle(what: str, pieces: list[LabPiece]) -> str | None:
    lacking = [_line(piece) for piece in pieces if not piece.ok]
    return f"{what}; missing: {'; '.join(lacking)}" if lacking else None


def _line(piece: LabPiece) -> str:
    return f"{piece.name} ({piece.fix})" if piece.fix else piece.name
