"""What a journal has set up so far and is still so: the lines that a later file of it must restate."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any, Final

_NO_STATE: Final = "RESET"
"""A QP in this state has no other attribute left."""
_MOST_PROCESSES: Final = 4096
_KEPT: Final = frozenset(
    {
        *("recording", "device_opened", "qp_created", "qp_found", "qp_modified", "qp_destroyed"),
        "not_recorded",
        *("mr_registered", "mr_deregistered", "srq_created", "mw_allocated", "mw_bound", "mw_deallocated"),
    }
)
_MARK: Final = '"event":"'


def is_passed_over(line: str) -> bool:
    """Whether a line is of the many that set nothing up, by a quick look."""
    return '"event":"w' in line


class Standing:
    """Follows a journal's lines. What is destroyed is forgotten, so this is as large as what is open."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[Any, ...], str] = OrderedDict()
        self._qps: dict[tuple[str, int], list[tuple[Any, ...]]] = {}

    def lines(self) -> list[str]:
        """The lines to restate, in the order in which they were written."""
        return list(self._lines.values())

    def take(self, line: str) -> None:
        """Follow one line. Work requests and completions, which are many, are passed over quickly."""
        at = line.find(_MARK) + len(_MARK)
        name = line[at : line.find('"', at)]
        if name not in _KEPT:
            return
        event = json.loads(line)
        if event["event"] == name:
            self._take(name, event, f'{line[:-1]},"restated":true}}')

    def _put(self, key: tuple[Any, ...], line: str) -> None:
        self._lines.pop(key, None)
        self._lines[key] = line

    def _take(self, name: str, event: dict[str, Any], line: str) -> None:
        if name.startswith("qp_"):
            self._take_qp(name, event, line)
        elif name == "recording":
            if event["state"] != "ended":
                self._put((name, event["pid"], event["state"]), line)
            processes = [key for key in self._lines if key[0] == name]
            if len(processes) > _MOST_PROCESSES:
                del self._lines[processes[1]]  # the first is the recorded program itself
        elif name == "not_recorded":
            self._put((name, event["pid"], event["what"], str(event.get("qp"))), line)
        elif name == "device_opened":
            self._put((name, event["pid"], event["device"]), line)
        elif name == "srq_created":
            self._put((name, event["pid"], event["device"], event["srq"]), line)
        elif name.startswith("mr_"):
            self._made_or_gone(
                ("mr", event["pid"], event["device"], event["lkey"]), line, name == "mr_registered"
            )
        elif name == "mw_bound":
            self._made_or_gone(("bound", event["qp"]["device"], event["rkey"]), line, True)
        else:
            self._lines.pop(("bound", event["device"], event["rkey"]), None)
            self._made_or_gone(("mw", event["device"], event["rkey"]), line, name == "mw_allocated")

    def _made_or_gone(self, key: tuple[Any, ...], line: str, made: bool) -> None:
        if made:
            self._put(key, line)
        else:
            self._lines.pop(key, None)

    def _take_qp(self, name: str, event: dict[str, Any], line: str) -> None:
        place = (event["qp"]["device"], event["qp"]["qpn"])
        if name != "qp_modified":
            for key in self._qps.pop(place, ()):
                self._lines.pop(key, None)
        if name == "qp_destroyed":
            return
        keys = self._qps.setdefault(place, [])
        state = event.get("state")
        if state == _NO_STATE:
            for key in keys[1:]:
                self._lines.pop(key, None)
            del keys[1:]
        # The attributes of a state's last change stand for all: programs give the same ones each time.
        names = tuple(
            sorted(event.keys() - {"time_ns", "mono_ns", "clock", "host", "pid", "thread", "event"})
        )
        key = (name, *place, state, names)
        if key in keys:
            keys.remove(key)
        keys.append(key)
        self._put(key, line)
