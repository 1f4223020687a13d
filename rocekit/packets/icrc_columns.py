"""The ICRCs of many packets at once: :func:`rocekit.wire.icrc.icrc`, which is the definition, for columns."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rocekit import _compiled
from rocekit.wire import BTH
from rocekit.wire import icrc as definition
from rocekit.wire.byte_rows import gather, scatter
from rocekit.wire.network import UDP_BYTES
from rocekit.wire.sorting import distinct

Ints = NDArray[np.int64]

_VARIANTS = tuple(
    bytes(places)
    for places in (
        definition.IPV4_VARIANT,
        definition.IPV6_VARIANT,
        definition.UDP_VARIANT,
        definition.BTH_VARIANT,
    )
)


def _native() -> Callable[..., None] | None:
    """The compiled loop over packets; None if it was not built or isal is not installed."""
    path = getattr(sys.modules.get("isal.isal_zlib"), "__file__", None)
    if path is None or _compiled.icrcs_state(_compiled.PACKAGE) != _compiled.COMPILED:
        return None
    try:
        compiled = importlib.import_module(f"rocekit.{_compiled.ICRCS}")
    except ImportError:
        return None
    return compiled.icrcs if compiled.load(path) else None


native: Callable[..., None] | None = _native()


def icrc_columns(
    buffer: NDArray[np.uint8], start: Ints, bth: Ints, end: Ints, udp: NDArray[np.bool_]
) -> NDArray[np.uint32]:
    """The right ICRC of each packet.

    Args:
        buffer: the bytes; packets must not overlap.
        start: the first byte of each packet's IP header or GRH.
        bth: the first byte of its BTH.
        end: behind its pad bytes; at least a BTH after ``bth``.
        udp: whether a UDP header precedes the BTH (RoCE v2).
    """
    if native is None:
        return _in_place(buffer, start, bth, end, udp)
    crcs = np.empty(len(start), np.uint32)
    places = (np.ascontiguousarray(places, np.int64) for places in (start, bth, end))
    native(buffer, *places, np.ascontiguousarray(udp, np.uint8), definition.SEED, _VARIANTS, crcs)
    return crcs


def _in_place(
    buffer: NDArray[np.uint8], start: Ints, bth: Ints, end: Ints, udp: NDArray[np.bool_]
) -> NDArray[np.uint32]:
    """The same without the compiled loop.

    The variant bytes are overwritten with ones in ``buffer`` itself and restored before this returns: each
    packet is then one run of bytes and costs one call. A read-only buffer is copied first.
    """
    if not buffer.flags.writeable:
        buffer = buffer.copy()
    crcs = np.empty(len(start), np.uint32)
    version = buffer[start] >> 4
    layout = (bth - start) * 32 + version * 2 + udp
    for key in distinct(layout).tolist():
        rows = np.flatnonzero(layout == key)
        before_bth, ip_version, over_udp = key >> 5, key >> 1 & 15, key & 1
        at = start[rows]
        whole = gather(buffer, at, before_bth + BTH.length)
        masked = whole.copy()
        network = definition.IPV4_VARIANT if ip_version == 4 else definition.IPV6_VARIANT
        masked[:, network] = 0xFF
        if ip_version != 4:
            masked[:, 0] |= 0x0F
        if over_udp:
            masked[:, [before_bth - UDP_BYTES + i for i in definition.UDP_VARIANT]] = 0xFF
        masked[:, [before_bth + i for i in definition.BTH_VARIANT]] = 0xFF
        try:
            scatter(buffer, at, masked)
            crcs[rows] = _runs(buffer, at, end[rows])
        finally:
            scatter(buffer, at, whole)
    return crcs


def _runs(buffer: NDArray[np.uint8], start: Ints, end: Ints) -> list[int]:
    view, crc32, seed = buffer.data, definition.crc32, definition.SEED
    return [crc32(view[a:b], seed) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
