"""What is done in C for each record, where it was compiled; else the same is done in Python."""

from __future__ import annotations

from rocekit import _compiled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def native() -> Any:
    """The module in C; None where it was not compiled, or is older than its source."""
    if _compiled.native_state(_compiled.PACKAGE, _compiled.DIRECT_LINES) != _compiled.COMPILED:
        return None
    try:
        from rocekit.record.lines import _direct  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        return None
    return _direct
