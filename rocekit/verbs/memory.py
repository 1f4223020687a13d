"""Registered memory of a device, through pyverbs: of this process, or on the device itself."""

from __future__ import annotations

import ctypes
import mmap

from rocekit.endpoint.work import DeviceMemory, Region
from rocekit.verbs.open_device import OpenDevice


class VerbsMemory(Region):
    """A region over memory of this process that is zero at first."""

    def __init__(self, device: OpenDevice, length: int, access: int) -> None:
        if length < 1:
            raise ValueError("a region has at least one byte")
        self._bytes = mmap.mmap(-1, length)
        self.length = length
        self.addr = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))
        make = device.pyverbs.mr.MR
        self.mr = device.ask("register memory", lambda: make(device.pd, length, access, self.addr))
        self.lkey = self.mr.lkey
        self.rkey = self.mr.rkey
        device.release(self.mr.close)

    def read(self, offset: int, length: int) -> bytes:
        return self._bytes[offset : offset + length]

    def write(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = data


class VerbsDeviceMemory(DeviceMemory):
    """A region over memory of the device; ``ibv_memcpy_to_dm`` and ``ibv_memcpy_from_dm`` reach it."""

    def __init__(self, device: OpenDevice, length: int, access: int) -> None:
        pyverbs = device.pyverbs
        attributes = pyverbs.device.AllocDmAttr(length)
        self._dm = device.ask(
            f"allocate {length} bytes of device memory",
            lambda: pyverbs.device.DM(device.context, attributes),
        )
        device.release(self._dm.close)
        zero_based = access | pyverbs.enums.IBV_ACCESS_ZERO_BASED
        mr = device.ask(
            "register device memory",
            lambda: pyverbs.mr.DMMR(device.pd, length, zero_based, dm=self._dm, offset=0),
        )
        device.release(mr.close)
        self.addr, self.length, self.lkey, self.rkey = 0, length, mr.lkey, mr.rkey

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._dm.copy_from_dm(offset, length))

    def write(self, offset: int, data: bytes) -> None:
        self._dm.copy_to_dm(offset, data, len(data))
