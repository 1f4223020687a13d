"""Plays NCCL inside this process: calls rocekit's profiler plug-in (interface 5) through ctypes."""

from __future__ import annotations

import ctypes as c
import os
from pathlib import Path

P = c.c_void_p


class _Collective(c.Structure):
    _fields_ = [
        *(("sequence", c.c_uint64), ("function", c.c_char_p), ("send", P), ("receive", P)),
        *(("count", c.c_size_t), ("root", c.c_int), ("datatype", c.c_char_p)),
        *(("channels", c.c_uint8), ("warps", c.c_uint8), ("algorithm", c.c_char_p), ("protocol", c.c_char_p)),
        ("group", P),
    ]


class _ProxyOp(c.Structure):
    _fields_ = [
        *(("pid", c.c_int), ("channel", c.c_uint8), ("peer", c.c_int), ("steps", c.c_int)),
        *(("chunk", c.c_int), ("send", c.c_int)),
    ]


class _Network(c.Structure):
    _fields_ = [("plugin", c.c_int64), ("data", P)]


class _Detail(c.Union):
    _fields_ = [
        *(("collective", _Collective), ("proxy_op", _ProxyOp), ("step", c.c_int)),
        ("network", _Network),
    ]


class _Event(c.Structure):
    _fields_ = [("type", c.c_uint64), ("parent", P), ("rank", c.c_int), ("of", _Detail)]


class _Qp(c.Structure):
    _fields_ = [
        *(("device", c.c_int), ("wr_id", c.c_uint64), ("opcode", c.c_int)),
        *(("qpn", c.c_int), ("length", c.c_size_t)),
    ]


class _NetQp(c.Structure):
    _fields_ = [("type", c.c_uint8), ("qp", _Qp)]


_INIT = c.CFUNCTYPE(
    c.c_int, c.POINTER(P), c.c_uint64, c.POINTER(c.c_int), c.c_char_p, c.c_int, c.c_int, c.c_int, P
)
_START = c.CFUNCTYPE(c.c_int, P, c.POINTER(P), c.POINTER(_Event))
_STOP = c.CFUNCTYPE(c.c_int, P)
_STATE = c.CFUNCTYPE(c.c_int, P, c.c_int, P)


class _Profiler(c.Structure):
    _fields_ = [
        *(("name", c.c_char_p), ("init", _INIT), ("start", _START), ("stop", _STOP)),
        *(("state", _STATE), ("finalize", _STOP)),
    ]


class NcclHost:
    """One rank with one communicator.

    Args:
        library: the plug-in.
        journal: where it shall write.
    """

    def __init__(self, library: Path, journal: Path, sysfs: Path) -> None:
        os.environ["ROCEKIT_NCCL_JOURNAL"] = str(journal)
        os.environ["ROCEKIT_NCCL_SYSFS"] = str(sysfs)
        self._library = c.CDLL(str(library))
        # The C code reads the environment of the C library, which os.environ sets.
        self._profiler = _Profiler.in_dll(self._library, "ncclProfiler_v5")
        self._context = P()
        wanted = c.c_int()
        done = self._profiler.init(c.byref(self._context), 0xABC, c.byref(wanted), b"test", 2, 2, 0, None)
        assert done == 0
        del os.environ["ROCEKIT_NCCL_JOURNAL"], os.environ["ROCEKIT_NCCL_SYSFS"]

    def _start(self, kind: int, parent: P | None, **about: object) -> P:
        event = _Event(type=kind, parent=parent, rank=0)
        for name, value in about.items():
            setattr(event.of, name, value)
        handle = P()
        assert self._profiler.start(self._context, c.byref(handle), c.byref(event)) == 0
        return handle

    def collective(self, function: str, sequence: int) -> P:
        """Enqueue a collective: it is started and stopped at once."""
        about = _Collective(
            sequence=sequence, function=function.encode(), count=1024, root=0, datatype=b"ncclInt8",
            channels=1, warps=1, algorithm=b"RING", protocol=b"SIMPLE",
        )  # fmt: skip
        handle = self._start(2, None, collective=about)
        self._profiler.stop(handle)
        return handle

    def send_op(self, parent: P, channel: int, steps: int) -> P:
        about = _ProxyOp(pid=os.getpid(), channel=channel, peer=1, steps=steps, chunk=3000, send=1)
        return self._start(8, parent, proxy_op=about)

    def step(self, operation: P | None, number: int) -> P:
        handle = self._start(16, operation, step=number)
        for state in (8, 20):
            self._profiler.state(handle, state, None)
        return handle

    def tell_wr(self, step: P, qpn: int, wr_id: int, length: int) -> None:
        told = _NetQp(type=1, qp=_Qp(device=0, wr_id=wr_id, opcode=0, qpn=qpn, length=length))
        about = _Network(plugin=1 << 16 | 1, data=c.cast(c.byref(told), P))
        self._start(128, step, network=about)

    def sent(self, step: P) -> None:
        self._profiler.state(step, 9, None)

    def stop(self, handle: P | None) -> None:
        self._profiler.stop(handle)

    def finalize(self) -> None:
        self._profiler.finalize(self._context)
