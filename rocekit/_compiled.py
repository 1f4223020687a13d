"""Decides whether the loops over packets run compiled: all of them, or none.

The modules named here may have a compiled twin beside them, made by ``setup.py``. Python would import it even
if it is older than the source. The modules share types, so if one twin is missing or outdated, all modules
run as plain Python. ``ROCEKIT_COMPILED=0`` asks for plain Python too.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES

TYPE_CHECKING = False  # to import typing or pathlib takes longer than a short command
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Final

#: The modules, each behind those whose types it uses.
MODULES: Final = (
    "files.record_loops",
    "wire.places",
    "wire.mad",
    "packets.wrapping",
    "packets.rows",
    "packets.flow_numbers",
    "packets.dissecting.plain_frames",
    "packets.walk",
    "packets.dissect",
    "packets.merging.group_numbers",
    "packets.printing.line_loop",
    "report.json_text",
    "flows.sums",
    "flows.silences",
    "track.rest.numbers",
    "track.events",
    "track.progress",
    "track.passes",
    "track.connections",
    "track.cm_exchanges",
    "track.transfers",
    "explanation.transfer_numbers",
    "track.kept",
    "track.ledger",
    "track.recent",
    "track.causes",
    "track.repeats",
    "track.outcomes",
    "track.assembly",
    "track.responses",
    "track.requests",
    "track.rest.sides",
    "track.rest.side_table",
    "track.lane.transfer_rows",
    "track.lane.clean_side",
    "track.lane.fetching",
    "track.lane.leaving_rows",
    "track.lane.clean_lane",
    "track.bulk",
    "track.pairs.waiting",
    "track.pairs.source_ports",
    "track.datagrams",
    "track.lobby",
    "track.pairing",
    "track.pairs.lone_flows",
    "track.tracker",
    "findings.transfer_loops",
    "findings.stories.story",
    "findings.stories.builder",
    "findings.stories.copies",
    "findings.stories.overtaken",
    "findings.stories.causes",
    "findings.stories.doubts",
    "findings.stories.early_answers",
    "findings.stories.late_packets",
    "findings.stories.stalls",
)

#: What Cython would otherwise put into each of them, and the compiler would take as long for as for the rest.
#: It has no source; Cython makes it, and they import it.
SHARED: Final = "_cython_shared"
#: The loop over packets that verifies their ICRCs, written in C.
ICRCS: Final = "packets._icrcs"
#: The lines of a recorded program's commonest records, written in C.
DIRECT_LINES: Final = "record.lines._direct"
#: The memory of Python's objects, written in C.
ARENAS: Final = "machine._arenas"

PACKAGE: Final = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120

COMPILED, MISSING, OUTDATED, DECLINED = "compiled", "missing", "outdated", "declined"


def state(folder: str | os.PathLike[str]) -> str:
    """The state of the twins in ``folder``: ``compiled``, ``missing``, ``outdated`` or ``declined``."""
    twins = {name: twin for name in MODULES if (twin := _twin(folder, name)) is not None}
    if len(twins) < len(MODULES) or _twin(folder, SHARED) is None:
        return MISSING
    if os.environ.get("ROCEKIT_COMPILED") == "0":
        return DECLINED
    if _is_source(folder) and any(_older(folder, name, twin, ("py", "pxd")) for name, twin in twins.items()):
        return OUTDATED
    return COMPILED


def native_state(folder: str | os.PathLike[str], name: str) -> str:
    """The state of a module in C, which does not depend on the others."""
    twin = _twin(folder, name)
    if twin is None:
        return MISSING
    if os.environ.get("ROCEKIT_COMPILED") == "0":
        return DECLINED
    return OUTDATED if _is_source(folder) and _older(folder, name, twin, ("c",)) else COMPILED


def icrcs_state(folder: str | os.PathLike[str]) -> str:
    """The state of the C module ``ICRCS``."""
    return native_state(folder, ICRCS)


def _is_source(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is of a tree of sources; the times of an installed package mean nothing."""
    return os.path.exists(os.path.join(os.path.dirname(folder), "pyproject.toml"))  # noqa: PTH110, PTH118, PTH120


def _older(folder: str | os.PathLike[str], name: str, twin: str, kinds: Sequence[str]) -> bool:
    """Whether a twin is older than its sources."""
    made = os.stat(twin).st_mtime  # noqa: PTH116
    return any(os.stat(_path(folder, name, f".{kind}")).st_mtime > made for kind in kinds)  # noqa: PTH116


def _path(folder: str | os.PathLike[str], name: str, suffix: str) -> str:
    """A file of module ``name`` of the package in ``folder``."""
    return f"{os.fspath(folder)}/{name.replace('.', '/')}{suffix}"


def _twin(folder: str | os.PathLike[str], name: str) -> str | None:
    paths = (_path(folder, name, suffix) for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if os.path.exists(path)), None)  # noqa: PTH110


class ChoiceAtFirst:
    """Decides whether the modules of ``folder`` run compiled when the first of them is imported.

    Before, nothing is looked at: most commands that are over soon need none of them.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = folder
        self._names = {f"rocekit.{name}" for name in MODULES}
        self._plain: _Plain | None = None
        self.found: str | None = None

    def choose(self) -> str:
        """Have Python import twins, or sources, for all modules; returns ``state``."""
        if self.found is None:
            self.found = state(self._folder)
            if self.found != COMPILED and any(_twin(self._folder, name) for name in MODULES):
                self._plain = _Plain(self._folder)
        return self.found

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._names:
            return None
        self.choose()
        return None if self._plain is None else self._plain.find_spec(name, path, target)


class _Plain:
    """Has Python import the modules' sources instead of their compiled twins."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._paths = {f"rocekit.{name}": _path(folder, name, ".py") for name in MODULES}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self._paths.get(name)
        if source is None:
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, source)


def choice(folder: str | os.PathLike[str]) -> ChoiceAtFirst:
    """Have the modules of the package in ``folder`` imported compiled or plain: all of them one way."""
    chooser = ChoiceAtFirst(folder)
    sys.meta_path.insert(0, chooser)
    return chooser
