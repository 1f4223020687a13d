"""Whether the times of packets run back: all that most captures need of ``time_order``."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

#: A time before all others.
NEVER_NS: Final = -(1 << 62)


def runs_back(time_ns: NDArray[np.int64], before_ns: int) -> bool:
    """Whether times run back, from one to the next or from a time before them."""
    return bool(len(time_ns)) and (int(time_ns[0]) < before_ns or bool((time_ns[1:] < time_ns[:-1]).any()))
