"""Registered memory of a device, through pyverbs: of this process, or on the device itself."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

from rocekit.endpoint.work import DeviceMemory, Region

if TYPE_CHECKING:
    from rocekit.verbs import VerbsEndpoint


class VerbsMemory(Region):
    """A region over memory of this process that is zero at first."""

    def __init__(self, endpoint: VerbsEndpoint, length: int, access: int) -> None:
        if length < 1:
            raise ValueError("a region has at least one byte")
        self._bytes = mmap.mmap(-1, length)
        self.length = length
        self.addr = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))
        make = endpoint.pyverbs.mr.MR
        self.mr = endpoint.ask("register memory", lambda: make(endpoint.pd, length, access, self.addr))
        self.lkey = self.mr.lkey
        self.rkey = self.mr.rkey
        endpoint.release(self.mr.close)

    def read(self, offset: int, length: int) -> bytes:
        return self._bytes[offset : offset + length]

    def write(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = data


class VerbsDeviceMemory(DeviceMemory):
    """A region over memory of the device; ``ibv_memcpy_to_dm`` and ``ibv_memcpy_from_dm`` reach it."""

    def __init__(self, endpoint: VerbsEndpoint, length: int, access: int) -> None:
        pyverbs = endpoint.pyverbs
        attributes = pyverbs.device.AllocDmAttr(length)
        self._dm = endpoint.ask(
            f"allocate {length} bytes of device memory",
            lambda: pyverbs.device.DM(endpoint.context, attributes),
        )
        endpoint.release(self._dm.close)
        zero_based = access | pyverbs.enums.IBV_ACCESS_ZERO_BASED
        mr = endpoint.ask(
            "register device memory",
            lambda: pyverbs.mr.DMMR(endpoint.pd, length, zero_based, dm=self._dm, offset=0),
        )
        endpoint.release(mr.close)
        self.addr, self.length, self.lkey, self.rkey = 0, length, mr.lkey, mr.rkey

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._dm.copy_from_dm(offset, length))

    def write(self, offset: int, data: bytes) -> None:
        self._dm.copy_to_dm(offset, data, len(data))
