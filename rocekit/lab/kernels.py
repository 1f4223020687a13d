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
    found = []
    for image in boot.glob("vmlinuz-*"):
        version = image.name.removeprefix("vmlinuz-")
        if has_module(modules / version, "rdma_rxe") and os.access(image, os.R_OK):
            found.append(Kernel(version, image))
    return max(found, key=lambda kernel: version_key(kernel.version), default=None)


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
