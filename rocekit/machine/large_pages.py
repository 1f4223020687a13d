"""Has Python's objects in large pages.

A command makes objects of ten megabytes until it has read its modules, and of hundreds in a capture of many
connections. The kernel takes 2 µs for each page of 4 KiB that is touched first.
"""

from __future__ import annotations

from rocekit import _compiled


def objects_in_large_pages() -> bool:
    """Have the objects that are made from now on in large pages, in a process of one's own.

    Returns:
        Whether they will be: where the part in C was not compiled, all stays as it is.
    """
    if _compiled.native_state(_compiled.PACKAGE, _compiled.ARENAS) != _compiled.COMPILED:
        return False
    try:
        from rocekit.machine import _arenas  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        return False
    _arenas.use()
    return True
