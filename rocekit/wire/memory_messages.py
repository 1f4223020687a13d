"""By what a WRITE or a READ's response can be known as an application's: its length, or its first byte."""

from __future__ import annotations

from typing import Final

NCCL_BYTES: Final = 64  # an entry of the sender's FIFO
RPING_TEXT: Final = b"rdma-ping-"
