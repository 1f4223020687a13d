"""A batch of packets as plain Python lists, which a loop reads several times faster than NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.transfers import FRAME_BITS

if TYPE_CHECKING:
    from rocekit.decode import Packets


class Rows:
    """``rows.psn[i]`` is packet ``i``'s PSN; a column becomes a list when it is first asked for.

    ``frame`` holds frame references (see ``transfers.frame_reference``).
    """

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self.frame: list[int] = (packets.frame + (packets.file.astype("int64") << FRAME_BITS)).tolist()
        self.time_ns: list[int] = packets.time_ns.tolist()
        self.opcode: list[int] = packets.opcode.tolist()
        self.psn: list[int] = packets.psn.tolist()
        self.payload_length: list[int] = packets.payload_length.tolist()
        self.ip_id: list[int] = packets.ip_id.tolist()

    def __len__(self) -> int:
        return len(self.frame)

    def __getattr__(self, name: str) -> list[int]:
        if name.startswith("_"):
            raise AttributeError(name)
        values: list[int] = self._packets[name].tolist()
        setattr(self, name, values)
        return values

    def payload(self, i: int) -> bytes:
        """The captured payload of packet ``i``; only while its batch is the reader's last."""
        return self._packets.payload(i)
