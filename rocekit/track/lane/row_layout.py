"""What stands where in a row of ``transfer_rows``."""

from __future__ import annotations

from typing import Final

#: Of each row: the next one of its side (−1: none), the transfer's number, and what ``Transfer`` has.
#: What each packet needs comes first, in one line of a cache.
NEXT, WHAT, FIRST_PSN, PACKETS, LAST_NS, LAST_FRAME, BYTES, ANNOUNCED = range(8)
ID, FIRST_NS, FIRST_FRAME, VA, KEY, ACK_NS, ACK_FRAME, EXTRA = range(8, 16)
WIDTH: Final = 16
# In WHAT, above the opcode of the first packet. EXTRA is the immediate, or the key to invalidate; of a READ,
# the PSN of its next response.
OPCODE_MASK: Final = 0xFF
IS_ENDED: Final = 1 << 8
IS_ACKED: Final = 1 << 9
HAS_IMMEDIATE: Final = 1 << 10
HAS_INVALIDATE: Final = 1 << 11
IS_MADE: Final = 1 << 12  # somebody has its object
IS_A_READ: Final = 1 << 13
