"""Memory as a device sees it: address space, protection domains, memory regions and device memory (10.6).

A device has its own address space, not the process's: :meth:`AddressSpace.alloc` gives the same addresses in
every run. A region gives access to a range of it under an L_Key and an R_Key.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from typing import Final, NamedTuple

from rocekit.soft.engine.errors import verbs_error

ACCESS: Final = frozenset(
    {
        *("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND"),
        *("FLUSH_GLOBAL", "FLUSH_PERSISTENT"),
    }
)
#: Rights that change memory need LOCAL_WRITE beside them (11.2.8.2).
NEED_LOCAL_WRITE: Final = frozenset({"REMOTE_WRITE", "REMOTE_ATOMIC"})
PAGE_BYTES: Final = 4096
_LARGE_BYTES: Final = 1 << 20
#: The byte order of an atomic's 8 bytes in memory: the host's (11.2.6.2), little-endian here.
HOST_ORDER: Final = "little"


class Sge(NamedTuple):
    """A scatter-gather element: ``length`` bytes at ``addr``, accessed under ``lkey``."""

    addr: int
    length: int
    lkey: int


class AddressSpace:
    """Buffers at virtual addresses, page aligned, with an unused page between them."""

    def __init__(self, first: int = 0x7F00_0000_0000) -> None:
        self._next = first
        self._starts: list[int] = []
        self._buffers: list[bytearray | mmap] = []

    def alloc(self, size: int, content: bytes = b"", *, at: int | None = None) -> int:
        """The address of ``size`` new bytes: ``content``, then zeros.

        Args:
            at: the address that they shall have.

        Raises:
            ValueError: the size makes no sense, or there are bytes at that address.
        """
        if size < 1 or size < len(content):
            raise ValueError(f"a buffer has at least one byte and holds its content, not {size} bytes")
        address = self._next if at is None else at
        place = bisect_right(self._starts, address)
        if (place and self._starts[place - 1] + len(self._buffers[place - 1]) > address) or (
            place < len(self._starts) and address + size > self._starts[place]
        ):
            raise ValueError(f"there are bytes in use between {address:#x} and {address + size:#x}")
        room = (size + 2 * PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        if address <= self._next < address + room or at is None:
            self._next = (address + room + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        self._starts.insert(place, address)
        # Of a large one only what is used takes memory of the machine.
        buffer = bytearray(size) if size < _LARGE_BYTES else mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        buffer[: len(content)] = content
        self._buffers.insert(place, buffer)
        return address

    def view(self, address: int, length: int) -> memoryview:
        """A view of the bytes.

        Raises:
            ValueError: no buffer contains them all.
        """
        buffer, offset = self._find(address, length)
        return memoryview(buffer)[offset : offset + length]

    def discard(self, address: int, length: int) -> None:
        """Give the memory of bytes that nobody needs back to the machine; in a large buffer they become zero.

        Raises:
            ValueError: no buffer contains them all.
        """
        buffer, offset = self._find(address, length)
        first, end = -(-offset // PAGESIZE) * PAGESIZE, (offset + length) // PAGESIZE * PAGESIZE
        if isinstance(buffer, mmap) and first < end:
            buffer.madvise(MADV_DONTNEED, first, end - first)

    def _find(self, address: int, length: int) -> tuple[bytearray | mmap, int]:
        """The buffer that contains the bytes, and where in it they are."""
        i = bisect_right(self._starts, address) - 1
        if i >= 0:
            offset = address - self._starts[i]
            if offset + length <= len(self._buffers[i]):
                return self._buffers[i], offset
        raise ValueError(f"no buffer has {length} bytes at {address:#x}")

    def read(self, address: int, length: int) -> bytes:
        return bytes(self.view(address, length))

    def write(self, address: int, data: bytes) -> None:
        self.view(address, len(data))[:] = data


@dataclass(eq=False, slots=True)
class PD:
    """A protection domain: a QP can use only regions of its own domain (10.2.3)."""

    handle: int
    users: int = 0


@dataclass(eq=False, slots=True)
class MR:
    """A memory region (10.6.3).

    Attributes:
        valid: False after its R_Key was invalidated or it was deregistered.
    """

    pd: PD
    addr: int
    length: int
    lkey: int
    rkey: int
    access: frozenset[str]
    view: memoryview
    valid: bool = True

    def covers(self, addr: int, length: int) -> bool:
        return self.valid and self.addr <= addr and addr + length <= self.addr + self.length

    def slice(self, addr: int, length: int) -> memoryview:
        start = addr - self.addr
        return self.view[start : start + length]


@dataclass(eq=False, slots=True)
class DM:
    """Memory on the device itself (``ibv_dm``): copied, or used as a region whose addresses start at 0."""

    data: bytearray
    regions: int = 0

    def copy_to(self, offset: int, data: bytes) -> None:
        """``ibv_memcpy_to_dm``."""
        self._check(offset, len(data))
        self.data[offset : offset + len(data)] = data

    def copy_from(self, offset: int, length: int) -> bytes:
        """``ibv_memcpy_from_dm``."""
        self._check(offset, length)
        return bytes(self.data[offset : offset + length])

    def _check(self, offset: int, length: int) -> None:
        if offset < 0 or offset + length > len(self.data):
            raise verbs_error(
                errno.EINVAL,
                f"{length} bytes at {offset} reach past the {len(self.data)} bytes of device memory",
            )


class LocalProtectionError(Exception):
    """An SGE that its L_Key does not allow: the request ends with ``LOC_PROT_ERR`` (11.6.2)."""


class Scatter:
    """The bytes of a scatter-gather list, as if they were contiguous."""

    __slots__ = ("_parts", "length")

    def __init__(self, parts: list[memoryview]) -> None:
        self._parts = parts
        self.length = sum(map(len, parts))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write ``data`` at ``offset``; it must fit."""
        if len(self._parts) == 1:
            self._parts[0][offset : offset + len(data)] = data
            return
        done = 0
        for part in self._parts:
            if offset < len(part):
                take = min(len(part) - offset, len(data) - done)
                part[offset : offset + take] = data[done : done + take]
                done += take
                if done == len(data):
                    return
                offset = 0
            else:
                offset -= len(part)

    def gather(self) -> bytes:
        return b"".join(self._parts)


