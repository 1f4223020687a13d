"""The way into a running program: the memory that is given to it, with a little code and what that works on.

``way_in.S`` has the code's source and how it works. The memory begins with the door: the functions to
call, and what came of it. Then come the request to the interposer, the code, and a stack.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CODE: Final = bytes.fromhex(
    "f30f1efa49bb887766554433221148b88877665544332211ffe0cccccccccccc"
    "575652514150415141534d8b531831c0b901000000f0410fb14a08756f534154"
    "41554c89d34989e5488b6328ff53304989c48b005050488b43104885c0752048"
    "8b7b50be02000000ff53384885c074204889c7488b7358ff53404885c0741148"
    "8b7b60ffd048894318b902000000eb0cff534848894320b90300000058418904"
    "244c89ec415d415c894b085b415b41594158595a5e5f498b03488b00493b4310"
    "7504498b4308ffe0cccccccccccccccccccccccccccccccccccccccccccccccc"
    "f0480fb10fcccccccccccccccccccccccccccccccccccccccccccccccccccccc"
)
"""way_in.S, assembled. tests/record/test_record_attach.py assembles it again."""
_ENTRY: Final = 32
_COMMON: Final = 32
_SWAP: Final = 224
_HOLE: Final = bytes.fromhex("8877665544332211")
ROW: Final = struct.Struct("<4Q")
"""place, own, entry, door."""

DOOR: Final = struct.Struct("<QIIQQQQQQQQQQQ")
"""mark, state; what to call, its result, an error's text; stack, __errno_location, dlopen, dlsym, dlerror,
the library's path, the function's name, the request."""
STATE, CALL, RESULT, ERROR = 8, 16, 24, 32
OPEN, INSIDE, DONE, FAILED = range(4)
MARK: Final = int.from_bytes(b"ROKEWAY1", "little")

LAYOUT: Final = 1
REQUEST: Final = struct.Struct("<4IQ2I3Q7Q1024s1024s")
"""layout, contexts, QPs, CQs; slots; rings; where the code is and ends, an address in libibverbs; the
answer: what detaches, and the functions that stand in the objects; the folders of the rings. attach.h
has the same."""
ANSWER: Final = 56
"""Where the answer begins in it."""
CONTEXT: Final = struct.Struct("<5Q")
EXTENDED: Final = struct.Struct("<QQII")

PAGE: Final = 4096
STACK: Final = 256 << 10
MOST_ENTRIES: Final = 512


@dataclass(frozen=True, slots=True)
class WayLayout:
    """Where the parts are in the memory: offsets from its start, in whole pages."""

    base: int
    request_bytes: int

    @property
    def request(self) -> int:
        return self.base + PAGE

    @property
    def rows(self) -> int:
        return self.request + -(-self.request_bytes // PAGE) * PAGE

    @property
    def code(self) -> int:
        return self.rows + MOST_ENTRIES * ROW.size

    @property
    def code_end(self) -> int:
        return self.code + -(-(len(CODE) + MOST_ENTRIES * _ENTRY) // PAGE) * PAGE

    @property
    def end(self) -> int:
        return self.code_end + STACK

    @property
    def swap(self) -> int:
        """The instruction that exchanges a word if it is what it is thought to be."""
        return self.code + _SWAP

    def entry(self, index: int) -> int:
        return self.code + len(CODE) + index * _ENTRY


@dataclass(frozen=True, slots=True)
class Place:
    """A pointer to a function in a verbs object: where it is, and what it is."""

    at: int
    own: int


def rows_of(layout: WayLayout, places: Sequence[Place], first: int = 0) -> bytes:
    """The rows of the entries from ``first`` on, one for each place."""
    return b"".join(
        ROW.pack(place.at, place.own, layout.entry(index), layout.base)
        for index, place in enumerate(places, first)
    )


def code_of(layout: WayLayout) -> bytes:
    """The code, with all entries."""
    template = CODE[:_ENTRY]
    first, second = template.index(_HOLE), template.rindex(_HOLE)
    code = bytearray(CODE)
    for index in range(MOST_ENTRIES):
        entry = bytearray(template)
        entry[first : first + 8] = (layout.rows + index * ROW.size).to_bytes(8, "little")
        entry[second : second + 8] = (layout.code + _COMMON).to_bytes(8, "little")
        code += entry
    return bytes(code)
