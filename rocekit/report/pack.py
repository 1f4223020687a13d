"""Columns of numbers, compressed as text for a page: differences, split by bytes, deflated.

A packed document is a gzip stream in base64. It contains the bytes of the columns, a JSON text, and the
length of that text in four bytes (little-endian). The text's ``columns`` give, for each column, its start,
its number of values, and its number of planes: plane ``k`` holds byte ``k`` of every value. A value is the
difference to the one before, zigzag-coded: so small differences of both signs have only zeros in the high
planes, which take no space. A column with only one value has no planes, but that ``value``.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

try:
    from isal.isal_zlib import compressobj

    _LEVEL: Final = 2
except ImportError:  # not available on this machine: the same stream, seven times slower
    from zlib import compressobj  # type: ignore[assignment]

    _LEVEL: Final = 3  # type: ignore[misc]

_GZIP: Final = 31
#: Values coded at once, so that they stay in the processor's cache.
_BLOCK: Final = 1 << 14


def planes(values: NDArray[Any], room: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """A column's planes, one in each row.

    Args:
        room: memory for them, at least eight bytes for each value.
    """
    length = len(values)
    result = (np.empty(8 * length, np.uint8) if room is None else room[: 8 * length]).reshape(8, length)
    count, before = 1, np.int64(0)
    for start in range(0, length, _BLOCK):
        stop = min(start + _BLOCK, length)
        wide = values[start:stop].astype(np.int64, copy=False)
        steps = np.empty_like(wide)
        np.subtract(wide[1:], wide[:-1], out=steps[1:])
        steps[0], before = wide[0] - before, wide[-1]
        steps[:] = (steps << 1) ^ (steps >> 63)
        coded = steps.view(np.uint64)
        here = -(-int(coded.max()).bit_length() // 8)
        result[count:here, :start] = 0
        count = max(count, here)
        for k in range(count):
            result[k, start:stop] = coded >> np.uint64(8 * k) if k else coded
    return result[:count]


def unpack_planes(data: bytes, count: int, length: int) -> NDArray[np.int64]:
    """The reverse of ``planes``."""
    coded = np.zeros(length, np.uint64)
    for k in range(count):
        plane = np.frombuffer(data, np.uint8, length, k * length).astype(np.uint64)
        coded |= plane << np.uint64(8 * k)
    half, odd = (coded >> np.uint64(1)).view(np.int64), (coded & np.uint64(1)).view(np.int64)
    return np.cumsum(half ^ -odd)


def pack(meta: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> str:
    """A document of JSON and columns, as base64 text."""
    described: dict[str, dict[str, int]] = {}
    packer = compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    squeezed, at = [], 0
    # The same memory for all: new pages cost more time than the work in them.
    room = np.empty(8 * max((len(values) for values in columns.values()), default=0), np.uint8)
    for name, values in columns.items():
        if len(values) and values[0] == values[-1] and (values == values[0]).all():
            described[name] = {"length": len(values), "planes": 0, "value": int(values[0])}
            continue
        rows = planes(values, room)
        described[name] = {"length": len(values), "planes": len(rows), "at": at}
        at += rows.size
        squeezed.append(packer.compress(rows.data))
    text = json.dumps({**meta, "columns": described}, ensure_ascii=False, separators=(",", ":")).encode()
    squeezed += (packer.compress(part) for part in (text, len(text).to_bytes(4, "little")))
    return base64.b64encode(b"".join([*squeezed, packer.flush()])).decode()


def unpack(packed: str) -> tuple[dict[str, Any], dict[str, NDArray[np.int64]]]:
    """The reverse of ``pack``."""
    data = zlib.decompress(base64.b64decode(packed), _GZIP)
    end = len(data) - 4
    meta = json.loads(data[end - int.from_bytes(data[end:], "little") : end])
    columns = {
        name: unpack_planes(data[d["at"] :], d["planes"], d["length"])
        if d["planes"]
        else np.full(d["length"], d["value"])
        for name, d in meta.pop("columns").items()
    }
    return meta, columns
