"""Capture filters as tcpdump and dumpcap take them (pcap-filter(7)), compiled by libpcap for the kernel.

libpcap compiles for an interface that is open: only so it knows that the kernel keeps the outer VLAN tag
beside the frame.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from rocekit.errors import CaptureError

_ERROR_BYTES: Final = 256
_NO_NETMASK: Final = 0xFFFFFFFF
_SNAPLEN: Final = 262144
_ETHERNET, _RAW_IP = 1, frozenset({12, 101})  # DLT_EN10MB; DLT_RAW on Linux, LINKTYPE_RAW


class FilterProblem(CaptureError):
    """The expression is wrong, or there is nothing that compiles it."""


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint), ("instructions", ctypes.POINTER(_Instruction))]


def compiled(
    expression: str, interface: str | None = None, *, ethernet: bool = True
) -> list[tuple[int, int, int, int]]:
    """The program of an expression, as (code, jt, jf, k); it returns 0 for frames that do not match.

    Args:
        interface: for which the kernel shall run it; None: only to see whether the expression is right.
        ethernet: whether its frames begin with an Ethernet header; else with the IP header.

    Raises:
        FilterProblem: the expression is wrong, libpcap is missing, or it sees other frames than the kernel
            gives here.
    """
    pcap = _library()
    with _handle(pcap, interface, ethernet) as handle:
        kind = pcap.pcap_datalink(handle)
        if kind != _ETHERNET if ethernet else kind not in _RAW_IP:
            raise FilterProblem(
                f"no capture filter is possible here: libpcap sees link type {kind}", file=interface
            )
        program = _Program()
        text = expression.encode()
        if pcap.pcap_compile(handle, ctypes.byref(program), text, 1, _NO_NETMASK) != 0:
            said = pcap.pcap_geterr(handle).decode(errors="replace")
            raise FilterProblem(f"capture filter {expression!r}: {said} (pcap-filter(7))")
        try:
            return [(one.code, one.jt, one.jf, one.k) for one in program.instructions[: program.length]]
        finally:
            pcap.pcap_freecode(ctypes.byref(program))


def _library() -> Any:
    """libpcap, with the types of what is called."""
    for name in ("libpcap.so.0.8", "libpcap.so.1", ctypes.util.find_library("pcap")):
        if name is None:
            continue
        try:
            pcap = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        raise FilterProblem("capture filters need libpcap, which comes with tcpdump: apt-get install tcpdump")
    handle, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    pcap.pcap_create.restype, pcap.pcap_create.argtypes = handle, [text, text]
    pcap.pcap_open_dead.restype, pcap.pcap_open_dead.argtypes = handle, [number, number]
    pcap.pcap_geterr.restype, pcap.pcap_geterr.argtypes = text, [handle]
    pcap.pcap_compile.argtypes = [handle, ctypes.POINTER(_Program), text, number, ctypes.c_uint]
    pcap.pcap_freecode.restype, pcap.pcap_freecode.argtypes = None, [ctypes.POINTER(_Program)]
    pcap.pcap_close.restype, pcap.pcap_close.argtypes = None, [handle]
    for name in ("pcap_activate", "pcap_datalink"):
        getattr(pcap, name).argtypes = [handle]
    return pcap


@contextmanager
def _handle(pcap: Any, interface: str | None, ethernet: bool) -> Iterator[Any]:
    """An open interface of libpcap, closed at the end."""
    if interface is None:
        handle = pcap.pcap_open_dead(_ETHERNET if ethernet else 12, _SNAPLEN)
    else:
        said = ctypes.create_string_buffer(_ERROR_BYTES)
        handle = pcap.pcap_create(interface.encode(), said)
    if not handle:
        raise FilterProblem("libpcap cannot open it", file=interface)
    try:
        if interface is not None and pcap.pcap_activate(handle) < 0:
            raise FilterProblem(pcap.pcap_geterr(handle).decode(errors="replace"), file=interface)
        yield handle
    finally:
        pcap.pcap_close(handle)
