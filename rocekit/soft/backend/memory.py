"""Regions of the backend ``soft``: in a soft device's address space, and in device memory."""

from __future__ import annotations

from collections.abc import Sequence

from rocekit.endpoint import DeviceMemory, Region
from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.memory import PD


class SoftRegion(Region):
    """A region in the soft device's address space."""

    def __init__(self, device: SoftDevice, pd: PD, address: int, length: int, access: Sequence[str]) -> None:
        self._memory = device.memory
        self.mr = device.reg_mr(pd, address, length, access)
        self.addr, self.length = address, length
        self.lkey, self.rkey = self.mr.lkey, self.mr.rkey

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.mr.view[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        self.mr.view[offset : offset + len(data)] = data

    def discard(self, offset: int, length: int) -> None:
        self._memory.discard(self.addr + offset, length)


class SoftDeviceMemory(DeviceMemory):
    """A region in the soft device's own memory."""

    def __init__(self, device: SoftDevice, pd: PD, length: int, access: Sequence[str]) -> None:
        self._dm = device.alloc_dm(length)
        mr = device.reg_dm_mr(pd, self._dm, 0, length, access)
        self.addr, self.length, self.lkey, self.rkey = 0, length, mr.lkey, mr.rkey

    def read(self, offset: int, length: int) -> bytes:
        return self._dm.copy_from(offset, length)

    def write(self, offset: int, data: bytes) -> None:
        self._dm.copy_to(offset, data)
