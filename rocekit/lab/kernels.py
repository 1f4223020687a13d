"""The installed kernels: which of them has rxe, to boot the VM with."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Kernel:
    """An installed kernel that the VM can boot."""

    version: str
    image: Path


def newest_kernel(boot: Path = Path("/boot"), modules: Path = Path("/lib/modules")) -> Kernel | None:
    """The newest installed kernel whose modules include rdma_rxe, or None."""
    return max(_kernels(boot, modules), key=lambda kernel: version_key(kernel.version), default=None)


def kernel_named(
    wanted: str, boot: Path = Path("/boot"), modules: Path = Path("/lib/modules")
) -> Kernel | None:
    """The newest installed kernel with rdma_rxe whose version is, or starts with, ``wanted``; or None."""
    fitting = [
        kernel
        for kernel in _kernels(boot, modules)
        if kernel.version.startswith(wanted) and not kernel.version[len(wanted) : len(wanted) + 1].isdigit()
    ]
    return max(fitting, key=lambda kernel: version_key(kernel.version), default=None)


def versions(boot: Path = Path("/boot"), modules: Path = Path("/lib/modules")) -> list[str]:
    """The versions of the installed kernels with rdma_rxe, oldest first."""
    return sorted((kernel.version for kernel in _kernels(boot, modules)), key=version_key)


def _kernels(boot: Path, modules: Path) -> list[Kernel]:
    found = []
    for image in boot.glob("vmlinuz-*"):
        version = image.name.removeprefix("vmlinuz-")
        if has_module(modules / version, "rdma_rxe") and os.access(image, os.R_OK):
            found.append(Kernel(version, image))
    return found


def version_key(version: str) -> list[tuple[int, int, str]]:
    """A sort key by which 6.1.0-9 comes before 6.1.0-10."""
    return [
        (1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[a-z]+", version)
    ]


def has_module(folder: Path, name: str) -> bool:
    """Whether a kernel's module folder has a module, compressed or not, or its image has it built in."""
    texts = []
    for index in ("modules.dep", "modules.builtin"):
        with contextlib.suppress(OSError):
            texts.append((folder / index).read_text())
    if not texts:
        return any(folder.rglob(f"{name}.ko*")) if folder.is_dir() else False
    return any(re.search(rf"^\S*/{name}\.ko", text, re.MULTILINE) for text in texts)
