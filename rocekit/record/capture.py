"""The packets of an interface, captured by a thread while a program is recorded."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from rocekit.files.interface import LiveCapture
from rocekit.files.pcapng_write import PcapngWriter

TAIL_S = 0.3
"""How long packets may still arrive after the program's end."""


class PacketCapture:
    """Captures from :meth:`start` to :meth:`stop`.

    Args:
        interface: its name.
        path: the pcapng file to write.

    Raises:
        CaptureError: no such interface, no right to capture, or the file cannot be written.
    """

    def __init__(self, interface: str, path: Path) -> None:
        self.path = path
        self.error: Exception | None = None
        self._capture = LiveCapture(interface)
        try:
            self._writer = PcapngWriter(path, self._capture.linktype, interface_name=interface)
        except BaseException:
            self._capture.close()
            raise
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            for batch in self._capture:
                if len(batch):
                    self._writer.write_batch(batch)
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        """Wait for the last packets, and finish the file.

        Raises:
            CaptureError: an error of the capture while it ran.
        """
        time.sleep(TAIL_S)
        self._capture.stop()
        self._thread.join(10)
        self._writer.write_statistics(self._capture.received, self._capture.dropped)
        self._writer.close()
        self._capture.close()
        if self.error is not None:
            raise self.error
