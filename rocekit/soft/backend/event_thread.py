"""A thread that reads connection events while the program does something else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from rocekit.soft.cm.ids import CmEvent


class EventThread:
    """Calls ``heard`` with each event in order, in a thread.

    The device itself is used only by the program's thread, which does not go on, and so does not sleep,
    before the event is heard.
    """

    def __init__(self, heard: Callable[[CmEvent], None]) -> None:
        self._heard = heard
        self._events: queue.Queue[CmEvent | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="cm events", daemon=True)
        self._thread.start()

    def put(self, event: CmEvent) -> None:
        self._events.put(event)
        self._events.join()

    def stop(self) -> None:
        self._events.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._heard(event)
            finally:
                self._events.task_done()
