"""Sizes and times that the two sides of a connection agree on, by their codes (IBA Vol. 1)."""

from __future__ import annotations

from types import MappingProxyType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

#: Path MTU codes (as in the PathRecord, 15.2.5.16) to bytes of payload.
PATH_MTU_BYTES: Final = MappingProxyType({1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096})
PATH_MTU_CODES: Final = MappingProxyType({v: k for k, v in PATH_MTU_BYTES.items()})
ATOMIC_BYTES: Final = 8  # 9.4.5
MAX_MESSAGE_BYTES: Final = 1 << 31  # 9.7.7
RETRY_INFINITE: Final = 7  # 9.7.5.2.8: RNR retry count 7 never counts down

#: RNR NAK timer codes (9.7.5.2.8, table "Encoding for RNR NAK Timer Field") in microseconds.
RNR_TIMER_US: Final = (
    *(655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920),
    *(2_560, 3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440),
    *(81_920, 122_880, 163_840, 245_760, 327_680, 491_520),
)

_TIME_UNIT_NS: Final = 4_096  # every five-bit time code counts doublings of 4.096 µs

#: A local ACK timer runs out between one and this many times the timeout (9.7.6.1.3).
LOCAL_ACK_TIMEOUT_SPREAD: Final = 4


def time_code_ns(code: int) -> int:
    """What a five-bit time code stands for: 4.096 µs × 2^code (9.7.6.1.3, 12.7)."""
    return _TIME_UNIT_NS << (code & 0x1F)


def local_ack_timeout_ns(code: int) -> int | None:
    """The local ACK timeout of a QP by its five-bit code; None: code 0, it never times out (9.7.6.1.3).

    The timer may take ``LOCAL_ACK_TIMEOUT_SPREAD`` times as long.
    """
    return None if code == 0 else time_code_ns(code)


def psns_of(length: int, path_mtu: int) -> int:
    """How many PSNs a message of ``length`` bytes takes: an empty message still takes one (9.7.2)."""
    return max(1, -(-length // path_mtu))
