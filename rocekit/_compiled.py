"""Decides whether the loops over packets run compiled: all of them, or none.

The modules named here may have a compiled twin beside them, made by ``setup.py``. Python would import it even
if it is older than the source. The modules share types, so if one twin is missing or outdated, all modules
run as plain Python. ``ROCEKIT_COMPILED=0`` asks for plain Python too.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The modules, each behind those whose types it uses.
MODULES: Final = (
    "files.record_loops",
    "packets.rows",
    "packets.flow_numbers",
    "packets.walk",
    "packets.dissect",
    "packets.printing.line_loop",
    "flows.sums",
    "flows.silences",
    "track.events",
    "track.progress",
    "track.passes",
    "track.connections",
    "track.transfers",
    "track.kept",
    "track.ledger",
    "track.recent",
    "track.causes",
    "track.repeats",
    "track.outcomes",
    "track.assembly",
    "track.responses",
    "track.requests",
    "track.bulk",
    "track.lobby",
    "track.pairing",
    "track.tracker",
)

#: The loop over packets that verifies their ICRCs, written in C.
ICRCS: Final = "packets._icrcs"

PACKAGE: Final = Path(__file__).resolve().parent

COMPILED, MISSING, OUTDATED, DECLINED = "compiled", "missing", "outdated", "declined"


def state(folder: Path) -> str:
    """The state of the twins in ``folder``: ``compiled``, ``missing``, ``outdated`` or ``declined``."""
    twins = {name: twin for name in MODULES if (twin := _twin(folder, name)) is not None}
    if len(twins) < len(MODULES):
        return MISSING
    if os.environ.get("ROCEKIT_COMPILED") == "0":
        return DECLINED
    if any(_older(folder, name, twin, ("py", "pxd")) for name, twin in twins.items()):
        return OUTDATED
    return COMPILED


def icrcs_state(folder: Path) -> str:
    """The state of the C module ``ICRCS``, which does not depend on the others."""
    twin = _twin(folder, ICRCS)
    if twin is None:
        return MISSING
    if os.environ.get("ROCEKIT_COMPILED") == "0":
        return DECLINED
    return OUTDATED if _older(folder, ICRCS, twin, ("c",)) else COMPILED


def _older(folder: Path, name: str, twin: Path, kinds: Sequence[str]) -> bool:
    """Whether a twin is older than its sources; never in an installed package, whose times mean nothing."""
    if not (folder.parent / "pyproject.toml").exists():
        return False
    made = twin.stat().st_mtime
    return any(_path(folder, name, f".{kind}").stat().st_mtime > made for kind in kinds)


def _path(folder: Path, name: str, suffix: str) -> Path:
    """A file of module ``name`` of the package in ``folder``."""
    return folder.joinpath(*name.split(".")).with_suffix(suffix)


def _twin(folder: Path, name: str) -> Path | None:
    paths = (_path(folder, name, suffix) for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.exists()), None)


class _Plain:
    """Has Python import the modules' sources instead of their compiled twins."""

    def __init__(self, folder: Path) -> None:
        self._paths = {f"rocekit.{name}": _path(folder, name, ".py") for name in MODULES}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self._paths.get(name)
        if source is None:
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, source)


def choose(folder: Path) -> str:
    """Import twins, or sources, for all modules of the package in ``folder``; returns ``state``."""
    found = state(folder)
    if found != COMPILED and any(_twin(folder, name) for name in MODULES):
        sys.meta_path.insert(0, _Plain(folder))
    return found