@dataclass(eq=False)
class Regions:
    """A device's regions by key. The low byte of a key is its variant, the rest an index, as in rxe."""

    limit: int = 1 << 16
    _by_lkey: dict[int, MR] = field(default_factory=dict)
    _by_rkey: dict[int, MR] = field(default_factory=dict)
    _next: int = 1

    def __len__(self) -> int:
        return len(self._by_lkey)

    def register(
        self,
        pd: PD,
        addr: int,
        length: int,
        access: Iterable[str],
        view: memoryview,
        variant: int,
        key: int | None = None,
    ) -> MR:
        """A region over ``view``, whose first byte is at ``addr``.

        Args:
            key: the L_Key and R_Key that it shall have; by default the next one with ``variant``.

        Raises:
            VerbsError: EINVAL for unknown rights, remote writing without local writing, or a key in use;
                ENOMEM when full.
        """
        rights = frozenset(access)
        unknown = rights - ACCESS
        if unknown:
            raise verbs_error(errno.EINVAL, f"no access right {', '.join(sorted(unknown))}")
        if rights & NEED_LOCAL_WRITE and "LOCAL_WRITE" not in rights:
            raise verbs_error(errno.EINVAL, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")
        if len(self) >= self.limit:
            raise verbs_error(errno.ENOMEM, f"all {self.limit} memory regions are in use")
        if key is None:
            key = self.new_key(variant)
        if key in self._by_lkey:
            raise verbs_error(errno.EINVAL, f"a region has the key {key:#x}")
        mr = MR(pd, addr, length, key, key, rights, view)
        self._by_lkey[key] = self._by_rkey[key] = mr
        pd.users += 1
        return mr

    def new_key(self, variant: int) -> int:
        """An unused key; ``variant`` is its low byte."""
        key = self._next << 8 | variant & 0xFF
        self._next += 1
        return key

    def deregister(self, mr: MR) -> None:
        mr.valid = False
        self._by_rkey.pop(mr.rkey, None)
        if self._by_lkey.pop(mr.lkey, None) is not None:
            mr.pd.users -= 1

    def invalidate(self, pd: PD, rkey: int) -> bool:
        """Invalidate an R_Key (10.6.5); whether it was valid. The L_Key becomes invalid too, as for rxe."""
        mr = self._by_rkey.get(rkey)
        if mr is None or mr.pd is not pd or not mr.valid:
            return False
        mr.valid = False
        return True

    def scatter(self, pd: PD, sges: Iterable[Sge], *, write: bool) -> Scatter:
        """The memory of a scatter-gather list.

        Raises:
            LocalProtectionError: an unknown key, one of another domain, out of bounds, or without the right.
        """
        parts = []
        for addr, length, lkey in sges:
            if length == 0:  # a zero-length element is not checked (11.4.1.1)
                continue
            mr = self._by_lkey.get(lkey)
            if mr is None or mr.pd is not pd or not mr.covers(addr, length):
                raise LocalProtectionError
            if write and "LOCAL_WRITE" not in mr.access:
                raise LocalProtectionError
            parts.append(mr.slice(addr, length))
        return Scatter(parts)

    def remote(self, pd: PD, rkey: int, addr: int, length: int, right: str) -> MR | None:
        """The region that allows a peer to do this, or None (9.7.4.1.5, 10.6.3.3)."""
        mr = self._by_rkey.get(rkey)
        if mr is None or mr.pd is not pd or right not in mr.access or not mr.covers(addr, length):
            return None
        return mr
