"""Has the C library keep the memory that a process frees, and not give it back to ask for it again.

An analysis makes and frees the same arrays for each stretch of a capture. glibc returns them to the kernel,
which clears every page anew: a tenth of the time of a million packets (``benchmarks/README.md``).
Sources: mallopt(3), madvise(2), Linux Documentation/admin-guide/mm/transhuge.rst.
"""

from __future__ import annotations

import sys
from typing import Any, Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_KEPT_BYTES: Final = 1 << 29  # free memory that stays with a short process
_LARGEST_PIECE: Final = (
    32 << 20
)  # larger arrays go back when they are freed; more is refused before glibc 2.35
_GROW_BY: Final = 1 << 20
_LARGE: Final = 1 << 20
_MADV_HUGEPAGE: Final = 14
_HUGE_PAGE: Final = 2 << 20  # x86-64; elsewhere a multiple of a page, which does as well


def give_back_freed_memory() -> bool:
    """Give back what was freed, and arrays from now on: in a long run they would be most of the memory.

    Returns True.
    """
    if sys.platform == "linux":
        import ctypes

        libc: Any = ctypes.CDLL(None)
        if hasattr(libc, "gnu_get_libc_version"):
            libc.mallopt(_M_TRIM_THRESHOLD, _LARGE)
            libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
            libc.malloc_trim(0)
    return True


def keep_freed_memory(reserve: int = 0, kept: int = _KEPT_BYTES) -> None:
    """Keep what is freed until the process ends. Does nothing where the C library is not glibc.

    Args:
        reserve: bytes of addresses to set aside for large pages; memory is taken only when one is written to.
        kept: free bytes at the heap's end that stay; more goes back.
    """
    if sys.platform != "linux":
        return
    import ctypes

    libc: Any = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.argtypes = libc.sbrk.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mallopt(_M_TRIM_THRESHOLD, kept)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_PIECE)
    libc.mallopt(_M_ARENA_MAX, 1)  # one heap: threads hand arrays to one another
    before = libc.sbrk(0)
    libc.mallopt(_M_TOP_PAD, reserve)
    libc.free(libc.malloc(_GROW_BY))  # the heap grows by the reserve too, and keeps its addresses
    libc.mallopt(_M_TOP_PAD, _GROW_BY)
    start = -(-before // _HUGE_PAGE) * _HUGE_PAGE
    end = libc.sbrk(0) // _HUGE_PAGE * _HUGE_PAGE
    if start < end:
        libc.madvise(start, end - start, _MADV_HUGEPAGE)
