"""Whether the lab works on this machine, and the command that adds each missing piece."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import NamedTuple

from rocekit.lab.net import PACKAGE_OF
from rocekit.lab.vm import QEMU_PACKAGE, has_module, newest_kernel, qemu, virtme_run

KERNEL_PACKAGE = {"x86_64": "linux-image-amd64", "aarch64": "linux-image-arm64"}
SET_UP_TOOLS = ("ip", "rdma", "tc", "modprobe")


class Check(NamedTuple):
    """A piece of the lab: whether it is here, and the command that adds it ("" where none would)."""

    name: str
    ok: bool
    fix: str


def _which(program: str) -> str | None:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return shutil.which(program, path=path)


def native() -> list[Check]:
    """Every piece of a lab in place."""
    modules = Path("/lib/modules", os.uname().release)
    has_rxe = Path("/sys/module/rdma_rxe").exists() or has_module(modules, "rdma_rxe")
    return [
        Check("root", os.geteuid() == 0, "sudo rocekit lab …"),
        Check(
            "rxe in the running kernel", has_rxe, "boot a kernel that has rdma_rxe, or let the lab use its VM"
        ),
        Check("first network namespace", _first_namespace(), "run it outside of the container"),
        *_both(),
    ]


def _first_namespace() -> bool:
    """Older rxe knows no other. Nothing tells the first one apart for sure; process 1 stands for it."""
    try:
        return Path("/proc/self/ns/net").readlink() == Path("/proc/1/ns/net").readlink()
    except OSError:
        return False


def _both() -> list[Check]:
    """What sets devices up, and what every verbs program needs to find one; the same files serve the VM."""
    providers = any(
        Path(base).exists() for base in ("/etc/libibverbs.d/rxe.driver", "/usr/share/libibverbs.d/rxe.driver")
    )
    return [
        *(
            Check(name, _which(name) is not None, f"apt-get install {PACKAGE_OF[name]}")
            for name in SET_UP_TOOLS
        ),
        Check("rxe's verbs provider", providers, "apt-get install ibverbs-providers"),
    ]


def vm() -> list[Check]:
    """Every piece of a lab in a VM."""
    machine = platform.machine()
    package = QEMU_PACKAGE.get(machine, "qemu-system")
    image = KERNEL_PACKAGE.get(machine, "linux-image-generic")
    return [
        Check(f"qemu-system-{machine}", qemu() is not None, f"apt-get install {package}"),
        Check("a kernel with rdma_rxe in /boot", newest_kernel() is not None, f"apt-get install {image}"),
        Check(
            "virtme-ng",
            virtme_run() is not None and importlib.util.find_spec("virtme") is not None,
            "pip install virtme-ng",
        ),
        Check("static busybox", _which("busybox") is not None, "apt-get install busybox-static"),
        *_both(),
    ]


def check() -> list[Check]:
    """Every piece of both ways to a lab, each once; nothing is changed or loaded."""
    return list(dict.fromkeys([*native(), *vm()]))


def missing() -> list[str]:
    """What keeps the lab from running a line a piece with the command that adds it; [] where it runs."""
    if native_obstacle() is None or vm_obstacle() is None:
        return []
    return [_line(piece) for piece in vm() if not piece.ok]


def native_obstacle() -> str | None:
    """Why the lab cannot be set up in place, in one line; None where it can."""
    return _obstacle("two rxe devices cannot be set up in place", native())


def vm_obstacle() -> str | None:
    """Why the lab's VM cannot be started, in one line; None where it can."""
    return _obstacle("the lab's VM cannot be started", vm())


def _obstacle(what: str, pieces: list[Check]) -> str | None:
    lacking = [_line(piece) for piece in pieces if not piece.ok]
    return f"{what}; missing: {'; '.join(lacking)}" if lacking else None


def _line(piece: Check) -> str:
    return f"{piece.name} ({piece.fix})" if piece.fix else piece.name
